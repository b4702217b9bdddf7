"""Simulated time: a heap of events. Only the clock advances ``now_s``; no real clock is read."""

from collections.abc import Callable
from enum import IntEnum
from heapq import heappop, heappush


class Priority(IntEnum):
    """Order of events at one instant. A finish comes before a stop at the same instant."""

    FINISH = 0
    STOP = 1
    START = 2
    FAULT = 3
    ARRIVAL = 4


class SimClock:
    """Implements :class:`service.engine.ports.Clock`. Events are ordered by (time, priority, order of scheduling)."""

    def __init__(self, start_s: float = 0.0) -> None:
        self.events = 0
        """Events processed so far."""
        self._now_s = start_s
        self._serial = 0
        self._heap: list[tuple[float, int, int, Callable[[], None]]] = []

    def now_s(self) -> float:
        """Seconds of simulated time."""
        return self._now_s

    @property
    def next_at_s(self) -> float | None:
        """When the next event falls due; None if there is none."""
        return self._heap[0][0] if self._heap else None

    def schedule(self, at_s: float, priority: Priority, action: Callable[[], None]) -> None:
        """Call ``action`` at ``at_s``. Raises ValueError for an instant in the past, or NaN."""
        if not at_s >= self._now_s:
            raise ValueError(f"an event at {at_s} s cannot be scheduled at {self._now_s} s")
        heappush(self._heap, (at_s, priority, self._serial, action))
        self._serial += 1

    def advance(self, to_s: float) -> None:
        """Advance to ``to_s`` and process every event of that instant, including those that these events schedule for it.

        Raises ValueError if that would go back in time or skip an event.
        """
        if not to_s >= self._now_s or (self._heap and self._heap[0][0] < to_s):
            raise ValueError(f"cannot move from {self._now_s} s to {to_s} s; the next event is at {self.next_at_s} s")
        self._now_s = to_s
        while self._heap and self._heap[0][0] <= to_s:
            self.events += 1
            heappop(self._heap)[3]()
