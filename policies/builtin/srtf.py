"""Shortest remaining time first: preemptive by a job's remaining run time, independent of its gang size."""

from policies.builtin.srsf import Srsf
from policies.model.view import ClusterView, JobView
from policies.rank import Rank, remaining_work_rank
from policies.ranked import RankedPolicy
from policies.state.scheduler_state import SchedulerState


class Srtf(RankedPolicy):
    """Ordered by remaining seconds under the estimate; by seconds held so far where there is none."""

    name = "srtf"
    summary = "shortest remaining time first"
    defaults = Srsf.defaults
    option_names = Srsf.option_names
    ranks_keep_to_lines = True

    def rank(self, view: ClusterView, job: JobView, state: SchedulerState) -> Rank:
        """Remaining seconds at the best placement: the job's work on a cluster that is no larger than its gang."""
        rank = remaining_work_rank(job, view.now_s, job.spec.gpus, self.options.over_run)
        return Rank(rank.value, rank.slope * state.gpus / job.spec.gpus, rank.refresh_at_done)

    def rank_per_s(self, job: JobView, state: SchedulerState) -> float:
        """Ranks are seconds of the job's own time, and so is the price of a preemption."""
        return 1.0
