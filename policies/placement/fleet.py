"""The empty cluster as classes of equal servers, so that best cases on 10,000 servers are computed on a few."""

from dataclasses import dataclass, replace
from functools import lru_cache

from policies.model.cluster import Cluster, Gangs, Server
from policies.placement.iteration import Link, link_of
from policies.placement.pool import FreePool


@dataclass(frozen=True, slots=True, eq=False)
class Fleet:
    """Classes of servers that differ in nothing but name and rack, and how many there are, in order of first occurrence.

    Build with :func:`fleet_of`; fleets of equal contents are one object, so that a fleet may key memos.
    """

    classes: tuple[tuple[Server, int], ...]
    gangs: Gangs = Gangs.ANY

    def links(self, gpu_type: str | None) -> list[Link]:
        """The links of all classes of the type (None: of every type)."""
        return [link_of(server) for server, _ in self.classes if gpu_type in (None, server.gpu_type)]

    def empty(self, gpus: int) -> tuple[Cluster, FreePool]:
        """A small cluster with all GPUs free on which a gang of ``gpus`` finds what it would find on the whole one.

        A gang of n GPUs uses at most n servers of a class, so the small cluster has no more. Its servers are ordered by class,
        whatever their order in the cluster.
        """
        servers = tuple(server for server, count in self.classes for _ in range(min(count, gpus)))
        cluster = Cluster("empty", servers, gangs=self.gangs)
        return cluster, FreePool(cluster, [server.gpus for server in servers])


@lru_cache(maxsize=256)
def common_link(fleet: Fleet, gpu_type: str) -> Link | None:
    """The link of all servers of the type; None if they differ."""
    links = set(fleet.links(gpu_type))
    return links.pop() if len(links) == 1 else None


class SameCluster:
    """A cluster as a memo key by identity: comparing 10,000 servers would cost more than the memo saves."""

    __slots__ = ("cluster",)

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def __hash__(self) -> int:
        return id(self.cluster)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SameCluster) and other.cluster is self.cluster


def fleet_of(cluster: Cluster) -> Fleet:
    """The cluster's classes: O(servers) once for each cluster object."""
    return _fleet_of(SameCluster(cluster))


@lru_cache(maxsize=16)
def _fleet_of(same: SameCluster) -> Fleet:
    counts: dict[tuple[object, ...], int] = {}
    examples: dict[tuple[object, ...], Server] = {}
    for server in same.cluster.servers:
        key = (
            server.gpus, server.gpu_type, server.nic_bytes_s, server.intra_bytes_s, server.gpu_speed, server.gpu_memory_gib,
            server.cpus, server.memory_gib,
        )  # fmt: skip
        counts[key] = counts.get(key, 0) + 1
        examples.setdefault(key, server)
    return _interned(
        tuple((replace(examples[key], name="", rack=""), count) for key, count in counts.items()),
        same.cluster.gangs,
    )


@lru_cache(maxsize=64)
def _interned(classes: tuple[tuple[Server, int], ...], gangs: Gangs) -> Fleet:
    return Fleet(classes, gangs)
