"""The service's clock: seconds since the Unix epoch that pass as seconds do, whoever sets the machine's clock.

Walltimes, pauses and progress are differences of times. A clock that somebody sets forward by an hour would end jobs whose hour
has not passed; one set back would make finished pauses start again. So time is counted by the kernel's clock since boot, which
nobody sets, and follows the machine's clock slowly: a second is at most :data:`SLEW` longer or shorter than a second.
"""

import logging
import threading
import time
from collections.abc import Callable

from service.runtime.processes import boot_time_s

logger = logging.getLogger(__name__)

SLEW = 0.05
"""How much faster or slower than real time it may run to catch up: an hour of difference is made good within a day."""

WORTH_A_WORD_S = 1.0
"""Clocks of several machines differ by less."""


class SteadyClock:
    """Implements :class:`service.engine.ports.Clock`. Never runs backwards; may be read from any thread."""

    def __init__(self, wall_s: Callable[[], float] = time.time, steady_s: Callable[[], float] = boot_time_s) -> None:
        self._wall_s = wall_s
        self._steady_s = steady_s
        self._lock = threading.Lock()
        self._now_s = wall_s()
        self._read_at_s = steady_s()

    def now_s(self) -> float:
        """Now."""
        with self._lock:
            read_at_s = self._steady_s()
            elapsed_s = max(0.0, read_at_s - self._read_at_s)
            self._read_at_s = read_at_s
            behind_s = self._wall_s() - (self._now_s + elapsed_s)
            most_s = SLEW * elapsed_s
            self._now_s += elapsed_s + min(max(behind_s, -most_s), most_s)
            return self._now_s

    def at_least(self, stored_s: float) -> None:
        """Do not run behind what was written down before: the machine's clock may have been set back while nobody served."""
        with self._lock:
            ahead_s = stored_s - self._now_s
            self._now_s = max(self._now_s, stored_s)
        if ahead_s > WORTH_A_WORD_S:
            logger.warning("this machine's clock is %.0f s behind what is stored; time goes on from there", ahead_s)
