"""Search for a placement that foresees contention: what it costs the gang, and what the gang costs others (after SJF-BCO).

Our construction. Where the servers carry no straddling job, the choice is that of :func:`policies.placement.candidates.fastest`.
Otherwise the candidates are that one and those on the servers whose NICs carry few straddling jobs or none, on at most as many
servers. The one of least cost wins: GPUs x stretch of the gang in its crowd, what it adds to GPUs x stretch of others, and the
GPUs that stay free beside it, because a larger gang may need the whole server.
"""

from collections.abc import Iterator
from functools import lru_cache
from math import fsum
from typing import NamedTuple

from policies.model.cluster import Cluster
from policies.model.contention import Contention
from policies.model.placement import Placement, ServerShare, place
from policies.placement.candidates import fastest, layouts
from policies.placement.contention import Crowds, Layout, SharedLinks, Traffic, contended_s, crosses, layout_of
from policies.placement.fleet import Fleet, fleet_of
from policies.placement.iteration import Gang, placement_s
from policies.placement.pool import FreePool


class Weighed(NamedTuple):
    """A placement in its crowd. ``slowdown``: the gang's stretch, and for each of its GPUs what it adds to GPUs x stretch of
    others. ``cost`` is what the search compares. ``crowded``: it slows others."""

    cost: float
    slowdown: float
    crowded: bool
    placement: Placement


class Calmest(NamedTuple):
    """The placement that a search has chosen, the iteration time to expect there, and whether that slows others."""

    alpha_s: float
    placement: Placement
    crowded: bool


def calmest(pool: FreePool, shared_links: SharedLinks, cluster: Cluster, gang: Gang, gpu_type: str) -> Calmest | None:
    """The candidate of least cost, ties to the one of least alpha(x) without contention; None if the gang does not fit now.

    The iteration time that comes with it is alpha_min x slowdown, and where the links may fill up at least alpha(x) without
    contention: so delays, victims and migration count the slowdown of others too.
    """
    quiet = fastest(pool, cluster, gang, gpu_type)
    if quiet is None or len(quiet[1].shares) == 1:
        return None if quiet is None else Calmest(*quiet, False)
    min_s, alone_s = best_s(gang, fleet_of(cluster), (gpu_type,), shared_links.contention)
    best = weighed(shared_links, pool, cluster, gang, layout_of(quiet[1]), alone_s)
    alpha_s = quiet[0]
    for layout in _elsewhere(shared_links.crowds, pool, cluster, gang, gpu_type, len(quiet[1].shares)):
        found = weighed(shared_links, pool, cluster, gang, layout, alone_s)
        best = found if found.cost < best.cost else best
    if shared_links.fills_up and best.placement != quiet[1]:
        alpha_s = placement_s(gang, cluster, best.placement)
    expected_s = min_s * best.slowdown
    return Calmest(max(expected_s, alpha_s) if shared_links.fills_up else expected_s, best.placement, best.crowded)


def _elsewhere(
    crowds: Crowds[Traffic], pool: FreePool, cluster: Cluster, gang: Gang, gpu_type: str, servers_max: int
) -> Iterator[Layout]:
    """Candidates where any server is crowded: of the whole pool, and without servers that carry many, several, any flows."""
    before = 0
    for crowded in (0, *reversed(crowds.crowded)) if crowds.crowded[0] else ():
        if crowded and crowded == before:
            continue
        before = crowded
        for grants, rows in layouts(pool.without(crowded) if crowded else pool, cluster, gang, gpu_type):
            if len(grants) <= servers_max:
                yield tuple(grants), tuple(rows)


def weighed(
    shared_links: SharedLinks, pool: FreePool, cluster: Cluster, gang: Gang, layout: Layout, alone_s: float
) -> Weighed:
    """What the gang costs at this placement, ``alone_s`` its iteration time alone at its best. O(jobs on its links)."""
    crowds = shared_links.crowds
    links = crowds.links(gang, cluster, layout)
    stretch = contended_s(shared_links.contention, cluster, gang, layout, crowds.crowd_of(links)) / alone_s
    added = fsum(
        other.gang.gpus * (other.stretch_in(crowd) - other.stretch_in(other.crowd))
        for other, crowd in crowds.slowed(links)
    )
    grants, rows = layout
    beside = sum(pool.free(server) - gpus for server, gpus in grants)
    shares = [ServerShare(server, gpus, row) for (server, gpus), row in zip(grants, rows, strict=True)]
    cost = gang.gpus * stretch + added + beside
    return Weighed(cost, stretch + added / gang.gpus, added > 0.0, place(shares))


@lru_cache(maxsize=4096)
def best_s(gang: Gang, fleet: Fleet, gpu_types: tuple[str, ...], contention: Contention) -> tuple[float, float]:
    """Seconds per iteration at the best placement where every GPU owns its share, and of a lone job there on shared links.

    On servers of any one of ``gpu_types`` (none named: of any type). The empty servers of one of them must hold the gang.
    """
    cluster, pool = fleet.empty(gang.gpus)
    types = gpu_types or pool.gpu_types
    found = [timed for timed in (fastest(pool, cluster, gang, name) for name in types) if timed is not None]
    alone = (_alone_s(gang, cluster, layout_of(placement), contention) for _, placement in found)
    return min(alpha_s for alpha_s, _ in found), min(alone)


def _alone_s(gang: Gang, cluster: Cluster, layout: Layout, contention: Contention) -> float:
    grants, rows = layout
    alone = int(crosses(gang, tuple([gpus for _, gpus in grants]), rows))
    return contended_s(contention, cluster, gang, layout, (alone, 0, 0))
