"""A cluster as a cluster file: the inverse of :mod:`service.config.cluster_file`, for servers that a database remembers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml

from policies.model.cluster import Cluster, Server
from policies.model.contention import network_text
from service.config.cluster_file import SCHEMA, ClusterFileError, load_cluster
from service.engine.record import ServerRecord

_BITS_PER_BYTE = 8.0
_GIGA = 1e9


def present_cluster(
    servers: Sequence[tuple[Server, ServerRecord]], described: Path | None
) -> tuple[Cluster, list[str]]:
    """The servers that are not marked down, and the names of those that are.

    The database knows servers alone: name and bandwidths of the tiers come from the cluster file ``described``, where the
    service has one and it can be read.
    """
    try:
        frame = load_cluster(described) if described is not None else None
    except ClusterFileError:
        frame = None
    up = tuple(server for server, record in servers if not record.down)
    down = [server.name for server, record in servers if record.down]
    if frame is None:
        return Cluster("own", up), down
    return replace(frame, servers=up), down


def with_servers(cluster: Cluster, more: int) -> Cluster:
    """The cluster with ``more`` servers like its last one."""
    known = {server.name for server in cluster.servers}
    names = (f"extra{number}" for number in range(1, len(known) + more + 1))
    fresh = [name for name in names if name not in known][:more]
    added = tuple(replace(cluster.servers[-1], name=name) for name in fresh)
    return replace(cluster, servers=(*cluster.servers, *added))


def all_servers(servers: Sequence[tuple[Server, ServerRecord]], like: Cluster) -> Cluster:
    """Every stored server at its position, as placements of the past mean them."""
    return replace(like, servers=tuple(server for server, _ in servers))


def cluster_document(cluster: Cluster) -> dict[str, Any]:
    """The file's content: servers that stand side by side and are equal make one entry."""
    document: dict[str, Any] = {"schema": SCHEMA, "name": cluster.name, "servers": []}
    for _, members in groupby(cluster.servers, lambda server: replace(server, name="")):
        document["servers"].append(_entry(list(members)))
    tiers = {"rack_gbps": _gbps(cluster.rack_bytes_s), "core_gbps": _gbps(cluster.core_bytes_s)}
    given = {name: value for name, value in tiers.items() if value is not None}
    if given:
        document["tiers"] = given
    if cluster.contention is not None:
        document["network"] = network_text(cluster.contention)
    return document


def _entry(members: Sequence[Server]) -> Mapping[str, Any]:
    first = members[0]
    entry: dict[str, Any] = {
        "names": [server.name for server in members],
        "gpus": first.gpus,
        "gpu_type": first.gpu_type,
        "rack": first.rack,
        "nic_gbps": _gbps(first.nic_bytes_s),
        "intra_gbps": _gbps(first.intra_bytes_s),
        "gpu_speed": None if first.gpu_speed_assumed else first.gpu_speed,
        "gpu_memory_gib": first.gpu_memory_gib,
        "cpus": first.cpus,
        "memory_gib": first.memory_gib,
    }
    return {key: value for key, value in entry.items() if value is not None}


def _gbps(bytes_s: float | None) -> float | None:
    return None if bytes_s is None else bytes_s * _BITS_PER_BYTE / _GIGA


def write_cluster(cluster: Cluster, path: Path) -> None:
    """Write the file. Raises OSError."""
    path.write_text(yaml.safe_dump(cluster_document(cluster), sort_keys=False, width=120), encoding="utf-8")
