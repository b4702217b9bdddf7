"""How often somebody may ask: token buckets, in this process, of bounded number."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

BUCKETS_MAX: Final = 10_000
"""Buckets held at once. The one that nobody has used for longest goes first: it is the likeliest to be full, and a full bucket
and none are the same."""


class Buckets:
    """One bucket for each name. Each holds ``burst`` at most, loses one a request and gains ``per_s`` a second.

    Safe to share between threads. ``now_s`` is a clock that never goes back.
    """

    def __init__(
        self,
        per_s: float,
        burst: int,
        *,
        now_s: Callable[[], float] = time.monotonic,
        buckets_max: int = BUCKETS_MAX,
    ) -> None:
        self._per_s = per_s
        self._burst = float(burst)
        self._now_s = now_s
        self._buckets_max = buckets_max
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._levels)

    def take(self, name: str) -> float:
        """Take one: 0.0 if there was one, else the seconds until there will be (and nothing is taken)."""
        with self._lock:
            now_s = self._now_s()
            level = self._level(name, now_s)
            if level < 1.0:
                return self._wait_s(level)
            self._levels[name] = (level - 1.0, now_s)
            self._levels.move_to_end(name)
            if len(self._levels) > self._buckets_max:
                self._levels.popitem(last=False)
            return 0.0

    def wait_s(self, name: str) -> float:
        """Seconds until there is one to take; takes nothing."""
        with self._lock:
            return self._wait_s(self._level(name, self._now_s()))

    def _level(self, name: str, now_s: float) -> float:
        level, at_s = self._levels.get(name, (self._burst, now_s))
        return min(self._burst, level + (now_s - at_s) * self._per_s)

    def _wait_s(self, level: float) -> float:
        return max(0.0, (1.0 - level) / self._per_s)
