"""The frame of every policy that orders jobs by a rank: index the changes, try the best jobs, explain.

A policy file says only what its rank is and which options it takes. One decision looks at the best waiting job of each
gang class and at the worst running jobs, through ordered indexes; it never scans the queue.
"""

import math
from collections.abc import Sequence
from typing import Any

from policies.choose import Candidate, consolidated, find_open
from policies.decision.changes import follow_windows, index_again
from policies.decision.defragmentation import make_room
from policies.decision.explain import blocked_reason, explanation, note_blocked
from policies.decision.migration import migrate, stretch
from policies.decision.plan import Outcome, Plan
from policies.decision.queue_heads import QueueHeads
from policies.decision.reservations import end_turn, give_up_claims, reserve_for_oldest, start_claimants
from policies.decision.victims import PreemptionContext, find_victims
from policies.lifecycle import JobState
from policies.model.decision import Change, ChangeKind, Decision, Reserve
from policies.model.ids import JobId, ServerIndex
from policies.model.reasons import Explanation, Reason
from policies.model.view import ClusterView, JobView
from policies.options import Options, PlacementRule, Preemption, Queue
from policies.placement.pool import FreePool
from policies.placement.scatter import salt_of
from policies.rank import REFRESH_S_MIN as REFRESH_S_MIN
from policies.rank import Rank, expected_remaining_s, pause_s
from policies.rules.minimum_run_time import ripe_at_s
from policies.state.project_shares import Shares
from policies.state.scheduler_state import Key, SchedulerState

_ROUNDING = 1e-9
"""Ranks that differ by less, relatively, are equal."""

DELAYED_PER_CLASS_MAX = 8
"""Jobs of one gang class that one cycle looks at while those before them wait for a better placement."""


class RankedPolicy:
    """Implements :class:`policies.base.Policy` for a rank given by :meth:`rank`."""

    name = "ranked"
    delayed_per_class_max = DELAYED_PER_CLASS_MAX
    ranks_keep_to_lines = False
    """Whether running jobs' ranks follow the line (value, slope) that :meth:`rank` gives until they are refreshed. Where a
    policy does not promise that, whoever wants to displace one looks at each job itself."""
    head_matters = False
    """Whether it matters to the others that a job was tried and could not start."""

    def __init__(self, options: Options) -> None:
        self.options = options

    # What a policy says.

    def rank(self, view: ClusterView, job: JobView, state: SchedulerState) -> Rank:
        """The job's rank now; smaller comes first."""
        raise TypeError(f"{type(self).__name__} gives no rank")

    def rank_per_s(self, job: JobView, state: SchedulerState) -> float:
        """What a second of the job's own time counts in the unit of ranks: g / G, since ranks are virtual seconds."""
        return job.spec.gpus / state.gpus

    def refresh_at_s(self, view: ClusterView, job: JobView, rank: Rank) -> float | None:
        """When a running job's rank must be computed anew."""
        estimate = job.estimate
        if rank.refresh_at_done is None or estimate is None:
            return None
        speed = job.speed(estimate.unit)
        if speed <= 0.0:
            return None
        done = job.done(estimate.unit, view.now_s)
        return view.now_s + max(REFRESH_S_MIN, pause_s(job, view.now_s) + (rank.refresh_at_done - done) / speed)

    def on_arrival(self, view: ClusterView, job: JobView, state: SchedulerState) -> None:
        """A job may start now."""
        state.enqueue(job, self.rank(view, job, state).value)

    def on_withdrawal(self, job: JobId, state: SchedulerState) -> None:
        """A waiting job may not start any more, or has ended."""

    def fills(self, state: SchedulerState) -> bool:
        """Whether :meth:`fill` does anything."""
        return False

    def before(self, view: ClusterView, state: SchedulerState, plan: Plan) -> None:
        """Called when the changes are indexed, before jobs are tried."""

    def reserve(self, view: ClusterView, state: SchedulerState, plan: Plan) -> None:
        """Called before jobs are tried: set GPUs aside for the oldest waiting job once it is overdue."""
        reserve_for_oldest(self, view, state, plan)

    def fill(self, bid: PreemptionContext, plan: Plan) -> None:
        """Called before waiting jobs are tried one by one: place a set of jobs at once."""

    def waiting_reason(self, state: SchedulerState, job: JobId) -> Reason:
        """Why a job waits that was not tried."""
        return Reason.QUEUE_HEAD_BLOCKED if self.options.queue is Queue.STRICT else Reason.PRIORITY

    def find(self, pool: FreePool, view: ClusterView, job: JobView) -> Candidate | None:
        """What the job would get of that pool now, by the option ``placement``."""
        random = self.options.placement is PlacementRule.RANDOM
        return find_open(pool, view, job, salt_of(job.id, job.attempts) if random else None)

    # The protocol.

    def initial_state(self, view: ClusterView) -> SchedulerState:
        """Indexes of an empty cluster. O(servers)."""
        servers = range(len(view.cluster.servers))
        pool = FreePool(view.cluster, [view.free_gpus(ServerIndex(server)) for server in servers])
        guarded = self.options.guard_share * view.cluster.gpus if self.options.queue is Queue.SKIP else 0.0
        unusable = {ServerIndex(server) for server in servers if view.usable_gpus(ServerIndex(server)) == 0}
        return SchedulerState(pool, max(1, view.cluster.gpus), guarded, unusable, self._shares(view.now_s))

    def _shares(self, now_s: float) -> Shares | None:
        options = self.options
        if not options.fair_share:
            return None
        return Shares(options.fair_share_half_life_s, options.project_weights.of, now_s)

    def rebuild(self, view: ClusterView, dump: dict[str, Any] | None = None) -> SchedulerState:
        """Indexes recovered from the jobs, with the delays of an earlier dump. O(n log n)."""
        state = self.initial_state(view)
        if state.shares is not None:
            state.shares.restore(view, (dump or {}).get("shares", {}))
        self.restore(view, state, dump or {})
        for job in view.jobs.values():
            if job.placement is not None:
                state.hold(job.id, job.placement)
            if job.waiting or job.placement is not None:
                state.may_guard(job)
            if job.reservation is not None:
                state.claim(job.id, job.reservation)
            if job.state in (JobState.PREEMPTING, JobState.CANCELLING):
                assert job.placement is not None
                state.leave(job.id, job.placement)
        self._restore_notes(view, state, dump or {})
        for job in view.jobs.values():
            if job.waiting:
                self.on_arrival(view, job, state)
                state.unnoted.append(job.id)
            elif job.state in (JobState.STARTING, JobState.RUNNING):
                self.index_running(view, job, state)
                self._note_stretch(view, job, state)
        return state

    def _restore_notes(self, view: ClusterView, state: SchedulerState, dump: dict[str, Any]) -> None:
        for job_id, since_s in dump.get("delayed_since_s", {}).items():
            if JobId(int(job_id)) in view.jobs:
                state.delayed_since_s[JobId(int(job_id))] = since_s
        competing = {job_id for _, job_id, _ in state.ages}
        for job_id in dump.get("guarded", ()):
            if job_id in competing and state.guard_gpus_max > 0.0:
                state.guard(view.jobs[job_id])
        if dump.get("guarded_extra") in competing and state.guard_gpus_max > 0.0:
            state.guarded_extra = dump["guarded_extra"]

    def restore(self, view: ClusterView, state: SchedulerState, dump: dict[str, Any]) -> None:
        """Take back a subclass's own residue before jobs are indexed."""

    def decide(self, view: ClusterView, changes: Sequence[Change], state: SchedulerState) -> Decision:
        """One decision. O((changes + actions) log n + gang classes)."""
        plan = Plan()
        follow_windows(view, state)
        projects = state.shares.absorb(view, changes) if state.shares is not None else ()
        for change in changes:
            self._absorb(view, change, state)
        for project in projects:
            index_again(self, view, state, project)
        if state.moved:
            self._index_moved(view, state)
        if state.refreshes and state.refreshes[0][0] <= view.now_s:
            for job_id in state.due_refreshes(view.now_s):
                self.index_running(view, view.jobs[job_id], state)
        self.before(view, state, plan)
        state.sync(view)
        self._guard(view, state, plan)
        given_up = give_up_claims(view, state)
        if state.claims:
            start_claimants(view, state, plan)
        self.reserve(view, state, plan)
        in_advance = bool(plan.actions)
        self._try_in_order(view, state, plan)
        # Nobody could try to displace a job that was given GPUs in advance; the next decision lets them.
        state.swayed = state.swayed or in_advance
        if state.unnoted:
            self._note_the_rest(view, state, plan)
        state.erase()
        if given_up:
            plan.actions += [Reserve(job_id, None) for job_id in given_up if job_id not in plan.placed]
        if self.options.preemption is not Preemption.NEVER and state.waiting:
            if (refresh_s := state.next_refresh_s()) is not None:
                plan.wakes_s.append(refresh_s)
            if state.shares is not None and (look_s := state.shares.next_s()) is not None:
                plan.wakes_s.append(look_s)
        return Decision(plan.actions, plan.reasons, min(plan.wakes_s, default=None))

    # 1. Changes.

    def _absorb(self, view: ClusterView, change: Change, state: SchedulerState) -> None:
        """Index one change."""
        kind = change.kind
        if kind is ChangeKind.SERVER_CHANGED:
            assert change.server is not None
            self._server_changed(view, change.server, state)
            return
        assert change.job is not None
        job = view.jobs.get(change.job)
        if kind is ChangeKind.VACATED:
            assert change.placement is not None
            state.vacate(change.job, change.placement)
            if job is not None and not job.waiting:
                state.leave_guard(job.id, job.submitted_at_s, job.spec.gpus)
        elif kind is ChangeKind.FINISHED:
            assert job is not None
            self.on_withdrawal(change.job, state)
            state.forget(job)
        elif job is None:
            return
        elif kind is ChangeKind.ARRIVED:
            if job.waiting:
                state.may_guard(job)
                self.on_arrival(view, job, state)
                state.unnoted.append(job.id)
        elif kind is ChangeKind.WITHDRAWN:
            self.on_withdrawal(job.id, state)
            state.dequeue(job.id)
            state.unclaim(job.id)
            state.reasons.pop(job.id, None)
            if not job.waiting:
                state.leave_guard(job.id, job.submitted_at_s, job.spec.gpus)
        else:
            self._absorb_of_known(view, change, job, state)

    def _absorb_of_known(self, view: ClusterView, change: Change, job: JobView, state: SchedulerState) -> None:
        kind = change.kind
        if kind is ChangeKind.STARTED:
            assert change.placement is not None
            waited = state.waiting_keys.get(job.id)
            state.moved[job.id] = waited[1].rank if waited is not None else -math.inf
            self.on_withdrawal(job.id, state)
            state.dequeue(job.id)
            state.unclaim(job.id)
            state.delayed_since_s.pop(job.id, None)
            state.reasons.pop(job.id, None)
            state.hold(job.id, change.placement)
            self._note_stretch(view, job, state)
            if job.placement is None:
                state.vacate(job.id, change.placement)
        elif kind is ChangeKind.PREEMPTING:
            assert change.placement is not None
            if job.state in (JobState.PREEMPTING, JobState.CANCELLING):
                state.leave(job.id, change.placement)
        elif kind in (ChangeKind.RESERVED, ChangeKind.REFUSED):
            # Its claim is what is reserved for it, whatever became of the action.
            state.unclaim(job.id)
            if job.reservation is not None:
                state.claim(job.id, job.reservation)
        if job.state in (JobState.STARTING, JobState.RUNNING):
            state.moved.setdefault(job.id, -math.inf)
            if kind not in (ChangeKind.STARTED, ChangeKind.PROGRESSED) or not job.graceful:
                state.swayed = True
        elif job.waiting and job.id in state.waiting_keys:
            self.on_arrival(view, job, state)

    def _index_moved(self, view: ClusterView, state: SchedulerState) -> None:
        """Index each running job that the changes were about, once however many there were."""
        for job_id, rank_waiting in state.moved.items():
            job = view.jobs.get(job_id)
            if job is None or job.state not in (JobState.STARTING, JobState.RUNNING):
                continue
            swayed = state.swayed
            rank = self.index_running(view, job, state)
            if rank_waiting > -math.inf and rank <= rank_waiting + abs(rank_waiting) * _ROUNDING:
                # It has started. Those before it were tried while its GPUs were free, those after it may not displace it.
                state.swayed = swayed
        state.moved.clear()

    def _server_changed(self, view: ClusterView, server: ServerIndex, state: SchedulerState) -> None:
        state.dirty.add(server)
        state.restless = True
        if server >= len(state.pool):
            state.sync_server(view, server)
        state.unusable.discard(server)
        if view.usable_gpus(server) == 0:
            state.unusable.add(server)
        gpus = max(1, view.cluster.gpus)
        if gpus != state.gpus:
            before, state.gpus = state.gpus, gpus
            if self.options.queue is Queue.SKIP:
                state.guard_gpus_max = self.options.guard_share * gpus
            self.on_resize(view, state, before)

    def on_resize(self, view: ClusterView, state: SchedulerState, gpus_before: int) -> None:
        """G has changed, and with it every rank. O(n log n): servers are rarely added."""
        for job_id in list(state.waiting_keys):
            self.on_arrival(view, view.jobs[job_id], state)
        for job_id in [*state.running_keys, *state.sheltered]:
            self.index_running(view, view.jobs[job_id], state)

    def index_running(self, view: ClusterView, job: JobView, state: SchedulerState) -> float:
        """Returns the rank by which it may be displaced; minus infinity where it may not."""
        if self.options.preemption is Preemption.NEVER:
            return -math.inf
        if (at_s := ripe_at_s(self.options, view.costs, job)) > view.now_s:
            state.shelter(job.id, at_s)
            return -math.inf
        rank = self.rank(view, job, state)
        moves_from_s = view.now_s + (pause_s(job, view.now_s) if rank.slope < 0 else 0.0)
        state.index_running(job, rank, moves_from_s, self.refresh_at_s(view, job, rank))
        return rank.value

    def _note_stretch(self, view: ClusterView, job: JobView, state: SchedulerState) -> None:
        if self.options.preemption is Preemption.NEVER or job.placement is None:
            return
        if (ratio := stretch(job, view.cluster, job.placement)) is not None:
            state.scatter(job, ratio)

    def _guard(self, view: ClusterView, state: SchedulerState, plan: Plan) -> None:
        if (rested := end_turn(self, view, state, plan)) is not None:
            self.index_running(view, rested, state)
        for job_id in state.fill_guard(view.now_s - self.options.guard_wait_s):
            job = view.jobs[job_id]
            if job_id in state.waiting_keys:
                state.enqueue(job, state.waiting_keys[job_id][1].rank)
            state.unindex_running(job_id)

    # 2. Jobs in order.

    def _try_in_order(self, view: ClusterView, state: SchedulerState, plan: Plan) -> None:
        strict = self.options.queue is Queue.STRICT
        together = strict or self.head_matters
        quiet = not (state.restless or together) and view.now_s < state.look_again_s
        if quiet and (self.options.preemption is Preemption.NEVER or self._nobody_swayed(view, state)):
            if state.look_again_s < math.inf:
                plan.wakes_s.append(state.look_again_s)
            return
        state.restless, state.swayed, wakes = False, False, len(plan.wakes_s)
        state.tried_at_s = view.now_s
        state.delaying.clear()
        bid = PreemptionContext(self, view, state)
        self.fill(bid, plan)
        heads = QueueHeads(bid, plan.placed.union(state.claims), together=together)
        delayed: dict[Any, int] = {}
        while heads.waiting:
            if state.pool.total == 0 and not bid.worth_trying(heads.waiting[0].key):
                heads.give_up()
                break
            if (head := heads.pop()) is None:
                break
            outcome, reason = self._try(view, state, plan, bid, view.jobs[head.key.job], head.key)
            if outcome is Outcome.PLACED:
                if reason is Reason.RESERVED:
                    heads.hope_again(head)
                heads.go_on(head)
                continue
            plan.note(state, head.key.job, reason)
            state.settled[head.gang] = head.key.job
            if outcome is Outcome.DELAYED:
                state.delaying.add(head.gang)
            elif reason is Reason.FRAGMENTED:
                state.restless = True
            if strict:
                break
            delayed[head.gang] = delayed.get(head.gang, 0) + 1
            if outcome is Outcome.DELAYED and delayed[head.gang] <= self.delayed_per_class_max:
                heads.go_on(head)
        state.look_again_s = min(plan.wakes_s[wakes:], default=math.inf)
        if state.delaying and plan.actions:
            # What they were offered may be gone.
            state.restless = True
        note_blocked(view, state, plan, sorted(heads.hopeless)[:1] if strict else heads.hopeless)
        migrate(bid, view, plan)
        if bid.ripe_at_s < math.inf:
            plan.wakes_s.append(bid.ripe_at_s)

    def _nobody_swayed(self, view: ClusterView, state: SchedulerState) -> bool:
        """Whether running jobs are certainly no easier to displace, nor to move, than when all were tried. O(lines)."""
        if state.swayed or state.scattered or state.delaying or not self.ranks_keep_to_lines or self.fills(state):
            return False
        return state.tried_at_s == view.now_s or not any(line.slope > 0.0 for line in state.running)

    def _try(
        self, view: ClusterView, state: SchedulerState, plan: Plan, bid: PreemptionContext, job: JobView, key: Key
    ) -> tuple[Outcome, Reason]:
        candidate = self.find(state.pool, view, job)
        if candidate is not None:
            if (until_s := self._delay_until_s(view, state, job, candidate)) is None:
                plan.start(view, state, job.id, candidate.placement)
                return Outcome.PLACED, Reason.STARTED
            if (moved := make_room(bid, job, candidate)) is not None:
                plan.reserve(view, state, job.id, *moved)
                return Outcome.PLACED, Reason.RESERVED
            plan.wakes_s.append(until_s)
        found = find_victims(bid, job, key, consolidated_only=candidate is not None)
        if found is not None:
            better, victims = found
            if (until_s := self._delay_until_s(view, state, job, better)) is None:
                plan.reserve(view, state, job.id, better.placement, victims)
                return Outcome.PLACED, Reason.RESERVED
            plan.wakes_s.append(until_s)
            return Outcome.DELAYED, Reason.CONSOLIDATION_DELAY
        if candidate is not None:
            if self.options.reserve:
                state.pencil_start(view, candidate.placement)
            return Outcome.DELAYED, Reason.CONSOLIDATION_DELAY
        reason = blocked_reason(view, state, job)
        # What is set aside from this one may be open to the next.
        return Outcome.DELAYED if reason is Reason.RESERVED_SERVERS else Outcome.BLOCKED, reason

    def _delay_until_s(
        self, view: ClusterView, state: SchedulerState, job: JobView, candidate: Candidate
    ) -> float | None:
        """Until when the job should wait for a better placement; None: take this one.

        Our construction: a communication-heavy job waits at most min(c x its remaining time at its best placement, what
        this placement would cost it), counted from the first scan at which it could have started.
        """
        times = job.iteration_times
        if times is None or candidate.iteration_s is None or self.options.delay_factor == 0.0:
            return None
        if times.max_s <= self.options.tau * times.min_s or consolidated(candidate, times):
            return None
        remaining_s = expected_remaining_s(job, view.now_s)
        if remaining_s is None:
            return None
        stretch = candidate.iteration_s / times.min_s - 1.0
        delay_s = min(self.options.delay_factor, stretch) * remaining_s
        until_s = state.delayed_since_s.setdefault(job.id, view.now_s) + delay_s
        return until_s if until_s > view.now_s else None

    # 3. Reasons.

    def _note_the_rest(self, view: ClusterView, state: SchedulerState, plan: Plan) -> None:
        """Jobs that have come, and were not tried."""
        placed = plan.placed
        for job_id in state.unnoted:
            job = view.jobs.get(job_id)
            if job is not None and job.waiting and job_id not in placed and job_id not in state.reasons:
                plan.note(state, job_id, self.waiting_reason(state, job_id))
        state.unnoted = []

    def explain(self, view: ClusterView, state: SchedulerState, job: JobId) -> Explanation:
        """The reason with its numbers. O(gang classes x log n + servers)."""
        record = view.jobs[job]
        reason = state.reasons.get(job)
        if reason is None:
            reason = self.waiting_reason(state, job) if record.waiting else Reason.STARTED
        return explanation(view, state, record, reason, self.rank(view, record, state).value)
