"""One vocabulary of GPU types."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.model.cluster import Cluster, Server
from policies.model.job import JobSpec
from policies.training.gpu_names import gpu_name, types_meant, with_types_of
from policies.training.hardware import GPU_MODELS


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        *((name, name) for name in GPU_MODELS),
        *((name.lower(), name) for name in GPU_MODELS),
        ("NVIDIA A100-SXM4-80GB", "A100-80"),
        ("nvidia_a100-sxm4-80gb", "A100-80"),
        ("A100 80GB", "A100-80"),
        ("gpu:h100_80gb", "H100"),
        ("gres/gpu:h100:4", "H100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("Tesla V100-SXM2-32GB", "V100-32"),
        ("rtx 4090", "RTX4090"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("tesla_t4", "T4"),
        # The memory is open: the family.
        ("a100", "A100"),
        ("Tesla V100", "V100"),
        # Not in the table: one name for all spellings all the same.
        ("NVIDIA GeForce RTX 2080 Ti", "2080TI"),
        ("2080Ti", "2080TI"),
        ("NVIDIA RTX A6000", "A6000"),
        ("AMD Instinct MI300X", "MI300X"),
        ("H100-40GB", "H100-40"),
        ("NVIDIA A100 80GB PCIe", "A100-80-pcie"),
        ("virtual", "VIRTUAL"),
    ],
)
def test_spellings(text: str, canonical: str) -> None:
    assert gpu_name(text).canonical == canonical


@pytest.mark.parametrize(
    ("asked", "has", "serves"),
    [
        ("a100", "NVIDIA A100-SXM4-80GB", True),
        ("A100-80", "nvidia_a100-sxm4-80gb", True),
        ("A100 80GB", "NVIDIA A100-SXM4-40GB", False),
        ("A100 80GB", "A100", False),  # its memory is not known
        ("a100", "A100 PCIe", True),
        ("a100 pcie", "A100", False),
        ("a100", "a100_1g.5gb", False),  # a slice
        ("a100_1g.5gb", "A100_1G.5GB", True),
        ("h100 80gb", "H100", True),
        ("H100", "H200", False),
        ("V100-32", "V100-32-SXM3", True),
        ("Virtual", "virtual", True),
        ("gpu", "A100", False),
        ("A100", "gpu", False),
        ("rtx a6000", "A6000", True),
    ],
)
def test_what_serves_what(asked: str, has: str, serves: bool) -> None:
    assert gpu_name(has).serves(gpu_name(asked)) is serves


@given(st.text(max_size=30))
def test_any_text_is_a_name_that_serves_itself(text: str) -> None:
    name = gpu_name(text)
    assert name.canonical == gpu_name(text).canonical
    assert name.serves(name)


def _cluster(*types: tuple[str, float | None]) -> Cluster:
    return Cluster("c", tuple(Server(f"s{n}", 8, kind, gpu_memory_gib=gib) for n, (kind, gib) in enumerate(types)))


class TestOnACluster:
    def test_a_name_that_the_cluster_uses_means_that_type_alone(self) -> None:
        cluster = _cluster(("A100-80", None), ("a100", None), ("A100", None))
        assert types_meant("A100", cluster) == ("A100",)
        assert types_meant("a100", cluster) == ("a100",)

    def test_a_family_means_all_its_members(self) -> None:
        cluster = _cluster(("NVIDIA A100-SXM4-40GB", None), ("T4", None), ("NVIDIA A100-SXM4-80GB", None))
        assert types_meant("A100", cluster) == ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB")
        assert types_meant("A100 80GB", cluster) == ("NVIDIA A100-SXM4-80GB",)
        assert types_meant("H100", cluster) == ()

    def test_the_fastest_member_of_a_family_comes_first(self) -> None:
        speeds = {"A100-40GB": 2.0, "A100-80GB": 3.0, "A100 PCIe": 2.0, "NVIDIA A100-SXM4-40GB": 2.5}
        servers = tuple(Server(f"s{n}", 8, name, gpu_speed=speed) for n, (name, speed) in enumerate(speeds.items()))
        cluster = Cluster("c", (*servers, Server("faster", 8, "A100 PCIe", gpu_speed=2.6)))
        assert types_meant("A100", cluster) == ("A100-80GB", "A100 PCIe", "NVIDIA A100-SXM4-40GB", "A100-40GB")

    def test_the_memory_of_a_type_may_stand_beside_its_name(self) -> None:
        assert types_meant("A100 80GB", _cluster(("A100", 79.6), ("A100", 79.6))) == ("A100",)
        assert types_meant("A100 40GB", _cluster(("A100", 79.6))) == ()
        # Servers of one type that differ: the type cannot promise either.
        assert types_meant("A100 80GB", _cluster(("A100", 79.6), ("A100", 39.6))) == ()

    def test_a_job_gets_the_names_of_the_cluster(self) -> None:
        cluster = _cluster(("NVIDIA A100-SXM4-80GB", None), ("V100", None))
        job = JobSpec(name="", user="u", gpus=1, gpu_type="a100", gpu_type_fallbacks=("A100 80GB", "V100", "H100"))
        assert with_types_of(job, cluster).gpu_types == ("NVIDIA A100-SXM4-80GB", "V100", "H100")

    def test_a_job_whose_names_the_cluster_has_is_unchanged(self) -> None:
        job = JobSpec(name="", user="u", gpus=1, gpu_type="V100")
        assert with_types_of(job, _cluster(("V100", None))) is job
