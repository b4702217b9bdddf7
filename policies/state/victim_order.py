"""Running jobs in the order in which they make way for others, read off the lines of the book."""

import heapq
from collections.abc import Iterator
from typing import NamedTuple

from policies.model.ids import JobId
from policies.state.scheduler_state import SchedulerState


class Standing(NamedTuple):
    """A running job in the order of who is to make way first; ``rank`` now, but for rounding and never too small."""

    priority: int
    share: int
    rank: float
    gpus: int
    job: JobId


def worst_first(book: SchedulerState, now_s: float) -> Iterator[Standing]:
    """Running jobs that may be displaced, worst first: smaller priorities, larger levels, larger ranks. O(log) each."""
    heap = []
    for line, entries in book.running.items():
        gain = line.slope * line.gpus / book.gpus * now_s
        _, minus_priority, share, rank, submitted_at_s, job = entries[-1]
        heap.append((-minus_priority, -share, -(rank + gain), -submitted_at_s, -job, len(entries) - 1, line))
    heapq.heapify(heap)
    while heap:
        priority, minus_share, minus_rank, _, minus_job, position, line = heap[0]
        yield Standing(priority, -minus_share, -minus_rank, line.gpus, JobId(-minus_job))
        if position == 0:
            heapq.heappop(heap)
            continue
        gain = line.slope * line.gpus / book.gpus * now_s
        _, minus_priority, share, rank, submitted_at_s, job = book.running[line][position - 1]
        following = (-minus_priority, -share, -(rank + gain), -submitted_at_s, -job, position - 1, line)
        heapq.heapreplace(heap, following)
