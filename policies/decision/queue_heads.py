"""The queue heads of one decision: of each gang class its best waiting job, the best of these first.

Most heads need not be tried. A head is *infeasible* if too few GPUs are free for its gang and preemption certainly cannot
bring the missing ones.
"""

import heapq
from collections.abc import Set

from policies.decision.preemption import PreemptionContext
from policies.model.ids import JobId
from policies.placement.pool import FreePool
from policies.state.keys import GangClass, JobKey


class QueueHead:
    """The job to try next of a gang class, and its position in the order of the class."""

    __slots__ = ("gang", "key", "position")

    def __init__(self, key: JobKey, gang: GangClass, position: int) -> None:
        self.key = key
        self.gang = gang
        self.position = position

    def __lt__(self, other: "QueueHead") -> bool:
        return self.key < other.key


class QueueHeads:
    """The heads in the order of their keys, without the jobs in ``done``. O(gang classes).

    ``together``: no head counts as infeasible unless all are. For policies in which it matters to other jobs that one was tried
    and could not start. ``guarded_only``: of each class its guarded jobs, which come first in it.
    """

    __slots__ = ("_context", "_done", "_tier_max", "_together", "infeasible", "waiting")

    def __init__(
        self, context: PreemptionContext, done: Set[JobId], *, together: bool, guarded_only: bool = False
    ) -> None:
        self.waiting: list[QueueHead] = []
        """A heap."""
        self.infeasible: list[QueueHead] = []
        self._context = context
        self._done = done
        self._together = together
        self._tier_max = 0 if guarded_only else 1
        for gang, key in context.state.waiting.heads.items():
            if key.tier > self._tier_max:
                continue
            head = QueueHead(key, gang, 0) if key.job not in done else self._following(gang, 1)
            if head is not None:
                (self.infeasible if self._lacks_gpus(head) else self.waiting).append(head)
        if together and self.waiting:
            self.waiting += self.infeasible
            self.infeasible = []
        heapq.heapify(self.waiting)

    def pop(self) -> QueueHead | None:
        """The best head that is worth trying; None if there is none left."""
        while self.waiting:
            head = heapq.heappop(self.waiting)
            if self._together or not self._is_infeasible(head):
                return head
            self.infeasible.append(head)
        return None

    def push_next(self, head: QueueHead) -> None:
        """Make the next job of the class its head."""
        if (following := self._following(head.gang, head.position + 1)) is not None:
            heapq.heappush(self.waiting, following)

    def retry_infeasible(self, after: QueueHead) -> None:
        """Jobs are being stopped for this head. It may leave some of their GPUs to the heads that come after it."""
        for head in self.infeasible:
            if head.key > after.key:
                heapq.heappush(self.waiting, head)
        self.infeasible = [head for head in self.infeasible if head.key <= after.key]

    def mark_rest_infeasible(self) -> None:
        """No head that is left can start."""
        self.infeasible += self.waiting
        self.waiting = []

    def _is_infeasible(self, head: QueueHead) -> bool:
        if self._lacks_gpus(head):
            return True
        if (demand := head.gang.demand) is None:
            return False
        missing_gpus = _missing_gpus(self._context.state.pool.usable_by(demand), head.gang)
        return missing_gpus > 0 and self._context.infeasible(head.key, missing_gpus, demand)

    def _lacks_gpus(self, head: QueueHead) -> bool:
        """Whether it is infeasible whatever it needs beside GPUs. Needs no view of the pool, which keeps them for few demands."""
        missing_gpus = _missing_gpus(self._context.state.pool, head.gang)
        return missing_gpus > 0 and self._context.infeasible(head.key, missing_gpus)

    def _following(self, gang: GangClass, position: int) -> QueueHead | None:
        entries = self._context.state.waiting.classes[gang]
        while position < len(entries):
            key = entries[position]
            if key.tier > self._tier_max:
                break
            if key.job not in self._done:
                return QueueHead(key, gang, position)
            position += 1
        return None


def _missing_gpus(pool: FreePool, gang: GangClass) -> int:
    """The GPUs that the gang lacks in the pool; none if it is not above 0."""
    types = gang.types
    if len(types) > 1:
        return gang.gpus - max(pool.free_of_type(name) for name in types)
    return gang.gpus - pool.free_of_type(types[0] if types else None)
