"""Least attained service, discretised: it needs no predictions (2D-LAS of Tiresias, NSDI 2019)."""

import math

from policies.model.view import ClusterView, JobView
from policies.options import GUARD_OPTIONS, PLACEMENT_OPTIONS, PREEMPTION_OPTIONS, Options, Preemption
from policies.rank import REFRESH_S_MIN, Rank
from policies.ranked import RankedPolicy
from policies.state.scheduler_state import SchedulerState

FIRST_LEVEL_GPU_S = 60.0
"""Attained service below which all jobs are equal: a GPU-minute."""

LEVEL_RATIO = 2.0
"""Each further level is this much longer: jobs within a level go first in, first out and do not displace each other."""


class Las(RankedPolicy):
    """Ordered by the level of attained GPU-seconds."""

    name = "las"
    summary = "least attained service, discretised"
    defaults = Options(preemption=Preemption.GUIDED)
    option_names = PREEMPTION_OPTIONS | PLACEMENT_OPTIONS | GUARD_OPTIONS | {"reserve"}
    ranks_keep_to_lines = True

    def rank(self, view: ClusterView, job: JobView, state: SchedulerState) -> Rank:
        """The lower end of the level, in virtual seconds; the first level counts as zero."""
        level = _level(job.attained_service_s(view.now_s))
        return Rank(_threshold_gpu_s(level) / state.gpus, 0)

    def refresh_at_s(self, view: ClusterView, job: JobView, rank: Rank) -> float | None:
        """When the job reaches the next level, holding its GPUs until then."""
        attained = job.attained_service_s(view.now_s)
        missing = _threshold_gpu_s(_level(attained) + 1) - attained
        return view.now_s + max(REFRESH_S_MIN, missing / job.spec.gpus)


def _level(attained_gpu_s: float) -> int:
    if attained_gpu_s < FIRST_LEVEL_GPU_S:
        return 0
    return 1 + math.floor(math.log(attained_gpu_s / FIRST_LEVEL_GPU_S, LEVEL_RATIO) + 1e-9)


def _threshold_gpu_s(level: int) -> float:
    return 0.0 if level == 0 else FIRST_LEVEL_GPU_S * LEVEL_RATIO ** (level - 1)
