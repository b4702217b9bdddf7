"""The cluster file ``sooner.cluster/1`` (YAML): parsed and checked once, here. Knows no framework.

Bandwidths in the file are gigabits per second of a whole server (or rack) in one direction; ours are bytes/s (/8).
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from policies.model.cluster import Cluster, Server
from service.config.yaml_file import YamlFileError, mapping, positive, read_yaml, schema, whole, word

SCHEMA = "sooner.cluster/1"
SERVERS_MAX = 100_000
"""Servers of one cluster: ten times the largest published ones; beyond it the file is a mistake."""
GPUS_PER_SERVER_MAX = 1024
"""GPUs of one server: above the largest single-image machines (576)."""
_BYTES_PER_GIGABIT = 1e9 / 8


class ClusterFileError(YamlFileError):
    """A cluster file that cannot be used."""


def load_cluster(path: Path) -> Cluster:
    """Read a cluster file; raises :class:`ClusterFileError` with one clear line for everything that is wrong with it."""
    try:
        return _parse(read_yaml(path))
    except YamlFileError as error:
        raise ClusterFileError(error.key, error.message, str(path)) from error


def parse_cluster(data: object) -> Cluster:
    """The cluster of a parsed file; raises :class:`ClusterFileError` that names the key."""
    try:
        return _parse(data)
    except YamlFileError as error:
        raise ClusterFileError(error.key, error.message) from None


def _parse(data: object) -> Cluster:
    top = mapping("", data, {"schema", "name", "servers", "tiers"})
    schema(top, SCHEMA)
    name = word("name", top.get("name", "cluster"))
    groups = top.get("servers")
    if not isinstance(groups, list) or not groups:
        raise YamlFileError("servers", "must be a list of at least one server")
    servers: list[Server] = []
    names: set[str] = set()
    for position, group in enumerate(groups):
        _add_servers(f"servers[{position}]", group, servers, names)
    tiers = mapping("tiers", top.get("tiers") or {}, {"rack_gbps", "core_gbps"})
    return Cluster(
        name=name,
        servers=tuple(servers),
        rack_bytes_s=_bandwidth("tiers.rack_gbps", tiers.get("rack_gbps")),
        core_bytes_s=_bandwidth("tiers.core_gbps", tiers.get("core_gbps")),
    )


_GROUP_KEYS = {
    "count",
    "names",
    "gpus",
    "gpu_type",
    "rack",
    "nic_gbps",
    "intra_gbps",
    "gpu_speed",
    "gpu_memory_gib",
}


def _add_servers(key: str, data: object, servers: list[Server], names: set[str]) -> None:
    """Append the servers of one entry. Servers without names are s0001, s0002, ... by their place in the cluster."""
    group = mapping(key, data, _GROUP_KEYS)
    if "gpus" not in group:
        raise YamlFileError(f"{key}.gpus", "is missing")
    given = _names(f"{key}.names", group["names"]) if group.get("names") is not None else None
    count = whole(f"{key}.count", group.get("count", len(given) if given is not None else 1), SERVERS_MAX)
    if given is not None and len(given) != count:
        raise YamlFileError(f"{key}.names", f"has {len(given)} names for a count of {count}")
    if len(servers) + count > SERVERS_MAX:
        raise YamlFileError(f"{key}.count", f"makes more than {SERVERS_MAX} servers")
    gpus = whole(f"{key}.gpus", group["gpus"], GPUS_PER_SERVER_MAX)
    template = Server(name="", gpus=gpus, **_optional_fields(key, group))
    for position in range(count):
        name = given[position] if given is not None else f"s{len(servers) + 1:04d}"
        if name in names:
            raise YamlFileError(f"{key}.names[{position}]", f"{name!r} names two servers")
        names.add(name)
        servers.append(replace(template, name=name))


def _optional_fields(key: str, group: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of :class:`Server` that the entry gives; the others keep the defaults of the class."""
    fields: dict[str, Any] = {}
    for name in ("gpu_type", "rack"):
        if group.get(name) is not None:
            fields[name] = word(f"{key}.{name}", group[name])
    for name in ("gpu_speed", "gpu_memory_gib"):
        if group.get(name) is not None:
            fields[name] = positive(f"{key}.{name}", group[name])
    for tier in ("nic", "intra"):
        bytes_s = _bandwidth(f"{key}.{tier}_gbps", group.get(f"{tier}_gbps"))
        if bytes_s is not None:
            fields[f"{tier}_bytes_s"] = bytes_s
    return fields


def _names(key: str, data: object) -> list[str]:
    if not isinstance(data, list) or not data:
        raise YamlFileError(key, "must be a list of names")
    return [word(f"{key}[{position}]", name) for position, name in enumerate(data)]


def _bandwidth(key: str, gigabits: object) -> float | None:
    return None if gigabits is None else positive(key, gigabits) * _BYTES_PER_GIGABIT
