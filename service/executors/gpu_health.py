"""Watches the GPUs of this machine through NVML in a thread of its own, because calls to a faulty driver may hang."""

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from service.domain.health import Sign
from service.executors.gpus import GpuInfo, Nvml

logger = logging.getLogger(__name__)

PERIOD_S = 10.0
"""Time between two looks at all GPUs."""
SILENT_S = 60.0
"""A driver that has answered no look for so long counts as lost with its GPUs. Its first start may take tens of seconds."""
_EVENT_WAIT_MS = 500
"""Longest wait for an Xid event: closing takes no longer."""

# Numbers of NVML's header.
_TIMEOUT = 10
_NO_DRIVER = frozenset({1, 9, 12, 18})
"""Uninitialized, driver not loaded, library not found, versions of library and driver differ: not the fault of one GPU."""
_XID_EVENTS = 8
_UNCORRECTED = 1
_SINCE_DRIVER_LOAD = 0

PROGRAM_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""Xid errors that programs cause. Kubernetes' device plugin ignores the same ones."""


class GpuFault(NamedTuple):
    """A sign of a fault of the GPU ``uuid``."""

    uuid: str
    sign: Sign
    detail: str


class GpuWatch:
    """Reports each new fault of ``gpus`` once: Xid errors, uncorrectable ECC errors, and GPUs that no longer answer.

    ``nvml``: pynvml, or what stands in for it.
    """

    def __init__(
        self,
        gpus: Sequence[GpuInfo],
        nvml: Nvml,
        period_s: float = PERIOD_S,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._gpus = gpus
        self._nvml = nvml
        self._period_s = period_s
        self._monotonic_s = monotonic_s
        self._answered_s = math.inf
        self._lock = threading.Lock()
        self._faults: list[GpuFault] = []
        self._lost: set[str] = set()
        self._ecc: dict[str, int] = {}
        self._unrepaired: set[str] = set()
        self._closed = threading.Event()
        # A daemon thread: a call that hangs must not keep the service from ending.
        self._thread = threading.Thread(target=self._run, name="gpu-health", daemon=True)

    def start(self) -> None:
        """Watch until :meth:`close`."""
        self._answered_s = self._monotonic_s()
        self._thread.start()

    def close(self) -> None:
        """Stop watching. Does not wait for a call that hangs."""
        self._closed.set()
        self._thread.join(timeout=2.0 * _EVENT_WAIT_MS / 1000.0)

    def take(self) -> list[GpuFault]:
        """The faults found since the last call, oldest first. A call of the driver that hangs is found here."""
        silent_s = self._monotonic_s() - self._answered_s
        if silent_s > SILENT_S and not self._closed.is_set():
            for gpu in self._gpus:
                self._is_lost(gpu, f"the driver has not answered for {silent_s:.0f} s")
        with self._lock:
            found, self._faults = self._faults, []
        return found

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                self._session()
            except Exception as error:  # pynvml raises a class per status code
                for gpu in self._gpus:
                    self._is_lost(gpu, f"the driver does not answer: {error}")
            self._answered_s = self._monotonic_s()
            self._closed.wait(self._period_s)

    def _session(self) -> None:
        self._nvml.nvmlInit()
        try:
            events = self._register()
            while not self._closed.is_set():
                for gpu in self._gpus:
                    self._look(gpu)
                self._answered_s = self._monotonic_s()
                self._wait(events)
        finally:
            self._nvml.nvmlShutdown()

    def _register(self) -> Any | None:
        """The set of events that Xid errors come through; None if no GPU has them."""
        try:
            events = self._nvml.nvmlEventSetCreate()
        except Exception:  # a platform without events
            return None
        able = 0
        for gpu in self._gpus:
            try:
                self._nvml.nvmlDeviceRegisterEvents(self._nvml.nvmlDeviceGetHandleByUUID(gpu.uuid), _XID_EVENTS, events)
                able += 1
            except Exception as error:
                logger.info("GPU %s reports no Xid errors: %s", gpu.uuid, error)
        return events if able else None

    def _look(self, gpu: GpuInfo) -> None:
        try:
            handle = self._nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
            self._nvml.nvmlDeviceGetMemoryInfo(handle)
        except Exception as error:
            if getattr(error, "value", None) in _NO_DRIVER:
                raise
            self._is_lost(gpu, str(error))
            return
        self._lost.discard(gpu.uuid)
        self._look_at_memory(gpu, handle)

    def _look_at_memory(self, gpu: GpuInfo, handle: Any) -> None:
        try:
            errors = self._nvml.nvmlDeviceGetTotalEccErrors(handle, _UNCORRECTED, _SINCE_DRIVER_LOAD)
        except Exception:  # a GPU without ECC memory
            errors = 0
        if errors > self._ecc.setdefault(gpu.uuid, errors):
            self._add(gpu, Sign.ECC, f"{errors - self._ecc[gpu.uuid]} uncorrectable memory errors")
        self._ecc[gpu.uuid] = errors
        try:
            *_, failed = self._nvml.nvmlDeviceGetRemappedRows(handle)
        except Exception:  # a GPU that cannot replace rows of its memory
            failed = 0
        if failed and gpu.uuid not in self._unrepaired:
            self._unrepaired.add(gpu.uuid)
            self._add(gpu, Sign.ECC, "a faulty row of its memory could not be replaced")

    def _wait(self, events: Any | None) -> None:
        """Take Xid errors until the next look is due."""
        waited_ms = 0.0
        while waited_ms < 1000.0 * self._period_s and not self._closed.is_set():
            wait_ms = min(_EVENT_WAIT_MS, int(1000.0 * self._period_s))
            waited_ms += wait_ms
            if events is None:
                self._closed.wait(wait_ms / 1000.0)
                continue
            try:
                event = self._nvml.nvmlEventSetWait_v2(events, wait_ms)
            except Exception as error:
                if getattr(error, "value", None) != _TIMEOUT:
                    # Such as a lost GPU: the next look names it.
                    self._closed.wait(wait_ms / 1000.0)
                continue
            self._xid(event)

    def _xid(self, event: Any) -> None:
        number = int(event.eventData)
        if number in PROGRAM_XIDS:
            return
        try:
            uuid = self._nvml.nvmlDeviceGetUUID(event.device)
        except Exception as error:
            logger.error("Xid %d of an unknown GPU: %s", number, error)
            return
        uuid = uuid.decode() if isinstance(uuid, bytes) else uuid
        for gpu in self._gpus:
            if gpu.uuid == uuid:
                self._add(gpu, Sign.XID, f"Xid {number}")

    def _is_lost(self, gpu: GpuInfo, why: str) -> None:
        if gpu.uuid not in self._lost:
            self._lost.add(gpu.uuid)
            self._add(gpu, Sign.GPU_LOST, why)

    def _add(self, gpu: GpuInfo, sign: Sign, what: str) -> None:
        fault = GpuFault(gpu.uuid, sign, f"GPU {gpu.index} ({gpu.name}, {gpu.uuid}): {what}")
        logger.error("%s", fault.detail)
        with self._lock:
            if fault not in self._faults:
                self._faults.append(fault)
