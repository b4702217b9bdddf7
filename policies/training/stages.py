"""A training plan as the stage graph and the parallelism that placement works with.

Placement has four kinds of time: compute, a ring over the replicas of a stage, all-reduces in a tensor group, and activations
between stages (docs/explanation/a-srpt.md). Each part of an iteration becomes one of them, with as many bytes as take the part's
time on the links given: bytes that compute hides are not among them. On these links the time of a placement in rank order
is that of the plan; on others it is close (docs/explanation/iteration-time.md).
"""

from functools import lru_cache

from policies.model.graph import Stage, StageGraph
from policies.model.parallelism import ParallelismConfig
from policies.model.plan import TrainingPlan
from policies.model.shape import ModelShape
from policies.training.hardware import GpuModel, Links
from policies.training.iteration import IterationTime, iteration_time

_COMPUTED = ("products", "experts", "attention", "memory", "recompute", "launch", "output")
"""Parts of an iteration that no link delays. All stages wait for the logits of the last one."""


@lru_cache(maxsize=1024)
def stages_of(
    shape: ModelShape, plan: TrainingPlan, gpu: GpuModel, links: Links, speed: float = 1.0
) -> tuple[StageGraph, ParallelismConfig]:
    """The stages of a plan on GPUs of this type, which are ``speed`` times as fast as the reference GPU.

    ``links``: those of the servers on which the plan usually runs. Data-parallel and context-parallel ranks are the replicas of a
    stage; groups of experts are taken from them. All stages are alike: the plan's time is that of the fullest.
    """
    parts = _Parts(plan, links, iteration_time(shape, plan, gpu, links))
    ranks = parts.replicas * plan.tensor
    compute_s = parts.compute_s * speed * ranks
    rows = tuple(
        Stage(f"s{s}", compute_s / 3, compute_s * 2 / 3, round(parts.parameter_bytes), round(parts.tensor_bytes))
        for s in range(plan.pipeline)
    )
    config = ParallelismConfig(
        replicas=(parts.replicas,) * plan.pipeline,
        tensor=(plan.tensor,) * plan.pipeline,
        schedule=plan.schedule,
        micro_batches=plan.micro_batches,
        virtual_stages=plan.virtual_stages,
    )
    return StageGraph(rows, parts.edges()), config


class _Parts:
    """The parts of an iteration by what placement can do about them."""

    def __init__(self, plan: TrainingPlan, links: Links, time: IterationTime) -> None:
        self._plan, self._links = plan, links
        self.replicas = plan.data * plan.context
        bubble = plan.schedule.bubble(plan.pipeline, plan.virtual_stages)
        # Placement multiplies a stage's time by it, but not the ring, and nothing else that comes once an iteration.
        self._fill = (plan.micro_batches + bubble) / plan.micro_batches
        self._stage_s = time.stage
        self.compute_s = sum(time.parts[name] for name in _COMPUTED) + time.optimizer / self._fill
        self._tensor_s = time.tensor
        self._ring_s = time.data
        shards = plan.shard_group or self.replicas
        self._share(time.context, plan.tensor * plan.context)
        self._share(time.expert, plan.expert * plan.expert_tensor)
        self._share(time.shard, plan.tensor * shards)

    def _share(self, seconds: float, span: int) -> None:
        """Count the traffic of groups of ``span`` neighbouring ranks.

        A group within a domain, of a gang that spans several, costs the same wherever whole domains are granted.
        """
        plan, domain = self._plan, self._links.domain
        if span <= plan.tensor:
            self._tensor_s += seconds
        elif span <= domain < plan.gpus:
            self.compute_s += seconds
        else:
            self._ring_s += seconds * self._fill

    @property
    def parameter_bytes(self) -> float:
        """Of a stage: as much as makes the ring over its replicas take the time."""
        k, t = self.replicas, self._plan.tensor
        if k == 1:
            return 0.0
        return self._ring_s * self._links.collective_bytes_s(t, k) * t * k / (2 * (k - 1))

    @property
    def tensor_bytes(self) -> float:
        """That a replica reduces in its group in an iteration."""
        t, links = self._plan.tensor, self._links
        if t == 1:
            return 0.0
        link = links.inside_bytes_s if t <= links.domain else min(links.inside_bytes_s, links.beyond_bytes_s)
        return self._tensor_s * link * t / (2 * (t - 1))

    def edges(self) -> tuple[tuple[int, int, int], ...]:
        """Between neighbours; with virtual stages from the last to the first stage too."""
        plan, links = self._plan, self._links
        pairs = [(s, s + 1) for s in range(plan.pipeline - 1)]
        if plan.virtual_stages > 1 and plan.pipeline > 2:
            pairs.append((0, plan.pipeline - 1))
        link = links.inside_bytes_s if plan.gpus <= links.domain else links.beyond_bytes_s
        neighbours = min(2, plan.pipeline - 1)
        sent = self._stage_s * link * self.replicas / (2 * plan.virtual_stages * neighbours) if pairs else 0.0
        return tuple((tail, head, round(sent)) for tail, head in sorted(pairs))
