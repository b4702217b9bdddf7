"""What was found for the jobs that one decision has tried, for those that would be placed alike.

Many waiting jobs of a gang class run the same network. While no job is started or stopped, what was found for the first of them
is what would be found for the next ones, whose ranks are no better: it may displace a part of the jobs that the first may
displace, in the same order, and what does not pay for the first does not pay for it.
"""

from collections.abc import Hashable
from typing import TypeAlias

from policies.choose import Candidate
from policies.model.ids import JobId
from policies.model.placement import Placement
from policies.model.view import JobView

Found: TypeAlias = tuple[Candidate, tuple[JobId, ...]]
"""A placement, and the jobs to stop for it."""


class VictimSearch:
    """A search for jobs to displace, for a job of this rank. ``last``: the last of the jobs that ``found`` was chosen from."""

    __slots__ = ("found", "last", "rank")

    def __init__(self, rank: float, found: Found | None, last: JobView | None) -> None:
        self.rank = rank
        self.found = found
        self.last = last


class MadeRoom:
    """A consolidated placement, the jobs that move for it, and the GPU seconds that they lose."""

    __slots__ = ("cost_s", "iteration_s", "movers", "placement")

    def __init__(self, placement: Placement, iteration_s: float, movers: tuple[JobId, ...], cost_s: float) -> None:
        self.placement = placement
        self.iteration_s = iteration_s
        self.movers = movers
        self.cost_s = cost_s


class Searches:
    """By what decides the result. Whoever starts or stops a job, or takes its GPUs, calls :meth:`forget`."""

    __slots__ = ("rooms", "victims")

    def __init__(self) -> None:
        self.victims: dict[Hashable, VictimSearch] = {}
        self.rooms: dict[Hashable, MadeRoom | None] = {}

    def forget(self) -> None:
        """Free GPUs have changed, or which jobs run."""
        if self.victims:
            self.victims = {}
        if self.rooms:
            self.rooms = {}
