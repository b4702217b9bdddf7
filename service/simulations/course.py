"""The course of many runs: which one begins next, and when they will all have ended.

A run is expected to take what runs of its kind took: equal policy, options and predictor, another seed. Until one of them has
told, the runs of other kinds tell how fast this machine is, and a run counts by the rough cost of its kind (:func:`rough_cost`).
"""

import heapq
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from policies.registry import BUILT_IN

_PREEMPTIVE: Final = 5.0
"""The time of a run that preempts over one that does not: ``asrpt`` and ``las`` over ``sjf`` at a load of 1.1."""
_TRAINED: Final = 50.0
"""Added where models are trained on the way."""
_SHARE_MIN: Final = 0.05
"""A run tells how long it takes once this share of it is done."""


def rough_cost(policy: str, options: Mapping[str, str], predictor: str) -> float:
    """How long a run takes, in units of one that does not preempt."""
    factory = BUILT_IN.get(policy)
    preempts = (factory is None or factory.preemptive) and options.get("preemption") != "never"
    return (_PREEMPTIVE if preempts else 1.0) + (_TRAINED if predictor == "trained" else 0.0)


@dataclass(frozen=True, slots=True)
class Kind:
    """Runs of one kind take equally long. ``cost``: how long, in any unit that all kinds share."""

    name: Hashable
    cost: float


@dataclass(slots=True)
class _Run:
    kind: Kind
    began_s: float | None = None
    share: float = 0.0
    took_s: float | None = None
    over: bool = False

    def told(self, now_s: float) -> tuple[float, float]:
        """Seconds, and the cost that they paid for; (0, 0) while it tells nothing."""
        if self.took_s is not None:
            return self.took_s, self.kind.cost
        if self.began_s is not None and not self.over and self.share >= _SHARE_MIN:
            return now_s - self.began_s, self.share * self.kind.cost
        return 0.0, 0.0


@dataclass
class Course:
    """Runs by number, ``workers`` of them at a time. ``clock``: seconds that never go back."""

    kinds: Sequence[Kind]
    workers: int
    clock: Callable[[], float]
    _runs: list[_Run] = field(init=False)
    _began_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._runs = [_Run(kind) for kind in self.kinds]
        self._began_s = self.clock()

    def taken_over(self, run: int, took_s: float) -> None:
        """An earlier command made this run, in ``took_s``."""
        self._runs[run].took_s, self._runs[run].over = took_s, True

    def began(self, run: int) -> None:
        """The run begins now."""
        self._runs[run].began_s = self.clock()

    def moved(self, run: int, share: float) -> None:
        """So much of the run is done."""
        self._runs[run].share = share

    def ended(self, run: int) -> None:
        """The run has ended now."""
        each = self._runs[run]
        assert each.began_s is not None
        each.took_s, each.over = self.clock() - each.began_s, True

    def failed(self, run: int) -> None:
        """The run has failed now. How long it took tells nothing of others."""
        self._runs[run].over = True

    @property
    def over(self) -> int:
        """Runs that have ended or failed."""
        return sum(each.over for each in self._runs)

    @property
    def made(self) -> int:
        """Runs that have a result."""
        return sum(each.took_s is not None for each in self._runs)

    @property
    def running(self) -> Mapping[int, float]:
        """The share that is done of each run under way."""
        return {run: each.share for run, each in enumerate(self._runs) if each.began_s is not None and not each.over}

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return self.clock() - self._began_s

    def longest(self, waiting: Sequence[int]) -> int:
        """The waiting run that is expected to take longest, so that none of them runs alone in the end; of equals the first."""
        expected_s = self._expected_s()
        return max(waiting, key=lambda run: (expected_s[self.kinds[run].name], -run))

    def remaining_s(self) -> float | None:
        """Seconds until all runs have ended, each next one being the longest; None while nothing is known."""
        expected_s = self._expected_s()
        if not any(any(each.told(self.clock())) for each in self._runs):
            return None
        free_s = sorted((1.0 - share) * expected_s[self.kinds[run].name] for run, share in self.running.items())
        free_s = [0.0] * (self.workers - len(free_s)) + free_s
        waiting = [each for each in self._runs if each.began_s is None and not each.over]
        for one_s in sorted((expected_s[each.kind.name] for each in waiting), reverse=True):
            heapq.heapreplace(free_s, free_s[0] + one_s)
        return max(free_s)

    def _expected_s(self) -> dict[Hashable, float]:
        """What a run of each kind is expected to take; in units of cost while nothing is known."""
        now_s = self.clock()
        told: dict[Hashable, tuple[float, float]] = {}
        all_s = all_cost = 0.0
        for each in self._runs:
            took_s, cost = each.told(now_s)
            before_s, before = told.get(each.kind.name, (0.0, 0.0))
            told[each.kind.name] = before_s + took_s, before + cost
            all_s, all_cost = all_s + took_s, all_cost + cost
        pace = all_s / all_cost if all_cost > 0.0 else 1.0
        found = {}
        for kind in self.kinds:
            took_s, cost = told[kind.name]
            found[kind.name] = kind.cost * (took_s / cost if cost > 0.0 else pace)
        return found
