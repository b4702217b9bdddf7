"""Shortest remaining service first: preemptive by remaining GPU-time, at no price (Tiresias' oracle baseline)."""

from policies.model.view import ClusterView, JobView
from policies.options import GUARD_OPTIONS, PLACEMENT_OPTIONS, PREEMPTION_OPTIONS, Options, Preemption
from policies.rank import Rank, remaining_work_rank
from policies.ranked import RankedPolicy
from policies.state.scheduler_state import SchedulerState


class Srsf(RankedPolicy):
    """Ordered by remaining GPU-seconds under the estimate."""

    name = "srsf"
    summary = "shortest remaining service first"
    defaults = Options(preemption=Preemption.ALWAYS)
    option_names = PREEMPTION_OPTIONS | PLACEMENT_OPTIONS | GUARD_OPTIONS | {"over_run", "reserve"}
    ranks_keep_to_lines = True

    def rank(self, view: ClusterView, job: JobView, state: SchedulerState) -> Rank:
        """Remaining GPU-seconds / G."""
        return remaining_work_rank(job, view.now_s, state.gpus, self.options.over_run)
