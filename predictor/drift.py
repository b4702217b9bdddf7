"""Drift: is the predictor worse now than it was? ADWIN on |log error|, with hysteresis.

ADWIN's promise is about independent values, and jobs are not: somebody submits forty runs of a program that has just changed, and
all are wrong by the same. So what counts is the mean error of one user's jobs that ended within an hour.
"""

import math
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

from predictor.adwin import Adwin

RAISE_RATIO: Final = 1.25
"""Raised where the error after a change is 1.25 times what it was before, and 0.05 more: a smaller rise is real, and harmless."""
CLEAR_RATIO: Final = 1.1
"""Hysteresis: cleared where it is below 1.1 times what it was before the alarm."""
RAISE_GAIN_MIN: Final = 0.05
BURST_S: Final = 3_600.0
"""One user's jobs that end within this time are one observation."""
ERROR_MAX: Final = math.log(100.0)
"""A larger error counts as this: ADWIN speaks of bounded values, and one absurd job is no drift."""
RECENT_WEIGHT: Final = 0.02
"""Weight of the newest error in the recent mean that people are shown: about the last 50 jobs."""


@dataclass(slots=True)
class _Burst:
    began_s: float
    total: float = 0.0
    jobs: int = 0


class DriftMonitor:
    """Feed it the log error of each scored prediction; read :attr:`alarm` and since when it stands."""

    def __init__(self) -> None:
        self._window = Adwin()
        self._bursts: OrderedDict[Hashable, _Burst] = OrderedDict()
        self._usual: float | None = None
        self._recent: float | None = None
        self.alarm = False
        self.since_s: float | None = None
        """When the alarm was raised, in seconds of the jobs' ends; None without one."""

    def observe(self, log_error: float, at_s: float, whose: Hashable | None = None) -> None:
        """A prediction was scored at ``at_s`` with log(actual / predicted) = ``log_error``. Amortised O(log jobs).

        ``whose`` says which jobs are likely to err alike; None: this one errs alone.
        """
        error = min(abs(log_error), ERROR_MAX)
        self._recent = error if self._recent is None else self._recent + RECENT_WEIGHT * (error - self._recent)
        while self._bursts and (oldest := next(iter(self._bursts.values()))).began_s <= at_s - BURST_S:
            self._bursts.popitem(last=False)
            self._count(oldest.total / oldest.jobs, at_s)
        if whose is None:
            self._count(error, at_s)
            return
        burst = self._bursts.setdefault(whose, _Burst(at_s))
        burst.total += error
        burst.jobs += 1

    def _count(self, error: float, at_s: float) -> None:
        before = self._window.mean
        cut = self._window.update(error)
        if self.alarm:
            if self._usual is not None and self._window.mean <= CLEAR_RATIO * self._usual:
                self.alarm, self.since_s, self._usual = False, None, None
        elif cut:
            self._judge(before, at_s)

    def _judge(self, before: float, at_s: float) -> None:
        """The mean has changed. A rise in many small steps is measured from its foot."""
        now = self._window.mean
        if now <= before:
            self._usual = None
            return
        self._usual = before if self._usual is None else min(self._usual, before)
        if now > RAISE_RATIO * self._usual and now > self._usual + RAISE_GAIN_MIN:
            self.alarm, self.since_s = True, at_s

    @property
    def recent_mean(self) -> float:
        """Mean |log error| of the newest predictions, at most ln 100 each; 0.0 before the first."""
        return self._recent if self._recent is not None else 0.0
