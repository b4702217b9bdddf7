"""Even splits of the GPUs of a gang over several servers."""

import heapq
from collections.abc import Sequence


def balanced(gpus: int, servers: int, quantum: int = 1) -> list[int] | None:
    """``gpus`` over ``servers`` as evenly as multiples of ``quantum`` allow, larger parts first; None if a part is empty.

    A ring is as slow as its smallest part: 8 + 1 is as slow as one GPU on each server, 5 + 4 is four times as fast.
    """
    parts, rest = divmod(gpus, quantum)
    if rest or parts < servers:
        return None
    low, extra = divmod(parts, servers)
    return [(low + (i < extra)) * quantum for i in range(servers)]


def levelled(gpus: int, rooms: Sequence[int], quantum: int = 1) -> list[int] | None:
    """The most even split over servers that have only ``rooms`` free; None if they have too little.

    Each quantum goes to the server with fewest GPUs so far that still has room, of equals the first. O(GPUs log servers).
    """
    sizes = [0 for _ in rooms]
    heap = [(0, i) for i in range(len(rooms))]
    while gpus > 0:
        if not heap or gpus < quantum:
            return None
        size, i = heap[0]
        if size + quantum > rooms[i]:
            heapq.heappop(heap)
            continue
        sizes[i] = size + quantum
        heapq.heapreplace(heap, (sizes[i], i))
        gpus -= quantum
    return sizes
