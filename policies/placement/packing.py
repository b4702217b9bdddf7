"""Mappings that leave most rings uncut: whole stages side by side, and one or two stages spread over what is left.

Our construction. The search of :mod:`policies.placement.mapping` starts from them and from Heavy-Edge.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from itertools import combinations

from policies.placement.iteration import Counts, Gang

Rows = tuple[Counts, ...]
"""Replicas of each stage, server by server."""

SPREAD_PAIRS_STAGES_MAX = 8
"""Stages up to which every pair is tried as the two that are spread; beyond, one stage at a time is."""


def packings(gang: Gang, granted: tuple[int, ...]) -> Iterator[Rows]:
    """All stages whole where that fits; all but each one; and in short pipelines all but each two."""
    stages = range(len(gang.replicas))
    for spread in range(3 if len(stages) <= SPREAD_PAIRS_STAGES_MAX else 2):
        for chosen in combinations(stages, spread):
            if (rows := packed(gang, granted, chosen)) is not None:
                yield rows


def packed(gang: Gang, granted: tuple[int, ...], spread: Sequence[int] = ()) -> Rows | None:
    """Every stage whole on a server but those to ``spread``, which fill what is left; None if they do not fit so.

    Stages that exchange most bytes are put on one server first, while the others can still be packed. A stage to spread goes
    to the servers with most room: the fewer they are, the larger is the smallest arc of its ring.
    """
    group_of = {s: s for s in range(len(gang.replicas)) if s not in spread}
    hosts = _packed_groups(gang, granted, group_of)
    if hosts is None:
        return None
    edges = sorted((-sent * gang.replicas[s], s, q) for s in group_of for q, sent in gang.neighbours[s] if s < q)
    for _, s, q in edges:
        if q not in group_of or group_of[s] == group_of[q]:
            continue
        joined = {stage: group_of[s] if group == group_of[q] else group for stage, group in group_of.items()}
        if (found := _packed_groups(gang, granted, joined)) is not None:
            group_of, hosts = joined, found
    rows = [
        [gang.replicas[s] if hosts.get(s) == m else 0 for s in range(len(gang.replicas))] for m in range(len(granted))
    ]
    return tuple(map(tuple, rows)) if all(_spread(gang, granted, rows, s) for s in spread) else None


def _packed_groups(gang: Gang, granted: tuple[int, ...], group_of: dict[int, int]) -> dict[int, int] | None:
    """The server of each stage when groups of stages are packed best fit, largest first; None if a group does not fit."""
    sizes: dict[int, int] = {}
    for s, group in group_of.items():
        sizes[group] = sizes.get(group, 0) + gang.replicas[s] * gang.tensor[s]
    rooms = sorted((room, m) for m, room in enumerate(granted))
    server_of_group: dict[int, int] = {}
    for group in sorted(sizes, key=lambda group: -sizes[group]):
        fullest = bisect_left(rooms, (sizes[group], 0))
        if fullest == len(rooms):
            return None
        room, m = rooms.pop(fullest)
        server_of_group[group] = m
        insort(rooms, (room - sizes[group], m))
    return {s: server_of_group[group] for s, group in group_of.items()}


def _spread(gang: Gang, granted: tuple[int, ...], rows: list[list[int]], s: int) -> bool:
    """Put the replicas of s on the servers with most room; return whether all were placed."""
    rooms = [gpus - gang.gpus_for(row) for gpus, row in zip(granted, rows, strict=True)]
    rest = gang.replicas[s]
    for m in sorted(range(len(rooms)), key=lambda m: -rooms[m]):
        rows[m][s] = min(rest, rooms[m] // gang.tensor[s])
        rest -= rows[m][s]
    return rest == 0
