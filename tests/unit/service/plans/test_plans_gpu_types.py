"""GPU types by the names that people, NVML and Slurm give them."""

import pytest

from policies.training.hardware import GPU_MODELS
from service.plans.gpu_types import gpu_of
from service.plans.values import ReadError


@pytest.mark.parametrize(
    ("text", "name"),
    [
        *((name, name) for name in GPU_MODELS),
        ("h100", "H100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("h100-80gb", "H100"),
        ("A100-80GB", "A100-80"),
        ("NVIDIA A100-SXM4-80GB", "A100-80"),
        ("a100_40g", "A100-40"),
        ("Tesla V100-SXM2-32GB", "V100-32"),
        ("tesla_t4", "T4"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("rtx_4090", "RTX4090"),
        ("NVIDIA H200", "H200"),
        ("B200", "B200"),
    ],
)
def test_spellings(text: str, name: str) -> None:
    assert gpu_of(text).name == name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a100", "gpu-type: 'a100' is A100-40 or A100-80; say which"),
        ("H10", "gpu-type: 'H10' is not known; did you mean 'H100'?; the types are V100-16, "),
        ("H100 PCIe", "gpu-type: 'H100 PCIe' is not known"),
        ("H100-40GB", "gpu-type: 'H100-40GB' is not known"),
        ("", "gpu-type: '' is not known"),
    ],
)
def test_what_is_not_known_is_refused(text: str, message: str) -> None:
    with pytest.raises(ReadError) as caught:
        gpu_of(text)
    assert str(caught.value).startswith(message)
