"""The mapping of replicas to servers: the best of all mappings if they are few, else the best of a search from Heavy-Edge.

Heavy-Edge adds one replica at a time, and a ring is as slow as its smallest arc: with several stages it may cut two rings
where none must be cut. So layouts that keep stages whole are tried as well, and the best of all are improved by exchanges.
For the catalogue's networks on up to 8 GPUs the search finds the fastest mapping on any free GPUs. For custom pipelines it
misses some, so small ones are enumerated. ``python -m benchmarks.heavy_edge`` prints by how much each of
them is above the best. All of it is our construction.
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import islice, permutations
from math import inf, lcm
from operator import itemgetter

from policies.placement.exact import mappings
from policies.placement.heavy_edge import cut_bytes, heavy_edge
from policies.placement.iteration import Counts, Gang, Link, MappingSeconds, seconds
from policies.placement.packing import Rows, packed, packings

ENUMERATED_MAX = 256
"""Up to this many mappings are all compared: nearly always for 8 GPUs or fewer, in a few milliseconds at most."""
ENUMERATED_GPUS_MAX = 8
"""The mappings of larger gangs are not counted: most have far too many."""
SEARCH_CELLS_MAX = 64
"""Servers x stages up to which exchanges are tried: for more, a round takes too long."""
SEARCH_ROUNDS_MAX = 8
"""Improving rounds at most; small jobs need two or three."""
SEARCH_STARTS = 3
"""Layouts, the fastest first, from which the search starts."""

MEMO_MAX = 32_768
"""Memoised answers, of a kilobyte or less each: a busy cluster places the same few networks on ever different free GPUs."""

_Cost = tuple[float, float]
"""alpha(x) in seconds, then the bytes that leave servers."""

_Exchange = tuple[int, Counts, int, Counts]
"""A server and what it holds afterwards, and another one."""


@lru_cache(maxsize=MEMO_MAX)
def mapped(gang: Gang, links: tuple[Link, ...], granted: tuple[int, ...]) -> tuple[float, Rows] | None:
    """(alpha, replicas on each server) for servers with ``granted`` GPUs; None if the tensor groups do not fit."""
    if len(granted) > 1 and len(gang.replicas) > 1 and gang.gpus <= ENUMERATED_GPUS_MAX:
        every = list(islice(mappings(gang, granted, links), ENUMERATED_MAX + 1))
        if len(every) <= ENUMERATED_MAX:
            return _fastest(gang, links, every)
    return searched(gang, links, granted)


def searched(gang: Gang, links: tuple[Link, ...], granted: tuple[int, ...]) -> tuple[float, Rows] | None:
    """The result of the search, without enumeration; None if no layout has room for the tensor groups."""
    search = len(gang.replicas) > 1 and len(granted) * len(gang.replicas) <= SEARCH_CELLS_MAX
    layouts = [heavy_edge(gang, granted), *(packings(gang, granted) if search else [packed(gang, granted)])]
    starts = {rows: _cost(gang, links, rows) for rows in layouts if rows is not None}
    if not search:
        return _fastest(gang, links, list(starts))
    best = sorted(starts, key=lambda rows: starts[rows])[:SEARCH_STARTS]
    return _fastest(gang, links, [_improved(gang, links, granted, rows) for rows in best])


def _fastest(gang: Gang, links: tuple[Link, ...], found: list[Rows]) -> tuple[float, Rows] | None:
    if not found:
        return None
    return _best(gang, [(seconds(gang, links, rows), rows) for rows in found])


def _best(gang: Gang, found: list[tuple[float, Rows]]) -> tuple[float, Rows]:
    """The first of those with the least (alpha, cut bytes). Cuts are counted only where alphas are equal."""
    least = min(found, key=itemgetter(0))
    tied = [each for each in found if each[0] == least[0]]
    return least if len(tied) == 1 else min(tied, key=lambda each: cut_bytes(gang, each[1]))


def _cost(gang: Gang, links: tuple[Link, ...], rows: Rows) -> _Cost:
    return seconds(gang, links, rows), cut_bytes(gang, rows)


def _improved(gang: Gang, links: tuple[Link, ...], granted: tuple[int, ...], rows: Rows) -> Rows:
    """Apply the best exchange between two servers, and repeat while (alpha, cut bytes) falls."""
    cost = _cost(gang, links, rows)
    for _ in range(SEARCH_ROUNDS_MAX):
        alpha, exchanged = _fastest_exchanges(gang, links, granted, rows, cost[0])
        if not exchanged:
            break
        best = exchanged[0] if len(exchanged) == 1 else min(exchanged, key=lambda each: cut_bytes(gang, each))
        if not (found := (alpha, cut_bytes(gang, best))) < cost:
            break
        cost, rows = found, best
    return rows


def _fastest_exchanges(
    gang: Gang, links: tuple[Link, ...], granted: tuple[int, ...], rows: Rows, limit_s: float
) -> tuple[float, list[Rows]]:
    """The least alpha after an exchange, and the mappings that have it; none where each takes longer than ``limit_s``."""
    timing, fastest = MappingSeconds(gang, links, rows), list[Rows]()
    for a, row_a, b, row_b in _exchanges(gang, links, granted, rows):
        alpha = timing.with_rows(a, row_a, b, row_b, limit_s)
        if alpha == inf:
            continue
        if alpha < limit_s:
            limit_s, fastest = alpha, []
        fastest.append(tuple([row_a if m == a else row_b if m == b else row for m, row in enumerate(rows)]))
    return limit_s, fastest


def _exchanges(gang: Gang, links: tuple[Link, ...], granted: tuple[int, ...], rows: Rows) -> Iterator[_Exchange]:
    """What two servers hold after one replica or all replicas of a stage have moved to the other one, into free GPUs or in
    exchange for equally many GPUs of another stage; or after they have swapped everything.

    Of pairs of servers that hold and grant the same, behind equal links, only the first: the others are as fast.
    """
    servers = list(zip(links, granted, rows, strict=True))
    alike = [servers.index(server) for server in servers]
    paired = set()
    rooms = [gpus - gang.gpus_for(row) for gpus, row in zip(granted, rows, strict=True)]
    for a, b in permutations(range(len(rows)), 2):
        if (alike[a], alike[b]) in paired:
            continue
        paired.add((alike[a], alike[b]))
        for row_a, row_b, moved in _transfers(gang, rows[a], rows[b], rooms[b]):
            if -rooms[a] <= moved <= rooms[b]:
                yield a, row_a, b, row_b


def _transfers(gang: Gang, source: Counts, target: Counts, room: int) -> Iterator[tuple[Counts, Counts, int]]:
    """What the servers hold afterwards, and the GPUs that the second one needs more than before."""
    if source > target:
        yield target, source, gang.gpus_for(source) - gang.gpus_for(target)
    for s, held in enumerate(source):
        for count in {min(1, held), min(held, room // gang.tensor[s])} - {0}:
            yield _plus(source, s, -count), _plus(target, s, count), count * gang.tensor[s]
        for q in range(s + 1, len(source)):
            if not held or not target[q]:
                continue
            gpus = lcm(gang.tensor[s], gang.tensor[q])
            one_s, one_q = gpus // gang.tensor[s], gpus // gang.tensor[q]
            most = min(held // one_s, target[q] // one_q)
            for count in {min(1, most), most} - {0}:
                new_source = _plus(_plus(source, s, -count * one_s), q, count * one_q)
                yield new_source, _plus(_plus(target, s, count * one_s), q, -count * one_q), 0


def _plus(row: Counts, s: int, count: int) -> Counts:
    return (*row[:s], row[s] + count, *row[s + 1 :])
