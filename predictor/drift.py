"""Drift detection: ADWIN on the predictor's |log error|, with hysteresis.

ADWIN assumes independent values, but errors are correlated: forty runs of a program that has just changed are all wrong by the
same. So the mean error of one user's jobs that ended within an hour is one observation.
"""

import math
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

from predictor.adwin import Adwin

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
        self.since_s: float | None = None
        """When the alarm was raised, in seconds of the jobs' ends; None without one."""

    def observe(self, log_error: float, at_s: float, group: Hashable | None = None) -> None:
        """A prediction was scored at ``at_s`` with log(actual / predicted) = ``log_error``. Amortised O(log jobs).

        ``group`` is shared by jobs with correlated errors; None: this job has none.
        """
        error = min(abs(log_error), ERROR_MAX)
        self._recent = error if self._recent is None else self._recent + RECENT_WEIGHT * (error - self._recent)
        while self._bursts and (oldest := next(iter(self._bursts.values()))).began_s <= at_s - BURST_S:
            self._bursts.popitem(last=False)
            self._count(oldest.total / oldest.jobs, at_s)
        if group is None:
            self._count(error, at_s)
            return
        burst = self._bursts.setdefault(group, _Burst(at_s))
        burst.total += error
        burst.jobs += 1

    def _count(self, error: float, at_s: float) -> None:
        before = self._window.mean
        cut = self._window.update(error)
        if self.alarm:
            if self._reference is not None and self._window.mean <= CLEAR_RATIO * self._reference:
                self.alarm, self.since_s, self._reference = False, None, None
        elif cut:
            self._judge(before, at_s)

    def _judge(self, before: float, at_s: float) -> None:
        """The mean has changed. A rise in many small steps is compared with the mean before the first."""
        now = self._window.mean
        if now <= before:
            self._reference = None
            return
        self._reference = before if self._reference is None else min(self._reference, before)
        if now > RAISE_RATIO * self._reference and now > self._reference + RAISE_GAIN_MIN:
            self.alarm, self.since_s = True, at_s

    @property
    def recent_mean(self) -> float:
        """Mean |log error| of the newest predictions, at most ln 100 each; 0.0 before the first."""
        return self._recent if self._recent is not None else 0.0
