"""Threads that carry out tasks by key. A task runs on one thread at a time, so one that hangs holds up no other."""

import heapq
import itertools
import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

logger = logging.getLogger(__name__)

Task = Callable[[], float | None]
"""Returns the seconds until it is called again; None: only when it is woken."""

_AFTER_ERROR_S = 5.0


@dataclass(slots=True)
class _Entry:
    task: Task
    due_s: float = math.inf
    running: bool = False
    woken: bool = False


class Workers:
    """``threads`` daemon threads: a call that hangs must not keep the service from ending. Methods return at once."""

    def __init__(self, name: str, threads: int) -> None:
        self._changed = threading.Condition()
        self._entries: dict[str, _Entry] = {}
        self._heap: list[tuple[float, int, str]] = []
        self._numbers = itertools.count()
        self._timed_until_s = math.inf
        self._closed = False
        for number in range(threads):
            threading.Thread(target=self._work, name=f"{name}-{number}", daemon=True).start()

    def start(self, key: str, task: Task) -> None:
        """Call the task soon, in place of an earlier one of this key. A call of that one that has begun ends first."""
        with self._changed:
            entry = self._entries.setdefault(key, _Entry(task))
            entry.task = task
            self._wake(key, entry)

    def wake(self, key: str) -> None:
        """Call the task of this key soon, if there is one."""
        with self._changed:
            entry = self._entries.get(key)
            if entry is not None:
                self._wake(key, entry)

    def forget(self, key: str) -> None:
        """Do not call the task of this key again."""
        with self._changed:
            self._entries.pop(key, None)

    def close(self) -> None:
        """Begin no call any more. Those that have begun are not waited for."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _wake(self, key: str, entry: _Entry) -> None:
        if entry.running:
            entry.woken = True
        else:
            self._schedule(key, entry, time.monotonic())

    def _schedule(self, key: str, entry: _Entry, due_s: float) -> None:
        if due_s >= entry.due_s:
            return
        entry.due_s = due_s
        heapq.heappush(self._heap, (due_s, next(self._numbers), key))
        self._changed.notify()

    def _work(self) -> None:
        while True:
            with self._changed:
                found = self._next()
                if found is None:
                    return
                key, entry = found
                task = entry.task
                entry.running, entry.woken, entry.due_s = True, False, math.inf
            try:
                pause_s = task()
            except Exception:
                logger.exception("%s failed; it is tried again", key)
                pause_s = _AFTER_ERROR_S
            with self._changed:
                entry.running = False
                if self._entries.get(key) is not entry:
                    continue
                if entry.woken:
                    self._schedule(key, entry, time.monotonic())
                elif pause_s is not None:
                    self._schedule(key, entry, time.monotonic() + pause_s)

    def _next(self) -> tuple[str, _Entry] | None:
        """Wait for the next task that is due; None after :meth:`close`. One idle thread waits for a time, others for a call."""
        while not self._closed:
            while self._heap and not self._is_current(*self._heap[0]):
                heapq.heappop(self._heap)
            due_s = self._heap[0][0] if self._heap else math.inf
            wait_s = due_s - time.monotonic()
            if wait_s <= 0.0:
                _, _, key = heapq.heappop(self._heap)
                self._changed.notify()
                return key, self._entries[key]
            if due_s >= self._timed_until_s:
                self._changed.wait()
                continue
            self._timed_until_s = due_s
            self._changed.wait(wait_s)
            if self._timed_until_s == due_s:
                self._timed_until_s = math.inf
        return None

    def _is_current(self, due_s: float, _: int, key: str) -> bool:
        entry = self._entries.get(key)
        return entry is not None and not entry.running and entry.due_s == due_s
