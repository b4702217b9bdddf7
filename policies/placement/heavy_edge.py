"""Heavy-Edge: which replicas go to which of the granted servers, so that heavy traffic stays inside servers.

Our construction (docs/explanation/a-srpt.md, "Heavy-Edge mapping"). Vertices are replicas, weights bytes per iteration. It
works on counts per stage: replicas of a stage are alike and its ring may be laid out so that each server holds one arc of it.
"""

from collections.abc import Sequence
from functools import lru_cache

from policies.placement.iteration import Counts, Gang


def edge_bytes(gang: Gang, s: int, q: int) -> float:
    """Weight of the edge between one replica of s and one of its neighbour stage q: 2 d_sq / (k_s k_q)."""
    return sum(sent for other, sent in gang.neighbours[s] if other == q) / gang.replicas[q]


def ring_edge_bytes(gang: Gang, s: int) -> float:
    """Weight of an edge of the ring of s: V_s; with two replicas both directions lie on one edge."""
    return gang.ring_bytes[s] * (2.0 if gang.replicas[s] == 2 else 1.0)


def cut_bytes(gang: Gang, counts: Sequence[Sequence[int]]) -> float:
    """Weight of all edges between servers: an arc per server for a ring that leaves one, and the remote stage pairs."""
    total = 0.0
    for s, edges in enumerate(_edges(gang)):
        hosts = sum([1 for row in counts if row[s]])
        total += gang.ring_bytes[s] * hosts if hosts > 1 else 0.0
        for q, weight, pairs in edges:
            near = sum([row[s] * row[q] for row in counts])
            total += weight * (pairs - near)
    return total


@lru_cache(maxsize=4096)
def _edges(gang: Gang) -> tuple[tuple[tuple[int, float, int], ...], ...]:
    """Of each stage: its later neighbours, with the weight of an edge between their replicas and the number of such edges."""
    return tuple(
        tuple(
            (q, edge_bytes(gang, s, q), replicas * gang.replicas[q])
            for q in {q for q, _ in gang.neighbours[s] if q > s}
        )
        for s, replicas in enumerate(gang.replicas)
    )


@lru_cache(maxsize=1024)
def heavy_edge(gang: Gang, granted: tuple[int, ...]) -> tuple[Counts, ...] | None:
    """Replicas of each stage for servers with ``granted`` GPUs, in their order (which also breaks ties between equals).

    None if the tensor groups cannot be packed this way. O(GPUs x stages).
    """
    mapper = _Mapper(gang)
    rows: dict[int, Counts] = {}
    for m in sorted(range(len(granted)), key=lambda m: -granted[m]):
        rows[m] = mapper.fill(granted[m])
    return None if any(mapper.rest) else tuple(rows[m] for m in range(len(granted)))


class _Mapper:
    """The replicas that are not placed yet, and the filling of one server after the other."""

    def __init__(self, gang: Gang) -> None:
        self.gang = gang
        self.stages = range(len(gang.replicas))
        self.rest = list(gang.replicas)
        self.weights = [{q: edge_bytes(gang, s, q) for q, _ in gang.neighbours[s]} for s in self.stages]
        self.ring = [ring_edge_bytes(gang, s) for s in self.stages]
        # A vertex of a ring has two ring edges (the double edge of k = 2 counts once, with both its directions).
        self.vertex_bytes = [
            sum(weight * gang.replicas[q] for q, weight in self.weights[s].items())
            + (self.ring[s] if gang.replicas[s] == 2 else 2.0 * self.ring[s] if gang.replicas[s] > 2 else 0.0)
            for s in self.stages
        ]

    def fill(self, room: int) -> Counts:
        """Choose the replicas for a server with ``room`` free GPUs."""
        if self.gang.gpus_for(self.rest) <= room:
            row, self.rest = tuple(self.rest), [0 for _ in self.stages]
            return row
        held = [0 for _ in self.stages]
        traffic = [0.0 for _ in self.stages]
        added = self._seed(room)
        while added:
            for s in added:
                held[s] += 1
                self.rest[s] -= 1
                room -= self.gang.tensor[s]
                for q, weight in self.weights[s].items():
                    traffic[q] += weight
            added = self._next(room, held, traffic)
        return tuple(held)

    def _seed(self, room: int) -> tuple[int, ...]:
        """The stages of the heaviest edge between unplaced replicas that fit; else the vertex of least weight that fits."""
        best: tuple[float, tuple[int, ...]] | None = None
        for s in self.stages:
            ring = {s: self.ring[s]} if self.rest[s] >= 2 else {}
            for q, weight in sorted((ring | {q: w for q, w in self.weights[s].items() if q > s}).items()):
                fits = self.rest[s] and self.rest[q] and self.gang.tensor[s] + self.gang.tensor[q] <= room
                if fits and (best is None or weight > best[0]):
                    best = weight, (s, q)
        if best is not None:
            return best[1]
        lightest = [(self.vertex_bytes[s], s) for s in self.stages if self.rest[s] and self.gang.tensor[s] <= room]
        return (min(lightest)[1],) if lightest else ()

    def _next(self, room: int, held: Sequence[int], traffic: Sequence[float]) -> tuple[int, ...]:
        """The stage whose next replica exchanges most bytes with the replicas on the server; of equals the earlier stage."""
        best, largest = -1, -1.0
        for s in self.stages:
            if not self.rest[s] or self.gang.tensor[s] > room:
                continue
            sent = traffic[s]
            if held[s]:
                closes = held[s] + 1 == self.gang.replicas[s] > 2
                sent += 2.0 * self.ring[s] if closes else self.ring[s]
            if sent > largest:
                best, largest = s, sent
        return () if best < 0 else (best,)
