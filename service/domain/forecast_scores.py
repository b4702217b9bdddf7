"""Scores of forecasts: of a single one, and of many by horizon and gang size.

Pinball loss is the proper score of a quantile (Koenker and Bassett): its mean is least for the true quantile, so neither a
wider nor a shifted interval improves it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from statistics import median
from typing import NamedTuple

LEVELS = (0.1, 0.5, 0.9)
"""The quantiles of a forecast."""

HORIZONS_S = (60.0, 600.0, 3600.0, 6 * 3600.0, 86_400.0)
"""Limits between classes of horizons. The horizon is the forecast p50 minus the time of the forecast. With the actual value
all late jobs would be in the long classes."""


class Milestone(StrEnum):
    """The event that a forecast predicts."""

    START = "start"
    """The job's next start."""
    FINISH = "finish"


class Score(NamedTuple):
    """One forecast compared with the actual time, in seconds. ``error_s`` = p50 - actual; above 0 the forecast was too late."""

    error_s: float
    inside: bool
    pinball_s: float


def score(quantiles: Sequence[float], actual_s: float) -> Score:
    """The score of three quantiles (p10, p50, p90). ``inside`` includes both ends of the interval."""
    losses = [
        max(level * (actual_s - quantile), (level - 1.0) * (actual_s - quantile))
        for level, quantile in zip(LEVELS, quantiles, strict=True)
    ]
    low, middle, high = quantiles
    return Score(middle - actual_s, low <= actual_s <= high, sum(losses) / len(losses))


@dataclass(frozen=True, slots=True)
class Scored:
    """A scored forecast. ``horizon_s`` is p50 minus the time of the forecast, ``width_s`` is p90 minus p10."""

    milestone: Milestone
    job: int
    horizon_s: float
    gpus: int
    score: Score
    width_s: float


@dataclass(frozen=True, slots=True)
class Tally:
    """Scores of a class of forecasts: ``low`` <= horizon (seconds) or GPUs < ``high``; None = no limit on that side.

    ``coverage_80`` is the share inside the 80 % interval: 0.8 is ideal, more means too wide. ``median_error_s`` is signed.
    ``median_relative_error`` is the absolute error over the horizon. ``mean_width_s`` is that of the 80 % interval.
    """

    low: float | None
    high: float | None
    forecasts: int
    jobs: int
    coverage_80: float
    median_error_s: float
    median_absolute_error_s: float
    median_relative_error: float | None
    mean_pinball_s: float
    mean_width_s: float


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The accuracy of one milestone: overall, by horizon and by gang size. Classes without a forecast are left out."""

    all: Tally | None
    by_horizon: Sequence[Tally]
    by_gpus: Sequence[Tally]


def accuracy(scored: Iterable[Scored]) -> Mapping[Milestone, Accuracy]:
    """The accuracy of both milestones. O(forecasts log forecasts)."""
    of: dict[Milestone, list[Scored]] = {milestone: [] for milestone in Milestone}
    for each in scored:
        of[each.milestone].append(each)
    return {
        milestone: Accuracy(
            _tally(found, None, None) if found else None,
            _classes(found, [each.horizon_s for each in found], (None, *HORIZONS_S, None)),
            _classes(found, [float(each.gpus) for each in found], _gang_classes(found)),
        )
        for milestone, found in of.items()
    }


def _gang_classes(found: Sequence[Scored]) -> Sequence[float | None]:
    """Lower limits of the classes 1, 2, 3-4, 5-8, ...: a class ends with a power of two."""
    edges: list[float | None] = [1.0, 2.0]
    most = max((each.gpus for each in found), default=1)
    power = 2
    while power < most:
        edges.append(power + 1.0)
        power *= 2
    return [*edges, power + 1.0]


def _classes(found: Sequence[Scored], values: Sequence[float], edges: Sequence[float | None]) -> list[Tally]:
    tallies = []
    for low, high in pairwise(edges):
        members = [
            each
            for each, value in zip(found, values, strict=True)
            if (low is None or value >= low) and (high is None or value < high)
        ]
        if members:
            tallies.append(_tally(members, low, high))
    return tallies


def _tally(members: Sequence[Scored], low: float | None, high: float | None) -> Tally:
    scores = [each.score for each in members]
    relative = [abs(each.score.error_s) / each.horizon_s for each in members if each.horizon_s > 0.0]
    return Tally(
        low=low,
        high=high,
        forecasts=len(members),
        jobs=len({each.job for each in members}),
        coverage_80=sum(each.inside for each in scores) / len(scores),
        median_error_s=median(each.error_s for each in scores),
        median_absolute_error_s=median(abs(each.error_s) for each in scores),
        median_relative_error=median(relative) if relative else None,
        mean_pinball_s=sum(each.pinball_s for each in scores) / len(scores),
        mean_width_s=sum(each.width_s for each in members) / len(members),
    )
