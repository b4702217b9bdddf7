"""The GPUs of this machine as NVML reports them, and the cluster that they form. Without a driver GPUs are virtual."""

import ctypes
import socket
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

from policies.model.cluster import Cluster, Server
from policies.training.gpu_names import GpuName, gpu_name

_GIB = 1024**3


class Nvml(Protocol):
    """The part of ``pynvml`` that is used; recorded answers stand in for it in tests."""

    def nvmlInit(self) -> Any: ...
    def nvmlShutdown(self) -> Any: ...
    def nvmlDeviceGetCount(self) -> int: ...
    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any: ...
    def nvmlDeviceGetUUID(self, handle: Any) -> str | bytes: ...
    def nvmlDeviceGetName(self, handle: Any) -> str | bytes: ...
    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any: ...
    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Any: ...
    def nvmlDeviceGetTotalEccErrors(self, handle: Any, error_type: int, counter_type: int) -> int: ...
    def nvmlDeviceGetRemappedRows(self, handle: Any) -> tuple[int, int, int, int]: ...
    def nvmlDeviceRegisterEvents(self, handle: Any, event_types: int, event_set: Any) -> Any: ...
    def nvmlEventSetCreate(self) -> Any: ...
    def nvmlEventSetWait_v2(self, event_set: Any, timeout_ms: int) -> Any: ...


@dataclass(frozen=True, slots=True)
class GpuInfo:
    """One physical GPU. ``uuid`` is what ``CUDA_VISIBLE_DEVICES`` takes whatever order CUDA counts in."""

    index: int
    uuid: str
    name: str
    memory_bytes: int

    @property
    def gpu_type(self) -> str:
        """The short name that jobs ask for: ``Tesla V100-SXM2-32GB`` is a ``V100``."""
        return gpu_type_of(self.name)

    @property
    def described(self) -> GpuName:
        """Its name with its memory, for the comparison with the type of a server."""
        return gpu_name(self.name, self.memory_bytes / _GIB)


def gpu_type_of(name: str) -> str:
    """A marketing name's model number, without brand, board and memory; the whole name where none is found."""
    return gpu_name(name).family


def detect(nvml: Nvml | None = None, visible: str | None = None) -> list[GpuInfo] | None:
    """The GPUs of this machine in NVML's order; None without a driver or without any GPU.

    ``visible`` restricts them as ``CUDA_VISIBLE_DEVICES`` does (None: all): a service that was given two of the
    machine's GPUs hands out those two.
    """
    if nvml is None:
        if not _has_driver():
            return None
        try:
            import pynvml  # takes a tenth of a second, so only beside a driver
        except ImportError:
            return None
        nvml = pynvml
    try:
        nvml.nvmlInit()
    except Exception:  # pynvml raises a class per status code; each means that there is no usable driver
        return None
    try:
        found = [_read(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
    except Exception:
        return None
    finally:
        nvml.nvmlShutdown()
    if visible is not None:
        found = _restrict(found, visible)
    return found or None


def _has_driver() -> bool:
    """Whether the library that ``pynvml`` calls may be there. On Linux it is known for certain."""
    if sys.platform != "linux":
        return True
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


def _read(nvml: Nvml, index: int) -> GpuInfo:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    return GpuInfo(
        index=index,
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        name=_text(nvml.nvmlDeviceGetName(handle)),
        memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
    )


def _text(value: str | bytes) -> str:
    # Older bindings answer in bytes.
    return value.decode() if isinstance(value, bytes) else value


def _restrict(gpus: Sequence[GpuInfo], visible: str) -> list[GpuInfo]:
    chosen: list[GpuInfo] = []
    for entry in filter(None, (part.strip() for part in visible.split(","))):
        match = next((gpu for gpu in gpus if str(gpu.index) == entry or gpu.uuid.startswith(entry)), None)
        if match is None:
            # CUDA, too, hides everything from the first unknown entry on.
            break
        chosen.append(match)
    return chosen


def local_cluster(virtual_gpus: int, gpus: Sequence[GpuInfo] | None = None, host: str | None = None) -> Cluster:
    """This machine as a cluster: a server for each type of GPU found, else one server of ``virtual_gpus`` virtual GPUs."""
    name = host or socket.gethostname().partition(".")[0] or "localhost"
    if not gpus:
        return Cluster(name, (Server(name, virtual_gpus),))
    types = list(dict.fromkeys(gpu.gpu_type for gpu in gpus))
    servers = []
    for gpu_type in types:
        members = [gpu for gpu in gpus if gpu.gpu_type == gpu_type]
        memory_gib = round(min(gpu.memory_bytes for gpu in members) / _GIB, 1)
        label = name if len(types) == 1 else f"{name}-{gpu_type.lower()}"
        servers.append(Server(label, len(members), gpu_type=gpu_type, gpu_memory_gib=memory_gib))
    return Cluster(name, tuple(servers))


def device_ids(
    cluster: Cluster, gpus: Sequence[GpuInfo] | None, own: Collection[str] | None = None
) -> tuple[tuple[str, ...], ...]:
    """What ``CUDA_VISIBLE_DEVICES`` names each GPU index of each server; no GPU of this machine belongs to two servers.

    The servers ``own`` (names; None: all) take physical GPUs of their type in order. One for which too few are left, and one of
    another machine, has none: an empty entry. On a machine without GPUs they are numbers, in order over all servers.
    """
    if not gpus:
        first = accumulate((server.gpus for server in cluster.servers), initial=0)
        return tuple(
            tuple(map(str, range(start, start + server.gpus)))
            for start, server in zip(first, cluster.servers, strict=False)
        )
    left = list(gpus)
    layout: list[tuple[str, ...]] = []
    for server in cluster.servers:
        wanted = gpu_name(server.gpu_type)
        mine = [gpu for gpu in left if gpu.described.serves(wanted)][: server.gpus]
        if len(mine) < server.gpus or (own is not None and server.name not in own):
            layout.append(())
            continue
        left = [gpu for gpu in left if gpu not in mine]
        layout.append(tuple(gpu.uuid for gpu in mine))
    return tuple(layout)
