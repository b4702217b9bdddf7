"""Peak arithmetic of named GPUs, from their makers' data sheets."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CatalogueGpu:
    """``peak_flops``: floating-point operations a second in fp32, outside tensor cores. ``memory_gib`` of the least variant."""

    name: str
    peak_flops: float
    memory_gib: int


GPUS: Mapping[str, CatalogueGpu] = {
    gpu.name: gpu
    for gpu in (
        CatalogueGpu("K80", 4.37e12, 12),  # one of the two GPUs on a board
        CatalogueGpu("P100", 10.6e12, 16),
        CatalogueGpu("T4", 8.1e12, 16),
        CatalogueGpu("V100", 15.7e12, 16),
        CatalogueGpu("A100", 19.5e12, 40),
        CatalogueGpu("H100", 66.9e12, 80),
    )
}
"""By name; V100 is the reference on which a job without a GPU type states its layer times."""
