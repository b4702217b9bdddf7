"""The GPUs of this machine as NVML reports them, and the cluster that they form. Without a driver GPUs are virtual."""

import contextlib
import ctypes
import logging
import socket
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

from policies.model.cluster import Cluster, Server
from policies.training.gpu_names import GpuName, gpu_name

logger = logging.getLogger(__name__)

_GIB = 1024**3

# Numbers of NVML's header.
_NO_PERMISSION = 4
_WITHOUT_DRIVER = frozenset({_NO_PERMISSION, 9, 12})
"""With driver not loaded, and library not found: a laptop that has the driver's library alone, or a container without GPUs."""
_OTHER_VERSION = 18
"""The loaded driver is of another version than the library."""
_ADVICE = "see nvidia-smi, or reboot the machine"


class GpusUnusable(Exception):
    """This machine has GPUs, or should have, and none can be used. The message is one line that says why, and what to do."""


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
    """The GPUs of this machine that answer, in NVML's order; None without a driver or without any GPU: then they are virtual.

    ``visible`` restricts them as ``CUDA_VISIBLE_DEVICES`` does (None: all): a service that was given two of the
    machine's GPUs hands out those two. Raises :class:`GpusUnusable` for a driver that does not work, for GPUs of which none
    answers, and if ``visible`` names none of them: virtual GPUs would hide the fault, or hand out what is hidden.
    """
    nvml = nvml or _bindings()
    if nvml is None or not _begins(nvml):
        return None
    try:
        found, silent = _read_all(nvml)
    finally:
        with contextlib.suppress(Exception):  # a faulty driver: all that is needed was read, or has failed
            nvml.nvmlShutdown()
    if silent and not found:
        _none_answers(silent)
        return None
    for index, why in silent.items():
        logger.warning("GPU %d does not answer and is left out: %s", index, why)
    if found and visible is not None:
        found = _restrict(found, silent, visible)
    return found or None


def _bindings() -> Nvml | None:
    """``pynvml``; None without a driver. Raises :class:`GpusUnusable`."""
    if not _has_driver():
        return None
    try:
        import pynvml  # takes a tenth of a second, so only beside a driver
    except ImportError as error:
        raise GpusUnusable(f"NVIDIA's driver is installed, but not the package nvidia-ml-py ({error})") from error
    bindings: Nvml = pynvml
    return bindings


def _begins(nvml: Nvml) -> bool:
    """Whether NVML works; if not, this machine has no driver that may be used. Raises :class:`GpusUnusable` for a faulty one."""
    try:
        nvml.nvmlInit()
    except Exception as error:  # pynvml raises a class per status code
        if _status(error) in _WITHOUT_DRIVER:
            logger.warning("NVIDIA's library is here, but no driver that can be used (%s): GPUs are virtual", error)
            return False
        upgraded = _status(error) == _OTHER_VERSION
        advice = "the driver was upgraded, so reboot the machine" if upgraded else _ADVICE
        raise GpusUnusable(f"NVIDIA's driver does not work ({error}): {advice}") from error
    return True


def _none_answers(silent: Mapping[int, Exception]) -> None:
    """Warn that this service may use no GPU. Raises :class:`GpusUnusable` if one is faulty."""
    for index, why in silent.items():
        if _status(why) != _NO_PERMISSION:
            raise GpusUnusable(f"no GPU of this machine answers (GPU {index}: {why}): {_ADVICE}")
    logger.warning("this service may use no GPU of the machine, which has %d: GPUs are virtual", len(silent))


def _status(error: Exception) -> object:
    """NVML's status code of an error of its bindings."""
    return getattr(error, "value", None)


def _has_driver() -> bool:
    """Whether the library that ``pynvml`` calls may be there. On Linux it is known for certain."""
    if sys.platform != "linux":
        return True
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


def _read_all(nvml: Nvml) -> tuple[list[GpuInfo], dict[int, Exception]]:
    """The GPUs that answer, and why the others, by index, do not. Raises :class:`GpusUnusable`."""
    found: list[GpuInfo] = []
    silent: dict[int, Exception] = {}
    try:
        count = nvml.nvmlDeviceGetCount()
    except Exception as error:
        raise GpusUnusable(f"NVIDIA's driver does not count its GPUs ({error}): {_ADVICE}") from error
    for index in range(count):
        try:
            found.append(_read(nvml, index))
        except Exception as error:  # a GPU that is lost takes no other one with it
            silent[index] = error
    return found, silent


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


def _restrict(gpus: Sequence[GpuInfo], silent: Collection[int], visible: str) -> list[GpuInfo]:
    """The GPUs that ``visible`` names, each once. ``silent``: the indices of GPUs that do not answer."""
    chosen: dict[str, GpuInfo] = {}
    for entry in filter(None, (part.strip() for part in visible.split(","))):
        match = next((gpu for gpu in gpus if str(gpu.index) == entry or gpu.uuid.startswith(entry)), None)
        if match is not None:
            chosen[match.uuid] = match
        elif not any(entry == str(index) for index in silent) and (not silent or entry.lstrip("-").isdecimal()):
            # CUDA, too, hides everything from the first unknown entry on. A UUID may be that of a GPU that does not answer.
            break
    if not chosen:
        raise GpusUnusable(
            f"CUDA_VISIBLE_DEVICES={visible!r} names none of this machine's GPUs that answer ({len(gpus)}); "
            "unset it, or name whole GPUs by index or UUID"
        )
    return list(chosen.values())


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
    another machine, has none: an empty entry. On a machine without GPUs (None) they are numbers, in order over all servers; on
    one with GPUs of which none may be used (empty), no server has any.
    """
    if gpus is None:
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
