"""Whom a decision tries: of each gang class its best waiting job, the best of these first.

Most classes need not be tried at all. Too few GPUs are free for the gang, and it is certain at a glance that displacing
others would not bring what is missing: such heads are *hopeless* and only told so.
"""

import heapq
from collections.abc import Set
from typing import NamedTuple

from policies.decision.victims import PreemptionContext
from policies.model.ids import JobId
from policies.state.gang_class import GangClass
from policies.state.scheduler_state import Key


class Head(NamedTuple):
    """The job to try next of a gang class, and its position in the class's order."""

    key: Key
    gang: GangClass
    position: int


class QueueHeads:
    """One decision's heads in the order of their keys, without the jobs in ``done``.

    ``together``: unless all of them are hopeless, none is taken for it; for policies in which a job that was tried in vain
    means something to those behind it. O(gang classes).
    """

    def __init__(self, bid: PreemptionContext, done: Set[JobId], *, together: bool) -> None:
        self.waiting: list[Head] = []
        """A heap."""
        self.hopeless: list[Head] = []
        self._bid = bid
        self._done = done
        self._together = together
        for gang, key in bid.book.heads.items():
            head = Head(key, gang, 0) if key.job not in done else self._following(gang, 1)
            if head is not None:
                (self.hopeless if self._is_hopeless(head) else self.waiting).append(head)
        if together and self.waiting:
            self.waiting += self.hopeless
            self.hopeless = []
        heapq.heapify(self.waiting)

    def pop(self) -> Head | None:
        """The best of those that are worth trying; None if there is none left."""
        while self.waiting:
            head = heapq.heappop(self.waiting)
            if self._together or not self._is_hopeless(head):
                return head
            self.hopeless.append(head)
        return None

    def go_on(self, after: Head) -> None:
        """Put up the next job of the class."""
        if (head := self._following(after.gang, after.position + 1)) is not None:
            heapq.heappush(self.waiting, head)

    def hope_again(self, after: Head) -> None:
        """Jobs are being stopped for this one: some of their GPUs may be left for those that come after it."""
        for head in self.hopeless:
            if head.key > after.key:
                heapq.heappush(self.waiting, head)
        self.hopeless = [head for head in self.hopeless if head.key <= after.key]

    def give_up(self) -> None:
        """Nobody can be helped any more."""
        self.hopeless += self.waiting
        self.waiting = []

    def _is_hopeless(self, head: Head) -> bool:
        pool, types = self._bid.book.pool, head.gang.types
        if len(types) > 1:
            missing = head.gang.gpus - max(pool.free_of_type(name) for name in types)
        else:
            missing = head.gang.gpus - pool.free_of_type(types[0] if types else None)
        return missing > 0 and self._bid.hopeless(head.key, missing)

    def _following(self, gang: GangClass, position: int) -> Head | None:
        entries = self._bid.book.waiting[gang]
        while position < len(entries):
            key = entries[position]
            if key.job not in self._done:
                return Head(key, gang, position)
            position += 1
        return None
