"""Shortest predicted job first, without preemption (work-conserving; option ``queue=strict`` makes it SPJF)."""

from policies.model.view import ClusterView, JobView
from policies.options import GUARD_OPTIONS, PLACEMENT_OPTIONS
from policies.rank import Rank, expected_remaining_s
from policies.ranked import RankedPolicy
from policies.state.scheduler_state import SchedulerState


class Sjf(RankedPolicy):
    """Ordered by expected remaining seconds; jobs without a prediction come last, the oldest first."""

    name = "sjf"
    summary = "shortest predicted job first"
    option_names = PLACEMENT_OPTIONS | GUARD_OPTIONS | {"preemption", "queue", "reserve"}

    def rank(self, view: ClusterView, job: JobView, state: SchedulerState) -> Rank:
        """Expected remaining seconds at the best placement."""
        remaining_s = expected_remaining_s(job, view.now_s)
        return Rank(float("inf") if remaining_s is None else remaining_s, 0)


class WcsDuration(Sjf):
    """The same policy by the name that it has in published comparisons."""

    name = "wcs_duration"
    summary = "another name of sjf"
