"""Faults of GPUs from NVML's answers: errors of the driver, of memory, and GPUs that no longer answer."""

import threading
from collections.abc import Iterator

import pytest

from service.domain.health import Sign
from service.executors.gpu_health import PROGRAM_XIDS, SILENT_S, GpuFault, GpuWatch
from service.executors.gpus import GpuInfo
from tests.faulty_nvml import FaultyNvml, NvmlError
from tests.local_executor import wait_for

GPUS = [GpuInfo(index, f"GPU-{index}", "A100", 1 << 36) for index in range(2)]


@pytest.fixture
def nvml() -> FaultyNvml:
    return FaultyNvml(GPUS)


@pytest.fixture
def watch(nvml: FaultyNvml) -> Iterator[GpuWatch]:
    """A watch that looks every few milliseconds."""
    made = GpuWatch(GPUS, nvml, period_s=0.002)  # type: ignore[arg-type]
    yield made
    made.close()
    made._thread.join(60.0)
    assert nvml.sessions == 0


def faults(watch: GpuWatch, count: int) -> list[GpuFault]:
    """Wait for so many faults."""
    found: list[GpuFault] = []
    wait_for(lambda: (found.extend(watch.take()), len(found) >= count)[1], f"{count} faults, found {found}")
    return found


def looked(nvml: FaultyNvml) -> None:
    """Wait until every GPU was looked at twice more."""
    until = nvml.looks + 4 * len(GPUS)
    wait_for(lambda: nvml.looks >= until, "more looks")


def test_an_error_that_programs_do_not_cause(watch: GpuWatch, nvml: FaultyNvml) -> None:
    nvml.xids += [("GPU-0", number) for number in sorted(PROGRAM_XIDS)] + [("GPU-1", 79), ("GPU-7", 79)]
    watch.start()
    assert faults(watch, 1) == [GpuFault("GPU-1", Sign.XID, "GPU 1 (A100, GPU-1): Xid 79")]
    looked(nvml)
    assert watch.take() == []


def test_memory_errors_count_from_the_first_look_on(watch: GpuWatch, nvml: FaultyNvml) -> None:
    nvml.ecc = {"GPU-0": 5}
    watch.start()
    looked(nvml)
    assert watch.take() == []
    nvml.ecc = {"GPU-0": 7}
    assert faults(watch, 1) == [GpuFault("GPU-0", Sign.ECC, "GPU 0 (A100, GPU-0): 2 uncorrectable memory errors")]


def test_a_row_that_cannot_be_replaced_is_reported_once(watch: GpuWatch, nvml: FaultyNvml) -> None:
    nvml.remap_failed = {"GPU-1"}
    watch.start()
    (fault,) = faults(watch, 1)
    assert (fault.uuid, fault.sign) == ("GPU-1", Sign.ECC)
    looked(nvml)
    assert watch.take() == []


@pytest.mark.parametrize(
    "error", [NvmlError(15, "GPU is lost"), NvmlError(6, "Not Found"), NvmlError(999, "Unknown Error")]
)
def test_a_gpu_that_vanishes_and_vanishes_again(watch: GpuWatch, nvml: FaultyNvml, error: NvmlError) -> None:
    watch.start()
    looked(nvml)
    for _ in range(2):
        nvml.lost = {"GPU-1": error}
        assert faults(watch, 1) == [GpuFault("GPU-1", Sign.GPU_LOST, f"GPU 1 (A100, GPU-1): {error}")]
        looked(nvml)
        assert watch.take() == []
        nvml.lost = {}
        looked(nvml)


def test_without_the_driver_no_gpu_answers(watch: GpuWatch, nvml: FaultyNvml) -> None:
    watch.start()
    looked(nvml)
    nvml.driver = False
    found = faults(watch, 2)
    assert {(fault.uuid, fault.sign) for fault in found} == {(gpu.uuid, Sign.GPU_LOST) for gpu in GPUS}
    nvml.driver = True
    looked(nvml)
    nvml.lost = {"GPU-0": NvmlError(15, "GPU is lost")}
    assert [fault.uuid for fault in faults(watch, 1)] == ["GPU-0"]


def test_gpus_without_events_are_looked_at_all_the_same(watch: GpuWatch, nvml: FaultyNvml) -> None:
    nvml.without_events = {gpu.uuid for gpu in GPUS}
    nvml.remap_failed = {"GPU-0"}
    watch.start()
    assert [fault.uuid for fault in faults(watch, 1)] == ["GPU-0"]


def test_a_call_that_hangs_holds_up_neither_a_reader_nor_the_end(nvml: FaultyNvml) -> None:
    entered, release = threading.Event(), threading.Event()

    def hang() -> None:
        entered.set()
        release.wait(60.0)

    nvml.nvmlInit = hang  # type: ignore[method-assign]
    watch = GpuWatch(GPUS, nvml, period_s=0.002)  # type: ignore[arg-type]
    watch.start()
    assert entered.wait(60.0)
    assert watch.take() == []
    watch.close()
    release.set()
    watch._thread.join(60.0)
    assert not watch._thread.is_alive()


def test_a_call_that_hangs_is_reported_once_and_again_after_an_answer(nvml: FaultyNvml) -> None:
    now_s, release = [0.0], threading.Event()
    answer = nvml.nvmlDeviceGetMemoryInfo
    watch = GpuWatch(GPUS, nvml, period_s=0.002, monotonic_s=lambda: now_s[0])  # type: ignore[arg-type]
    watch.start()
    try:
        for _ in range(2):
            looked(nvml)
            assert watch.take() == []
            entered = threading.Event()
            release.clear()

            def hang(handle: str, entered: threading.Event = entered) -> object:
                entered.set()
                release.wait(60.0)
                return answer(handle)

            nvml.nvmlDeviceGetMemoryInfo = hang  # type: ignore[method-assign]
            assert entered.wait(60.0)
            now_s[0] += SILENT_S
            assert watch.take() == []
            now_s[0] += 1.0
            found = watch.take()
            assert [(fault.uuid, fault.sign) for fault in found] == [(gpu.uuid, Sign.GPU_LOST) for gpu in GPUS]
            assert found[0].detail.endswith("the driver has not answered for 61 s")
            assert watch.take() == []
            nvml.nvmlDeviceGetMemoryInfo = answer  # type: ignore[method-assign]
            release.set()
    finally:
        release.set()
        watch.close()
        watch._thread.join(60.0)
