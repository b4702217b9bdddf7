"""Calibration of predictions: how often the actual total was at most each quantile."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

LEVELS: Final = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


@dataclass(frozen=True, slots=True)
class Coverage:
    """Of all jobs, the share ``observed`` ended with a total of at most the quantile ``level``. Calibrated: both are equal."""

    level: float
    observed: float


def coverages(predicted: Sequence[tuple[Sequence[float], float]]) -> list[Coverage]:
    """The coverage of each of :data:`LEVELS`; empty without predictions.

    ``predicted``: the quantiles of a job's total at these levels, and the total.
    """
    count = len(predicted)
    if not count:
        return []
    return [
        Coverage(level, sum(actual <= quantiles[place] for quantiles, actual in predicted) / count)
        for place, level in enumerate(LEVELS)
    ]
