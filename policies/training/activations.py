"""Activations that a layer keeps for the backward pass, after Korthikanti et al. (arXiv 2205.05198, section 4).

A multi-head layer with dropout and without flash attention keeps sbh(34 + 5as/h) bytes in 16 bits, and with t-way tensor
parallelism sbh(10 + 24/t + 5as/(ht)). The other layers (grouped and latent attention, gated units, experts) are counted in the
same way: the input of each norm, of each matrix product and of each activation function. In fp8 and fp4 the inputs of matrix
products take 1 byte.
"""

from dataclasses import replace

from policies.model.plan import PipelineSchedule, Precision, Recompute, TrainingPlan
from policies.model.shape import CountedShape, Experts, LatentAttention, ModelShape, TransformerShape
from policies.training.hardware import element_bytes

LOGIT_BYTES = 4
"""The loss is computed in fp32."""

COUNTED_INPUTS = 1 / 16
"""Share of a counted layer's activations that is its input, which full recomputation keeps: as in a multi-head layer, 2 of 32."""


def tokens(plan: TrainingPlan) -> float:
    """Tokens of one micro-batch that a GPU works on: context parallelism divides them."""
    return plan.micro_batch * plan.sequence / plan.context


def layer_bytes(shape: ModelShape, plan: TrainingPlan, *, routed: bool) -> float:
    """Bytes that one layer keeps of one micro-batch on one GPU. ``routed``: a layer with experts."""
    if isinstance(shape, CountedShape):
        layer = shape.activations / max(shape.layers, 1) * element_bytes(plan) / plan.tensor
        return tokens(plan) * layer * (COUNTED_INPUTS if plan.recompute is Recompute.FULL else 1)
    if plan.recompute is Recompute.FULL:
        return tokens(plan) * shape.hidden * element_bytes(plan) / _spread(plan)
    return tokens(plan) * (_attention(shape, plan) + _feed_forward(shape, plan, routed=routed))


def backward_bytes(shape: ModelShape, plan: TrainingPlan, *, routed: bool) -> float:
    """Bytes of what the backward pass of one layer holds beside: gradients of its units, and what is computed again."""
    again = 0.0
    if plan.recompute is not Recompute.NONE:
        whole = layer_bytes(shape, replace(plan, recompute=Recompute.NONE), routed=routed)
        again = whole - layer_bytes(shape, plan, routed=routed)
    if isinstance(shape, CountedShape):
        return again
    units = _units(shape, routed=routed) * (3 if shape.gated else 2)
    return again + tokens(plan) * units * element_bytes(plan) / plan.tensor


def output_bytes(shape: ModelShape, plan: TrainingPlan) -> float:
    """Bytes that the last norm and the output product keep of one micro-batch, without the logits."""
    if isinstance(shape, CountedShape):
        return 0.0
    return tokens(plan) * shape.hidden * (element_bytes(plan) + _operand_bytes(plan)) / _spread(plan)


def logit_bytes(shape: ModelShape, plan: TrainingPlan) -> float:
    """Bytes of one micro-batch's logits, divided over the tensor group."""
    if isinstance(shape, CountedShape):
        return 0.0
    return tokens(plan) * shape.vocabulary * LOGIT_BYTES / plan.tensor


def embedding_bytes(shape: ModelShape, plan: TrainingPlan) -> float:
    """Bytes of the dropout mask behind the embedding, of one micro-batch."""
    if isinstance(shape, CountedShape) or not plan.dropout:
        return 0.0
    return tokens(plan) * shape.hidden / _spread(plan)


def kept(plan: TrainingPlan, stage: int) -> float:
    """Micro-batches whose activations a stage keeps at most. A fraction where the stage is cut into virtual ones.

    1F1B keeps as many as stages follow, itself included; GPipe all; PipeDream as 1F1B, but never flushed. Interleaved
    (Narayanan et al., arXiv 2104.04473): the warm-up of Megatron-LM, 1 + (p - 1)/(pv) micro-batches' share on the first stage.
    Zero bubble is ZB-H1 (Qi et al., arXiv 2401.10241), which keeps on all stages what 1F1B keeps on the first.
    """
    stages, micro_batches = plan.pipeline, plan.micro_batches
    match plan.schedule:
        case PipelineSchedule.GPIPE:
            return micro_batches
        case PipelineSchedule.INTERLEAVED:
            chunks = 2 * (stages - stage - 1) + (plan.virtual_stages - 1) * stages + 1
            return min(chunks / plan.virtual_stages, micro_batches)
        case PipelineSchedule.ZERO_BUBBLE:
            return min(stages, micro_batches)
        case PipelineSchedule.PIPEDREAM:
            return stages - stage
        case _:
            return min(stages - stage, micro_batches)


def _spread(plan: TrainingPlan) -> int:
    """Ways in which sequence parallelism divides what the tensor-parallel products do not."""
    return plan.tensor if plan.sequence_parallel else 1


def _operand_bytes(plan: TrainingPlan) -> int:
    """Bytes of an input of a matrix product."""
    return 1 if plan.precision in (Precision.FP8, Precision.FP4) else element_bytes(plan)


def _attention(shape: TransformerShape, plan: TrainingPlan) -> float:
    """Bytes a token: input of the norm and of the products, queries, keys, values, output, mask."""
    width, operand = element_bytes(plan), _operand_bytes(plan)
    whole: float = shape.hidden * (width + operand + _mask(plan))
    if shape.latent is not None:
        whole += _ranks(shape.latent, width, operand)
        values, divided = _latent(shape, shape.latent, plan)
    else:
        values = shape.heads * shape.head_dim
        divided = float((values + 2 * shape.kv_heads * shape.head_dim) * width)
    divided += values * (width if operand == width else width + operand)
    if not plan.flash_attention and plan.recompute is Recompute.NONE:
        scores = shape.heads * plan.sequence
        divided += scores * (2 * width + 1 if plan.dropout else width)
    return whole / _spread(plan) + divided / plan.tensor


def _latent(shape: TransformerShape, latent: LatentAttention, plan: TrainingPlan) -> tuple[int, float]:
    """Width of the output, and bytes of queries, keys and values, which selective recomputation computes again."""
    values = shape.heads * latent.value_dim
    if plan.recompute is Recompute.SELECTIVE:
        return values, 0.0
    queries_keys = 2 * shape.heads * (latent.nope_dim + latent.rope_dim)
    return values, float((queries_keys + values) * element_bytes(plan))


def _ranks(latent: LatentAttention, width: int, operand: int) -> int:
    """Bytes of the latent vectors before and after their norms, on every GPU of the tensor group."""
    return (latent.query_rank + latent.key_value_rank) * (width + operand) + latent.rope_dim * width


def _feed_forward(shape: TransformerShape, plan: TrainingPlan, *, routed: bool) -> float:
    """Bytes a token: input of the norm and of the first product, the units before and after their function, mask."""
    width, operand = element_bytes(plan), _operand_bytes(plan)
    whole: float = shape.hidden * (width + operand + _mask(plan))
    units = _units(shape, routed=routed) * ((2 if shape.gated else 1) * width + operand)
    if routed:
        experts = _routing(shape)
        whole += 2 * LOGIT_BYTES * experts.count
        units += experts.top_k * shape.hidden * operand * plan.expert_tensor
    return whole / _spread(plan) + units / plan.tensor


def _units(shape: TransformerShape, *, routed: bool) -> int:
    """Feed-forward units that a token takes."""
    if not routed:
        return shape.ffn
    experts = _routing(shape)
    return experts.top_k * experts.ffn + experts.shared_ffn


def _routing(shape: TransformerShape) -> Experts:
    assert shape.experts is not None
    return shape.experts


def _mask(plan: TrainingPlan) -> int:
    return 1 if plan.dropout else 0
