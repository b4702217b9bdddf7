"""NVML's answers, recorded from machines with GPUs, and what becomes of them."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from policies.model.cluster import Cluster, Server
from service.executors import gpus
from service.executors.gpus import GpuInfo, detect, device_ids, gpu_type_of, local_cluster

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
    """Answers as the bindings give them; ``as_bytes`` as older ones did."""

    def __init__(self, answers: list[tuple[str, str, int]], as_bytes: bool = False, driver: bool = True) -> None:
        self.answers, self.as_bytes, self.driver = answers, as_bytes, driver
        self.open = 0

    def nvmlInit(self) -> None:
        if not self.driver:
            raise RuntimeError("NVML Shared Library Not Found")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.answers)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
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


def test_no_driver_and_no_gpu_are_none() -> None:
    assert detect(Recorded(DGX, driver=False)) is None
    assert detect(Recorded([])) is None


def test_without_the_drivers_library_the_bindings_are_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "_has_driver", lambda: True)
    monkeypatch.setitem(sys.modules, "pynvml", Recorded(DGX))
    found = detect()
    assert found is not None
    assert len(found) == 3
    monkeypatch.setattr(gpus, "_has_driver", lambda: False)
    assert detect() is None


def test_a_driver_that_fails_half_way_is_none() -> None:
    broken = Recorded(DGX)
    broken.answers = DGX[:2]
    broken.nvmlDeviceGetCount = lambda: 3  # type: ignore[method-assign]
    assert detect(broken) is None
    assert broken.open == 0


@pytest.mark.parametrize(
    ("visible", "indices"),
    [(None, [0, 1, 2]), ("2,0", [2, 0]), ("GPU-33cc", [2]), ("1,7,0", [1]), ("", None), ("-1", None)],
)
def test_only_what_the_service_itself_may_use(visible: str | None, indices: list[int] | None) -> None:
    found = detect(Recorded(DGX), visible)
    assert (None if found is None else [gpu.index for gpu in found]) == indices


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

    @pytest.mark.parametrize("gpus", [None, []])
    def test_virtual_gpus_of_two_servers_have_different_numbers(self, gpus: list[GpuInfo] | None) -> None:
        cluster = Cluster("c", (Server("a", 2), Server("b", 3), Server("c", 1)))
        assert device_ids(cluster, gpus) == (("0", "1"), ("2", "3", "4"), ("5",))

    def test_a_server_for_which_too_few_are_left_has_none(self) -> None:
        """Two pretended servers never share a real GPU: the second has none."""
        cluster = Cluster("c", (Server("a", 2, "V100"), Server("b", 2, "V100"), Server("c", 1, "H100")))
        assert device_ids(cluster, detect(Recorded(DGX))) == (("GPU-7c8e2d1a-0000", "GPU-11aa22bb-0001"), (), ())

    def test_a_server_of_another_machine_takes_none_away(self) -> None:
        cluster = Cluster("c", (Server("old", 3, "V100"), Server("here", 3, "V100")))
        found = device_ids(cluster, detect(Recorded(DGX)), {"here"})
        assert [len(ids) for ids in found] == [0, 3]
