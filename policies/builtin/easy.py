"""EASY backfilling: first in, first out; other jobs may pass the blocked head if they do not delay it.

After Lifka, "The ANL/IBM SP scheduling system" (JSSPP 1995). The *head* is the first job that cannot start. Its *shadow time*
is when enough running jobs will have ended for it; what is free then and the head does not need are the *extra* GPUs.
Another job may start before the head if it ends by the shadow time, or if it takes extra GPUs. A job is
expected to run for its ``walltime_s``, else for the median of its estimate; one that outlives that is given double the time,
again and again. A job of unknown duration may only take extra GPUs, and a head that waits for such a job has no shadow time:
then none of the GPUs that it could use are extra. Nor are any for a head that cannot use every free GPU of its type.
"""

import math
from dataclasses import dataclass
from itertools import takewhile

from policies.builtin.fifo import Fifo
from policies.decision.explain import blocked_reason
from policies.decision.future_pool import FuturePool
from policies.decision.plan import Outcome, Plan
from policies.decision.preemption import PreemptionContext
from policies.model.cluster import Gangs
from policies.model.estimate import Unit
from policies.model.ids import JobId
from policies.model.placement import Placement, type_of
from policies.model.reasons import Reason
from policies.model.view import ClusterView, JobView
from policies.options import PLACEMENT_OPTIONS, Options
from policies.rank import OverRun, remaining_units, seconds_per_unit
from policies.rules.server_reservations import closed_servers
from policies.state.keys import JobKey
from policies.state.scheduler_state import SchedulerState
from policies.state.sorted_list import SortedList

PASSING_PER_CLASS_MAX = 64
"""After this many jobs of one gang class that may not pass the head, a cycle tries no more of the class: it never scans a
long queue. On the first 5,000 jobs of the Philly trace (50 servers) the whole queue would give 0.6% less mean JCT."""


@dataclass(slots=True)
class BlockedHead:
    """The first job that cannot start. ``shadow_s``: when it can start; None if unknown.

    ``gpu_types``: the one that it will run on, or as long as that is unknown all that it takes (empty: any). ``extra_gpus`` are
    those that other jobs may keep.
    """

    shadow_s: float | None
    gpu_types: tuple[str, ...]
    extra_gpus: int


class EasyState(SchedulerState):
    """The state, running jobs by when they are expected to end, and the blocked head of the decision in progress."""

    __slots__ = ("end_keys", "ends", "head")

    def __init__(self, view: ClusterView, options: Options) -> None:
        """No job runs."""
        SchedulerState.__init__(self, view, options)
        self.ends: SortedList[tuple[float, JobId]] = SortedList()
        self.end_keys: dict[JobId, tuple[float, JobId]] = {}
        self.head: BlockedHead | None = None

    def index_end(self, job: JobId, end_s: float | None) -> None:
        """The running job is expected to end then; None: unknown. O(log n)."""
        self.unindex_running(job)
        if end_s is not None:
            self.end_keys[job] = (end_s, job)
            self.ends.add((end_s, job))

    def unindex_running(self, job: JobId) -> None:
        """Remove the job, which has stopped running; unknown jobs are ignored."""
        SchedulerState.unindex_running(self, job)
        if (key := self.end_keys.pop(job, None)) is not None:
            self.ends.remove(key)


class Easy(Fifo):
    """See the module."""

    name = "easy"
    summary = "first in, first out; jobs that do not delay the head may pass"
    defaults = Options(reserve=True, guard_share=0.0)
    """A head that waits for a better placement keeps the GPUs it could have; the shadow time is the only guard."""
    option_names = PLACEMENT_OPTIONS | {"preemption"}
    state_type = EasyState
    delayed_per_class_max = PASSING_PER_CLASS_MAX
    head_matters = True

    def before(self, view: ClusterView, state: SchedulerState, plan: Plan) -> bool:
        """No head is blocked yet. Jobs that have outlived their expected end are given more time."""
        assert isinstance(state, EasyState)
        state.head = None
        for _, job_id in list(takewhile(lambda key: key[0] <= view.now_s, state.ends)):
            state.index_end(job_id, _end_s(view.jobs[job_id], view.now_s))
        return False

    def queue_note(self, state: SchedulerState) -> str:
        """Backfilling."""
        return "A job after the first one that cannot start may start only if that does not delay the first one."

    def index_running(
        self, view: ClusterView, job: JobView, state: SchedulerState, rank_waiting: float = -math.inf
    ) -> bool:
        """Index the expected end; no job is displaced."""
        assert isinstance(state, EasyState)
        state.index_end(job.id, _end_s(job, view.now_s))
        return False

    def try_job(self, context: PreemptionContext, plan: Plan, job: JobView, key: JobKey) -> tuple[Outcome, Reason]:
        """A job before the blocked head starts if it can; a job after it only if that does not delay the head."""
        view, state = context.view, context.state
        assert isinstance(state, EasyState)
        head = state.head
        if head is None:
            outcome, reason = Fifo.try_job(self, context, plan, job, key)
            # Other jobs do not wait for one that no set of servers can hold today.
            if outcome is Outcome.BLOCKED and reason is not Reason.NO_SUCH_SERVERS:
                state.head = _blocked_head(context, state, job)
            return outcome, reason
        candidate = self.find(state.pool, view, job)
        if candidate is None:
            return Outcome.BLOCKED, blocked_reason(view, state, job)
        takes_extra = _of_types(view, candidate.placement, head.gpu_types) and not _ends_by(
            job, view.now_s, head.shadow_s
        )
        if takes_extra and job.spec.gpus > head.extra_gpus:
            return Outcome.DELAYED, Reason.PRIORITY
        outcome, reason = Fifo.try_job(self, context, plan, job, key)
        if takes_extra and outcome is Outcome.PLACED:
            head.extra_gpus -= job.spec.gpus
        return outcome, reason


def _blocked_head(context: PreemptionContext, state: EasyState, job: JobView) -> BlockedHead:
    """Let running jobs end in order until the job fits. O(jobs that end before)."""
    view = context.view
    head = BlockedHead(None, job.spec.gpu_types, 0)
    with FuturePool(context) as pool:
        for end_s, ending in state.ends:
            if head.shadow_s is not None and end_s > head.shadow_s:
                break
            pool.add_job(view.jobs[ending])
            if head.shadow_s is None and (candidate := pool.fit(job)) is not None:
                head.shadow_s = max(end_s, view.now_s)
                head.gpu_types = (type_of(view.cluster, candidate.placement),)
        if head.shadow_s is not None and _takes_any(view, state, job):
            head.extra_gpus = state.pool.free_of_type(head.gpu_types[0]) - job.spec.gpus
        return head


def _takes_any(view: ClusterView, state: EasyState, job: JobView) -> bool:
    """Whether the job can use every free GPU of its type. Otherwise a count does not show which GPUs are extra: a tensor group or
    a placement rule keeps GPUs together, others need CPUs or memory beside them, and servers may be closed to the job.
    """
    gang = state.waiting.keys[job.id][0]
    if gang.tensor or gang.demands or gang.demand is not None:
        return False
    return view.cluster.gangs is Gangs.ANY and not closed_servers(view, job)


def _of_types(view: ClusterView, placement: Placement, gpu_types: tuple[str, ...]) -> bool:
    return not gpu_types or type_of(view.cluster, placement) in gpu_types


def _ends_by(job: JobView, now_s: float, at_s: float | None) -> bool:
    """Whether the job is expected to end by ``at_s`` if it starts now."""
    end_s = _end_s(job, now_s)
    return end_s is not None and at_s is not None and end_s <= at_s


def _end_s(job: JobView, now_s: float) -> float | None:
    """When the job is expected to end if it runs from now on; None if unknown."""
    if (walltime_s := job.spec.walltime_s) is not None:
        return now_s + remaining_units((walltime_s,), job.done(Unit.SERVICE_S, now_s), OverRun.DOUBLE)[0]
    estimate = job.estimate
    unit_s = None if estimate is None else seconds_per_unit(job, estimate)
    if estimate is None or unit_s is None:
        return None
    return now_s + unit_s * remaining_units((estimate.median,), job.done(estimate.unit, now_s), OverRun.DOUBLE)[0]
