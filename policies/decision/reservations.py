"""Step 3 of a cycle: GPUs that are set aside for waiting jobs; and who may use them until they are complete, in step 4."""

import math
from collections import Counter

from policies.choose import consolidated
from policies.decision.decider import Decider
from policies.decision.future_pool import FuturePool
from policies.decision.guard import has_servers, set_aside
from policies.decision.plan import Plan
from policies.decision.preemption import PreemptionContext
from policies.decision.queue_heads import QueueHeads
from policies.model.ids import JobId, ServerIndex
from policies.model.placement import Placement
from policies.model.resources import NOTHING, Amounts, amounts_of, demand_of, taken_by
from policies.model.view import ClusterView, JobView
from policies.options import Preemption, PreemptUnsaved
from policies.placement.pool import FreePool
from policies.rank import expected_remaining_s
from policies.rules.server_reservations import closed_servers, may_last_s
from policies.rules.unsaved_work import cannot_save
from policies.state.guard_turns import Turn
from policies.state.keys import GangClass
from policies.state.scheduler_state import SchedulerState
from policies.throughput import times_in_reach

LENT_PER_CLASS_MAX = 64
"""Jobs of one gang class that one cycle looks at for GPUs that are reserved and not complete yet."""


def release_lost_reservations(view: ClusterView, state: SchedulerState) -> list[JobId]:
    """Release reservations on servers that take no work, or not that of the job; return the jobs, which compete again.

    O(reservations).
    """
    if not state.unusable and not view.server_reservations:
        return []
    lost = [
        job
        for job, placement in state.ledger.reservations.items()
        if not state.unusable.isdisjoint(placement.servers)
        or not closed_servers(view, view.jobs[job]).isdisjoint(placement.servers)
    ]
    for job in lost:
        state.ledger.release(job)
    state.ledger.sync(view)
    return sorted(lost)


def start_reserved_jobs(view: ClusterView, state: SchedulerState, plan: Plan) -> None:
    """Start each job whose reserved GPUs are all free by now, the oldest first. O(reservations)."""
    if not state.ledger.reservations:
        return
    taken: dict[ServerIndex, int] = {}
    taken_amounts: dict[ServerIndex, Amounts] = {}
    for job, placement in sorted(state.ledger.reservations.items()):
        spec, amounts = view.jobs[job].spec, {}
        enough = all(
            view.free_gpus(share.server) - taken.get(share.server, 0) >= share.gpus for share in placement.shares
        )
        if enough and demand_of(spec) is not None:
            amounts = {
                share.server: taken_amounts.get(share.server, NOTHING).plus(taken_by(spec, share.gpus))
                for share in placement.shares
            }
            enough = not any(
                spare.plus(wanted, -1).lacking
                for server, wanted in amounts.items()
                if (spare := view.spare(server)) is not None
            )
        if enough and view.jobs[job].waiting:
            for share in placement.shares:
                taken[share.server] = taken.get(share.server, 0) + share.gpus
            taken_amounts |= amounts
            state.ledger.release(job)
            plan.start(job, placement)


def reserve_for_overdue(policy: Decider, view: ClusterView, state: SchedulerState, plan: Plan) -> None:
    """Reserve GPUs, as they become free, for the job that is overdue first, ``guard_wait_s`` after its wait counts.

    Only where running jobs may not be stopped, one job at a time in its turn, or where jobs that cannot checkpoint hold too many
    GPUs. Elsewhere the job is guarded and displaces others; GPUs reserved for it would only idle until then.
    """
    order = state.guard.overdue_order
    if state.guard.gpus_max <= 0.0:
        return
    while order and not has_servers(view, state, order[0][1]):
        set_aside(policy, view, state, order[0][1])
    if not order:
        return
    since_s, job_id = order[0]
    if job_id in plan.placed:
        return
    if job_id in state.ledger.reservations:
        _stop_the_last(policy, view, state, plan, job_id)
        return
    without_preemption = policy.options.preemption is Preemption.NEVER
    if without_preemption and state.guard.turns.turn is not None:
        return
    due_s = max(since_s + policy.options.guard_wait_s, state.guard.turns.next_from_s)
    if due_s > view.now_s:
        plan.wakes_s.append(due_s)
        return
    job = view.jobs[job_id]
    if not without_preemption and not _unsaved_jobs_hold_it(policy, view, state, job):
        return
    if policy.find(state.pool, view, job) is not None:
        return
    placement = _placement_to_drain(policy, view, state, job)
    if placement is None:
        return
    plan.reserve(job_id, placement)
    if without_preemption:
        state.guard.turns.follow(Turn(job_id, view.now_s, job.spec.gpus), view.now_s, state.guard.gpus_max)


def _stop_the_last(policy: Decider, view: ClusterView, state: SchedulerState, plan: Plan, job_id: JobId) -> None:
    """Stop the jobs that hold GPUs reserved for an overdue job, once those that may be stopped are enough. O(jobs there)."""
    if policy.options.preemption is Preemption.NEVER:
        return
    placement = state.ledger.reservations[job_id]
    missing = {share.server: _missing(view, state, job_id, share.server) for share in placement.shares}
    if not any(map(_lacks, missing.values())):
        return
    key = state.waiting.keys[job_id][1]
    context = PreemptionContext(policy, view, state)
    holders = dict.fromkeys(
        each for share in placement.shares for each in state.placements.on_server.get(share.server, ())
    )
    running = (view.jobs[each] for each in holders if each not in state.ledger.leaving and state.guard.tier(each))
    stoppable = [other for other in running if context.displaces(key, other)]
    victims = []
    for victim in sorted(stoppable, key=lambda other: (other.priority, -context.rank(other), other.id)):
        held = victim.placement.shares if victim.placement is not None else ()
        shares = [share for share in held if share.server in missing]
        if any(_lacks(missing[share.server]) for share in shares):
            victims.append(victim.id)
            for share in shares:
                freed = (share.gpus, *taken_by(victim.spec, share.gpus))
                missing[share.server] = [
                    lack - (more or 0) for lack, more in zip(missing[share.server], freed, strict=True)
                ]
    if not any(map(_lacks, missing.values())):
        plan.reserve(job_id, placement, victims)


def _missing(view: ClusterView, state: SchedulerState, job: JobId, server: ServerIndex) -> list[int]:
    """GPUs, CPUs and MiB that the reservation lacks on the server, once all stops are over; not above 0: none."""
    amounts = state.ledger.balance_amounts(view, server) if demand_of(view.jobs[job].spec) is not None else None
    return [-(left or 0) for left in (state.ledger.balance(view, server), *(amounts or NOTHING))]


def _lacks(missing: list[int]) -> bool:
    return max(missing) > 0


def _unsaved_jobs_hold_it(policy: Decider, view: ClusterView, state: SchedulerState, job: JobView) -> bool:
    """Whether the job could not start even if all jobs were stopped but those that cannot checkpoint.

    O(jobs that state no checkpoints), and O(servers) if there are any.
    """
    held: dict[ServerIndex, int] = {}
    amounts = _stated(view)
    for other in unsaved_jobs(policy, view, state, job):
        for server, gpus, _ in other.placement.shares if other.placement is not None else ():
            held[server] = held.get(server, 0) + gpus
            if server in amounts:
                amounts[server] = amounts[server].plus(taken_by(other.spec, gpus), -1)
    if not held:
        return False
    servers = (ServerIndex(index) for index in range(len(view.cluster.servers)))
    rest = [max(0, view.usable_gpus(server) - held.get(server, 0)) for server in servers]
    return policy.find(FreePool(view.cluster, rest, amounts), view, job) is None


def unsaved_jobs(policy: Decider, view: ClusterView, state: SchedulerState, job: JobView) -> list[JobView]:
    """The running jobs that cannot checkpoint and are therefore not stopped for this one. O(jobs that state no checkpoints)."""
    by_priority = policy.options.preempt_unsaved is PreemptUnsaved.PRIORITY
    running = (view.jobs[each] for each in state.placements.without_checkpoints if each not in state.ledger.leaving)
    unsaved = (other for other in running if other.placement is not None and cannot_save(other))
    return [other for other in unsaved if not by_priority or other.priority >= job.priority]


def _placement_to_drain(policy: Decider, view: ClusterView, state: SchedulerState, job: JobView) -> Placement | None:
    """Where the job could run first if the running jobs end in the expected order, leaving out what is reserved for others.

    Jobs that may be stopped for it count as ended. O(running jobs x log n), and O(log n) searches, so that the last of the jobs
    it waits for may be an eighth further in the order than necessary.
    """
    context, now_s = PreemptionContext(policy, view, state), view.now_s
    holders = dict.fromkeys(each for there in state.placements.on_server.values() for each in there)
    running = [view.jobs[each] for each in holders if each not in state.ledger.leaving]
    if policy.options.preemption is Preemption.NEVER:
        stays = set(holders)
    else:
        stays = {other.id for other in unsaved_jobs(policy, view, state, job)}
    running.sort(key=lambda other: (_left_s(other, now_s) if other.id in stays else 0.0, other.id))
    first: Placement | None = None
    look_at = 1
    with FuturePool(context) as pool:
        for number, other in enumerate(running, 1):
            pool.add_job(other)
            if number < min(look_at, len(running)):
                continue
            look_at = number + 1 + number // 8
            candidate = pool.fit(job)
            if candidate is None:
                continue
            if consolidated(candidate, times_in_reach(job, view.cluster, candidate.placement)):
                return candidate.placement
            first = first or candidate.placement
        return first


def _left_s(job: JobView, now_s: float) -> float:
    """Expected seconds left; of a job without an estimate those that it has run, as run times have long tails."""
    left_s = expected_remaining_s(job, now_s)
    return job.attained_service_s(now_s) / job.spec.gpus if left_s is None else left_s


def lend_reserved_gpus(context: PreemptionContext, plan: Plan) -> None:
    """Start waiting jobs on GPUs that are reserved for an overdue job and still wait for others, if they end before these.

    For policies without preemption, as EASY backfilling does (:mod:`policies.builtin.easy`).
    O(jobs on the reserved servers + gang classes log n).
    """
    policy, view, state = context.policy, context.view, context.state
    turn = state.guard.turns.turn
    if turn is None or (reserved := state.ledger.reservations.get(turn.job)) is None:
        return
    complete_s = _complete_at_s(view, state, reserved, turn.started_at_s)
    if complete_s <= view.now_s:
        return
    state.ledger.release(turn.job)
    state.ledger.sync(view)
    heads = QueueHeads(context, plan.placed.union(state.ledger.reservations, (turn.job,)), together=False)
    looked_at: Counter[GangClass] = Counter()
    while state.pool.total and (head := heads.pop()) is not None:
        job = view.jobs[head.key.job]
        looked_at[head.gang] += 1
        fits = view.now_s + may_last_s(view, job) <= complete_s
        if fits and (candidate := policy.find(state.pool, view, job)) is not None:
            until_s = state.delays.until_s(policy.options, view, job, candidate)
            if until_s is None:
                plan.start(job.id, candidate.placement)
            plan.wake_at(until_s)
        if looked_at[head.gang] < LENT_PER_CLASS_MAX:
            heads.push_next(head)
    state.ledger.reserve(turn.job, reserved, demand_of(view.jobs[turn.job].spec))
    state.ledger.sync(view)


def _complete_at_s(view: ClusterView, state: SchedulerState, reserved: Placement, since_s: float) -> float:
    """When the jobs that have held these GPUs ``since_s`` are expected to have ended; -infinity: unknown, or no such job is left.

    Jobs that have been lent GPUs do not count: each that outlives its estimate would lend them to further ones, without end.
    """
    complete_s = -math.inf
    for share in reserved.shares:
        missing = share.gpus - view.free_gpus(share.server)
        ends: list[tuple[float, int]] = []
        for each in state.placements.on_server.get(share.server, ()):
            job = view.jobs[each]
            assert job.placement is not None
            gpus = sum(held.gpus for held in job.placement.shares if held.server == share.server)
            if each in state.ledger.leaving or job.attempt_started_at_s is None or job.attempt_started_at_s >= since_s:
                missing -= gpus
            elif (left_s := expected_remaining_s(job, view.now_s)) is not None:
                ends.append((view.now_s + left_s, gpus))
        for end_s, gpus in sorted(ends):
            if missing > 0:
                complete_s = max(complete_s, end_s)
            missing -= gpus
        if missing > 0:
            return -math.inf
    return complete_s


def _stated(view: ClusterView) -> dict[ServerIndex, Amounts]:
    """CPUs and memory of the servers that state any. O(servers that do)."""
    return {
        ServerIndex(index): stated
        for index in view.cluster.stating
        if (stated := amounts_of(view.cluster.servers[index])) is not None
    }
