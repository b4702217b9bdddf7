"""First in, first out: strict, or with backfill by any job that fits (WCS-SubTime in the literature)."""

from policies.model.view import ClusterView, JobView
from policies.options import GUARD_OPTIONS, PLACEMENT_OPTIONS, Options, Queue
from policies.rank import Rank
from policies.ranked import RankedPolicy
from policies.state.scheduler_state import SchedulerState


class Fifo(RankedPolicy):
    """All ranks are equal, so submission time and serial decide."""

    name = "fifo"
    summary = "strict first in, first out"
    defaults = Options(queue=Queue.STRICT)
    option_names = PLACEMENT_OPTIONS | {"preemption", "reserve"}
    ranks_keep_to_lines = True

    def rank(self, view: ClusterView, job: JobView, state: SchedulerState) -> Rank:
        """Equal for all jobs."""
        return Rank(0.0, 0)


class FifoBackfill(Fifo):
    """A job that fits may pass one that does not."""

    name = "fifo_backfill"
    summary = "first in, first out; jobs that fit may pass"
    defaults = Options(queue=Queue.SKIP)
    option_names = Fifo.option_names | GUARD_OPTIONS
