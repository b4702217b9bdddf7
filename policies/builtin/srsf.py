"""Shortest remaining service first: preemptive by remaining GPU-time, at no price (Tiresias' oracle baseline)."""

from policies.model.view import ClusterView, JobView
from policies.options import Options, Preemption
from policies.rank import Rank, remaining_work_rank
from policies.ranked import RankedPolicy
from policies.state.scheduler_state import SchedulerState

DEFAULTS = Options(preemption=Preemption.ALWAYS)
OPTIONS = frozenset(
    {
        "preemption",
        "over_run",
        "eta",
        "attempt_duration_s_min",
        "restarts_free",
        "restarted_attempt_s_min",
        "placement",
        "tau",
        "delay_factor",
        "reserve",
        "guard_share",
        "guard_wait_s",
    }
)


class Srsf(RankedPolicy):
    """Ordered by remaining GPU-seconds under the estimate."""

    name = "srsf"
    ranks_keep_to_lines = True

    def rank(self, view: ClusterView, job: JobView, state: SchedulerState) -> Rank:
        """Remaining GPU-seconds / G."""
        return remaining_work_rank(job, view.now_s, state.gpus, self.options.over_run)
