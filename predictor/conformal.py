"""Keeps the coverage of what is served: adaptive conformal inference on the spread of the distribution.

Both halves of a distribution are stretched around its middle by a factor of their own per history bucket. When a job ends,
a truth beyond the end of the 80% interval widens its half, any other narrows it: factor = exp(theta), theta += step (miss -
0.1). For any sequence the share of truths beyond an end tends to a tenth: over n jobs it is at most (range of theta + step) /
(step n) off (Gibbs, Candes, NeurIPS 2021), as long as theta stays inside its limits. So every job counts alike, also those of
one burst: were the later jobs of a burst to count less, the share would be a tenth of the weights, not of the jobs.

One small step is used: a larger one costs loss (docs/measurements/prediction.md), and several, weighted by their losses
(Gibbs, Candes, JMLR 2024; Zaffran and others, ICML 2022), were no better on the open traces.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from predictor.aggregation import LEARNT, Censored
from predictor.intervals import MIDDLE, Array
from predictor.recurrence import BUCKETS

TAIL: Final = 0.1
"""Share of truths that belong beyond each end: the central interval is the one of 80%."""
STEP: Final = 0.002
"""A miss widens a half by 0.18%, a hit narrows it by 0.02%."""
LIMIT: Final = 1.5
"""The largest |theta|: a factor of 4.5 either way."""
ROUNDING: Final = 1e-6
"""Log units: a total that was stored and read again is still inside an interval that it bounds."""

_LOW, _HALF, _HIGH = (LEARNT.tolist().index(level) for level in (TAIL, 0.5, 1.0 - TAIL))


class SpreadCalibration:
    """The factors of one head."""

    def __init__(self) -> None:
        self._theta = np.zeros((len(BUCKETS), 2))
        self._expected = np.zeros((len(BUCKETS), 2))

    def factors(self, bucket: int) -> Array:
        """By how much the lower and the upper half of a bucket's distributions are stretched."""
        return np.asarray(np.exp(np.clip(self._theta[bucket] + self._expected[bucket], -LIMIT, LIMIT)))

    def expect(self, jobs: Sequence[Censored]) -> None:
        """Count these unfinished jobs, instead of those of the last call, by the probabilities that their totals are beyond
        either end, given that they are above what the jobs have attained.
        """
        expected = [[0.0, 0.0] for _ in BUCKETS]
        for job in jobs:
            exceeded = job.exceeded
            left = 1.0 - exceeded
            for end, missed in enumerate((max(0.0, TAIL - exceeded), min(TAIL, left))):
                expected[job.bucket][end] += STEP * (missed / left - TAIL)
        self._expected = np.array(expected)

    def calibrate(self, bucket: int, quantiles: Array) -> Array:
        """The distributions (..., 25), stretched. The middle stays, and the order."""
        below, above = self.factors(bucket)
        middle = quantiles[..., MIDDLE : MIDDLE + 1]
        away = quantiles - middle
        return np.asarray(middle + np.where(away < 0.0, below, above) * away)

    def observe(self, bucket: int, label: float, combined: Array) -> bool:
        """A job ended with this log ``label``; ``combined`` (9) is what had been predicted, not stretched, at the learnt levels.
        Returns whether the truth was inside the 80% interval.
        """
        # By the labels alone: a restart, which does not know the jobs that were unfinished then, makes the same again.
        below, above = np.exp(self._theta[bucket])
        low, middle, high = combined[_LOW], combined[_HALF], combined[_HIGH]
        missed = np.array(
            [label < middle - below * (middle - low) - ROUNDING, label > middle + above * (high - middle) + ROUNDING]
        )
        self._theta[bucket] = np.clip(self._theta[bucket] + STEP * (missed - TAIL), -LIMIT, LIMIT)
        return not missed.any()

    def dump(self) -> list[list[float]]:
        """The state as JSON."""
        found: list[list[float]] = self._theta.tolist()
        return found

    @classmethod
    def load(cls, dumped: Any) -> "SpreadCalibration":
        """The inverse of :meth:`dump`. Raises ValueError for anything else."""
        theta = np.array(dumped, dtype=float)
        found = cls()
        if theta.shape != found._theta.shape or not (np.abs(theta) <= LIMIT).all():
            raise ValueError(f"calibration: must be {len(BUCKETS)} pairs of numbers from {-LIMIT} to {LIMIT}")
        found._theta = theta
        return found
