"""How a model is trained over GPUs: the degrees, batch, precision and schedule that today's launchers take."""

from dataclasses import dataclass
from enum import StrEnum


class Precision(StrEnum):
    """The format of matrix products. ``bf16`` and ``fp16`` run at one speed; ``tf32`` and ``fp32`` keep 4-byte values."""

    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"
    FP4 = "fp4"


class Recompute(StrEnum):
    """Which activations the backward pass computes again: none, those of the attention's core, or all of a layer."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


class PipelineSchedule(StrEnum):
    """The order of micro-batches in a pipeline. All but ``pipedream`` flush it once a global batch.

    ``1f1b`` and ``gpipe`` have the same bubble, and differ in memory; ``interleaved`` gives each GPU several stages (virtual
    stages); ``zero_bubble`` (Qi et al., arXiv 2401.10241) splits the backward pass; ``pipedream`` never waits.
    """

    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved"
    GPIPE = "gpipe"
    ZERO_BUBBLE = "zero_bubble"
    PIPEDREAM = "pipedream"

    def bubble(self, stages: int, virtual_stages: int = 1) -> float:
        """Micro-batches' time that a stage waits in one iteration: (p - 1) / v (Narayanan et al.), a third with zero bubble."""
        waits = (stages - 1) / virtual_stages
        match self:
            case PipelineSchedule.PIPEDREAM:
                return 0.0
            case PipelineSchedule.ZERO_BUBBLE:
                return waits / 3
            case _:
                return waits


class PlanError(ValueError):
    """A plan that contradicts itself or its model. ``field`` names the key; the text gives its value and the limit."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """One value for what Megatron-LM, DeepSpeed, FSDP and accelerate call by different names.

    ``data`` x ``tensor`` x ``pipeline`` x ``context`` GPUs (:attr:`gpus`). ``expert`` GPUs hold different experts of a layer;
    they are taken from the others, so that ``data`` x ``context`` x ``tensor`` is a multiple of ``expert`` x ``expert_tensor``.
    ``zero_stage`` (0 to 3; FSDP is 3) shards optimizer states, gradients and parameters over groups of ``shard_group`` GPUs of
    the ``data`` x ``context`` ones (0 = all of them; fewer = hybrid shard). ``micro_batch`` and ``global_batch`` count samples
    of ``sequence`` tokens (1 for images). ``sequence_parallel``: layers outside the tensor-parallel products are split along
    the sequence over the tensor group (Korthikanti et al., arXiv 2205.05198).

    What the memory needs beside: ``fp32_gradients`` are added up in 4 bytes (Megatron with bf16, FSDP) instead of in those of
    the parameters (DeepSpeed); ``flash_attention`` keeps no scores for the backward pass; ``dropout`` keeps masks; with
    ``adapters`` the model's weights are frozen, and only small added matrices are trained (LoRA, arXiv 2106.09685).

    What the time needs beside: ``graphed`` iterations are one CUDA graph with fused grouped products of the experts
    (full_iteration of Megatron-Core), so that the host neither launches kernels nor waits for the numbers of routed tokens.

    Raises :class:`PlanError`.
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    virtual_stages: int = 1
    context: int = 1
    expert: int = 1
    expert_tensor: int = 1
    sequence_parallel: bool = False
    zero_stage: int = 0
    shard_group: int = 0
    micro_batch: int = 1
    global_batch: int = 1
    sequence: int = 1
    precision: Precision = Precision.BF16
    recompute: Recompute = Recompute.NONE
    schedule: PipelineSchedule = PipelineSchedule.ONE_F_ONE_B
    fp32_gradients: bool = True
    flash_attention: bool = True
    dropout: bool = False
    adapters: bool = False
    graphed: bool = False

    def __post_init__(self) -> None:
        for name in _COUNTS:
            if getattr(self, name) < 1:
                raise PlanError(name, f"must be at least 1 (got {getattr(self, name)})")
        if not 0 <= self.zero_stage <= 3:
            raise PlanError("zero_stage", f"must be 0 to 3 (got {self.zero_stage})")
        self._check_groups()
        step = self.micro_batch * self.data
        if self.global_batch % step:
            raise PlanError(
                "global_batch",
                f"must be a multiple of micro_batch {self.micro_batch} x data {self.data} = {step} (got {self.global_batch})",
            )
        interleaved = self.schedule is PipelineSchedule.INTERLEAVED
        if (self.virtual_stages > 1) != interleaved:
            limit = "at least 2" if interleaved else "1"
            raise PlanError(
                "virtual_stages", f"must be {limit} with schedule {self.schedule} (got {self.virtual_stages})"
            )
        if interleaved and self.pipeline == 1:
            raise PlanError("schedule", "interleaved needs pipeline of at least 2 (got 1)")

    def _check_groups(self) -> None:
        sharers = self.data * self.context
        if self.shard_group < 0 or (self.shard_group and sharers % self.shard_group):
            raise PlanError(
                "shard_group",
                f"must divide data {self.data} x context {self.context} = {sharers} (got {self.shard_group})",
            )
        if (sharers * self.tensor) % (self.expert * self.expert_tensor):
            raise PlanError(
                "expert",
                f"expert {self.expert} x expert_tensor {self.expert_tensor} must divide data {self.data} x context {self.context}"
                f" x tensor {self.tensor} = {sharers * self.tensor}",
            )

    @property
    def gpus(self) -> int:
        """GPUs of the gang."""
        return self.data * self.tensor * self.pipeline * self.context

    @property
    def micro_batches(self) -> int:
        """Micro-batches that each replica takes in one iteration."""
        return self.global_batch // (self.micro_batch * self.data)

    @property
    def tokens(self) -> int:
        """Tokens of one iteration; samples where ``sequence`` is 1."""
        return self.global_batch * self.sequence


_COUNTS = (
    "data", "tensor", "pipeline", "virtual_stages", "context", "expert", "expert_tensor",
    "micro_batch", "global_batch", "sequence",
)  # fmt: skip
