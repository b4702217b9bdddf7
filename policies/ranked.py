"""The frame of every policy that orders jobs by a rank.

A policy defines its rank and the options that it takes. One decision considers the best waiting job of each gang class and
the worst running jobs, through ordered indexes; it never scans the whole queue.
"""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from policies.choose import Candidate, find_open
from policies.decision.changes import index_changes, note_stretch
from policies.decision.explain import explain_untried
from policies.decision.explanation import explanation
from policies.decision.guard import update_guard, watch_idle_gpus
from policies.decision.plan import Outcome, Plan
from policies.decision.preemption import PreemptionContext
from policies.decision.queue_order import QueueSlice, QueueWanted, queue_slice
from policies.decision.reservations import release_lost_reservations, reserve_for_overdue, start_reserved_jobs
from policies.decision.scan import Scanner, scan_queue_heads, try_job
from policies.lifecycle import JobState
from policies.model.decision import Change, Decision, Reserve
from policies.model.ids import JobId
from policies.model.reasons import Explanation, Reason
from policies.model.resources import demand_of
from policies.model.shares import Shares
from policies.model.view import ClusterView, JobView
from policies.options import Options, PlacementMethod, Preemption, Queue
from policies.placement.pool import FreePool
from policies.placement.scatter import salt_of
from policies.rank import REFRESH_S_MIN, Rank, pause_s
from policies.rules.protocols import PreemptionRule
from policies.rules.registered import preemption_rules, protected_until_s
from policies.state.keys import JobKey
from policies.state.scheduler_state import SchedulerState

_ROUNDING = 1e-9
"""Ranks that differ by less, relatively, are equal."""

DELAYED_PER_CLASS_MAX = 8
"""Jobs of one gang class that one cycle tries while those before them wait for a better placement."""


class RankedPolicy(Scanner):
    """Implements :class:`policies.base.Policy` for a rank given by :meth:`rank`."""

    name: ClassVar[str] = "ranked"
    summary: ClassVar[str] = ""
    """The policy in a few words, for lists of policies."""
    defaults: ClassVar[Options] = Options()
    option_names: ClassVar[frozenset[str]] = frozenset()
    """The options that the policy takes, those of fair share left out."""
    state_type: ClassVar[type[SchedulerState]] = SchedulerState
    delayed_per_class_max: ClassVar[int] = DELAYED_PER_CLASS_MAX
    ranks_keep_to_lines: ClassVar[bool] = False
    """Whether the rank of a running job follows the line (value, slope) that :meth:`rank` gives until it is refreshed. If a
    policy does not promise that, preemption computes the rank of each running job that it considers."""
    head_matters: ClassVar[bool] = False
    """Whether it matters to other jobs that a job was tried and could not start."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.preemption_rules: tuple[PreemptionRule, ...] = preemption_rules(options)

    # What a policy defines.

    def rank(self, view: ClusterView, job: JobView, state: SchedulerState) -> Rank:
        """The job's rank now; smaller comes first."""
        raise TypeError(f"{type(self).__name__} gives no rank")

    def rank_per_s(self, job: JobView, state: SchedulerState) -> float:
        """What one second of the job's own time counts in the unit of ranks: g / G, since ranks are virtual seconds."""
        return job.spec.gpus / state.gpus

    def refresh_at_s(self, view: ClusterView, job: JobView, rank: Rank) -> float | None:
        """When a running job's rank must be computed again; None: not before a change."""
        estimate = job.estimate
        if rank.refresh_at_done is None or estimate is None:
            return None
        speed = job.speed(estimate.unit)
        if speed <= 0.0:
            return None
        done = job.done(estimate.unit, view.now_s)
        return view.now_s + max(REFRESH_S_MIN, pause_s(job, view.now_s) + (rank.refresh_at_done - done) / speed)

    def restore(self, view: ClusterView, state: SchedulerState, dump: dict[str, Any]) -> None:
        """Take back the policy's own part of an earlier dump, before jobs are indexed."""

    def observe(self, view: ClusterView, changes: Sequence[Change], state: SchedulerState) -> bool:
        """Called first in a cycle: keep the policy's own accounts.

        Returns whether a running job may have become easier to displace.
        """
        return False

    def before(self, view: ClusterView, state: SchedulerState, plan: Plan) -> bool:
        """Called when the changes are indexed, before jobs are tried. Returns what :meth:`observe` returns."""
        return False

    def on_arrival(self, view: ClusterView, job: JobView, state: SchedulerState) -> None:
        """A job may start now, or its rank has changed while it waits."""
        state.enqueue(job, self.rank(view, job, state).value)

    def on_withdrawal(self, job: JobId, state: SchedulerState) -> None:
        """A waiting job may not start any more, or has ended."""

    def on_resize(self, view: ClusterView, state: SchedulerState, gpus_before: int) -> bool:
        """G has changed, and with it every rank: index all jobs again. O(n log n).

        Returns whether a running job has become easier to displace.
        """
        for job_id in list(state.waiting.keys):
            self.on_arrival(view, view.jobs[job_id], state)
        victims_changed = False
        for job_id in [*state.running.keys, *state.running.protected]:
            victims_changed |= self.index_running(view, view.jobs[job_id], state)
        return victims_changed

    def reserve(self, view: ClusterView, state: SchedulerState, plan: Plan) -> None:
        """Called before jobs are tried: set GPUs aside for the job that is overdue first."""
        reserve_for_overdue(self, view, state, plan)

    def fills(self, state: SchedulerState) -> bool:
        """Whether :meth:`fill` is called."""
        return False

    def fill(self, context: PreemptionContext, plan: Plan) -> None:
        """Place a set of jobs at once, before the others are tried one by one. Called only while :meth:`fills`."""

    def jobs_ahead(self, state: SchedulerState, job: JobId) -> int:
        """Waiting jobs that get GPUs before this one, which waits as well: those with better keys."""
        return state.waiting.jobs_ahead(job)

    def try_job(self, context: PreemptionContext, plan: Plan, job: JobView, key: JobKey) -> tuple[Outcome, Reason]:
        """Start one job, preempt for it, or find out why neither is possible."""
        return try_job(self, context, plan, job, key)

    def waiting_reason(self, state: SchedulerState, job: JobId) -> Reason:
        """Why a job waits that was not tried."""
        return Reason.QUEUE_HEAD_BLOCKED if self.options.queue is Queue.STRICT else Reason.PRIORITY

    def queue_note(self, state: SchedulerState) -> str:
        """What the order of ranks does not show of how jobs start; empty where it shows everything."""
        return "No job may pass the first one that cannot start." if self.options.queue is Queue.STRICT else ""

    # What the parts of a decision use.

    def find(self, pool: FreePool, view: ClusterView, job: JobView) -> Candidate | None:
        """The placement that the job would get of that pool now, by the option ``placement``."""
        random = self.options.placement is PlacementMethod.RANDOM
        return find_open(pool, view, job, salt_of(job.id, job.attempts) if random else None)

    def index_running(
        self, view: ClusterView, job: JobView, state: SchedulerState, rank_waiting: float = -math.inf
    ) -> bool:
        """Index a running job by its rank; return whether it is easier to displace than before.

        ``rank_waiting``: the rank by which a job was waiting that has just started. If its rank is no worse now, other jobs
        need not be tried: those before it were tried while its GPUs were free, those after it may not displace it.
        """
        if self.options.preemption is Preemption.NEVER:
            return False
        if (until_s := protected_until_s(self.preemption_rules, view.costs, job)) > view.now_s:
            state.protect(job.id, until_s)
            return False
        rank = self.rank(view, job, state)
        moves_from_s = view.now_s + (pause_s(job, view.now_s) if rank.slope < 0 else 0.0)
        easier = state.index_running(job, rank, moves_from_s, self.refresh_at_s(view, job, rank))
        as_before = rank_waiting > -math.inf and rank.value <= rank_waiting + abs(rank_waiting) * _ROUNDING
        return easier and not as_before

    # The protocol.

    def initial_state(self, view: ClusterView) -> SchedulerState:
        """Indexes of an empty cluster. O(servers)."""
        return self.state_type(view, self.options)

    def rebuild(self, view: ClusterView, dump: dict[str, Any] | None = None) -> SchedulerState:
        """Indexes recovered from the jobs, with what an earlier dump adds. O(n log n)."""
        dump = dump or {}
        state = self.initial_state(view)
        if state.shares is not None:
            state.shares.restore(view, dump.get("shares", {}))
        self.restore(view, state, dump)
        jobs = list(view.jobs.values())
        state.guard.compete_all([job for job in jobs if job.waiting or job.placement is not None])
        for job in jobs:
            if job.placement is not None:
                state.hold(job, view.cluster, job.placement)
            if job.reservation is not None:
                state.ledger.reserve(job.id, job.reservation, demand_of(job.spec))
            if job.state in (JobState.PREEMPTING, JobState.CANCELLING):
                assert job.placement is not None
                state.leave(job, job.placement)
        state.delays.restore(dump, view.jobs)
        state.guard.restore(dump)
        state.gather()
        for job in jobs:
            if job.waiting:
                self.on_arrival(view, job, state)
                if job.reason is Reason.RESERVED_SERVERS:
                    # The guard does not wait for such a job (:func:`policies.decision.guard.has_servers`).
                    state.reasons.set(job.id, job.reason)
                state.reasons.require(job.id)
            elif job.state in (JobState.STARTING, JobState.RUNNING):
                self.index_running(view, job, state)
                note_stretch(self, view, job, state)
        state.enqueue_gathered()
        return state

    def decide(self, view: ClusterView, changes: Sequence[Change], state: SchedulerState) -> Decision:
        """One cycle. O((changes + actions) log n + gang classes)."""
        plan = Plan(view, state)
        state.foreseen = None

        # 1. Bring the indexes, the ranks and the free GPUs up to now.
        victims_changed = self.observe(view, changes, state)
        victims_changed |= index_changes(self, view, changes, state)
        victims_changed |= self.before(view, state, plan)
        state.ledger.sync(view)

        # 2. Guard the jobs that have waited longest. It looks again at those that lacked servers; then their reasons are old.
        victims_changed |= update_guard(self, view, state, plan)
        state.reasons.forget_servers()

        # 3. Reservations: release those that cannot be kept, start the jobs whose GPUs are free, reserve for an overdue job.
        released = release_lost_reservations(view, state)
        start_reserved_jobs(view, state, plan)
        self.reserve(view, state, plan)

        # 4. Try the queue heads. Jobs placed before now can only be displaced in the next cycle.
        victims_changed |= state.scan.partial
        state.scan.partial = bool(plan.actions)
        scan_queue_heads(self, view, state, plan, victims_changed=victims_changed)

        # 5. Explain the jobs that have arrived and were not tried.
        explain_untried(self, view, state, plan)

        # 6. Count the GPUs that idle beside the plan, then take tentative changes back: what is applied comes back as changes of
        # the next cycle.
        watch_idle_gpus(self.options, view, state, plan)
        state.undo_tentative()
        placed = plan.placed if released else ()
        plan.actions += [Reserve(job_id, None) for job_id in released if job_id not in placed]

        # 7. Decide again when a rank or the level of a project must be computed again.
        if self.options.preemption is not Preemption.NEVER and len(state.waiting):
            plan.wake_at(state.running.next_refresh_s())
            plan.wake_at(state.shares.next_s() if state.shares is not None else None)
        return plan.decision()

    def explain(self, view: ClusterView, state: SchedulerState, job: JobId) -> Explanation:
        """The reason with its numbers, and the next preemption. O(running + servers), and a few scans once a cycle."""
        record = view.jobs[job]
        reason = state.reasons.of.get(job)
        if reason is None:
            reason = self.waiting_reason(state, job) if record.waiting else Reason.STARTED
        return explanation(self, view, state, record, reason, self.rank(view, record, state).value)

    def shares(self, view: ClusterView, state: SchedulerState) -> Shares:
        """The accounts of projects with ``fair_share``. O(projects log projects)."""
        if state.shares is None:
            return Shares()
        return Shares(projects=state.shares.shown(view.now_s), half_life_s=state.shares.half_life_s)

    def queue(self, view: ClusterView, state: SchedulerState, wanted: QueueWanted) -> QueueSlice:
        """A part of the queue in the order of the next cycle."""
        return queue_slice(self, view, state, wanted)
