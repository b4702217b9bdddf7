"""Garbage collection in a process that holds a large state, mostly for days.

Python starts a full collection whenever the oldest generation has grown by a quarter. A full collection stops every thread: for
1 to 2 s with 100,000 jobs, to find a few hundred objects that requests left. So the objects that survive a full collection are
frozen (:func:`gc.freeze`), and the next collection scans only newer objects. Reference counting still frees frozen objects.
Only cycles of frozen objects stay until a multiple of the objects has been frozen and everything is scanned again.
"""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

MANY = 50_000
"""Minimum number of objects to freeze. Scanning them takes about 0.01 s."""

OFTEN = 10
"""Everything is scanned again when this many times the surviving objects have been frozen since the last full scan. The whole
state has changed several times by then. Of a million objects a few dozen are garbage."""


class _Pauses:
    """Counts the active :func:`uncollected` blocks of all threads. The end of the last one enables collection again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way = 0
        self._collected = False

    def begin(self) -> None:
        with self._lock:
            if self._under_way == 0:
                self._collected = gc.isenabled()
                gc.disable()
            self._under_way += 1

    def end(self) -> None:
        with self._lock:
            self._under_way -= 1
            if self._under_way == 0 and self._collected:
                gc.enable()


_pauses = _Pauses()

_frozen = False
"""Whether objects are frozen: ``gc.get_freeze_count`` would walk through all of them."""


def is_frozen() -> bool:
    """Whether this module has frozen objects that are still frozen."""
    return _frozen


def _freeze() -> None:
    global _frozen
    gc.freeze()
    _frozen = True


def _unfreeze() -> None:
    global _frozen
    gc.unfreeze()
    _frozen = False


@contextmanager
def uncollected() -> Iterator[None]:
    """Disable collection in all threads during the block. Use it where a few seconds create many objects that stay."""
    _pauses.begin()
    try:
        yield
    finally:
        _pauses.end()


@contextmanager
def made_to_stay() -> Iterator[None]:
    """Like :func:`uncollected`; also freeze the new objects. Else the first collection afterwards would scan all of them."""
    with uncollected():
        yield
        _freeze()


@contextmanager
def frozen() -> Iterator[None]:
    """Collect, and keep all present objects from the collector during the block, unless a caller does that already."""
    if _frozen:
        yield
        return
    gc.collect()
    _freeze()
    try:
        yield
    finally:
        _unfreeze()


@contextmanager
def set_aside() -> Iterator[None]:
    """Freeze all objects now, and the survivors of later collections until the block ends. Then call :func:`let_go`, or exit."""
    _freeze()
    keeper = _Keeper()
    gc.callbacks.append(keeper)
    try:
        yield
    finally:
        gc.callbacks.remove(keeper)


def let_go() -> None:
    """Collect once among all objects, the frozen ones included. Takes about 1 s with 100,000 jobs."""
    _unfreeze()
    gc.collect()


class _Keeper:
    """A callback of the collector. ``_all``: objects that survived the last full scan; ``_more``: objects frozen since.

    ``_all`` is counted when it matters, which it may never: with 100,000 jobs it would take a hundredth of the time of a start.
    """

    def __init__(self) -> None:
        self._all: int | None = None
        self._more = 0
        self._everything = False

    def __call__(self, phase: str, about: dict[str, Any]) -> None:
        if phase != "stop" or about["generation"] != 2:
            return
        left = len(gc.get_objects(generation=2))
        if left < MANY:
            return
        if self._everything:
            self._everything, self._all, self._more = False, left, 0
        else:
            self._more += left
        if self._more > OFTEN * MANY and self._all is None:
            self._all = gc.get_freeze_count() - (self._more - left)
        if self._more > OFTEN * max(self._all or 0, MANY):
            # Python's next full collection scans everything. A callback must not start a collection itself.
            self._everything = True
            _unfreeze()
        else:
            _freeze()
