"""Plans that make sense for a model on a number of GPUs."""

from collections.abc import Iterator
from dataclasses import replace

from policies.model.plan import PipelineSchedule, Recompute, TrainingPlan
from policies.model.shape import CountedShape, ModelShape, TransformerShape

TENSOR_MAX = 16
"""Wider groups leave each GPU products too narrow to be fast."""

PIPELINE_MAX = 64
CONTEXT_MAX = 16
VIRTUAL_STAGES_MAX = 8

CONTEXT_TOKENS_MIN = 2048
"""Tokens of a sequence that each GPU of a context group has at least: with fewer, passing keys costs more than it saves."""

UNEVEN_MAX = 1.1
"""Layers of the fullest stage over the mean. Above, the other stages wait too long."""

MICRO_BATCH_TOKENS_MAX = 65_536
MICRO_BATCH_SAMPLES_MAX = 1024

EXPERT_DEGREES_MAX = 4
"""Expert degrees tried for each choice of the others, largest first."""


def tensor_degrees(shape: ModelShape, domain: int) -> list[int]:
    """Powers of two within an NVLink ``domain`` that divide the heads, and the keys unless they are repeated."""
    if isinstance(shape, CountedShape):
        return [1]
    keys = shape.kv_heads
    return [t for t in _powers(min(domain, TENSOR_MAX)) if shape.heads % t == 0 and (keys % t == 0 or t % keys == 0)]


def pipeline_degrees(shape: ModelShape) -> list[int]:
    """Numbers of stages with about equally many layers. A convolutional network is not cut."""
    if isinstance(shape, CountedShape) and shape.kind == "cnn":
        return [1]
    return [p for p in range(1, min(shape.layers, PIPELINE_MAX) + 1) if _even(shape.layers, p)]


def context_degrees(shape: ModelShape, sequence: int) -> list[int]:
    """Powers of two that leave each GPU enough tokens of a sequence."""
    most = 1 if isinstance(shape, CountedShape) else min(CONTEXT_MAX, max(1, sequence // CONTEXT_TOKENS_MIN))
    return [c for c in _powers(most) if sequence % c == 0]


def expert_degrees(shape: ModelShape, gpus: int) -> list[int]:
    """Powers of two that divide the experts and the ``gpus`` of a stage, largest first."""
    if isinstance(shape, CountedShape) or shape.experts is None:
        return [1]
    count = shape.experts.count
    return [e for e in reversed(_powers(count)) if count % e == 0 and gpus % e == 0][:EXPERT_DEGREES_MAX]


def micro_batches(plan: TrainingPlan) -> list[int]:
    """Powers of two that divide what one replica takes of the global batch, smallest first."""
    samples = plan.global_batch // plan.data
    most = MICRO_BATCH_SAMPLES_MAX if plan.sequence == 1 else max(1, MICRO_BATCH_TOKENS_MAX // plan.sequence)
    return [m for m in _powers(min(most, samples)) if samples % m == 0]


def schedules(shape: ModelShape, plan: TrainingPlan) -> list[TrainingPlan]:
    """The plan with 1F1B, and interleaved with the most virtual stages of equally many layers, or of about equally many."""
    counts = [v for v in range(VIRTUAL_STAGES_MAX, 1, -1) if _even(shape.layers, plan.pipeline * v)]
    if plan.pipeline == 1 or not counts:
        return [plan]
    exact = next((v for v in counts if shape.layers % (plan.pipeline * v) == 0), counts[0])
    return [plan, replace(plan, schedule=PipelineSchedule.INTERLEAVED, virtual_stages=exact)]


def shardings(plan: TrainingPlan, domain: int) -> list[TrainingPlan]:
    """The plan with sharded optimizer states; without a pipeline also with all states sharded, over all GPUs or one domain.

    ZeRO-3 gathers the weights once a micro-batch, which a pipeline of many micro-batches would repeat.
    """
    replicas = plan.data * plan.context
    if replicas == 1:
        return [replace(plan, zero_stage=0)]
    found = [replace(plan, zero_stage=1)]
    if plan.pipeline == 1:
        found.append(replace(plan, zero_stage=3))
        group = domain // plan.tensor
        if 1 < group < replicas and replicas % group == 0:
            found.append(replace(plan, zero_stage=3, shard_group=group))
    return found


def selective_helps(shape: ModelShape, plan: TrainingPlan) -> bool:
    """Whether selective recomputation frees memory: of scores that are kept, or of the heads of latent attention."""
    return isinstance(shape, TransformerShape) and (shape.latent is not None or not plan.flash_attention)


def divisions(shape: ModelShape, like: TrainingPlan, gpus: int, domain: int) -> Iterator[TrainingPlan]:
    """Plans with each sensible choice of degrees, small groups first, with the smallest micro-batch, 1F1B and nothing computed
    again. The rest is as in ``like``. Degrees whose replicas do not divide the global batch are left out.
    """
    for pipeline in pipeline_degrees(shape):
        for tensor in tensor_degrees(shape, domain):
            for context in context_degrees(shape, like.sequence):
                group = pipeline * tensor * context
                data = gpus // group
                if gpus % group or like.global_batch % data:
                    continue
                for expert in expert_degrees(shape, gpus // pipeline):
                    yield replace(
                        like, data=data, tensor=tensor, pipeline=pipeline, context=context, expert=expert,
                        expert_tensor=1, sequence_parallel=tensor > 1, zero_stage=0, shard_group=0, micro_batch=1,
                        recompute=Recompute.NONE, schedule=PipelineSchedule.ONE_F_ONE_B, virtual_stages=1,
                    )  # fmt: skip


def _even(layers: int, parts: int) -> bool:
    return parts <= layers and -(-layers // parts) * parts <= UNEVEN_MAX * layers


def _powers(most: int) -> list[int]:
    return [1 << n for n in range(most.bit_length())]
