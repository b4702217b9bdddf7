"""Peaks, generations and links of GPU types."""

import pytest

from policies.model.plan import Precision
from policies.training.hardware import GPU_MODELS, Generation, Links


def test_peaks_of_formats_that_a_gpu_lacks_are_those_of_the_next_wider_one() -> None:
    v100, a100, h100, gb300 = (GPU_MODELS[name] for name in ("V100-16", "A100-80", "H100", "GB300"))
    assert h100.peak_flops(Precision.FP8) == 1978.9e12
    assert h100.peak_flops(Precision.FP4) == 1978.9e12
    assert a100.peak_flops(Precision.FP8) == a100.peak_flops(Precision.BF16) == 312e12
    assert a100.peak_flops(Precision.TF32) == 156e12
    assert v100.peak_flops(Precision.TF32) == v100.peak_flops(Precision.FP32) == 15.7e12
    assert gb300.peak_flops(Precision.FP4) == 15000e12
    assert [a100.format_of(each) for each in (Precision.FP4, Precision.TF32)] == [Precision.BF16, Precision.TF32]
    assert [v100.format_of(each) for each in (Precision.TF32, Precision.FP16)] == [Precision.FP32, Precision.FP16]


@pytest.mark.parametrize(
    ("name", "generation"),
    [
        ("V100-32", Generation.VOLTA),
        ("A100-40", Generation.AMPERE),
        ("H200", Generation.HOPPER),
        ("L4", Generation.HOPPER),
        ("B200", Generation.BLACKWELL),
        ("GB300", Generation.BLACKWELL_ULTRA),
    ],
)
def test_the_generation_follows_from_the_formats(name: str, generation: Generation) -> None:
    assert GPU_MODELS[name].generation is generation


def test_a_ring_that_leaves_the_domain_uses_the_nics_of_its_members_there() -> None:
    links = Links(inside_bytes_s=450e9, beyond_bytes_s=50e9, domain=8)
    assert links.collective_bytes_s(1, 8) == 450e9
    assert links.collective_bytes_s(8, 2) == 50e9  # one GPU of each server
    assert links.collective_bytes_s(2, 16) == 200e9  # four GPUs of each server
    assert links.collective_bytes_s(1, 16) == 400e9
    assert Links(100e9, 50e9, 8).collective_bytes_s(1, 16) == 100e9  # no faster than NVLink


@pytest.mark.parametrize(
    ("speeds", "problem"),
    [
        ((0.0, 1.0, 8), r"inside_bytes_s must be above 0 \(got 0.0\)"),
        ((1.0, float("nan"), 8), r"beyond_bytes_s must be above 0 \(got nan\)"),
        ((1.0, 1.0, 0), r"domain must be at least 1 \(got 0\)"),
    ],
)
def test_links_without_a_speed_are_refused(speeds: tuple[float, float, int], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Links(*speeds)
