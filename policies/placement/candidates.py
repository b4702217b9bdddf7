"""The few placements of a gang with a stage graph that are worth comparing, all on servers of one GPU type."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from math import inf

from policies.model.cluster import Cluster, Gangs
from policies.model.ids import ServerIndex
from policies.model.placement import Placement, ServerShare, place
from policies.placement import shapes
from policies.placement.fleet import common_link, fleet_of
from policies.placement.iteration import Counts, Gang, Link, link_of, seconds, straddles
from policies.placement.mapping import MEMO_MAX, mapped
from policies.placement.packing import Rows
from policies.placement.pool import FreePool, Grant, servers_needed
from policies.placement.splits import balanced, levelled

Timed = tuple[float, Placement]
"""alpha(x) in seconds, and x."""

SEARCH_STATES_MAX = 2_000
SEARCH_GROUPS_MAX = 64
"""Limits of the search for a packing of tensor groups. Beyond them it finds none."""

_Layout = tuple[Sequence[Grant], Sequence[Counts]]

_Seat = tuple[int, int, int, Counts]
"""The free GPUs of a server, its position among those with as many, the GPUs taken there, and their replicas."""

_Key = tuple[Gang, Link, Gangs, tuple[int, ...]]

_known: OrderedDict[_Key, tuple[float, tuple[_Seat, ...]]] = OrderedDict()
"""Answers of :func:`fastest` on equal servers of one rack, infinite and empty where the gang does not fit. At most ``MEMO_MAX``,
the oldest dropped first. Several threads use it, each step by one call."""


def fastest(pool: FreePool, cluster: Cluster, gang: Gang, gpu_type: str) -> Timed | None:
    """The candidate of least alpha(x), ties to the one on fewer servers; None if the gang does not fit now.

    If a server has enough free GPUs, that server alone. Otherwise the candidates are the fewest servers in the fewest racks
    and even splits over as many servers and one more; for several stages also the servers that the mapping uses, and one
    server per stage. A tensor group is split over servers only if the gang allows it and fits in no other way.

    On equal servers of one rack the answer depends only on how many of them have how many GPUs free, up to as many as one
    candidate uses, and is memoised: on a busy cluster the same few numbers recur.
    """
    server = pool.best_fit(gang.gpus, gpu_type)
    if server is not None:
        return timed(cluster, gang, [(server, gang.gpus)], [gang.replicas])
    link = common_link(fleet_of(cluster), gpu_type)
    counts = pool.counts(gpu_type)
    if link is None or counts is None:
        return _compared(pool, cluster, gang, gpu_type)
    key = _key(cluster, gang, link, counts)
    if key is None:
        return None
    known = _known.get(key)
    if known is not None:
        return (known[0], _seated(pool, gpu_type, known[1])) if known[1] else None
    found = _compared(pool, cluster, gang, gpu_type)
    if len(_known) >= MEMO_MAX:
        _known.popitem(last=False)
    _known[key] = (inf, ()) if found is None else (found[0], _seats(pool, gpu_type, found[1]))
    return found


def known_alpha_s(
    pool: FreePool, cluster: Cluster, gang: Gang, gpu_type: str, free: Mapping[ServerIndex, int]
) -> float | None:
    """alpha(x) of what :func:`fastest` would find if these servers of the type had so many GPUs free; infinite if the gang would
    not fit, None if that is not known without a search. O(levels + ``free``).
    """
    link = common_link(fleet_of(cluster), gpu_type)
    counts = pool.counts(gpu_type)
    if link is None or counts is None:
        return None
    for server, after in free.items():
        counts[pool.free(server)] -= 1
        counts += [0] * (after + 1 - len(counts))
        counts[after] += 1
    if any(counts[gang.gpus :]):
        return _alpha_s(gang, (link,), (gang.gpus,), (gang.replicas,))
    key = _key(cluster, gang, link, counts)
    if key is None:
        return inf
    known = _known.get(key)
    return None if known is None else known[0]


def _key(cluster: Cluster, gang: Gang, link: Link, counts: list[int]) -> _Key | None:
    """The search's memo key where so many servers have 0 (not counted), 1, 2, ... GPUs free; None if the gang does not fit."""
    most = _servers_max(cluster.gangs, gang, counts)
    if most == 0:
        return None
    while not counts[-1]:
        counts.pop()
    return gang, link, cluster.gangs, (0, *[min(count, most) for count in counts[1:]])


def _servers_max(gangs: Gangs, gang: Gang, counts: Sequence[int]) -> int:
    """The most servers that any candidate uses: one more than the fewest, or one for each stage. 0 if the gang does not fit.

    Where groups of several sizes are packed, tensor groups are split or shares must be equal: any number.
    """
    alike = len(set(gang.tensor)) == 1 and not gang.tensor_across_servers and gangs is Gangs.ANY
    fewest = servers_needed(counts, gang.gpus, gang.tensor[0] if alike else 1)
    if not fewest:
        return 0
    return max(fewest + 1, len(gang.replicas)) if alike else gang.gpus + 1


def _compared(pool: FreePool, cluster: Cluster, gang: Gang, gpu_type: str) -> Timed | None:
    found = (timed(cluster, gang, grants, rows) for grants, rows in layouts(pool, cluster, gang, gpu_type))
    return min(found, key=lambda each: each[0], default=None)


def _seats(pool: FreePool, gpu_type: str, placement: Placement) -> tuple[_Seat, ...]:
    return tuple([(*pool.seat_of(gpu_type, server), gpus, row) for server, gpus, row in placement.shares])


def _seated(pool: FreePool, gpu_type: str, seats: Sequence[_Seat]) -> Placement:
    return place([ServerShare(pool.at_seat(gpu_type, free, nth), gpus, row) for free, nth, gpus, row in seats])


def layouts(pool: FreePool, cluster: Cluster, gang: Gang, gpu_type: str) -> Iterator[_Layout]:
    """The candidates for a gang that is not on one server: replicas on servers that the engine of the cluster can start."""
    if cluster.gangs is Gangs.ANY:
        intact = _intact(pool, cluster, gang, gpu_type)
    else:
        intact = _all_packed(cluster, gang, shapes.grants(pool, cluster.gangs, gang.gpus, gpu_type))
    first = next(intact, None)
    if first is not None:
        yield first
        yield from intact
    elif gang.tensor_across_servers:
        split = _fewest_allowed(pool, cluster, gang, gpu_type)
        if split:
            yield split, _in_rank_order(gang, split)


def _fewest_allowed(pool: FreePool, cluster: Cluster, gang: Gang, gpu_type: str) -> Sequence[Grant] | None:
    if cluster.gangs is Gangs.ANY:
        return pool.fewest_servers(gang.gpus, gpu_type)
    return next(shapes.grants(pool, cluster.gangs, gang.gpus, gpu_type), None)


def _packed(cluster: Cluster, gang: Gang, grants: Sequence[Grant]) -> _Layout | None:
    """All replicas on exactly these GPUs, tensor groups unbroken."""
    rows = _mapped(cluster, gang, grants)
    if rows:
        return grants, rows
    return _largest_groups_first(iter(grants), gang) or _searched(grants, gang)


def _all_packed(cluster: Cluster, gang: Gang, free: Iterable[Sequence[Grant]]) -> Iterator[_Layout]:
    """Each of these sets of GPUs on which the gang fits so, one at a time."""
    for grants in free:
        layout = _packed(cluster, gang, grants)
        if layout is not None:
            yield layout


def servers_for(pool: FreePool, cluster: Cluster, gang: Gang, gpu_type: str) -> int:
    """The fewest servers of the type on which the gang is found to fit now, whatever its speed there; 0 if on none."""
    if pool.best_fit(gang.gpus, gpu_type) is not None:
        return 1
    if cluster.gangs is not Gangs.ANY:
        free = list(shapes.grants(pool, cluster.gangs, gang.gpus, gpu_type))
        for grants in free:
            if _packed(cluster, gang, grants) is not None:
                return len(grants)
        return len(free[0]) if free and gang.tensor_across_servers else 0
    fewest = _on_fewest(pool, cluster, gang, gpu_type, _quantum(gang))
    if fewest is not None:
        return len(fewest[0])
    split = pool.fewest_servers(gang.gpus, gpu_type) if gang.tensor_across_servers else None
    return len(split) if split else 0


def _quantum(gang: Gang) -> int:
    """Every server's grant must be a multiple of this: the tensor degree if all stages have the same, else 1."""
    return gang.tensor[0] if len(set(gang.tensor)) == 1 else 1


def _intact(pool: FreePool, cluster: Cluster, gang: Gang, gpu_type: str) -> Iterator[_Layout]:
    """Layouts over several servers that keep each tensor group on one server."""
    quantum = _quantum(gang)
    fewest = _on_fewest(pool, cluster, gang, gpu_type, quantum)
    if fewest is None:
        return
    yield fewest
    servers = len(fewest[0])
    for count in (servers, servers + 1):
        grants = _even(pool, gang.gpus, count, gpu_type, quantum)
        rows = _mapped(cluster, gang, grants) if grants else None
        if grants and rows:
            yield grants, rows
    if len(gang.replicas) > 1:
        for count in (servers, servers + 1):
            yield from _as_mapped(pool, cluster, gang, gpu_type, count)
        yield from _stage_a_server(pool, gang, gpu_type)


def _on_fewest(pool: FreePool, cluster: Cluster, gang: Gang, gpu_type: str, quantum: int) -> _Layout | None:
    grants = pool.fewest_servers(gang.gpus, gpu_type, quantum)
    rows = _mapped(cluster, gang, grants) if grants else None
    if grants and rows:
        return grants, rows
    if not grants or quantum != 1:
        return None
    # Packing tensor groups of several sizes is bin packing: enough free GPUs do not mean that all groups fit.
    return _largest_groups_first(pool.fullest(gpu_type), gang) or _searched(pool.fullest(gpu_type), gang)


def _mapped(cluster: Cluster, gang: Gang, grants: Sequence[Grant]) -> Rows | None:
    links = tuple(link_of(cluster.servers[server]) for server, _ in grants)
    found = mapped(gang, links, tuple(gpus for _, gpus in grants))
    return None if found is None else found[1]


def _even(pool: FreePool, gpus: int, servers: int, gpu_type: str, quantum: int) -> list[Grant] | None:
    """The even split if servers for it are free, else as even as the fullest servers allow."""
    sizes = balanced(gpus, servers, quantum)
    if sizes is None:
        return None
    grants = pool.fit(sizes, gpu_type)
    if grants is not None:
        return grants
    fullest = [grant for grant, _ in zip(pool.fullest(gpu_type), range(servers), strict=False)]
    split = levelled(gpus, [free for _, free in fullest], quantum)
    if split is None or len(split) < servers or not all(split):
        return None
    return [(server, part) for (server, _), part in zip(fullest, split, strict=True)]


def _as_mapped(pool: FreePool, cluster: Cluster, gang: Gang, gpu_type: str, servers: int) -> Iterator[_Layout]:
    """Grants of the sizes that the mapping uses when it is offered all free GPUs of the fullest servers.

    Each part is then put on the server that fits it best, so that the fullest servers stay free for other gangs.
    """
    fullest = [(m, min(free, gang.gpus)) for m, free in islice(pool.fullest(gpu_type), servers)]
    rows = _mapped(cluster, gang, fullest) if sum(free for _, free in fullest) > gang.gpus else None
    if not rows:
        return
    used = [row for row in rows if any(row)]
    grants = pool.fit([gang.gpus_for(row) for row in used], gpu_type)
    if grants is not None:
        yield grants, used


def _stage_a_server(pool: FreePool, gang: Gang, gpu_type: str) -> Iterator[_Layout]:
    """Each stage on a server of its own: its ring stays inside the server, and only activations cross servers."""
    stages = range(len(gang.replicas))
    if len(stages) > pool.servers_with_free:
        return
    grants = pool.fit([gang.replicas[s] * gang.tensor[s] for s in stages], gpu_type)
    if grants is not None:
        yield grants, [tuple(gang.replicas[s] if q == s else 0 for q in stages) for s in stages]


def _largest_groups_first(opening: Iterator[Grant], gang: Gang) -> _Layout | None:
    """First fit of the tensor groups, largest first, into servers opened in this order, which is fullest first.

    Finds a packing whenever one exists if the degrees divide each other, as powers of two do: then a larger group takes
    the same room from smaller ones on whichever server it is.
    """
    servers: list[Grant] = []
    rooms: list[int] = []
    rows: list[list[int]] = []
    stages = sorted(range(len(gang.tensor)), key=lambda s: -gang.tensor[s])
    groups = [s for s in stages for _ in range(gang.replicas[s])]
    for s in groups:
        m = next((m for m, room in enumerate(rooms) if room >= gang.tensor[s]), None)
        if m is None:
            opened = next(opening, None)
            if opened is None or opened[1] < gang.tensor[s]:
                return None
            m = len(servers)
            servers.append(opened)
            rooms.append(opened[1])
            rows.append([0 for _ in gang.tensor])
        rooms[m] -= gang.tensor[s]
        rows[m][s] += 1
    grants = [(server, free - room) for (server, free), room in zip(servers, rooms, strict=True)]
    return grants, [tuple(row) for row in rows]


def _searched(fullest: Iterable[Grant], gang: Gang) -> _Layout | None:
    """Tensor groups packed by depth-first search, best fit first, on at most as many of the fullest servers as groups.

    For degrees that do not divide each other, where first fit can miss the only packing. None after
    ``SEARCH_STATES_MAX`` states: the search is exponential in the worst case.
    """
    groups = sorted(((t, s) for s, t in enumerate(gang.tensor) for _ in range(gang.replicas[s])), reverse=True)
    servers = list(islice(fullest, len(groups)))
    failed: set[tuple[int, tuple[int, ...]]] = set()
    rooms = [free for _, free in servers]
    chosen: list[int] = []

    def packed() -> bool:
        if len(chosen) == len(groups):
            return True
        state = (len(chosen), tuple(sorted(rooms)))
        if state in failed or len(failed) >= SEARCH_STATES_MAX:
            return False
        tensor = groups[len(chosen)][0]
        server_by_room = {room: m for m, room in enumerate(rooms) if room >= tensor}
        for room in sorted(server_by_room):
            chosen.append(server_by_room[room])
            rooms[server_by_room[room]] -= tensor
            if packed():
                return True
            rooms[chosen.pop()] += tensor
        failed.add(state)
        return False

    # Each group is one level of recursion, and large gangs have degrees that first fit packs.
    if len(groups) > SEARCH_GROUPS_MAX or not packed():
        return None
    rows = {m: [0] * len(gang.replicas) for m in sorted(set(chosen))}
    for (_, s), m in zip(groups, chosen, strict=True):
        rows[m][s] += 1
    return [(servers[m][0], gang.gpus_for(row)) for m, row in rows.items()], [tuple(row) for row in rows.values()]


def _in_rank_order(gang: Gang, grants: Sequence[Grant]) -> list[Counts]:
    """Ranks in order over the grants, groups broken where a server ends; a replica counts where its first rank is."""
    first_ranks: list[tuple[int, int]] = []
    rank = 0
    for s, (replicas, tensor) in enumerate(zip(gang.replicas, gang.tensor, strict=True)):
        for _ in range(replicas):
            first_ranks.append((rank, s))
            rank += tensor
    rows: list[Counts] = []
    start = 0
    for _, gpus in grants:
        here = [s for first, s in first_ranks if start <= first < start + gpus]
        rows.append(tuple(here.count(s) for s in range(len(gang.replicas))))
        start += gpus
    return rows


def timed(cluster: Cluster, gang: Gang, grants: Sequence[Grant], rows: Sequence[Counts]) -> Timed:
    """alpha(x) and x, for replicas ``rows`` on the granted GPUs."""
    links = tuple([link_of(cluster.servers[server]) for server, _ in grants])
    held = tuple([gpus for _, gpus in grants])
    shares = [ServerShare(server, gpus, row) for (server, gpus), row in zip(grants, rows, strict=True)]
    return _alpha_s(gang, links, held, tuple(rows)), place(shares)


@lru_cache(maxsize=MEMO_MAX)
def _alpha_s(gang: Gang, links: tuple[Link, ...], held: tuple[int, ...], rows: Rows) -> float:
    return seconds(gang, links, rows, straddles(gang, held, rows))
