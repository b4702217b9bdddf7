"""Placements inside one server or one rack, for jobs that say so."""

from collections.abc import Iterator
from functools import lru_cache

from policies.model.cluster import Cluster
from policies.model.ids import ServerIndex
from policies.model.job import Level
from policies.model.placement import Placement
from policies.placement.fleet import SameCluster
from policies.placement.pool import FreePool


def inside(cluster: Cluster, placement: Placement, level: Level) -> bool:
    """Whether the placement keeps to one server, or one rack."""
    if level is Level.SERVER:
        return len(placement.shares) == 1
    return len({cluster.servers[server].rack for server in placement.servers}) == 1


def racks_with_room(pool: FreePool, cluster: Cluster, gpus: int) -> Iterator[FreePool]:
    """For each rack with so many free GPUs, a pool in which nothing else is free. O(servers) each."""
    for members in _racks(SameCluster(cluster)):
        if sum(pool.free(server) for server in members) >= gpus:
            free = [0] * len(cluster.servers)
            for server in members:
                free[server] = pool.free(server)
            yield FreePool(cluster, free)


@lru_cache(maxsize=4)
def _racks(same: SameCluster) -> tuple[tuple[ServerIndex, ...], ...]:
    racks: dict[str, list[ServerIndex]] = {}
    for index, server in enumerate(same.cluster.servers):
        racks.setdefault(server.rack, []).append(ServerIndex(index))
    return tuple(tuple(members) for members in racks.values())
