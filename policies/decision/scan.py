"""Step 4 of a cycle: try the queue heads in order."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from policies.decision.decider import Decider
from policies.decision.defragmentation import make_room
from policies.decision.explain import blocked_reason
from policies.decision.migration import migrate
from policies.decision.plan import Outcome, Plan
from policies.decision.preemption import PreemptionContext
from policies.decision.queue_heads import QueueHead, QueueHeads
from policies.decision.reservations import lend_reserved_gpus
from policies.decision.victims import find_victims
from policies.model.ids import JobId
from policies.model.reasons import Reason
from policies.model.resources import demand_of
from policies.model.view import ClusterView, JobView
from policies.options import Preemption, Queue
from policies.rules.server_reservations import may_last_s
from policies.state.keys import GangClass, JobKey
from policies.state.scheduler_state import SchedulerState

KEPT_OUT_PER_CLASS_MAX = 64
"""Jobs of one gang class that one cycle looks at in vain because servers are reserved, in search of shorter ones."""


class Scanner(Decider):
    """A policy whose queue is scanned."""

    delayed_per_class_max: ClassVar[int]
    head_matters: ClassVar[bool]

    @abstractmethod
    def fills(self, state: SchedulerState) -> bool:
        """Whether :meth:`fill` is called."""

    @abstractmethod
    def jobs_ahead(self, state: SchedulerState, job: JobId) -> int:
        """Waiting jobs that get GPUs before this one, which waits as well."""

    @abstractmethod
    def fill(self, context: PreemptionContext, plan: Plan) -> None:
        """Place a set of jobs at once, before the others are tried one by one."""

    @abstractmethod
    def try_job(self, context: PreemptionContext, plan: Plan, job: JobView, key: JobKey) -> tuple[Outcome, Reason]:
        """Start one job, preempt for it, or find out why neither is possible."""


def scan_queue_heads(
    policy: Scanner, view: ClusterView, state: SchedulerState, plan: Plan, *, victims_changed: bool
) -> None:
    """Start, preempt for, delay or block the best job of each gang class, the best first, unless nothing can have changed; then
    move running jobs whose communication crosses servers.

    ``victims_changed``: a running job may be easier to displace than in the last scan.
    """
    scan = state.scan
    strict = policy.options.queue is Queue.STRICT
    if _still_holds(policy, view, state, victims_changed=victims_changed):
        if scan.repeat_at_s < math.inf:
            plan.wakes_s.append(scan.repeat_at_s)
        if state.placements.stretched and policy.options.preemption is not Preemption.NEVER:
            _migrate(PreemptionContext(policy, view, state), plan)
        return
    scan.begin(view.now_s)
    wakes_before = len(plan.wakes_s)
    context = PreemptionContext(policy, view, state)
    tried = _fill(policy, context, plan) if policy.fills(state) else ()
    done = plan.placed
    if state.ledger.reservations or tried:
        done = done.union(state.ledger.reservations, tried)
    heads = QueueHeads(context, done, together=strict or policy.head_matters)
    _try_heads(policy, context, plan, heads, strict=strict)
    if policy.options.preemption is Preemption.NEVER:
        lend_reserved_gpus(context, plan)
    scan.repeat_at_s = math.inf
    if len(plan.wakes_s) > wakes_before:
        scan.repeat_at_s = min(plan.wakes_s[wakes_before:])
    if scan.delayed and plan.actions:
        # The placements that delayed jobs could have had may be gone.
        scan.valid = False
    _block(view, state, plan, sorted(heads.infeasible)[:1] if strict else heads.infeasible)
    _migrate(context, plan)


def _fill(policy: Scanner, context: PreemptionContext, plan: Plan) -> Sequence[JobId]:
    """Try the guarded jobs, then place a set of the others at once; return the guarded jobs.

    Each guarded job is tried as without filling: a small one would otherwise wait for as long as gangs come that fill more.
    """
    state = context.state
    guarded = state.guard.members()
    if any(job in state.waiting for job in guarded):
        done = plan.placed.union(state.ledger.reservations)
        heads = QueueHeads(context, done, together=False, guarded_only=True)
        _try_heads(policy, context, plan, heads, strict=False)
        _block(context.view, state, plan, heads.infeasible)
    policy.fill(context, plan)
    return guarded


def _migrate(context: PreemptionContext, plan: Plan) -> None:
    migrate(context, plan)
    if context.next_stoppable_s < math.inf:
        plan.wakes_s.append(context.next_stoppable_s)


def _still_holds(policy: Scanner, view: ClusterView, state: SchedulerState, *, victims_changed: bool) -> bool:
    """Whether a scan would certainly find what the last one found."""
    scan, options = state.scan, policy.options
    if not scan.valid or options.queue is Queue.STRICT or policy.head_matters or view.now_s >= scan.repeat_at_s:
        return False
    if options.preemption is Preemption.NEVER:
        return True
    if victims_changed or scan.delayed:
        return False
    if not policy.ranks_keep_to_lines or policy.fills(state):
        return False
    return scan.at_s == view.now_s or not state.running.rising()


def _try_heads(policy: Scanner, context: PreemptionContext, plan: Plan, heads: QueueHeads, *, strict: bool) -> None:
    """Try heads until none is left; the next job of a class follows a head that was placed, or delayed.

    With ``strict`` until one has to wait for others to end. One that waits for its servers lets the others pass: nobody knows
    until when.
    """
    state = context.state
    context.searches.forget()
    delayed: dict[GangClass, int] = {}
    kept_out = _KeptOut(context, plan)
    while heads.waiting:
        if state.pool.total == 0 and not context.worth_trying(heads.waiting[0].key):
            heads.mark_rest_infeasible()
            return
        if (head := heads.pop()) is None:
            return
        job = context.view.jobs[head.key.job]
        if kept_out.as_well(head.gang, job):
            heads.push_next(head)
            continue
        outcome, reason = policy.try_job(context, plan, job, head.key)
        if outcome is Outcome.PLACED:
            context.searches.forget()
            if reason is Reason.RESERVED:
                heads.retry_infeasible(head)
            heads.push_next(head)
            continue
        plan.explain(job.id, reason)
        state.scan.blocked[head.gang] = job.id
        if outcome is Outcome.DELAYED:
            state.scan.delayed.add(head.gang)
        elif reason is Reason.FRAGMENTED:
            state.scan.valid = False
        if reason is Reason.RESERVED_SERVERS and kept_out.note(head.gang, job):
            heads.push_next(head)
            continue
        if strict and reason not in (Reason.NO_SUCH_SERVERS, Reason.RESERVED_SERVERS):
            return
        delayed[head.gang] = delayed.get(head.gang, 0) + 1
        if outcome is Outcome.DELAYED and delayed[head.gang] <= policy.delayed_per_class_max:
            heads.push_next(head)


class _KeptOut:
    """The jobs that reserved servers are closed to because they may last too long: one that may last as long needs no try."""

    def __init__(self, context: PreemptionContext, plan: Plan) -> None:
        self._view = context.view
        self._plan = plan
        self._least_s: dict[GangClass, float] = {}
        self._unknown: set[GangClass] = set()
        self._looked_at: dict[GangClass, int] = {}

    def note(self, gang: GangClass, job: JobView) -> bool:
        """The job was tried in vain. Returns whether the next one of its class is to be looked at."""
        lasts_s = may_last_s(self._view, job)
        if math.isfinite(lasts_s):
            self._least_s[gang] = min(lasts_s, self._least_s.get(gang, math.inf))
        else:
            self._unknown.add(gang)
        return self._goes_on(gang)

    def as_well(self, gang: GangClass, job: JobView) -> bool:
        """Whether the job is certainly kept out as well, and the next one of its class is to be looked at. O(1)."""
        if gang not in self._looked_at:
            return False
        lasts_s = may_last_s(self._view, job)
        # One of unknown duration may be let in where the reservation would stop it.
        certain = self._least_s.get(gang, math.inf) <= lasts_s if math.isfinite(lasts_s) else gang in self._unknown
        if not certain or not self._goes_on(gang):
            return False
        self._plan.explain(job.id, Reason.RESERVED_SERVERS)
        return True

    def _goes_on(self, gang: GangClass) -> bool:
        self._looked_at[gang] = count = self._looked_at.get(gang, 0) + 1
        return count <= KEPT_OUT_PER_CLASS_MAX


def _block(view: ClusterView, state: SchedulerState, plan: Plan, heads: Sequence[QueueHead]) -> None:
    """These heads wait for GPUs, and preemption cannot bring them."""
    for head in heads:
        job_id = head.key.job
        state.scan.blocked[head.gang] = job_id
        if state.unusable or state.reasons.of.get(job_id) is not Reason.RESOURCES:
            plan.explain(job_id, blocked_reason(view, state, view.jobs[job_id]))


def try_job(
    policy: Decider, context: PreemptionContext, plan: Plan, job: JobView, key: JobKey
) -> tuple[Outcome, Reason]:
    """Start the job on free GPUs; else move small jobs out of its way; else preempt for it; else delay or block it."""
    view, state, options = context.view, context.state, policy.options
    candidate = policy.find(state.pool, view, job)
    if candidate is not None:
        until_s = state.delays.until_s(options, view, job, candidate)
        if until_s is None:
            plan.start(job.id, candidate.placement)
            return Outcome.PLACED, Reason.STARTED
        if (moved := make_room(context, job, candidate)) is not None:
            plan.reserve(job.id, *moved)
            return Outcome.PLACED, Reason.RESERVED
        plan.wakes_s.append(until_s)
    found = find_victims(context, job, key, consolidated_only=candidate is not None)
    if found is not None:
        better, victims = found
        until_s = state.delays.until_s(options, view, job, better)
        if until_s is None:
            plan.reserve(job.id, better.placement, victims)
            return Outcome.PLACED, Reason.RESERVED
        plan.wakes_s.append(until_s)
        return Outcome.DELAYED, Reason.CONSOLIDATION_DELAY
    if candidate is not None:
        if options.reserve:
            state.ledger.start_tentatively(view, candidate.placement, demand_of(job.spec))
            context.searches.forget()
        return Outcome.DELAYED, Reason.CONSOLIDATION_DELAY
    reason = blocked_reason(view, state, job)
    # Servers that are closed to this job may be open to the next one of its class.
    return Outcome.DELAYED if reason is Reason.RESERVED_SERVERS else Outcome.BLOCKED, reason
