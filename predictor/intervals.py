"""Distributions: 32 equal-mass points, the residuals that make a point a distribution, and rolling split-conformal calibration.

Both windows are Mondrian by history bucket, because errors depend on how often a program has run. A bucket with fewer than 50
residuals uses those of all buckets together. Everything is in natural log units.
"""

from collections import deque
from itertools import islice
from statistics import NormalDist
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from predictor.recurrence import BUCKETS

Array = NDArray[np.float64]

POINTS: Final = 32
LEVELS: Final[Array] = (np.arange(POINTS) + 0.5) / POINTS
"""The level of each equal-mass point."""
BUCKET_RESIDUALS_MIN: Final = 50
"""Residuals that a bucket needs before its own are used alone."""
POINT_WINDOW: Final = 40_000
"""Residuals kept per bucket for a point's distribution (the newest ended jobs)."""
CONFORMAL_WINDOW: Final = 500
"""Residuals kept per bucket for calibration: recent enough to follow the workload."""
NORMAL_POINTS: Final[Array] = np.array([NormalDist().inv_cdf(float(level)) for level in LEVELS])
"""Standard normal points: the assumed shape of an error of which only the scale is known."""


def quantile_of(points: Array, levels: Array) -> Array:
    """Quantiles of equal-mass points (last axis ascending) at ``levels``, linear between points, flat beyond them."""
    position = np.clip(levels * points.shape[-1] - 0.5, 0.0, points.shape[-1] - 1.0)
    low = np.floor(position).astype(int)
    high = np.minimum(low + 1, points.shape[-1] - 1)
    share = position - low
    return np.asarray(points[..., low] * (1.0 - share) + points[..., high] * share)


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


class _Window:
    """Residuals per bucket, counted when the window has grown by 2%.

    The moment of counting depends only on the residuals pushed, never on calls in between, so that a predictor restored after
    a restart answers the same.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._residuals: list[deque[Any]] = [deque() for _ in BUCKETS]
        self._fresh = [0] * len(BUCKETS)
        self._cache: dict[int, Array | None] = {}

    def _push(self, bucket: int, residual: Any) -> None:
        self._residuals[bucket].append(residual)
        self._fresh[bucket] += 1
        if self._fresh[bucket] * 50 >= len(self._residuals[bucket]):
            # Clears also the pooled quantiles and those of every bucket that still uses them.
            self._cache.clear()
            self._fresh = [0] * len(BUCKETS)
            for window in self._residuals:
                while len(window) > self._size:
                    window.popleft()

    def _pool(self, bucket: int) -> Array | None:
        values = self._counted(bucket)
        if len(values) < BUCKET_RESIDUALS_MIN:
            values = [residual for each in range(len(BUCKETS)) for residual in self._counted(each)]
        return np.array(values) if len(values) >= BUCKET_RESIDUALS_MIN else None

    def _counted(self, bucket: int) -> list[Any]:
        window = self._residuals[bucket]
        return list(islice(window, len(window) - self._fresh[bucket]))

    def __len__(self) -> int:
        return sum(len(window) for window in self._residuals)


class PointResiduals(_Window):
    """Residuals (label - point) of a point predictor; its distribution is the point plus these."""

    def __init__(self) -> None:
        super().__init__(POINT_WINDOW)

    def observe(self, bucket: int, residual: float) -> None:
        """A prediction was scored."""
        self._push(bucket, residual)

    def quantiles(self, bucket: int) -> Array | None:
        """The residuals' equal-mass points, shape (32,); None while fewer than 50 are known in all."""
        if bucket not in self._cache:
            pool = self._pool(bucket)
            self._cache[bucket] = None if pool is None else np.quantile(pool, LEVELS)
        return self._cache[bucket]


class ConformalCalibrator(_Window):
    """Rolling split-conformal correction of each point: shift it so that its level held on the newest residuals.

    For a predictor that gives one point 32 times, the shifts are its residual distribution.
    """

    def __init__(self) -> None:
        super().__init__(CONFORMAL_WINDOW)

    def observe(self, bucket: int, label: float, raw_points: Array) -> None:
        """A prediction was scored; ``raw_points`` are the model's own, before any shift."""
        # Rounded (0.01% of an estimate), so that a window which is stored and loaded again is equal.
        self._push(bucket, np.round(label - raw_points, 4))

    def calibrate(self, bucket: int, raw_points: Array) -> Array:
        """Shifted points, ascending (quantiles may cross: they are sorted). Unchanged while fewer than 50 are known."""
        if bucket not in self._cache:
            pool = self._pool(bucket)
            if pool is None:
                self._cache[bucket] = None
            else:
                position = np.minimum((LEVELS * (len(pool) + 1)).astype(int), len(pool) - 1)
                self._cache[bucket] = np.sort(pool, axis=0)[position, np.arange(POINTS)]
        shift = self._cache[bucket]
        return np.sort(raw_points if shift is None else raw_points + shift)

    def dump(self) -> dict[str, Any]:
        """The window as JSON: the residuals of each bucket, oldest first, and how many of the newest are not counted yet."""
        return {
            "residuals": [[residual.tolist() for residual in window] for window in self._residuals],
            "fresh": list(self._fresh),
        }

    @classmethod
    def load(cls, dumped: dict[str, Any]) -> "ConformalCalibrator":
        """The inverse of :meth:`dump`, equal in all later answers. Raises ValueError for anything else."""
        if not isinstance(dumped, dict) or dumped.keys() != {"residuals", "fresh"}:
            raise ValueError("calibration: must have the keys residuals and fresh")
        windows, fresh = dumped["residuals"], dumped["fresh"]
        if len(windows) != len(BUCKETS) or len(fresh) != len(BUCKETS):
            raise ValueError("calibration: wrong number of history buckets")
        calibrator = cls()
        for bucket, (window, count) in enumerate(zip(windows, fresh, strict=True)):
            if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= len(window):
                raise ValueError(f"calibration: fresh: must be from 0 to {len(window)} (got {count!r})")
            for residual in window:
                values = np.array(residual, dtype=np.float64)
                if values.shape != (POINTS,) or not np.isfinite(values).all():
                    raise ValueError(f"calibration: a residual must be {POINTS} finite numbers")
                calibrator._residuals[bucket].append(values)
            calibrator._fresh[bucket] = count
        return calibrator
