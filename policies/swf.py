"""Smallest predicted workload first, without preemption (work-conserving; option ``queue=strict`` makes it SPWF)."""

from policies.book import Book
from policies.model.view import ClusterView, JobView
from policies.rank import Rank
from policies.sjf import DEFAULTS as DEFAULTS
from policies.sjf import OPTIONS as OPTIONS
from policies.sjf import Sjf


class Swf(Sjf):
    """Ordered by expected remaining GPU-seconds; jobs that nobody can predict come last, oldest first."""

    name = "swf"

    def rank(self, view: ClusterView, job: JobView, state: Book) -> Rank:
        """Gang size x expected remaining seconds at the best placement, over G: virtual seconds."""
        return Rank(Sjf.rank(self, view, job, state).value * job.spec.gpus / state.gpus, 0)
