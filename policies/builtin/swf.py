"""Smallest predicted workload first, without preemption (work-conserving; option ``queue=strict`` makes it SPWF)."""

from policies.builtin.sjf import Sjf
from policies.model.view import ClusterView, JobView
from policies.rank import Rank
from policies.state.scheduler_state import SchedulerState


class Swf(Sjf):
    """Ordered by expected remaining GPU-seconds; jobs without a prediction come last, the oldest first."""

    name = "swf"
    summary = "smallest predicted workload first"

    def rank(self, view: ClusterView, job: JobView, state: SchedulerState) -> Rank:
        """Gang size x expected remaining seconds at the best placement, over G: virtual seconds."""
        return Rank(Sjf.rank(self, view, job, state).value * job.spec.gpus / state.gpus, 0)


class WcsWorkload(Swf):
    """The same policy by the name that it has in published comparisons."""

    name = "wcs_workload"
    summary = "another name of swf"
