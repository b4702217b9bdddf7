"""How long an iteration of a training plan takes, by its parts.

The parts are what one GPU does, one after the other: the model of docs/explanation/iteration-time.md.
"""

from dataclasses import dataclass, fields
from typing import cast

import numpy as np

from policies.model.plan import Precision, TrainingPlan
from policies.model.shape import CountedShape, ModelShape
from policies.training.constants import SHIPPED, Constants
from policies.training.hardware import Generation, GpuModel, Links
from policies.training.work import CONVOLUTIONAL, Work, width_of, work


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationTime:
    """Seconds of one iteration. All parts are non-negative; they add up to :attr:`total_s`.

    ``products``: matrix products of dense layers; ``experts``: those of routed experts; ``attention``: its core; ``memory``:
    reading and writing operands, norms and activations; ``recompute``: what of these four the backward pass does again;
    ``output``: logits and loss, with what the last stage is behind the others for them. ``tensor``, ``expert``, ``context``,
    ``stage``, ``shard``, ``data``: traffic that nothing hides (``shard``: gathering of ZeRO-3 and FSDP).
    ``launch``: the host behind the GPU. ``bubble``: waiting for other stages.
    """

    products: float
    experts: float
    attention: float
    memory: float
    recompute: float
    launch: float
    output: float
    tensor: float
    expert: float
    context: float
    stage: float
    shard: float
    bubble: float
    data: float
    optimizer: float

    @property
    def parts(self) -> dict[str, float]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def total_s(self) -> float:
        return sum(self.parts.values())

    @property
    def bottleneck(self) -> str:
        """The name of the largest part."""
        return max(self.parts.items(), key=lambda part: part[1])[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What a GPU reaches: operations and bytes a second, and the host's seconds a layer, and an expert held in it."""

    low_flops: float
    half_flops: float
    expert_flops: float
    score_flops: float
    memory_bytes_s: float
    dense_launch_s: float
    expert_launch_s: float
    held_launch_s: float


def iteration_time(
    shape: ModelShape, plan: TrainingPlan, gpu: GpuModel, links: Links | None = None, constants: Constants = SHIPPED
) -> IterationTime:
    """Predicts an iteration on GPUs of one type; ``links`` default to those of a usual server with it."""
    found = parts(work(shape, plan, links or Links.of(gpu)), rates(shape, plan, gpu, constants), constants)
    return IterationTime(**{name: float(seconds) for name, seconds in found.items()})


def rates(shape: ModelShape, plan: TrainingPlan, gpu: GpuModel, constants: Constants) -> Rates:
    """The shares of :class:`Constants` times the peaks of the GPU."""
    tensor_cores, precision = constants.product(gpu.generation), gpu.format_of(plan.precision)
    full = precision is Precision.FP32
    low = gpu.peak_flops(precision) * (constants.fp32 if full else tensor_cores)
    if precision is Precision.FP4:
        low *= constants.fp4
    half = low if precision in (Precision.FP32, Precision.TF32) else gpu.half_flops * tensor_cores
    if isinstance(shape, CountedShape) and shape.kind == CONVOLUTIONAL and not full:
        return _rates(constants, gpu, low * constants.convolution, half, low)
    share = constants.experts_hopper if gpu.generation is Generation.HOPPER else constants.experts
    if plan.graphed:
        share *= constants.graphed_experts
    elif precision in (Precision.FP8, Precision.FP4):
        share *= constants.fp8_experts
    width = width_of(shape)
    launched = 0.0 if plan.graphed else 1.0
    return _rates(constants, gpu, low, half, low * share * width / (width + constants.expert_width), launched)


def _rates(constants: Constants, gpu: GpuModel, low: float, half: float, expert: float, launched: float = 1.0) -> Rates:
    return Rates(
        low_flops=low, half_flops=half, expert_flops=expert, score_flops=half * constants.attention,
        memory_bytes_s=gpu.hbm_bytes_s * constants.memory, dense_launch_s=constants.dense_launch_s * launched,
        expert_launch_s=constants.expert_launch_s * launched, held_launch_s=constants.held_launch_s * launched,
    )  # fmt: skip


def parts(todo: Work, rate: Rates, constants: Constants) -> dict[str, float]:
    """Seconds of each part of an iteration. Takes numbers, or arrays of them with an element for each iteration."""
    once = {
        "products": todo.low_flops / rate.low_flops + todo.half_flops / rate.half_flops,
        "experts": todo.expert_flops / rate.expert_flops,
        "attention": todo.score_flops / rate.score_flops,
        "memory": (todo.product_bytes + todo.memory_bytes) / rate.memory_bytes_s,
    }
    again = todo.recomputed * sum(once.values())
    found = {name: seconds * (1 - todo.recomputed) for name, seconds in once.items()} | {"recompute": again}
    found["tensor"] = todo.tensor_s * constants.tensor_exposed
    found["expert"] = (
        todo.expert_inside_s * constants.expert_inside_exposed + todo.expert_beyond_s * constants.expert_beyond_exposed
    )
    found["context"] = todo.context_s * constants.context_exposed
    device = sum(found.values())
    host = todo.dense_launches * rate.dense_launch_s + todo.expert_launches * rate.expert_launch_s
    host = host + todo.held_launches * rate.held_launch_s
    found["launch"] = np.sqrt(device**2 + host**2) - device
    found["stage"] = todo.stage_s * constants.stage_exposed
    found["output"] = _output(todo, rate, sum(found.values()))
    found["shard"] = _exposed(todo.shard_s, sum(found.values()), constants.data_exposed)
    micro_batch = sum(found.values())
    found = {name: seconds * todo.micro_batches for name, seconds in found.items()}
    found["bubble"] = todo.bubble * micro_batch
    found["data"] = _exposed(todo.data_s, micro_batch, constants.data_exposed)
    found["optimizer"] = todo.optimizer_bytes / rate.memory_bytes_s
    return found


def _larger(one: float, other: float) -> float:
    """The larger of two numbers, or of two arrays element by element."""
    return cast(float, np.maximum(one, other))


def _output(todo: Work, rate: Rates, layers_s: float) -> float:
    """Logits and loss on the last stage, less the layers that it does without; at least its share of them."""
    output_s = todo.output_flops / rate.half_flops + todo.output_bytes / rate.memory_bytes_s
    return _larger(output_s - todo.spared * layers_s, output_s / todo.pipeline)


def _exposed(traffic_s: float, window_s: float, share: float) -> float:
    """What is left of traffic beside a micro-batch's compute: a share of it, and all that is longer than the compute."""
    return _larger(traffic_s * share, traffic_s - window_s)
