"""The garbage collector of a process that holds a large world for days.

Whenever the objects that have outlived two looks have grown by a quarter, it looks through all of them, and holds up every
thread meanwhile: a second or two with a hundred thousand jobs, to find the few hundred that some request has left. So what
has been looked through and stays is set aside ("frozen"): the next look is for what has come since. What is set aside is
freed as ever when nobody refers to it; only circles of it are not found, until a multiple of it has been set aside.
"""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

MANY = 50_000
"""So many objects are worth setting aside: to look through them takes a hundredth of a second."""

OFTEN = 10
"""Everything is looked through when so many times as much has been set aside since: all that is there has changed several
times by then, and of a million objects some dozens are garbage."""


class _Pauses:
    """The blocks under way in which nothing is collected, in whichever threads: the last that ends lets it go on."""

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


@contextmanager
def uncollected() -> Iterator[None]:
    """Nothing is looked for meanwhile, in any thread: for seconds in which many objects are made that stay."""
    _pauses.begin()
    try:
        yield
    finally:
        _pauses.end()


@contextmanager
def made_to_stay() -> Iterator[None]:
    """The same, and what was made meanwhile is set aside: else the first look afterwards would be through all of it."""
    with uncollected():
        yield
        gc.freeze()


@contextmanager
def set_aside() -> Iterator[None]:
    """Set aside what there is now, and until the end of the block what has come. Then :func:`let_go`, or end the process."""
    gc.freeze()
    keeper = _Keeper()
    gc.callbacks.append(keeper)
    try:
        yield
    finally:
        gc.callbacks.remove(keeper)


def let_go() -> None:
    """Look through everything once, also what was set aside. A second for a hundred thousand jobs."""
    gc.unfreeze()
    gc.collect()


class _Keeper:
    """Is told of every look. ``_all``: objects that the last look through everything left; ``_more``: set aside since."""

    def __init__(self) -> None:
        self._all = gc.get_freeze_count()
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
        if self._more > OFTEN * max(self._all, MANY):
            # The next look is through everything, by itself: no look may begin within this one.
            self._everything = True
            gc.unfreeze()
        else:
            gc.freeze()
