"""Whether the service is ready, so that the probe waits neither for threads nor for the database."""

import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from anyio import CapacityLimiter, move_on_after, to_thread

from service.api.problems import unavailable
from service.wire.cluster import ReadinessDocument

WAIT_S: Final = 0.2
"""Longest wait of a probe for a new reading. It then gets the last one."""

KEPT_S: Final = 15.0
"""Age up to which a reading is given. An older one means that the database does not answer."""

PERIOD_S: Final = 3.0
"""Period in which the service reads its readiness, whether or not there are probes."""


class _Reading(NamedTuple):
    at_s: float
    document: ReadinessDocument


class Readiness:
    """The newest reading of one application. ``read`` may block, and raise what the database raises."""

    def __init__(
        self,
        read: Callable[[], ReadinessDocument],
        *,
        wait_s: float = WAIT_S,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._wait_s = wait_s
        self._monotonic_s = monotonic_s
        self._newest: _Reading | None = None
        self._reading = threading.Lock()

    def refresh(self) -> None:
        """Make a new reading, unless another thread makes one. Raises what ``read`` raises, and then keeps none."""
        if not self._reading.acquire(blocking=False):
            return
        try:
            self._newest = _Reading(self._monotonic_s(), self._read())
        except BaseException:
            self._newest = None
            raise
        finally:
            self._reading.release()

    async def now(self) -> ReadinessDocument:
        """A new reading, or the newest one if that takes too long. Raises Problem (503) without one that is new enough."""
        with move_on_after(self._wait_s):
            # A limiter of its own: this thread does not wait for those that answer requests.
            await to_thread.run_sync(self.refresh, abandon_on_cancel=True, limiter=CapacityLimiter(1))
        found = self._newest
        if found is None or self._monotonic_s() - found.at_s > KEPT_S:
            raise unavailable()
        return found.document
