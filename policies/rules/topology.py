"""Placement rule: all GPUs of a gang within one server or one rack."""

from collections.abc import Hashable, Iterator
from functools import lru_cache

from policies.model.cluster import Cluster
from policies.model.ids import ServerIndex
from policies.model.job import JobSpec, Level
from policies.model.placement import Placement
from policies.placement.fleet import SameCluster
from policies.placement.pool import FreePool


class TopologyRule:
    """Keeps a job to the level that its ``topology`` names: always, or wherever that is free."""

    name = "topology"

    def demand(self, spec: JobSpec) -> Hashable | None:
        """The job's ``topology``."""
        return spec.topology

    def required(self, spec: JobSpec) -> bool:
        """Whether the job names its ``topology`` as required."""
        return spec.topology is not None and spec.topology.required

    def allows(self, cluster: Cluster, spec: JobSpec, placement: Placement) -> bool:
        """Whether the placement is within one server, or one rack."""
        if spec.topology is None:
            return True
        if spec.topology.level is Level.SERVER:
            return len(placement.shares) == 1
        return len({cluster.servers[server].rack for server in placement.servers}) == 1

    def pools(self, pool: FreePool, cluster: Cluster, spec: JobSpec) -> Iterator[FreePool]:
        """For each rack with enough free GPUs, a pool in which nothing else is free.

        None for the level of a server: a gang that fits on one server is put there in the first place.
        """
        if spec.topology is None or spec.topology.level is Level.SERVER:
            return
        for members in _racks(SameCluster(cluster)):
            if sum(pool.free(server) for server in members) >= spec.gpus:
                free = [0] * len(cluster.servers)
                for server in members:
                    free[server] = pool.free(server)
                yield FreePool(cluster, free)

    def describe(self, spec: JobSpec) -> str:
        """``within one rack``."""
        return f"within one {spec.topology.level}" if spec.topology is not None else "anywhere"


@lru_cache(maxsize=4)
def _racks(same: SameCluster) -> tuple[tuple[ServerIndex, ...], ...]:
    racks: dict[str, list[ServerIndex]] = {}
    for index, server in enumerate(same.cluster.servers):
        racks.setdefault(server.rack, []).append(ServerIndex(index))
    return tuple(tuple(members) for members in racks.values())
