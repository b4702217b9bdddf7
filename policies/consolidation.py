"""What a consolidated placement needs, so that searches for one that would be in vain are not made.

Our construction. A gang that communicates is as fast as at its best only where its shares are large, so a consolidated placement
needs some servers with much room. How many and how much is found by searches on a few servers, once for each network on each kind
of cluster.
"""

from functools import lru_cache

from policies.choose import CONSOLIDATED_RATIO
from policies.model.cluster import Cluster
from policies.model.view import JobView
from policies.placement.candidates import fastest
from policies.placement.fleet import Fleet, common_link, fleet_of
from policies.placement.iteration import Gang, gang_of
from policies.placement.pool import FreePool

GANG_GPUS_MAX = 64
"""The largest gang of which the needs are found. Searches for larger ones take long."""

Room = tuple[int, int]
"""So many servers must have so many GPUs free. (0, 0) where that is not known."""

_UNKNOWN: Room = 0, 0


def may_consolidate(pool: FreePool, cluster: Cluster, job: JobView) -> bool:
    """Whether a placement of the job in the pool may be consolidated. O(GPU types x GPUs of a server) beside memos."""
    for name in job.spec.gpu_types or pool.gpu_types:
        servers, gpus = room_needed(cluster, job, name)
        if servers == 0 or pool.servers_with(gpus, name) >= servers:
            return True
    return False


def room_needed(cluster: Cluster, job: JobView, gpu_type: str) -> Room:
    """What a consolidated placement of the job on servers of the type needs at least. O(1) beside memos."""
    gang, times = gang_of(job.spec), job.iteration_times
    if gang is None or times is None or times.slowdown is not None:
        return _UNKNOWN
    if job.spec.gpu_type_fallbacks:
        # On a type that it prefers less, less speed is enough.
        return _UNKNOWN
    return _room(fleet_of(cluster), gang, gpu_type, times.min_s)


@lru_cache(maxsize=4096)
def _room(fleet: Fleet, gang: Gang, gpu_type: str, min_s: float) -> Room:
    """The servers of the most favourable pools: one GPU less than they can use is free on all of them but a few."""
    cluster, _ = fleet.empty(gang.gpus)
    servers = [index for index, server in enumerate(cluster.servers) if server.gpu_type == gpu_type]
    sizes = {cluster.servers[index].gpus for index in servers}
    if len(sizes) != 1 or common_link(fleet, gpu_type) is None or gang.gpus > GANG_GPUS_MAX:
        return _UNKNOWN
    gpus = min(gang.gpus, *sizes)
    free = [gpus - 1 if server.gpu_type == gpu_type else 0 for server in cluster.servers]
    for roomy in range(len(servers) + 1):
        if roomy:
            free[servers[roomy - 1]] = gpus
        found = fastest(FreePool(cluster, free), cluster, gang, gpu_type)
        if found is not None and found[0] <= CONSOLIDATED_RATIO * min_s:
            return roomy, gpus
    return _UNKNOWN
