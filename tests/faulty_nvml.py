"""NVML of a machine whose GPUs fail when a test wants it."""

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from service.executors.gpus import GpuInfo


class NvmlError(Exception):
    """As pynvml's: ``value`` is the number of the status."""

    def __init__(self, value: int, text: str) -> None:
        super().__init__(text)
        self.value = value


class FaultyNvml:
    """Answers of NVML that a test changes while they are watched. Raises as pynvml does."""

    def __init__(self, gpus: Sequence[GpuInfo]) -> None:
        self.gpus = gpus
        self.driver = True
        self.lost: dict[str, NvmlError] = {}
        self.ecc: dict[str, int] = {}
        self.remap_failed: set[str] = set()
        self.without_events: set[str] = set()
        self.xids: list[tuple[str, int]] = []
        self.wakes = threading.Event()
        self.sessions = 0
        self.looks = 0

    def nvmlInit(self) -> None:
        if not self.driver:
            raise NvmlError(9, "Driver Not Loaded")
        self.sessions += 1

    def nvmlShutdown(self) -> None:
        self.sessions -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return self.gpus[index].uuid

    def nvmlDeviceGetName(self, handle: str) -> str:
        return next(gpu.name for gpu in self.gpus if gpu.uuid == handle)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        self.looks += 1
        if not self.driver:
            raise NvmlError(1, "Uninitialized")
        if uuid in self.lost:
            raise self.lost[uuid]
        return uuid

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        return SimpleNamespace(total=1, used=0, free=1)

    def nvmlDeviceGetUUID(self, handle: str) -> bytes:
        return handle.encode()

    def nvmlDeviceGetTotalEccErrors(self, handle: str, error_type: int, counter_type: int) -> int:
        if handle not in self.ecc:
            raise NvmlError(3, "Not Supported")
        assert (error_type, counter_type) == (1, 0)
        return self.ecc[handle]

    def nvmlDeviceGetRemappedRows(self, handle: str) -> tuple[int, int, int, int]:
        return (0, 0, 0, int(handle in self.remap_failed))

    def nvmlEventSetCreate(self) -> str:
        return "set"

    def nvmlDeviceRegisterEvents(self, handle: str, event_types: int, event_set: str) -> None:
        assert (event_types, event_set) == (8, "set")
        if handle in self.without_events:
            raise NvmlError(3, "Not Supported")

    def nvmlEventSetWait_v2(self, event_set: str, timeout_ms: int) -> Any:
        if not self.xids:
            self.wakes.wait(0.001)
            raise NvmlError(10, "Timeout")
        uuid, number = self.xids.pop(0)
        return SimpleNamespace(device=uuid, eventData=number)
