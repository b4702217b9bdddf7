"""The experts whose predictions are aggregated: what gives quantiles of a job's total.

The **baselines** (:mod:`predictor.baselines`) are points with the distribution of their own past errors. The **empirical**
experts are distributions of past totals as they are, so they know the tail of a program that now and then runs much longer.
The **models** are those that a training leaves (:mod:`predictor.training`), by their kinds.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from predictor.aggregation import FIRST_RUNS
from predictor.baselines import NAMES as BASELINE_NAMES
from predictor.baselines import Keys
from predictor.history import HistoryStore, Quantiles
from predictor.intervals import LEVELS, NORMAL_QUANTILES, Array, PointResiduals, as_labels
from predictor.recurrence import Level

PRIOR_SPREAD: Final = 0.7
"""Standard deviation of a baseline's log error while fewer than 50 of its errors are known: half of the jobs within 1.6x."""
USER_PROGRAMS_MIN: Final = 5
"""Programs of a user whose first runs make a distribution; with fewer the wider one of the cluster is used."""

EMPIRICAL: Final = ("recent_jobs", "same_request", "past_runs", FIRST_RUNS)
"""The newest 50 jobs of the cluster; jobs with the same model or request; runs of the program; first runs of the user's programs,
else of all programs, for a new program.
"""
BASIC: Final = (*BASELINE_NAMES, *EMPIRICAL)
"""The experts that need no training, the recurrence median first."""
FIRST: Final = BASIC[0]
"""The recurrence median: the expert that serves before anything is known of the others."""

_ASLEEP: Final[Array] = np.full(len(LEVELS), math.nan)


def empirical(history: HistoryStore, keys: Keys) -> tuple[Quantiles | None, ...]:
    """The log quantiles of each empirical expert, in the order of :data:`EMPIRICAL`; None where it has too few jobs."""
    runs = history.group(Level.RECURRENCE_GPUS, keys[Level.RECURRENCE_GPUS])
    if runs is None or runs.quantiles is None:
        runs = history.group(Level.RECURRENCE, keys[Level.RECURRENCE])
    request = history.group(Level.MODEL, keys[Level.MODEL])
    first = None
    if runs is None:
        own = history.first_runs_of(keys[Level.USER])
        first = own.quantiles if own is not None and own.count >= USER_PROGRAMS_MIN else history.first_runs.quantiles
    return (
        history.cluster.quantiles,
        None if request is None else request.quantiles,
        None if runs is None else runs.quantiles,
        first,
    )


class BaselineScores:
    """The rolling residuals of every baseline, which turn its points into distributions."""

    def __init__(self) -> None:
        self._residuals = tuple(PointResiduals() for _ in BASELINE_NAMES)

    def observe(self, bucket: int, baselines: Sequence[float], label: float) -> None:
        """A job ended with this log label; ``baselines`` are the log points at its submission (NaN: unknown)."""
        for residuals, point in zip(self._residuals, baselines, strict=True):
            if point == point:
                residuals.observe(bucket, label - point)

    def quantiles(self, index: int, bucket: int, point: float) -> Array:
        """The distribution of a baseline's ``point``: with its residuals, or a log-normal prior while there are few."""
        shape = self._residuals[index].quantiles(bucket)
        return point + (NORMAL_QUANTILES * PRIOR_SPREAD if shape is None else shape)

    def basic(self, bucket: int, baselines: Sequence[float], of_the_past: Sequence[Quantiles | None]) -> Array:
        """The quantiles (12, 25) of the experts :data:`BASIC` for a job; NaN where one has no answer."""
        points = [self.quantiles(index, bucket, point) for index, point in enumerate(baselines)]
        return as_labels(np.array([*points, *(_ASLEEP if each is None else each for each in of_the_past)]))
