"""The memory of each pipeline stage's GPUs under a plan: what takes how many bytes.

Model states as in ZeRO (Rajbhandari et al., arXiv 1910.02054) with Adam: in 16 bits 2 bytes a weight, 2 or 4 a gradient, 12 for
the fp32 weight and two moments; in fp32 4, 4 and 8. Activations as in :mod:`policies.training.activations`. Experts are taken
as evenly used. Offloading to the host is not modelled.
"""

from dataclasses import dataclass

from policies.model.plan import PipelineSchedule, TrainingPlan
from policies.model.shape import ModelShape, TransformerShape
from policies.training.activations import (
    backward_bytes,
    embedding_bytes,
    kept,
    layer_bytes,
    logit_bytes,
    output_bytes,
)
from policies.training.agreement import require_agreement
from policies.training.hardware import GpuModel, element_bytes
from policies.training.operations import LayerParameters, Parameters, parameters

ALLOWANCE_BYTES = 1.0 * 2**30
"""CUDA context, workspaces of the libraries and NCCL's buffers."""

FRAGMENTATION = 0.03
"""Of activations, logits and what the backward pass holds: memory that the allocator has and cannot use."""

ADAPTER_SHARE = 0.01
"""Weights of the adapters over those of the model; LoRA of usual ranks on all matrices has fewer."""

GATHERED_LAYERS = 2
"""Layers whose weights ZeRO-3 holds whole at a time: one in use, the next on its way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Bytes on each GPU of one pipeline stage, at its peak. ``layers`` of the model are on it.

    ``workspace``: what the backward pass of one layer holds, and the layers that ZeRO-3 has gathered. ``allowance``: context,
    communication buffers and fragmentation.
    """

    stage: int
    layers: int
    parameters: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    workspace: float
    allowance: float

    def parts(self) -> dict[str, float]:
        """Bytes by name."""
        return {name: getattr(self, name) for name in PARTS}

    @property
    def total(self) -> float:
        """Bytes of all parts."""
        states = self.parameters + self.gradients + self.optimizer
        return states + self.activations + self.logits + self.workspace + self.allowance


PARTS = ("parameters", "gradients", "optimizer", "activations", "logits", "workspace", "allowance")
"""Names of the parts, in the order in which a bill shows them."""


@dataclass(frozen=True, slots=True)
class MemoryBill:
    """Of all stages of a plan, in order."""

    stages: tuple[StageMemory, ...]

    @property
    def worst(self) -> StageMemory:
        """The stage that needs most; the first of several."""
        return max(self.stages, key=lambda stage: stage.total)

    @property
    def peak(self) -> float:
        """Bytes that each GPU must have."""
        return self.worst.total

    def fits(self, gpu: GpuModel) -> bool:
        """Whether all stages fit the GPU's memory."""
        return self.peak <= gpu.memory_bytes


def memory_bill(shape: ModelShape, plan: TrainingPlan) -> MemoryBill:
    """The bill of a plan. Raises PlanError for a plan that contradicts the shape."""
    require_agreement(shape, plan)
    counted = parameters(shape)
    held = stage_layers(counted, plan)
    return MemoryBill(tuple(_Stage(shape, plan, counted, stage, *held[stage]).bill() for stage in range(plan.pipeline)))


def stage_layers(counted: Parameters, plan: TrainingPlan) -> tuple[tuple[int, int], ...]:
    """Dense layers and layers with experts of each stage.

    Layers are divided evenly over stages x virtual stages. Where that leaves a remainder, the last and the first have one fewer,
    then the next from both ends: they hold the output and the embedding, and may hold no layer.
    """
    layers, chunks = counted.dense_layers + counted.expert_layers, plan.pipeline * plan.virtual_stages
    each = -(-layers // chunks)
    sizes = [each] * chunks
    for fewer in range(each * chunks - layers):
        sizes[-1 - fewer // 2 if fewer % 2 == 0 else fewer // 2] -= 1
    held = [[0, 0] for _ in range(plan.pipeline)]
    first = 0
    for chunk, size in enumerate(sizes):
        dense = max(0, min(size, counted.dense_layers - first))
        held[chunk % plan.pipeline][0] += dense
        held[chunk % plan.pipeline][1] += size - dense
        first += size
    return tuple((dense, routed) for dense, routed in held)


@dataclass(frozen=True, slots=True)
class _Stage:
    """What one stage holds."""

    shape: ModelShape
    plan: TrainingPlan
    counted: Parameters
    stage: int
    dense: int
    routed: int

    @property
    def last(self) -> bool:
        return self.stage == self.plan.pipeline - 1

    def bill(self) -> StageMemory:
        plan, width = self.plan, element_bytes(self.plan)
        weights, experts = self._weights()
        trained = ADAPTER_SHARE if plan.adapters else 1.0
        gradient = trained * (4 if plan.fp32_gradients else width)
        moments = trained * (8 if width == 4 else 12)
        shards, expert_shards = _shards(plan)

        def states(size: float, stage: int) -> float:
            if plan.zero_stage < stage:
                return size * (weights + experts)
            return size * (weights / shards + experts / expert_shards)

        activations, logits = self._activations()
        backward = self._backward()
        return StageMemory(
            stage=self.stage,
            layers=self.dense + self.routed,
            parameters=states(width, 3) * self._versions(),
            gradients=states(gradient, 2),
            optimizer=states(moments, 1),
            activations=activations,
            logits=logits,
            workspace=backward + self._gathered(width, gradient),
            allowance=ALLOWANCE_BYTES + FRAGMENTATION * (activations + logits + backward),
        )

    def _weights(self) -> tuple[float, float]:
        """Weights on one GPU before ZeRO: of all parts but the experts, and of the experts."""
        plan, counted = self.plan, self.counted
        ends = counted.embedding if self.stage == 0 else 0
        if self.last:
            ends += counted.output
            if self._tied() and plan.pipeline > 1:
                ends += counted.embedding
        layers = self.dense * _held(counted.dense, plan) + self.routed * _held(counted.expert, plan)
        experts = self.routed * counted.expert.experts / (plan.expert * plan.expert_tensor)
        return layers + ends / plan.tensor, experts

    def _tied(self) -> bool:
        return isinstance(self.shape, TransformerShape) and self.shape.tied

    def _versions(self) -> int:
        """PipeDream keeps the weights of each micro-batch that is under way (arXiv 1806.03377)."""
        return self.plan.pipeline - self.stage if self.plan.schedule is PipelineSchedule.PIPEDREAM else 1

    def _activations(self) -> tuple[float, float]:
        """Bytes of activations, and of logits, of all micro-batches that the stage keeps."""
        shape, plan = self.shape, self.plan
        layers = self.dense * layer_bytes(shape, plan, routed=False) if self.dense else 0.0
        if self.routed:
            layers += self.routed * layer_bytes(shape, plan, routed=True)
        if self.stage == 0:
            layers += embedding_bytes(shape, plan)
        activations, logits = kept(plan, self.stage) * layers, 0.0
        if self.last:
            outputs = plan.micro_batches if plan.schedule is PipelineSchedule.GPIPE else 1
            activations += outputs * output_bytes(shape, plan)
            logits = outputs * logit_bytes(shape, plan)
        return activations, logits

    def _backward(self) -> float:
        """Bytes that the backward pass of the stage's largest layer holds."""
        found = [
            backward_bytes(self.shape, self.plan, routed=routed)
            for routed, layers in ((False, self.dense), (True, self.routed))
            if layers
        ]
        return max(found, default=0.0)

    def _gathered(self, width: int, gradient: float) -> float:
        """Bytes of weights (ZeRO-3) and gradients (ZeRO-2 and 3) that are whole for a moment, a layer at a time.

        Never more than sharding has saved.
        """
        plan = self.plan
        if plan.zero_stage < 2:
            return 0.0
        weights, experts = self._weights()
        layer = max(
            _held(self.counted.dense, plan) if self.dense else 0.0,
            (_held(self.counted.expert, plan) + self.counted.expert.experts / (plan.expert * plan.expert_tensor))
            if self.routed
            else 0.0,
            self.counted.embedding / plan.tensor if self.stage == 0 else 0.0,
        )
        shards, expert_shards = _shards(plan)
        saved = weights * (1 - 1 / shards) + experts * (1 - 1 / expert_shards)
        whole = min(layer, saved) * gradient
        if plan.zero_stage == 3:
            whole += min(GATHERED_LAYERS * layer, saved) * width
        return whole


def _held(layer: LayerParameters, plan: TrainingPlan) -> float:
    """Weights of one layer on one GPU, without the experts."""
    return layer.divided / plan.tensor + layer.whole


def _shards(plan: TrainingPlan) -> tuple[int, int]:
    """GPUs over which ZeRO divides the states: of all parts but the experts, and of the experts, which have fewer replicas."""
    replicas = plan.data * plan.context
    shards = plan.shard_group or replicas
    expert_replicas = replicas * plan.tensor // (plan.expert * plan.expert_tensor)
    return shards, max(1, expert_replicas * shards // replicas)
