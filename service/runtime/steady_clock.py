"""The service's clock: seconds since the Unix epoch, unaffected by jumps of the machine's clock.

Walltimes, pauses and progress are differences of times. If the machine's clock is set forward by an hour, jobs would end an hour
early; if it is set back, finished pauses would start again. So this clock counts time by the kernel's clock since boot, which
cannot be set. It follows the machine's clock slowly: its rate differs from real time by at most :data:`SLEW`.
"""

import logging
import threading
import time
from collections.abc import Callable

from service.runtime.processes import boot_time_s

logger = logging.getLogger(__name__)

SLEW = 0.05
"""Largest deviation of the clock's rate from real time, as a ratio. A difference of an hour disappears within a day."""

LOGGED_S_MIN = 1.0
"""Differences up to this are not logged. Clocks of several machines differ by less."""


class SteadyClock:
    """Implements :class:`service.engine.ports.Clock`. Never runs backwards; any thread may read it."""

    def __init__(self, wall_s: Callable[[], float] = time.time, steady_s: Callable[[], float] = boot_time_s) -> None:
        self._wall_s = wall_s
        self._steady_s = steady_s
        self._lock = threading.Lock()
        self._now_s = wall_s()
        self._read_at_s = steady_s()

    def now_s(self) -> float:
        """Seconds since the Unix epoch."""
        with self._lock:
            read_at_s = self._steady_s()
            elapsed_s = max(0.0, read_at_s - self._read_at_s)
            self._read_at_s = read_at_s
            behind_s = self._wall_s() - (self._now_s + elapsed_s)
            most_s = SLEW * elapsed_s
            self._now_s += elapsed_s + min(max(behind_s, -most_s), most_s)
            return self._now_s

    def at_least(self, stored_s: float) -> None:
        """Continue from the stored time if it is later. The machine's clock may have been set back while the service was down."""
        with self._lock:
            ahead_s = stored_s - self._now_s
            self._now_s = max(self._now_s, stored_s)
        if ahead_s > LOGGED_S_MIN:
            logger.warning(
                "the machine's clock is %.0f s behind what is stored; the service's clock continues from the stored time",
                ahead_s,
            )
