"""Drift: is the predictor worse now than it was? A rolling mean of |log error| against a slow one."""

from collections import deque
from typing import Final

RECENT_JOBS: Final = 100
"""Ended jobs in the recent window."""
REFERENCE_JOBS: Final = 1_000
"""Ended jobs before them that say what is usual."""
JOBS_MIN: Final = 50
"""Jobs that both windows need before they say anything."""
RAISE_RATIO: Final = 1.5
CLEAR_RATIO: Final = 1.2
"""Hysteresis: raised above 1.5 times the usual error (and 0.1 more), cleared below 1.2 times."""
RAISE_GAIN_MIN: Final = 0.1


class DriftMonitor:
    """Feed it the |log error| of each scored prediction; read :attr:`alarm`."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque()
        self._reference: deque[float] = deque()
        self._recent_sum = self._reference_sum = 0.0
        self.alarm = False

    def observe(self, log_error: float) -> None:
        """A prediction was scored with log(actual / predicted) = ``log_error``. O(1)."""
        self._recent.append(abs(log_error))
        self._recent_sum += abs(log_error)
        if len(self._recent) > RECENT_JOBS:
            aged = self._recent.popleft()
            self._recent_sum -= aged
            # While the alarm stands, drifted errors must not become what is usual.
            if not self.alarm:
                self._age(aged)
        self._judge()

    def _age(self, error: float) -> None:
        self._reference.append(error)
        self._reference_sum += error
        if len(self._reference) > REFERENCE_JOBS:
            self._reference_sum -= self._reference.popleft()

    def _judge(self) -> None:
        if min(len(self._recent), len(self._reference)) < JOBS_MIN:
            return
        recent, usual = self.recent_mean, self._reference_sum / len(self._reference)
        if self.alarm:
            self.alarm = recent > CLEAR_RATIO * usual
        else:
            self.alarm = recent > RAISE_RATIO * usual and recent > usual + RAISE_GAIN_MIN

    @property
    def recent_mean(self) -> float:
        """Mean |log error| of the newest predictions; 0.0 before the first."""
        return self._recent_sum / len(self._recent) if self._recent else 0.0
