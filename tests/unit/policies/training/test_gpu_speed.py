"""Published speeds of GPU types, and warnings where nothing states one."""

import pytest

from policies.model.cluster import Server
from policies.training.gpu_speed import is_reference, published_speed, speed_warnings, with_published_speed
from policies.training.hardware import GPU_MODELS


def test_the_reference_is_1_and_newer_parts_are_faster() -> None:
    assert published_speed("V100") == published_speed("Tesla V100-SXM2-32GB") == 1.0
    order = ["T4", "V100-16", "A100-40", "A100-80", "H100", "H200", "B200", "GB300"]
    speeds = [published_speed(name) or 0.0 for name in order]
    assert speeds == sorted(speeds)
    # Training of transformers: MLPerf and the makers' own comparisons lie between 2 and 3, and between 4 and 7.
    assert 2 < (published_speed("A100-80") or 0) < 3
    assert 4 < (published_speed("H100") or 0) < 7


def test_any_spelling_has_the_speed_of_its_type() -> None:
    assert published_speed("NVIDIA A100-SXM4-80GB") == published_speed("a100_80gb") == published_speed("A100-80")
    assert published_speed("a100") == published_speed("A100-40")  # the slower of the two


@pytest.mark.parametrize("name", ["P100", "virtual", "gpu", "A100 PCIe", ""])
def test_an_unknown_type_has_none(name: str) -> None:
    assert published_speed(name) is None


def test_every_known_type_has_one() -> None:
    assert all((published_speed(name) or 0) > 0 for name in GPU_MODELS)


def test_a_server_that_no_person_described_gets_the_published_speed() -> None:
    found = with_published_speed(Server("a", 8, "NVIDIA H100 80GB HBM3"))
    assert (found.gpu_speed, found.gpu_speed_assumed) == (published_speed("H100"), False)
    unknown = with_published_speed(Server("a", 8, "P100"))
    assert (unknown.gpu_speed, unknown.gpu_speed_assumed) == (1.0, True)
    assert with_published_speed(Server("a", 8, "v100")) == Server("a", 8, "v100")


def test_each_type_is_warned_of_once_with_what_to_write() -> None:
    servers = [Server(f"s{n}", 8, kind, gpu_speed_assumed=True) for n, kind in enumerate(("P100", "a100", "P100"))]
    first, second = speed_warnings([*servers, Server("t", 8, "H100", gpu_speed=5.0), Server("v", 8)])
    assert first == (
        "GPU type 'P100' has no gpu_speed: 1.0, that of a V100, is assumed; write how many times as fast as a V100 it is"
    )
    assert f"write gpu_speed: {published_speed('A100'):g}, which its published peaks suggest" in second
    assert second.startswith("GPU type 'a100' has no gpu_speed")


def test_only_the_family_of_the_reference_needs_no_speed() -> None:
    assert is_reference("V100-32")
    assert is_reference("nvidia_v100")
    assert not is_reference("A100")
    assert not is_reference("gpu")
