"""Seconds per iteration from progress reports.

A report is seen up to a poll late, and a cycle keeps the newest alone. So the speed is the median slope over all pairs of reports
(Theil 1950, Sen 1968): late reports and single pauses hardly move it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median, quantiles
from typing import Final

POINTS_MAX: Final = 200
"""Reports whose pairs are taken; of more, evenly spaced ones."""


@dataclass(frozen=True, slots=True)
class Point:
    """A progress report: when it was seen, iterations done, and seconds waited for input since the start (None: not reported)."""

    at_s: float
    iteration: float
    input_s: float | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds per iteration: the median, and the quartiles of the slopes. ``input_s``: of them, waited for input.

    ``iterations`` were measured in ``window_s`` seconds, warm-up excluded.
    """

    seconds: float
    low_s: float
    high_s: float
    iterations: float
    window_s: float
    input_s: float | None = None


def measured(points: Sequence[Point], start: float) -> Measured | None:
    """The speed from iteration ``start`` on; None with less than two reports of different iterations from there.

    ``points`` are those of one attempt, oldest first.
    """
    counted = [point for point in points if point.iteration >= start]
    if len(counted) > POINTS_MAX:
        step = (len(counted) - 1) / (POINTS_MAX - 1)
        counted = [counted[round(number * step)] for number in range(POINTS_MAX)]
    slopes = _slopes(counted, lambda point: point.at_s)
    if not slopes or median(slopes) <= 0.0:
        return None
    low_s, seconds, high_s = quantiles(slopes, n=4, method="inclusive") if len(slopes) > 1 else slopes * 3
    waited = [point for point in counted if point.input_s is not None]
    inputs = _slopes(waited, lambda point: point.input_s or 0.0) if len(waited) == len(counted) else []
    return Measured(
        seconds,
        low_s,
        high_s,
        counted[-1].iteration - counted[0].iteration,
        counted[-1].at_s - counted[0].at_s,
        min(seconds, max(0.0, median(inputs))) if inputs else None,
    )


def _slopes(points: Sequence[Point], amount: Callable[[Point], float]) -> list[float]:
    """The growth of an amount per iteration between all pairs of points."""
    return [
        (amount(later) - amount(earlier)) / (later.iteration - earlier.iteration)
        for earlier, later in combinations(points, 2)
        if later.iteration > earlier.iteration
    ]
