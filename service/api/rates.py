"""Rate limits of this process: token buckets, of which a limited number is kept."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

BUCKETS_MAX: Final = 10_000
"""Buckets that are kept. The least recently used one is dropped first: it is probably full, and a new bucket is full too."""


class Buckets:
    """One bucket for each name. Each has at most ``burst`` tokens, loses one per request and gains ``per_s`` per second.

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
        """Take a token and return 0.0; without a token, return the seconds until there is one."""
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
        """Seconds until there is a token. Takes none."""
        with self._lock:
            return self._wait_s(self._level(name, self._now_s()))

    def _level(self, name: str, now_s: float) -> float:
        level, at_s = self._levels.get(name, (self._burst, now_s))
        return min(self._burst, level + (now_s - at_s) * self._per_s)

    def _wait_s(self, level: float) -> float:
        return max(0.0, (1.0 - level) / self._per_s)
