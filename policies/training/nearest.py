"""The refusal of a plan that does not fit its GPU, with what takes how much and the nearest plans that fit."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

from policies.model.plan import Recompute, TrainingPlan
from policies.model.shape import ModelShape
from policies.training.hardware import GpuModel, Links
from policies.training.iteration import iteration_time
from policies.training.memory import MemoryBill, memory_bill
from policies.training.plans import (
    context_degrees,
    expert_degrees,
    micro_batches,
    pipeline_degrees,
    selective_helps,
    tensor_degrees,
)

TOLERANCE = 1.05
"""A plan is refused above this share of the GPU's memory: published recipes that ran reach it in our bill."""

CHANGES_MAX = 3
"""Changes of the given plan that are searched together."""

WIDTH = 8
"""Plans of one more change that are changed further: those that need least. At most ``WIDTH`` x 40 bills a change."""

PIPELINED_ZERO_STAGE_MAX = 1
"""Megatron-LM and DeepSpeed shard no gradients and weights of a pipeline."""

NEAREST_MAX = 3
GROWTH_MAX = 10
"""Doublings of the GPUs that are tried where no plan of the given number fits."""

STAGES_MAX = 60_000
"""Pipeline stages whose memory is counted in one search: about three seconds. Published plans need a tenth."""

_GIB = 2**30


@dataclass(frozen=True, slots=True)
class FittingPlan:
    """``changes``: what differs from the given plan, in words. ``peak``: bytes of its fullest GPU. ``iteration_s``: predicted."""

    plan: TrainingPlan
    changes: str
    peak: float
    iteration_s: float


class PlanDoesNotFit(ValueError):
    """The plan needs more memory than the GPU has. ``nearest`` plans have the fewest changes, the fastest first; none if none was
    found."""

    def __init__(self, bill: MemoryBill, gpu: GpuModel, nearest: Sequence[FittingPlan]) -> None:
        self.bill, self.gpu, self.nearest = bill, gpu, tuple(nearest)
        worst = bill.worst
        where = f" of pipeline stage {worst.stage} (0 to {len(bill.stages) - 1})" if len(bill.stages) > 1 else ""
        parts = ", ".join(f"{name} {size / _GIB:.1f}" for name, size in worst.parts().items())
        instead = "; ".join(
            f"{near.changes} ({near.peak / _GIB:.1f} GiB, {near.iteration_s:.3g} s an iteration)"
            for near in self.nearest
        )
        super().__init__(
            f"memory: the plan needs {bill.peak / _GIB:.1f} GiB on each GPU{where} and {gpu.name} has"
            f" {gpu.memory_bytes / _GIB:.0f} GiB ({parts} GiB). "
            + (f"Nearest plans that fit: {instead}." if instead else "No plan that fits was found.")
        )


def require_fit(shape: ModelShape, plan: TrainingPlan, gpu: GpuModel, links: Links | None = None) -> MemoryBill:
    """The bill of a plan that fits. Raises :class:`PlanDoesNotFit`, and PlanError for a plan that contradicts the shape.

    ``links``: see :func:`nearest_plans`.
    """
    bill = memory_bill(shape, plan)
    if bill.peak > TOLERANCE * gpu.memory_bytes:
        raise PlanDoesNotFit(bill, gpu, nearest_plans(shape, plan, gpu, links))
    return bill


def nearest_plans(
    shape: ModelShape,
    plan: TrainingPlan,
    gpu: GpuModel,
    links: Links | None = None,
    stages_max: int = STAGES_MAX,
) -> list[FittingPlan]:
    """Up to :data:`NEAREST_MAX` plans that fit with the fewest changes; on more GPUs only where these do not suffice.

    ``links`` default to those of a usual server with the GPU. They give the times, and the largest tensor group.

    The search changes at most :data:`CHANGES_MAX` fields and goes on with the :data:`WIDTH` plans that need least, so it may
    miss a plan. It counts the memory of about ``stages_max`` pipeline stages. Plans of equally many changes are ordered by
    predicted speed, the fastest first.
    """
    links = links or Links.of(gpu)
    states, left = _states(shape, plan), stages_max
    for doublings in range(GROWTH_MAX + 1):
        grown = _grown(plan, 2**doublings)
        if states / grown.gpus > gpu.memory_bytes:
            continue
        if grown.pipeline * grown.virtual_stages > max(shape.layers, plan.pipeline * plan.virtual_stages):
            break
        found, counted = _search(shape, grown, gpu, links.domain, left)
        left -= counted
        if found:
            near = [
                FittingPlan(fitting, _changes(plan, fitting), peak, iteration_time(shape, fitting, gpu, links).total_s)
                for peak, fitting in found
            ]
            return sorted(near, key=lambda each: each.iteration_s)[:NEAREST_MAX]
        if left <= 0:
            break
    return []


def _states(shape: ModelShape, plan: TrainingPlan) -> float:
    """Bytes of one copy of parameters, gradients and optimizer states, which no plan divides over more than all GPUs."""
    alone = TrainingPlan(precision=plan.precision, fp32_gradients=plan.fp32_gradients, adapters=plan.adapters)
    bill = memory_bill(shape, alone).worst
    return bill.parameters + bill.gradients + bill.optimizer


def _search(
    shape: ModelShape, start: TrainingPlan, gpu: GpuModel, domain: int, stages_max: int
) -> tuple[list[tuple[float, TrainingPlan]], int]:
    """Plans that fit, with their peaks, of the fewest changes of ``start``; and the stages that were counted."""
    seen, counted = {start}, start.pipeline
    level = [(memory_bill(shape, start).peak, start)]
    for _ in range(CHANGES_MAX + 1):
        found = [(peak, plan) for peak, plan in level if peak <= gpu.memory_bytes]
        if found:
            return found, counted
        level.sort(key=lambda item: item[0])
        following = []
        for _, plan in level[:WIDTH]:
            for changed in _changed(shape, plan, domain):
                if changed not in seen and counted < stages_max:
                    seen.add(changed)
                    counted += changed.pipeline
                    following.append((memory_bill(shape, changed).peak, changed))
        level = following
    return [], counted


def _grown(plan: TrainingPlan, factor: int) -> TrainingPlan:
    """The plan on ``factor`` times the GPUs: more replicas where the global batch allows, and a longer pipeline."""
    data = factor
    while plan.global_batch % (plan.data * data * plan.micro_batch):
        data //= 2
    return replace(plan, data=plan.data * data, pipeline=plan.pipeline * (factor // data))


def _changed(shape: ModelShape, plan: TrainingPlan, domain: int) -> Iterator[TrainingPlan]:
    """Plans on as many GPUs with one field changed, and with ``data`` where a group takes its GPUs."""
    if not plan.flash_attention:
        yield replace(plan, flash_attention=True)
    if plan.tensor > 1 and not plan.sequence_parallel:
        yield replace(plan, sequence_parallel=True)
    if plan.data * plan.context > 1:
        highest = 3 if plan.pipeline == 1 else PIPELINED_ZERO_STAGE_MAX
        for stage in range(plan.zero_stage + 1, highest + 1):
            yield replace(plan, zero_stage=stage)
        if plan.shard_group and plan.zero_stage:
            yield replace(plan, shard_group=0)
    for micro_batch in micro_batches(plan):
        if micro_batch < plan.micro_batch:
            yield replace(plan, micro_batch=micro_batch)
    if plan.recompute is Recompute.NONE and selective_helps(shape, plan):
        yield replace(plan, recompute=Recompute.SELECTIVE)
    if plan.recompute is not Recompute.FULL:
        yield replace(plan, recompute=Recompute.FULL)
    for expert in expert_degrees(shape, plan.gpus // plan.pipeline // plan.expert_tensor):
        if expert > plan.expert:
            yield replace(plan, expert=expert)
    yield from _regrouped(shape, plan, domain)


def _regrouped(shape: ModelShape, plan: TrainingPlan, domain: int) -> Iterator[TrainingPlan]:
    """Larger tensor, pipeline and context groups, whose GPUs the replicas give up."""
    fixed = plan.virtual_stages > 1 or plan.zero_stage > PIPELINED_ZERO_STAGE_MAX
    lists = {
        "tensor": tensor_degrees(shape, domain),
        "pipeline": [] if fixed else pipeline_degrees(shape),
        "context": context_degrees(shape, plan.sequence),
    }
    for name, larger in lists.items():
        now = getattr(plan, name)
        for degree in larger:
            factor = degree // now
            if degree <= now or degree % now or plan.data % factor:
                continue
            data = plan.data // factor
            if (data * plan.context * plan.tensor) % (plan.expert * plan.expert_tensor):
                continue
            grouped = {name: degree, "data": data, "shard_group": 0}
            if name == "tensor":
                grouped["sequence_parallel"] = True
            yield replace(plan, **grouped)


def _changes(before: TrainingPlan, after: TrainingPlan) -> str:
    """The fields that differ; the number of GPUs first if it does, and without the data that a larger group has taken."""
    said = [f"gpus {before.gpus} -> {after.gpus}"] if after.gpus != before.gpus else []
    for field in fields(before):
        old, new = getattr(before, field.name), getattr(after, field.name)
        if old != new:
            said.append(f"{field.name} {old} -> {new}".replace("True", "true").replace("False", "false"))
    return ", ".join(said)
