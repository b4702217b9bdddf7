"""The plans of a model on a number of GPUs, ranked by predicted speed, each with what limits it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from policies.model.plan import PipelineSchedule, Recompute, TrainingPlan
from policies.model.shape import ModelShape
from policies.training.hardware import GpuModel, Links
from policies.training.iteration import IterationTime, iteration_time
from policies.training.memory import MemoryBill, memory_bill
from policies.training.plans import divisions, micro_batches, schedules, selective_helps, shardings

PLANS_MAX = 2000
"""Plans that are predicted for one ranking. Those with larger groups come later and are left out first."""


@dataclass(frozen=True, slots=True)
class RankedPlan:
    """A plan that fits, with its predicted iteration and its memory."""

    plan: TrainingPlan
    time: IterationTime
    bill: MemoryBill

    @property
    def tokens_per_s(self) -> float:
        """Of all GPUs; samples where the plan's ``sequence`` is 1."""
        return self.plan.tokens / self.time.total_s

    def gpu_hours(self, tokens: float) -> float:
        """GPU-hours of training on this many tokens."""
        return self.plan.gpus * tokens / self.tokens_per_s / 3600

    @property
    def limit(self) -> str:
        """The part that takes most time."""
        return self.time.bottleneck


def rank_plans(shape: ModelShape, like: TrainingPlan, gpus: int, gpu: GpuModel, links: Links) -> list[RankedPlan]:
    """Plans on ``gpus`` GPUs that fit their memory, the fastest first; empty if none does.

    ``like`` gives what stays as it is: global batch, sequence, precision, attention, dropout, adapters. Tried are the degrees
    of :mod:`policies.training.plans`, with each way to shard the states, 1F1B and interleaved, the smallest and the two
    largest micro-batches that fit, and recomputation only where it is needed to fit; at most :data:`PLANS_MAX` plans.
    """
    ranked = []
    for plan, bill in _fitting(shape, like, gpus, gpu, links.domain):
        ranked.append(RankedPlan(plan, iteration_time(shape, plan, gpu, links), bill))
        if len(ranked) == PLANS_MAX:
            break
    ranked.sort(key=lambda each: -each.tokens_per_s)
    return ranked


def _fitting(
    shape: ModelShape, like: TrainingPlan, gpus: int, gpu: GpuModel, domain: int
) -> Iterator[tuple[TrainingPlan, MemoryBill]]:
    """Plans that fit, with their bills."""
    for divided in divisions(shape, like, gpus, domain):
        for scheduled in schedules(shape, divided):
            for sharded in shardings(scheduled, domain):
                yield from _largest(shape, sharded, gpu)


def _largest(shape: ModelShape, plan: TrainingPlan, gpu: GpuModel) -> Iterator[tuple[TrainingPlan, MemoryBill]]:
    """The plan with the smallest and the two largest micro-batches that fit, computing as little again as the smallest needs."""
    for again in Recompute:
        if again is Recompute.SELECTIVE and not selective_helps(shape, plan):
            continue
        found = []
        for micro_batch in micro_batches(plan):
            larger = replace(plan, micro_batch=micro_batch, recompute=again)
            bill = memory_bill(shape, larger)
            if not bill.fits(gpu):
                break
            if _even_rounds(larger):
                found.append((larger, bill))
        if found:
            yield from [*found[:1], *found[1:][-2:]]
            return


def _even_rounds(plan: TrainingPlan) -> bool:
    """Whether an interleaved schedule gets its micro-batches in whole rounds of the stages, as Megatron-LM requires."""
    return plan.schedule is not PipelineSchedule.INTERLEAVED or plan.micro_batches % plan.pipeline == 0
