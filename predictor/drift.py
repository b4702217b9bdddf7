"""Drift detection: ADWIN on the predictor's |log error|, with hysteresis.

ADWIN (Bifet, Gavaldà, SDM 2007) is a window over a stream that drops the values before a change of the mean: it is cut wherever
the means of both sides differ by more than chance allows. It assumes independent values, but errors are correlated: forty runs of
a program that has just changed are all wrong by the same. So the mean error of one user's jobs that ended within an hour is one
observation.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

import numpy as np

from predictor.intervals import Array

WINDOW_MAX: Final = 4_096
"""The newest values that a window holds at most."""
CHECK_EVERY: Final = 32
"""Values between two checks for a change: a check costs a pass over the window."""
SIDE_MIN: Final = 5
"""Values that both sides of a cut hold at least."""
FALSE_CUT: Final = 0.002
"""The probability of a false cut at each check."""

RAISE_RATIO: Final = 1.25
"""The alarm is raised where the error after a change is 1.25 times the one before, and 0.05 more: smaller rises are harmless."""
CLEAR_RATIO: Final = 1.1
"""Hysteresis: the alarm is cleared where the error is below 1.1 times the one before it."""
RAISE_GAIN_MIN: Final = 0.05
BURST_S: Final = 3_600.0
"""One user's jobs that end within this time are one observation."""
ERROR_MAX: Final = math.log(100.0)
"""Larger errors are clipped: ADWIN needs bounded values, and one extreme job is no drift."""
RECENT_WEIGHT: Final = 0.02
"""Weight of the newest error in the displayed recent mean: about the last 50 jobs."""


class Adwin:
    """An adaptive window over values of a bounded range."""

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=WINDOW_MAX)
        self._seen = 0
        self._total = 0.0

    @property
    def width(self) -> int:
        """Values in the window."""
        return len(self._values)

    @property
    def mean(self) -> float:
        """Mean of the window; 0.0 before the first value."""
        return self._total / self.width if self._values else 0.0

    def update(self, value: float) -> bool:
        """One more value. True where older ones were dropped because the mean has changed. O(window) at a check."""
        if self.width == WINDOW_MAX:
            self._total -= self._values[0]
        self._values.append(value)
        self._total += value
        self._seen += 1
        return self._seen % CHECK_EVERY == 0 and self._shrink()

    def _shrink(self) -> bool:
        """Drop the oldest values as long as some cut shows two means. The recent side is never dropped."""
        values, start = np.array(self._values), 0
        while _changed(values[start:]):
            start += SIDE_MIN
        for _ in range(start):
            self._values.popleft()
        self._total = math.fsum(self._values)
        return start > 0


def _changed(values: Array) -> bool:
    """Whether the means before and after some cut differ by more than chance allows."""
    size = len(values)
    old = np.arange(SIDE_MIN, size - SIDE_MIN + 1)
    if not len(old):
        return False
    totals, confidence = np.cumsum(values), math.log(2.0 * math.log(size) / FALSE_CUT)
    before = totals[old - 1]
    # One over the harmonic mean of both sizes, each less what the minimum takes.
    inverse = 1.0 / (old - SIDE_MIN + 1) + 1.0 / (size - old - SIDE_MIN + 1)
    bound = np.sqrt(2.0 * inverse * values.var() * confidence) + 2.0 / 3.0 * inverse * confidence
    return bool((np.abs(before / old - (totals[-1] - before) / (size - old)) > bound).any())


@dataclass(slots=True)
class _Burst:
    began_s: float
    total: float = 0.0
    jobs: int = 0


class DriftMonitor:
    """Observes the log error of each scored prediction; :attr:`alarm` is set while the predictor is worse than before."""

    def __init__(self) -> None:
        self._window = Adwin()
        self._bursts: OrderedDict[Hashable, _Burst] = OrderedDict()
        self._reference: float | None = None
        self._recent: float | None = None
        self.alarm = False

    def observe(self, log_error: float, at_s: float, group: Hashable | None = None) -> None:
        """A prediction was scored at ``at_s`` with log(actual / predicted) = ``log_error``. Amortised O(log jobs).

        ``group`` is shared by jobs with correlated errors; None: this job has none.
        """
        error = min(abs(log_error), ERROR_MAX)
        self._recent = error if self._recent is None else self._recent + RECENT_WEIGHT * (error - self._recent)
        while self._bursts and (oldest := next(iter(self._bursts.values()))).began_s <= at_s - BURST_S:
            self._bursts.popitem(last=False)
            self._count(oldest.total / oldest.jobs)
        if group is None:
            self._count(error)
            return
        burst = self._bursts.setdefault(group, _Burst(at_s))
        burst.total += error
        burst.jobs += 1

    def _count(self, error: float) -> None:
        before = self._window.mean
        cut = self._window.update(error)
        if self.alarm:
            if self._reference is not None and self._window.mean <= CLEAR_RATIO * self._reference:
                self.alarm, self._reference = False, None
        elif cut:
            self._judge(before)

    def _judge(self, before: float) -> None:
        """The mean has changed. A rise in many small steps is compared with the mean before the first."""
        now = self._window.mean
        if now <= before:
            self._reference = None
            return
        self._reference = before if self._reference is None else min(self._reference, before)
        if now > RAISE_RATIO * self._reference and now > self._reference + RAISE_GAIN_MIN:
            self.alarm = True

    @property
    def recent_mean(self) -> float:
        """Mean |log error| of the newest predictions, at most ln 100 each; 0.0 before the first."""
        return self._recent if self._recent is not None else 0.0
