"""NVML's answers, recorded from machines with GPUs, and what becomes of them."""

import sys
from collections.abc import Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from policies.model.cluster import Cluster, Server
from service.executors import gpus
from service.executors.gpus import GpuInfo, GpusUnusable, detect, device_ids, gpu_type_of, local_cluster
from tests.faulty_nvml import NvmlError

DGX = [
    ("GPU-7c8e2d1a-0000", "Tesla V100-SXM2-32GB", 34089730048),
    ("GPU-11aa22bb-0001", "Tesla V100-SXM2-32GB", 34089730048),
    ("GPU-33cc44dd-0002", "Tesla V100-SXM2-32GB", 34089730048),
]
MIXED = [
    ("GPU-aaaa-0", "NVIDIA A100-SXM4-80GB", 85899345920),
    ("GPU-bbbb-1", "NVIDIA GeForce RTX 3090", 25769803776),
]


class Recorded:
    """Answers as the bindings give them; ``as_bytes`` as older ones did.

    ``driver``: why NVML does not begin. ``silent``: the GPUs that do not answer, by index, and why.
    """

    def __init__(
        self,
        answers: list[tuple[str, str, int]],
        as_bytes: bool = False,
        driver: Exception | None = None,
        silent: Mapping[int, Exception] = MappingProxyType({}),
    ) -> None:
        self.answers, self.as_bytes, self.driver, self.silent = answers, as_bytes, driver, silent
        self.open = 0

    def nvmlInit(self) -> None:
        if self.driver is not None:
            raise self.driver
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.answers)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index in self.silent:
            raise self.silent[index]
        return index

    def _text(self, value: str) -> str | bytes:
        return value.encode() if self.as_bytes else value

    def nvmlDeviceGetUUID(self, handle: int) -> str | bytes:
        return self._text(self.answers[handle][0])

    def nvmlDeviceGetName(self, handle: int) -> str | bytes:
        return self._text(self.answers[handle][1])

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(total=self.answers[handle][2], used=0, free=0)


@pytest.mark.parametrize("as_bytes", [False, True])
def test_recorded_answers(as_bytes: bool) -> None:
    nvml = Recorded(DGX, as_bytes)
    found = detect(nvml)
    assert found is not None
    assert found[1] == GpuInfo(1, "GPU-11aa22bb-0001", "Tesla V100-SXM2-32GB", 34089730048)
    assert (len(found), nvml.open) == (3, 0)


@pytest.mark.parametrize(
    "without", [NvmlError(4, "No Permission"), NvmlError(9, "Driver Not Loaded"), NvmlError(12, "Library Not Found")]
)
def test_gpus_are_virtual_without_a_driver_or_any_gpu(without: NvmlError, caplog: pytest.LogCaptureFixture) -> None:
    assert detect(Recorded([]), "") is None
    assert caplog.messages == []
    assert detect(Recorded(DGX, driver=without)) is None
    [warning] = caplog.messages
    assert str(without) in warning
    assert "GPUs are virtual" in warning


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (NvmlError(18, "RM has detected an NVML/RM version mismatch."), "mismatch.*upgraded, so reboot the machine"),
        (NvmlError(999, "Unknown Error"), r"\(Unknown Error\): see nvidia-smi, or reboot"),
    ],
)
def test_a_driver_that_does_not_work_is_an_error(fault: NvmlError, words: str) -> None:
    with pytest.raises(GpusUnusable, match=words):
        detect(Recorded(DGX, driver=fault))


def test_without_the_drivers_library_the_bindings_are_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "_has_driver", lambda: True)
    monkeypatch.setitem(sys.modules, "pynvml", Recorded(DGX))
    found = detect()
    assert found is not None
    assert len(found) == 3
    monkeypatch.setattr(gpus, "_has_driver", lambda: False)
    assert detect() is None


def test_without_the_bindings_the_gpus_are_not_pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "_has_driver", lambda: True)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(GpusUnusable, match="nvidia-ml-py"):
        detect()


def test_a_gpu_that_is_lost_takes_no_other_one_with_it(caplog: pytest.LogCaptureFixture) -> None:
    nvml = Recorded(DGX, silent={1: NvmlError(15, "GPU is lost")})
    found = detect(nvml)
    assert found is not None
    assert [(gpu.index, gpu.uuid) for gpu in found] == [(0, DGX[0][0]), (2, DGX[2][0])]
    assert caplog.messages == ["GPU 1 does not answer and is left out: GPU is lost"]
    assert nvml.open == 0
    assert local_cluster(4, found, "dgx").servers == (Server("dgx", 2, gpu_type="V100", gpu_memory_gib=31.7),)


def _fails() -> None:
    raise NvmlError(999, "Unknown Error")


def test_gpus_of_which_none_answers_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Recorded(DGX[:2], silent={0: NvmlError(4, "No Permission"), 1: NvmlError(15, "GPU is lost")})
    with pytest.raises(GpusUnusable, match=r"no GPU of this machine answers \(GPU 1: GPU is lost\)"):
        detect(nvml)
    uncounted = Recorded(DGX)
    monkeypatch.setattr(uncounted, "nvmlDeviceGetCount", _fails)
    with pytest.raises(GpusUnusable, match="does not count its GPUs"):
        detect(uncounted)
    assert (nvml.open, uncounted.open) == (0, 0)


def test_where_no_gpu_may_be_used_they_are_virtual(caplog: pytest.LogCaptureFixture) -> None:
    assert detect(Recorded(DGX, silent=dict.fromkeys(range(3), NvmlError(4, "No Permission")))) is None
    assert caplog.messages == ["this service may use no GPU of the machine, which has 3: GPUs are virtual"]


def test_an_nvml_that_does_not_close_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Recorded(DGX)
    monkeypatch.setattr(nvml, "nvmlShutdown", _fails)
    assert len(detect(nvml) or ()) == 3


@pytest.mark.parametrize(
    ("visible", "indices"),
    [
        (None, [0, 1, 2]),
        ("2,0", [2, 0]),
        ("GPU-33cc", [2]),
        ("1,7,0", [1]),
        ("0, 0,GPU-7c8e,1", [0, 1]),
        ("2,-1,0", [2]),
    ],
)
def test_only_what_the_service_itself_may_use(visible: str | None, indices: list[int]) -> None:
    assert [gpu.index for gpu in detect(Recorded(DGX), visible) or ()] == indices


@pytest.mark.parametrize("visible", ["", "-1", "7,0", "MIG-5c8e2d1a", "none"])
def test_gpus_that_are_hidden_are_neither_handed_out_nor_pretended(visible: str) -> None:
    with pytest.raises(GpusUnusable, match=f"CUDA_VISIBLE_DEVICES='{visible}' names none of this machine's GPUs"):
        detect(Recorded(DGX), visible)


@pytest.mark.parametrize(
    ("visible", "indices"), [("1,2", [2]), ("GPU-11aa22bb-0001,GPU-33cc44dd-0002", [2]), ("0,7,2", [0]), ("-1,0", [])]
)
def test_a_lost_gpu_hides_none_of_those_named_after_it(visible: str, indices: list[int]) -> None:
    nvml = Recorded(DGX, silent={1: NvmlError(15, "GPU is lost")})
    if not indices:
        with pytest.raises(GpusUnusable, match=r"that answer \(2\)"):
            detect(nvml, visible)
    else:
        assert [gpu.index for gpu in detect(nvml, visible) or ()] == indices


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Tesla V100-SXM2-32GB", "V100"),
        ("Tesla P100-PCIE-16GB", "P100"),
        ("Tesla T4", "T4"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GeForce RTX 3090", "RTX3090"),
        ("NVIDIA GeForce RTX 4070 Ti", "RTX4070Ti"),
        ("Quadro RTX 6000", "RTX6000"),
        ("GeForce GTX 1080 Ti", "GTX1080Ti"),
        ("Something", "Something"),
    ],
)
def test_short_names(name: str, expected: str) -> None:
    assert gpu_type_of(name) == expected


class TestCluster:
    def test_without_gpus_they_are_virtual(self) -> None:
        assert local_cluster(4, None, "box") == Cluster("box", (Server("box", 4),))

    def test_one_type(self) -> None:
        cluster = local_cluster(4, detect(Recorded(DGX)), "dgx")
        assert cluster.servers == (Server("dgx", 3, gpu_type="V100", gpu_memory_gib=31.7),)

    def test_a_server_for_each_type(self) -> None:
        cluster = local_cluster(4, detect(Recorded(MIXED)), "box")
        assert [(s.name, s.gpus, s.gpu_type) for s in cluster.servers] == [
            ("box-a100", 1, "A100"),
            ("box-rtx3090", 1, "RTX3090"),
        ]


class TestDeviceIds:
    def test_servers_share_out_the_machine_in_order(self) -> None:
        cluster = Cluster("c", (Server("a", 1, "V100"), Server("b", 2, "V100")))
        assert device_ids(cluster, detect(Recorded(DGX))) == (
            ("GPU-7c8e2d1a-0000",),
            ("GPU-11aa22bb-0001", "GPU-33cc44dd-0002"),
        )

    def test_types_are_kept_apart(self) -> None:
        cluster = Cluster("c", (Server("a", 1, "RTX3090"), Server("b", 1, "A100")))
        assert device_ids(cluster, detect(Recorded(MIXED))) == (("GPU-bbbb-1",), ("GPU-aaaa-0",))

    def test_virtual_gpus_of_two_servers_have_different_numbers(self) -> None:
        cluster = Cluster("c", (Server("a", 2), Server("b", 3), Server("c", 1)))
        assert device_ids(cluster, None) == (("0", "1"), ("2", "3", "4"), ("5",))

    def test_gpus_of_which_none_may_be_used_have_no_numbers(self) -> None:
        """A number would be the name of a real one."""
        assert device_ids(Cluster("c", (Server("a", 2), Server("b", 1))), []) == ((), ())

    def test_a_server_for_which_too_few_are_left_has_none(self) -> None:
        """Two pretended servers never share a real GPU: the second has none."""
        cluster = Cluster("c", (Server("a", 2, "V100"), Server("b", 2, "V100"), Server("c", 1, "H100")))
        assert device_ids(cluster, detect(Recorded(DGX))) == (("GPU-7c8e2d1a-0000", "GPU-11aa22bb-0001"), (), ())

    def test_a_server_of_another_machine_takes_none_away(self) -> None:
        cluster = Cluster("c", (Server("old", 3, "V100"), Server("here", 3, "V100")))
        found = device_ids(cluster, detect(Recorded(DGX)), {"here"})
        assert [len(ids) for ids in found] == [0, 3]
