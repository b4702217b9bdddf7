"""Distributions: quantiles at fixed levels, the residuals that make a point a distribution, and the points of an estimate.

Everything is in natural log units until :func:`estimate_points`. Residuals are kept by history bucket, because errors depend on
how often a program has run. A bucket with fewer than 50 residuals uses those of all buckets together.
"""

import math
from collections import deque
from collections.abc import Sequence
from functools import cache
from itertools import islice
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

from predictor.recurrence import BUCKETS
from predictor.rows import UNITS_MAX, UNITS_MIN

Array = NDArray[np.float64]

LEVELS: Final[Array] = np.array(
    [
        *(0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4),
        *(0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.925, 0.95, 0.965, 0.98, 0.99, 0.995),
    ]
)
"""The levels of every distribution inside the predictor: dense in the tails, where a job runs much longer than it ever did."""
MIDDLE: Final = LEVELS.tolist().index(0.5)
POINTS: Final = 32
"""Equal-mass points of an estimate, which policies read."""
POINT_LEVELS: Final[Array] = (np.arange(POINTS) + 0.5) / POINTS
"""The level in the middle of each point's share of the mass."""
BUCKET_RESIDUALS_MIN: Final = 50
"""Residuals that a bucket needs before its own are used alone."""
POINT_WINDOW: Final = 40_000
"""Residuals kept per bucket for a point's distribution (the newest ended jobs)."""

_LOG_MIN: Final = math.log(UNITS_MIN)
_LOG_MAX: Final = math.log(UNITS_MAX)
_NORMAL: Final = NormalDist()
_SLICES: Final = 8
"""Places within each point's share of the mass at which its mean is taken."""


def probits(levels: Sequence[float] | Array) -> Array:
    """Standard normal quantiles of levels."""
    return np.array([_NORMAL.inv_cdf(float(level)) for level in levels])


NORMAL_QUANTILES: Final[Array] = probits(LEVELS)
"""Standard normal quantiles: the assumed shape of an error of which only the scale is known."""


@cache
def _from_levels(levels: tuple[float, ...]) -> Array:
    return interpolation(LEVELS, np.array(levels))


def interpolation(from_levels: Array, to_levels: Array) -> Array:
    """The matrix (from, to) by which quantiles at one set of levels become quantiles at another: linear in the normal quantile
    of the level, flat beyond the outermost.
    """
    have, want = probits(from_levels), probits(to_levels)
    return np.stack([np.interp(want, have, unit) for unit in np.eye(len(have))])


_FINE: Final[Array] = interpolation(LEVELS, (np.arange(POINTS * _SLICES) + 0.5) / (POINTS * _SLICES))


def as_labels(log_totals: Array) -> Array:
    """Limited to what the label of a job can be, one unit to :data:`predictor.rows.UNITS_MAX`. NaN stays."""
    return np.asarray(np.clip(log_totals, _LOG_MIN, _LOG_MAX))


def quantile_of(points: Array, levels: Array) -> Array:
    """Quantiles of equal-mass points (last axis ascending) at ``levels``, linear between points, flat beyond them."""
    position = np.clip(levels * points.shape[-1] - 0.5, 0.0, points.shape[-1] - 1.0)
    low = np.floor(position).astype(int)
    high = np.minimum(low + 1, points.shape[-1] - 1)
    share = position - low
    return np.asarray(points[..., low] * (1.0 - share) + points[..., high] * share)


def times(quantiles: Array, matrix: Array) -> Array:
    """The product, with each row's sums in the same order however many rows there are: a batch answers as its jobs one by one."""
    found = np.zeros((*quantiles.shape[:-1], matrix.shape[1]))
    for position, row in enumerate(matrix):
        found += quantiles[..., position, None] * row
    return found


def at_levels(quantiles: Array, levels: Array) -> Array:
    """Quantiles (..., 25) at other ``levels``: exact where a level is one of :data:`LEVELS`."""
    return times(quantiles, _from_levels(tuple(levels.tolist())))


def estimate_points(quantiles: Array) -> Array:
    """The log of :data:`POINTS` equal-mass points (..., 32) of distributions (..., 25): each is the mean *total* of its share of
    the mass, so that the mean of the points is the distribution's, with the part of its tail beyond the outermost shares.
    """
    totals = np.exp(times(quantiles, _FINE))
    return np.asarray(np.log(totals.reshape(*totals.shape[:-1], POINTS, _SLICES).mean(axis=-1)))


def mixture(first: Array, second: Array, weight: float) -> Array:
    """Equal-mass points of (1 - weight) first + weight second: a whole number of points of each, by its share."""
    from_second = round(weight * POINTS)
    take = np.concatenate(
        [
            quantile_of(part, (np.arange(count) + 0.5) / count)
            for part, count in ((first, POINTS - from_second), (second, from_second))
            if count
        ]
    )
    return np.sort(take)


class RollingSum:
    """The newest values and their sum. Whole numbers: after a restart the sum must not depend on values that have left."""

    def __init__(self, size: int) -> None:
        self._values: deque[int] = deque(maxlen=size)
        self.total = 0

    def __len__(self) -> int:
        return len(self._values)

    def push(self, value: int) -> None:
        """Add one; the oldest leaves when there are too many. O(1)."""
        if len(self._values) == self._values.maxlen:
            self.total -= self._values[0]
        self._values.append(value)
        self.total += value


class PointResiduals:
    """Residuals (label - point) of a point predictor; its distribution is the point plus these.

    They are counted when the window has grown by 2%: the moment depends only on the residuals observed, never on calls in
    between, so that a predictor restored after a restart answers the same.
    """

    def __init__(self) -> None:
        self._residuals: list[deque[float]] = [deque() for _ in BUCKETS]
        self._fresh = [0] * len(BUCKETS)
        self._cache: dict[int, Array | None] = {}

    def observe(self, bucket: int, residual: float) -> None:
        """A prediction was scored."""
        self._residuals[bucket].append(residual)
        self._fresh[bucket] += 1
        if self._fresh[bucket] * 50 >= len(self._residuals[bucket]):
            # Clears also the pooled quantiles and those of every bucket that still uses them.
            self._cache.clear()
            self._fresh = [0] * len(BUCKETS)
            for window in self._residuals:
                while len(window) > POINT_WINDOW:
                    window.popleft()

    def quantiles(self, bucket: int) -> Array | None:
        """The residuals' quantiles at :data:`LEVELS`; None while fewer than 50 are known in all."""
        if bucket not in self._cache:
            values = self._counted(bucket)
            if len(values) < BUCKET_RESIDUALS_MIN:
                values = [residual for each in range(len(BUCKETS)) for residual in self._counted(each)]
            self._cache[bucket] = np.quantile(values, LEVELS) if len(values) >= BUCKET_RESIDUALS_MIN else None
        return self._cache[bucket]

    def _counted(self, bucket: int) -> list[float]:
        window = self._residuals[bucket]
        return list(islice(window, len(window) - self._fresh[bucket]))
