"""Dying at a named instant, inside a test's own process."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from service.engine.crash_points import CrashPoint, on_reached


class Crash(BaseException):
    """Stands for the death of the process: not an Exception, because no handler of the service may survive it."""


@dataclass(frozen=True)
class Death:
    """Die at the ``passage``-th passage (from 1) of ``point``, or of any point if that is None."""

    point: CrashPoint | None
    passage: int

    def __str__(self) -> str:
        return f"{self.point or 'any point'} no. {self.passage}"


def _raise(point: CrashPoint) -> None:
    raise Crash(point)


class Reaper:
    """A handler of crash points that dies one death after another; passages are counted from the death before."""

    def __init__(self, deaths: Sequence[Death] = (), die: Callable[[CrashPoint], None] = _raise) -> None:
        self.passed: list[CrashPoint] = []
        """Every passage, in order."""
        self.died_at: list[CrashPoint] = []
        self._die = die
        self._deaths = list(deaths)
        self._since: Counter[CrashPoint | None] = Counter()

    def __call__(self, point: CrashPoint) -> None:
        self.passed.append(point)
        self._since.update((point, None))
        if self._deaths and self._since[self._deaths[0].point] >= self._deaths[0].passage:
            del self._deaths[0]
            self._since.clear()
            self.died_at.append(point)
            self._die(point)


@contextmanager
def dying(*deaths: Death) -> Iterator[Reaper]:
    """Within: the code dies (raises :class:`Crash`) those deaths."""
    reaper = Reaper(deaths)
    on_reached(reaper)
    try:
        yield reaper
    finally:
        on_reached(None)
