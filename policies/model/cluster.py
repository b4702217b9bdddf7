"""The machines: servers with GPUs and a NIC, in racks, and the bandwidth of each tier. All bandwidths in bytes/s."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from policies.model.contention import Contention


@dataclass(frozen=True, slots=True)
class Server:
    """One server. ``nic_bytes_s`` and ``intra_bytes_s`` are of the whole server, one direction.

    ``gpu_speed`` divides compute times: 1.0 is the reference GPU on which layer times were taken. ``gpu_speed_assumed``: nothing
    states the speed, and it is 1.0 for want of a better value. ``cpus`` and ``memory_gib`` are what jobs may take; None: unknown,
    and not limited. ``gpu_memory_gib`` is of each GPU.
    """

    name: str
    gpus: int
    gpu_type: str = "V100"
    rack: str = "r1"
    nic_bytes_s: float = 12.5e9
    intra_bytes_s: float = 120e9
    gpu_speed: float = 1.0
    gpu_memory_gib: float | None = None
    gpu_speed_assumed: bool = field(default=False, compare=False)
    cpus: int | None = None
    memory_gib: float | None = None

    @property
    def share_bytes_s(self) -> float:
        """Bandwidth that one GPU owns towards other servers in the ``reserved`` network: min(b_intra, B_m / G_m)."""
        return min(self.intra_bytes_s, self.nic_bytes_s / self.gpus)


class Gangs(StrEnum):
    """The placements that the engine of the cluster can start."""

    ANY = "any"
    EQUAL_SHARES = "equal_shares"
    """Equal numbers of GPUs on all servers of a gang."""
    ONE_SERVER = "one_server"
    """All GPUs of a gang on one server."""

    @property
    def demand(self) -> str:
        """In words, to follow "it needs"."""
        return _DEMANDS[self]


_DEMANDS = {
    Gangs.ANY: "free GPUs anywhere",
    Gangs.EQUAL_SHARES: "equal numbers of GPUs on all its servers",
    Gangs.ONE_SERVER: "all its GPUs on one server",
}


@dataclass(frozen=True)
class Cluster:
    """All servers, in the order in which they were added. The view says which of them are usable. ``gangs`` limits placements.

    ``contention``: how jobs that straddle servers share links; None: every GPU owns its share (the ``reserved`` network).
    """

    name: str
    servers: tuple[Server, ...]
    rack_bytes_s: float | None = None
    core_bytes_s: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    gangs: Gangs = Gangs.ANY
    contention: Contention | None = None

    @cached_property
    def gpus(self) -> int:
        """G, the GPUs of all servers."""
        return sum(server.gpus for server in self.servers)

    @cached_property
    def server_gpus_max(self) -> int:
        """GPUs of the largest server."""
        return max((server.gpus for server in self.servers), default=0)

    @cached_property
    def gpus_by_type(self) -> Mapping[str, int]:
        """GPUs of each type. A gang never mixes types, so this bounds the largest gang."""
        totals: dict[str, int] = {}
        for server in self.servers:
            totals[server.gpu_type] = totals.get(server.gpu_type, 0) + server.gpus
        return totals

    @cached_property
    def gpu_memory_by_type(self) -> Mapping[str, float | None]:
        """Memory in GiB of a GPU of each type; None where servers of the type state none, or different ones."""
        stated: dict[str, set[float | None]] = {}
        for server in self.servers:
            stated.setdefault(server.gpu_type, set()).add(server.gpu_memory_gib)
        return {name: next(iter(sizes)) if len(sizes) == 1 else None for name, sizes in stated.items()}

    @cached_property
    def gpu_speed_by_type(self) -> Mapping[str, float]:
        """The ``gpu_speed`` of the fastest servers of each type."""
        speeds: dict[str, float] = {}
        for server in self.servers:
            speeds[server.gpu_type] = max(server.gpu_speed, speeds.get(server.gpu_type, 0.0))
        return speeds

    @cached_property
    def stating(self) -> Sequence[int]:
        """The positions of the servers that state their CPUs or memory."""
        return [
            index for index, each in enumerate(self.servers) if each.cpus is not None or each.memory_gib is not None
        ]
