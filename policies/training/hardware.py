"""GPUs and links as an iteration time needs them: dense peaks by precision, memory, bandwidths."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from policies.model.plan import Precision, TrainingPlan

_T, _G, _GIB = 1e12, 1e9, 2**30


class Generation(StrEnum):
    """What the efficiency of matrix products is shared over. Ada stands with Hopper: both have fp8 and no fp4."""

    VOLTA = "volta"
    AMPERE = "ampere"
    HOPPER = "hopper"
    BLACKWELL = "blackwell"
    BLACKWELL_ULTRA = "blackwell_ultra"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuModel:
    """A GPU type. Peaks in floating-point operations a second without sparsity; 0 = the GPU has no such units.

    ``half_flops``: fp16 and bf16. ``nvlink_bytes_s``: of one GPU in one direction, to the other GPUs of its NVLink domain of
    ``nvlink_domain`` GPUs (PCIe where there is no NVLink). ``nic_bytes_s``: of one GPU in one direction, a usual server.
    """

    name: str
    half_flops: float
    fp8_flops: float = 0.0
    fp4_flops: float = 0.0
    tf32_flops: float = 0.0
    fp32_flops: float
    memory_bytes: int
    hbm_bytes_s: float
    nvlink_bytes_s: float
    nvlink_domain: int
    nic_bytes_s: float

    def format_of(self, precision: Precision) -> Precision:
        """What matrix products run in: this precision, or the next wider one where the GPU lacks it."""
        if precision is Precision.FP4 and not self.fp4_flops:
            precision = Precision.FP8
        if precision is Precision.FP8 and not self.fp8_flops:
            return Precision.BF16
        return Precision.FP32 if precision is Precision.TF32 and not self.tf32_flops else precision

    def peak_flops(self, precision: Precision) -> float:
        """Dense peak of matrix products in the format of this precision."""
        match self.format_of(precision):
            case Precision.FP4:
                return self.fp4_flops
            case Precision.FP8:
                return self.fp8_flops
            case Precision.TF32:
                return self.tf32_flops
            case Precision.FP32:
                return self.fp32_flops
            case _:
                return self.half_flops

    @property
    def generation(self) -> Generation:
        """By the narrowest format of its matrix units; Blackwell Ultra runs fp4 at six times the speed of 16 bits, not four."""
        if self.fp4_flops:
            return Generation.BLACKWELL_ULTRA if self.fp4_flops > 5 * self.half_flops else Generation.BLACKWELL
        if self.fp8_flops:
            return Generation.HOPPER
        return Generation.AMPERE if self.tf32_flops else Generation.VOLTA


@dataclass(frozen=True, slots=True)
class Links:
    """Bytes a second of one GPU in one direction: within the NVLink domain of ``domain`` GPUs, and beyond it.

    Raises :class:`ValueError` for a speed that is not positive or a domain of no GPU.
    """

    inside_bytes_s: float
    beyond_bytes_s: float
    domain: int

    def __post_init__(self) -> None:
        for name in ("inside_bytes_s", "beyond_bytes_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0 (got {getattr(self, name)})")
        if self.domain < 1:
            raise ValueError(f"domain must be at least 1 (got {self.domain})")

    @classmethod
    def of(cls, gpu: GpuModel) -> "Links":
        """Those of a usual server with this GPU."""
        return cls(gpu.nvlink_bytes_s, gpu.nic_bytes_s, gpu.nvlink_domain)

    def collective_bytes_s(self, inner: int, size: int) -> float:
        """Of a ring over ``size`` GPUs that are ``inner`` ranks apart.

        A ring that leaves the domain does so once a domain, and uses the NICs of all its members there.
        """
        if inner * size <= self.domain:
            return self.inside_bytes_s
        members = max(1, min(size, self.domain // inner))
        return min(self.inside_bytes_s, self.beyond_bytes_s * members)


def _gpu(
    name: str, half: float, fp8: float, fp4: float, tf32: float, fp32: float, gib: int, hbm: float, nvlink: float,
    domain: int, nic_gbps: float,
) -> tuple[str, GpuModel]:  # fmt: skip
    return name, GpuModel(
        name=name, half_flops=half * _T, fp8_flops=fp8 * _T, fp4_flops=fp4 * _T, tf32_flops=tf32 * _T,
        fp32_flops=fp32 * _T, memory_bytes=gib * _GIB, hbm_bytes_s=hbm * _G, nvlink_bytes_s=nvlink / 2 * _G,
        nvlink_domain=domain, nic_bytes_s=nic_gbps / 8 * _G,
    )  # fmt: skip


GPU_MODELS: Mapping[str, GpuModel] = dict(
    (
        # name, TFLOP/s dense (16-bit, fp8, fp4, tf32, fp32), GiB, HBM GB/s, link GB/s both ways, its domain, NIC Gb/s a GPU
        _gpu("V100-16", 125, 0, 0, 0, 15.7, 16, 900, 300, 8, 50),  # NVIDIA Tesla V100 data sheet, SXM2; DGX-1
        _gpu("V100-32", 125, 0, 0, 0, 15.7, 32, 900, 300, 8, 50),  # NVIDIA Tesla V100 data sheet, SXM2; DGX-1
        _gpu("V100-32-SXM3", 130, 0, 0, 0, 16.4, 32, 980, 300, 16, 50),  # NVIDIA DGX-2H data sheet, 450 W part
        _gpu("T4", 65, 0, 0, 0, 8.1, 16, 320, 32, 1, 25),  # NVIDIA T4 data sheet; PCIe 3.0 x16
        _gpu("A10", 125, 0, 0, 62.5, 31.2, 24, 600, 64, 1, 25),  # NVIDIA A10 data sheet; PCIe 4.0 x16
        _gpu("A100-40", 312, 0, 0, 156, 19.5, 40, 1555, 600, 8, 200),  # NVIDIA A100 data sheet, SXM4; DGX A100
        _gpu("A100-80", 312, 0, 0, 156, 19.5, 80, 2039, 600, 8, 200),  # NVIDIA A100 data sheet, SXM4; DGX A100
        _gpu("L4", 121, 242, 0, 60, 30.3, 24, 300, 64, 1, 25),  # NVIDIA L4 data sheet; PCIe 4.0 x16
        _gpu("L40S", 362, 733, 0, 183, 91.6, 48, 864, 64, 1, 100),  # NVIDIA L40S data sheet; PCIe 4.0 x16
        _gpu("RTX4090", 165, 330, 0, 82.6, 82.6, 24, 1008, 64, 1, 25),  # NVIDIA Ada whitepaper, fp32 accumulation
        _gpu("H100", 989.4, 1978.9, 0, 494.7, 66.9, 80, 3350, 900, 8, 400),  # NVIDIA H100 data sheet, SXM5; DGX H100
        _gpu("H200", 989.4, 1978.9, 0, 494.7, 66.9, 141, 4800, 900, 8, 400),  # NVIDIA H200 data sheet, SXM5
        _gpu("B200", 2250, 4500, 9000, 1125, 75, 180, 7700, 1800, 8, 400),  # NVIDIA DGX B200 data sheet
        _gpu("GB200", 2500, 5000, 10000, 1250, 80, 186, 8000, 1800, 72, 400),  # NVIDIA GB200 NVL72 data sheet
        _gpu("B300", 2250, 4500, 13500, 1125, 75, 270, 7700, 1800, 8, 800),  # NVIDIA DGX B300 data sheet
        _gpu("GB300", 2500, 5000, 15000, 1250, 80, 279, 8000, 1800, 72, 800),  # NVIDIA GB300 NVL72 data sheet
    )
)
"""By name. NICs: one a GPU on DGX servers, the usual cloud server otherwise."""


def element_bytes(plan: TrainingPlan) -> int:
    """Bytes of an activation, gradient or weight between layers: 2 wherever products run in 16 bits or fewer."""
    return 4 if plan.precision in (Precision.FP32, Precision.TF32) else 2
