"""Drift: is the predictor worse now than it was? ADWIN on |log error|, with hysteresis."""

import math
from typing import Final

from predictor.adwin import Adwin

RAISE_RATIO: Final = 1.25
"""Raised where the error after a change is 1.25 times what it was before, and 0.05 more: a smaller rise is real, and harmless."""
CLEAR_RATIO: Final = 1.1
"""Hysteresis: cleared where it is below 1.1 times what it was before the alarm."""
RAISE_GAIN_MIN: Final = 0.05
ERROR_MAX: Final = math.log(100.0)
"""A larger error counts as this: ADWIN speaks of bounded values, and one absurd job is no drift."""
RECENT_WEIGHT: Final = 0.02
"""Weight of the newest error in the recent mean that people are shown: about the last 50 jobs."""


class DriftMonitor:
    """Feed it the log error of each scored prediction; read :attr:`alarm` and since when it stands."""

    def __init__(self) -> None:
        self._window = Adwin()
        self._usual: float | None = None
        self._recent: float | None = None
        self.alarm = False
        self.since_s: float | None = None
        """When the alarm was raised, in seconds of the jobs' ends; None without one."""

    def observe(self, log_error: float, at_s: float) -> None:
        """A prediction was scored at ``at_s`` with log(actual / predicted) = ``log_error``. Amortised O(log jobs)."""
        error = min(abs(log_error), ERROR_MAX)
        self._recent = error if self._recent is None else self._recent + RECENT_WEIGHT * (error - self._recent)
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
