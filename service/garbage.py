"""The garbage collector of a process that holds a large world for days.

It looks through all objects that were made since the last freeze whenever they have grown by a quarter. While a hundred
thousand jobs are loaded that is half of the work, and none of them is garbage.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Nothing is looked for meanwhile, in any thread: for seconds in which many objects are made that stay."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def keep() -> None:
    """What there is now stays: it is not looked through again. O(1)."""
    gc.freeze()


def let_go() -> None:
    """Look once through everything, also what was to stay. A second for a hundred thousand jobs."""
    gc.unfreeze()
    gc.collect()
