"""Keeps the coverage of served intervals while the workload drifts: online quantile tracking, after calibration.

Split-conformal calibration and the mix both look back on a window, so they react late where jobs change. Each end of the 80%
interval is therefore also tracked: a truth outside moves it out by 0.9 steps, one inside moves it in by 0.1, which is subgradient
descent on its pinball loss. For any sequence the share of truths beyond it tends to a tenth: over n jobs it is at most
(margin + step) / (step n) off, for margins that stay bounded (Gibbs, Candes, NeurIPS 2021; Angelopoulos, Candes, Tibshirani,
NeurIPS 2023). A label counts when its job ends. Everything is in natural log units, per history bucket.

The weakness of tracking is bursts: a hundred similar jobs that miss together move the ends of all others. So both distributions
are scored, and the tracked one serves a bucket only while its pinball loss is lower or the coverage is too low.
"""

from functools import cache
from statistics import NormalDist
from typing import Final, NamedTuple

import numpy as np

from predictor.evaluation import pinball
from predictor.intervals import NORMAL_POINTS, POINTS, Array, RollingSum
from predictor.recurrence import BUCKETS

TAIL: Final = 0.1
"""Share of truths that belong beyond each end: the central interval is the one of 80%."""
STEP: Final = 0.01
"""Log units: a miss moves an end by 0.9%, a hit by 0.1%."""
JOBS_MIN: Final = 50
"""Scored jobs of a bucket before the tracked distribution may serve."""
GAIN_UNIT: Final = 1e-12
"""The unit in which differences of losses are counted: far below any that matters."""
LOSSES_MAX: Final = 2_000
"""Scored jobs whose losses are compared, the newest, as in the choice of champions."""
COVERED_MAX: Final = 10_000
"""Scored jobs behind the coverage: as many as a restart reads back."""
COVERED_MIN: Final = 0.75
"""Below this coverage the tracked ends serve, whatever their loss."""
ROUNDING: Final = 1e-6
"""Log units: a total that was stored and read again is still inside an interval that it bounds."""

_END: Final = NormalDist().inv_cdf(1.0 - TAIL)
_HALF: Final = POINTS // 2
_SIZE: Final[Array] = np.abs(NORMAL_POINTS)
_REACH: Final[Array] = (_SIZE - _SIZE[_HALF]) / (_END - _SIZE[_HALF])
"""By how much each point moves with its end: as a normal quantile does, the end itself by 1, the two in the middle by 0."""


class Tracked(NamedTuple):
    """A distribution as it was chosen and with tracked ends, log points, and whether the latter serves."""

    plain: Array
    moved: Array
    moved_serves: bool

    @property
    def served(self) -> Array:
        """The one that serves."""
        return self.moved if self.moved_serves else self.plain


class IntervalTracker:
    """The tracked ends of one head: two margins per history bucket, and the losses and coverage of the newest jobs."""

    def __init__(self) -> None:
        self._below = [0.0] * len(BUCKETS)
        self._above = [0.0] * len(BUCKETS)
        self._gains = [RollingSum(LOSSES_MAX) for _ in BUCKETS]
        self._inside = [RollingSum(COVERED_MAX) for _ in BUCKETS]

    def margins(self, bucket: int) -> tuple[float, float]:
        """How far the lower end is moved down and the upper one up (negative: inwards)."""
        return self._below[bucket], self._above[bucket]

    def track(self, bucket: int, points: Array) -> Tracked:
        """The distribution ``points`` (32, ascending) with and without tracked ends. Its middle stays."""
        below, above = self.margins(bucket)
        low, high = points[:_HALF] - below * _REACH[:_HALF], points[_HALF:] + above * _REACH[_HALF:]
        if below < 0.0:
            low = np.sort(np.minimum(low, points[_HALF - 1]))
        if above < 0.0:
            high = np.sort(np.maximum(high, points[_HALF]))
        return Tracked(points, np.concatenate((low, high)), self.serves(bucket))

    def serves(self, bucket: int) -> bool:
        """Whether tracked ends serve this bucket now."""
        inside = self._inside[bucket]
        jobs = len(inside)
        return jobs >= JOBS_MIN and (self._gains[bucket].total > 0 or inside.total < COVERED_MIN * jobs)

    def observe(self, bucket: int, label: float, predicted: Tracked) -> None:
        """A job ended with this log label; ``predicted`` may have any number of points, because stored ones are thinned."""
        low, _, high = _ends(predicted.moved)
        plain_low, middle, plain_high = _ends(predicted.plain)
        # An end that has reached the middle cannot move further in; the margin must not grow beyond it.
        self._below[bucket] += _step(label < low - ROUNDING, -self._below[bucket] < middle - plain_low)
        self._above[bucket] += _step(label > high + ROUNDING, -self._above[bucket] < plain_high - middle)
        truth = np.array([label])
        gain = pinball(truth, predicted.plain[None, :]) - pinball(truth, predicted.moved[None, :])
        self._gains[bucket].push(round(gain / GAIN_UNIT))
        low, _, high = _ends(predicted.served)
        self._inside[bucket].push(int(low - ROUNDING <= label <= high + ROUNDING))


def _step(missed: bool, may_narrow: bool) -> float:
    if missed:
        return STEP * (1.0 - TAIL)
    return -STEP * TAIL if may_narrow else 0.0


@cache
def _normal(points: int) -> Array:
    normal = NormalDist()
    return np.array([normal.inv_cdf((i + 0.5) / points) for i in range(points)])


def _ends(points: Array) -> tuple[float, float, float]:
    """Lower end, middle and upper end, interpolated over normal quantiles because stored points are few and far apart: linear
    interpolation over levels would make the interval of 8 points one of 82%.
    """
    low, middle, high = np.interp((-_END, 0.0, _END), _normal(len(points)), points).tolist()
    return low, middle, high
