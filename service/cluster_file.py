"""The cluster file ``sooner.cluster/1`` (YAML): parsed and checked once, here. Knows no framework.

Bandwidths in the file are gigabits per second of a whole server (or rack) in one direction; ours are bytes/s (/8).
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from policies.model.cluster import Cluster, Server

SCHEMA = "sooner.cluster/1"
SERVERS_MAX = 100_000
"""Servers of one cluster: ten times the largest published ones; beyond it the file is a mistake."""
GPUS_PER_SERVER_MAX = 1024
"""GPUs of one server: above the largest single-image machines (576)."""
FILE_BYTES_MAX = 16 * 1024 * 1024
"""Size of a cluster file, enough for every server by name at the limit above."""
_NAME_LENGTH_MAX = 255
_BYTES_PER_GIGABIT = 1e9 / 8


class ClusterFileError(ValueError):
    """A cluster file that cannot be used. ``str()`` names the file and the key (``servers[1].gpus: ...``)."""

    def __init__(self, key: str, message: str, file: str = "") -> None:
        super().__init__(": ".join(part for part in (file, key, message) if part))
        self.key = key
        self.message = message
        self.file = file


def load_cluster(path: Path) -> Cluster:
    """Read a cluster file; raises :class:`ClusterFileError` with one clear line for everything that is wrong with it."""
    file = str(path)
    try:
        with path.open("rb") as stream:
            text = stream.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ClusterFileError("", error.strerror or str(error), file) from error
    if len(text) > FILE_BYTES_MAX:
        raise ClusterFileError("", f"is larger than {FILE_BYTES_MAX} bytes", file)
    try:
        data = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ClusterFileError("", f"is not YAML: {' '.join(str(error).split())}", file) from error
    try:
        return parse_cluster(data)
    except ClusterFileError as error:
        raise ClusterFileError(error.key, error.message, file) from None


def parse_cluster(data: object) -> Cluster:
    """The cluster of a parsed file; raises :class:`ClusterFileError` that names the key."""
    top = _mapping("", data, {"schema", "name", "servers", "tiers"})
    if top.get("schema") != SCHEMA:
        raise ClusterFileError("schema", f"must be {SCHEMA!r}, not {top.get('schema')!r}")
    name = _word("name", top.get("name", "cluster"))
    groups = top.get("servers")
    if not isinstance(groups, list) or not groups:
        raise ClusterFileError("servers", "must be a list of at least one server")
    servers: list[Server] = []
    names: set[str] = set()
    for position, group in enumerate(groups):
        _add_servers(f"servers[{position}]", group, servers, names)
    tiers = _mapping("tiers", top.get("tiers") or {}, {"rack_gbps", "core_gbps"})
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
    group = _mapping(key, data, _GROUP_KEYS)
    if "gpus" not in group:
        raise ClusterFileError(f"{key}.gpus", "is missing")
    given = _names(f"{key}.names", group["names"]) if group.get("names") is not None else None
    count = _whole(f"{key}.count", group.get("count", len(given) if given is not None else 1), SERVERS_MAX)
    if given is not None and len(given) != count:
        raise ClusterFileError(f"{key}.names", f"has {len(given)} names for a count of {count}")
    if len(servers) + count > SERVERS_MAX:
        raise ClusterFileError(f"{key}.count", f"makes more than {SERVERS_MAX} servers")
    gpus = _whole(f"{key}.gpus", group["gpus"], GPUS_PER_SERVER_MAX)
    template = Server(name="", gpus=gpus, **_optional_fields(key, group))
    for position in range(count):
        name = given[position] if given is not None else f"s{len(servers) + 1:04d}"
        if name in names:
            raise ClusterFileError(f"{key}.names[{position}]", f"{name!r} names two servers")
        names.add(name)
        servers.append(replace(template, name=name))


def _optional_fields(key: str, group: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of :class:`Server` that the entry gives; the others keep the defaults of the class."""
    fields: dict[str, Any] = {}
    for name in ("gpu_type", "rack"):
        if group.get(name) is not None:
            fields[name] = _word(f"{key}.{name}", group[name])
    for name in ("gpu_speed", "gpu_memory_gib"):
        if group.get(name) is not None:
            fields[name] = _positive(f"{key}.{name}", group[name])
    for tier in ("nic", "intra"):
        bytes_s = _bandwidth(f"{key}.{tier}_gbps", group.get(f"{tier}_gbps"))
        if bytes_s is not None:
            fields[f"{tier}_bytes_s"] = bytes_s
    return fields


def _mapping(key: str, data: object, known: set[str]) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise ClusterFileError(key, f"must be a mapping, not {_kind(data)}")
    for name in data:
        if name not in known:
            at = f"{key}.{name}" if key else str(name)
            raise ClusterFileError(at, f"unknown key; the keys are {', '.join(sorted(known))}")
    return data


def _names(key: str, data: object) -> list[str]:
    if not isinstance(data, list) or not data:
        raise ClusterFileError(key, "must be a list of names")
    return [_word(f"{key}[{position}]", name) for position, name in enumerate(data)]


def _word(key: str, value: object) -> str:
    """Text, or a number that YAML made of what was meant as text (a rack called 1)."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value or len(value) > _NAME_LENGTH_MAX or not value.isprintable():
        raise ClusterFileError(key, f"must be text of 1 to {_NAME_LENGTH_MAX} characters, not {_kind(value)}")
    return value


def _whole(key: str, value: object, maximum: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= maximum:
        raise ClusterFileError(key, f"must be a whole number from 1 to {maximum}, not {_kind(value)}")
    return value


def _positive(key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ClusterFileError(key, f"must be a positive number, not {_kind(value)}")
    return float(value)


def _bandwidth(key: str, gigabits: object) -> float | None:
    return None if gigabits is None else _positive(key, gigabits) * _BYTES_PER_GIGABIT


def _kind(value: object) -> str:
    """What was found, short enough for one line of an error."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
