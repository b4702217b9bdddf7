"""The cluster file ``sooner.cluster/1`` (YAML).

Bandwidths in the file are gigabits per second of a whole server (or rack) in one direction; ours are bytes/s (/8).
"""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field

from policies.model.cluster import Cluster, Server
from policies.model.contention import NetworkError, parse_network
from policies.training.gpu_speed import with_assumed_speed
from service.config.yaml_file import FileModel, Positive, Word, YamlFileError, errors_as, read_yaml, validate

SCHEMA = "sooner.cluster/1"
SERVERS_MAX = 100_000
"""Servers of one cluster: ten times the largest published ones; beyond it the file is a mistake."""
GPUS_PER_SERVER_MAX = 1024
"""GPUs of one server: above the largest single-image machines (576)."""
CPUS_PER_SERVER_MAX = 65_536
_BYTES_PER_GIGABIT = 1e9 / 8


NOT_THIS_MACHINE = "not this machine, where executor=local runs all jobs"
"""Why a server cannot be used: it would be down for ever."""


class ClusterFileError(YamlFileError):
    """A cluster file that cannot be used."""


class ServerGroup(FileModel):
    """An entry of ``servers``: alike servers. An optional key that is null or left out keeps the default of ``Server``."""

    gpus: Annotated[int, Field(ge=1, le=GPUS_PER_SERVER_MAX)]
    count: Annotated[int, Field(ge=1, le=SERVERS_MAX)] = 1
    names: Annotated[list[Word], Field(min_length=1)] | None = None
    gpu_type: Word | None = None
    rack: Word | None = None
    nic_gbps: Positive | None = None
    intra_gbps: Positive | None = None
    gpu_speed: Positive | None = None
    gpu_memory_gib: Positive | None = None
    cpus: Annotated[int, Field(ge=1, le=CPUS_PER_SERVER_MAX)] | None = None
    memory_gib: Positive | None = None

    def server(self) -> Server:
        """One of the servers, without its name."""
        given: dict[str, Any] = {
            "gpu_type": self.gpu_type,
            "rack": self.rack,
            "nic_bytes_s": _bytes_s(self.nic_gbps),
            "intra_bytes_s": _bytes_s(self.intra_gbps),
            "gpu_speed": self.gpu_speed,
            "gpu_memory_gib": self.gpu_memory_gib,
            "cpus": self.cpus,
            "memory_gib": self.memory_gib,
        }
        server = Server("", self.gpus, **{name: value for name, value in given.items() if value is not None})
        return with_assumed_speed(server) if self.gpu_speed is None else server


class Tiers(FileModel):
    """Bandwidths of a rack and of the core; None: not a bottleneck."""

    rack_gbps: Positive | None = None
    core_gbps: Positive | None = None


class ClusterFile(FileModel):
    """The whole file."""

    schema_: Literal["sooner.cluster/1"] = Field(alias="schema")
    name: Word = "cluster"
    servers: Annotated[list[ServerGroup], Field(min_length=1)]
    tiers: Annotated[Tiers, BeforeValidator(lambda value: value or {})] = Tiers()
    network: Word = "reserved"
    virtual: bool = False


class ServersFile(NamedTuple):
    """A cluster file. ``virtual``: the local executor pretends that its machine has these servers."""

    cluster: Cluster
    virtual: bool


def load_cluster(path: Path) -> Cluster:
    """Read a cluster file; raises :class:`ClusterFileError` with one clear line for the first fault."""
    return load_servers(path).cluster


def load_servers(path: Path) -> ServersFile:
    """The same with what concerns only a live service."""
    with errors_as(ClusterFileError, str(path)):
        file = validate(ClusterFile, read_yaml(path))
        return ServersFile(_cluster(file), file.virtual)


def parse_cluster(data: object) -> Cluster:
    """The cluster of a parsed file; raises :class:`ClusterFileError` that names the key."""
    with errors_as(ClusterFileError):
        return _cluster(validate(ClusterFile, data))


def _cluster(file: ClusterFile) -> Cluster:
    servers: dict[str, Server] = {}
    for position, group in enumerate(file.servers):
        _add_servers(f"servers[{position}]", group, servers)
    try:
        contention = parse_network(file.network)
    except NetworkError as error:
        raise YamlFileError("network", str(error)) from error
    return Cluster(
        file.name,
        tuple(servers.values()),
        _bytes_s(file.tiers.rack_gbps),
        _bytes_s(file.tiers.core_gbps),
        contention=contention,
    )


def _add_servers(key: str, group: ServerGroup, servers: dict[str, Server]) -> None:
    """Add the servers of one entry. Servers without names are s0001, s0002, ... by their place in the cluster."""
    names = group.names
    count = group.count if names is None or "count" in group.model_fields_set else len(names)
    if names is not None and len(names) != count:
        raise YamlFileError(f"{key}.names", f"has {len(names)} names for a count of {count}")
    if len(servers) + count > SERVERS_MAX:
        raise YamlFileError(f"{key}.count", f"makes more than {SERVERS_MAX} servers")
    template = group.server()
    for position in range(count):
        name = names[position] if names is not None else f"s{len(servers) + 1:04d}"
        if name in servers:
            raise YamlFileError(f"{key}.names[{position}]", f"{name!r} names two servers")
        servers[name] = replace(template, name=name)


def _bytes_s(gigabits_s: float | None) -> float | None:
    return None if gigabits_s is None else gigabits_s * _BYTES_PER_GIGABIT
