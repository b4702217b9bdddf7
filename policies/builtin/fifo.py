"""First in, first out: strict, or with backfill by any job that fits (WCS-SubTime in the literature)."""

from policies.model.view import ClusterView, JobView
from policies.options import GUARD_OPTIONS, PLACEMENT_OPTIONS, Options, Queue
from policies.rank import Rank
from policies.ranked import RankedPolicy
from policies.state.scheduler_state import SchedulerState

STRICT_DEFAULTS = Options(queue=Queue.STRICT)
BACKFILL_DEFAULTS = Options(queue=Queue.SKIP)
OPTIONS = PLACEMENT_OPTIONS | {"preemption", "reserve"}
BACKFILL_OPTIONS = OPTIONS | GUARD_OPTIONS


class Fifo(RankedPolicy):
    """All ranks are equal, so submission time and serial decide."""

    name = "fifo"
    ranks_keep_to_lines = True

    def rank(self, view: ClusterView, job: JobView, state: SchedulerState) -> Rank:
        """Equal for all jobs."""
        return Rank(0.0, 0)


class FifoBackfill(Fifo):
    """A job that fits may pass one that does not."""

    name = "fifo_backfill"
