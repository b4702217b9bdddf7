"""Step 2 of a cycle: guard the jobs that have waited longest, and end the turns of guarded gangs."""

import math

from policies.choose import fits_open
from policies.decision.decider import Decider
from policies.decision.plan import Plan
from policies.lifecycle import JobState
from policies.model.ids import JobId
from policies.model.placement import type_of
from policies.model.reasons import Reason
from policies.model.view import ClusterView, JobView
from policies.options import Options, Preemption
from policies.rules.progress_first import RESTARTS_PER_ATTEMPT_MIN
from policies.state.guard_turns import Turn
from policies.state.scheduler_state import SchedulerState

TURN_S_MIN = 1.0
"""A turn of the extra guarded job is no shorter, whatever the options."""


def update_guard(policy: Decider, view: ClusterView, state: SchedulerState, plan: Plan) -> bool:
    """End the extra job's turn if it is over, set aside what no servers can hold, and guard further jobs. O(log n) amortised.

    An overdue gang is not guarded before the turn that :class:`policies.state.guard_turns.GuardTurns` grants.

    Returns whether a running job has become easier to displace.
    """
    victims_changed = False
    if (ended := _end_turn(policy.options, view, state, plan)) is not None:
        victims_changed = policy.index_running(view, ended, state)
    _look_again(policy, view, state)
    overdue_since_s = view.now_s - policy.options.guard_wait_s
    if view.now_s < state.guard.turns.next_from_s:
        overdue_since_s = -math.inf
    for job_id in state.guard.fill(overdue_since_s, lambda job: has_servers(view, state, job)):
        if (waiting := state.waiting.keys.get(job_id)) is not None:
            state.enqueue(view.jobs[job_id], waiting[1].rank)
        state.unindex_running(job_id)
    return victims_changed


def has_servers(view: ClusterView, state: SchedulerState, job_id: JobId) -> bool:
    """Whether the servers that take work, and are open to this waiting job, could hold it if nothing else ran there.

    O(servers) for each gang class after a change of servers, and for a job that was tried where servers were reserved.
    """
    waiting = state.waiting.keys.get(job_id)
    if waiting is None or not (state.unusable or view.server_reservations):
        return True
    job, gang = view.jobs[job_id], waiting[0]
    if not state.usable_fit.fits(view, gang, job.spec):
        return False
    return state.reasons.of.get(job_id) is not Reason.RESERVED_SERVERS or fits_open(view, job)


def set_aside(policy: Decider, view: ClusterView, state: SchedulerState, job_id: JobId) -> None:
    """Set aside a waiting job that has no servers; if it was guarded, it has its place among the others again. O(log n)."""
    guarded = not state.guard.tier(job_id)
    state.guard.set_aside(job_id)
    if guarded:
        policy.on_arrival(view, view.jobs[job_id], state)


def _look_again(policy: Decider, view: ClusterView, state: SchedulerState) -> None:
    """Set aside the guarded jobs that have no servers any more. O(guarded jobs) after a change of servers, else O(1)."""
    guard = state.guard
    looked_at = guard.members() if guard.unchecked else [] if guard.extra is None else [guard.extra]
    guard.unchecked = False
    for job_id in looked_at:
        if not has_servers(view, state, job_id):
            set_aside(policy, view, state, job_id)


def _end_turn(options: Options, view: ClusterView, state: SchedulerState, plan: Plan) -> JobView | None:
    """The extra guarded job, if it has run for as long as its wait has earned it: it is not guarded any more. O(1).

    A gang beyond the guarded share that was overdue runs for ``guard_share x guard_wait_s``, but not for less than two restarts
    or a second: two such gangs would stop each other at one instant for ever. It is overdue again after a further
    ``guard_wait_s``: so every job runs for at least the guarded share of its time. Guarded until it ends, a large gang could
    keep half a cluster idle for days.
    """
    ends_at_s = turn_ends_at_s(options, view, state)
    over = ends_at_s is not None and ends_at_s <= view.now_s
    if options.preemption is Preemption.NEVER:
        turn = _unpreempted_turn(view, state)
    else:
        turn = None if ends_at_s is None or over else _turn(view, state)
    state.guard.turns.follow(turn, view.now_s, state.guard.gpus_max)
    if not over:
        plan.wake_at(ends_at_s)
        return None
    assert state.guard.extra is not None
    job = view.jobs[state.guard.extra]
    state.guard.extra = None
    return job


def _unpreempted_turn(view: ClusterView, state: SchedulerState) -> Turn | None:
    """The turn that began when GPUs were reserved for an overdue job, while these are reserved or it holds some."""
    turn = state.guard.turns.turn
    if turn is None or turn.job in state.ledger.reservations:
        return turn
    job = view.jobs.get(turn.job)
    return None if job is None or job.placement is None else turn


def _turn(view: ClusterView, state: SchedulerState) -> Turn:
    """The turn of the extra guarded job, which runs."""
    assert state.guard.extra is not None
    job = view.jobs[state.guard.extra]
    assert job.placement is not None
    assert job.attempt_started_at_s is not None
    taken_gpus = state.guard.turns.taken_gpus(job.spec.gpus, type_of(view.cluster, job.placement))
    return Turn(job.id, job.attempt_started_at_s, taken_gpus)


def watch_idle_gpus(options: Options, view: ClusterView, state: SchedulerState, plan: Plan) -> None:
    """Count the GPUs that idle though jobs wait, once the jobs of the plan have theirs. O(GPU types)."""
    guard = state.guard
    if guard.gpus_max <= 0.0 or options.preemption is Preemption.NEVER:
        return
    free: dict[str, int] | None = None
    if guard.extra is None and len(state.waiting) > sum(job in state.waiting for job in plan.placed):
        free = {name: state.pool.free_of_type(name) for name in state.pool.gpu_types}
    guard.turns.watch(view.now_s, free, options.guard_wait_s)


def turn_ends_at_s(options: Options, view: ClusterView, state: SchedulerState) -> float | None:
    """When the turn of the extra guarded job is over; None if it has none. O(1)."""
    guard = state.guard
    if guard.extra is None or options.preemption is Preemption.NEVER:
        return None
    job = view.jobs[guard.extra]
    started_at_s = job.attempt_started_at_s
    if job.state not in (JobState.STARTING, JobState.RUNNING) or started_at_s is None:
        return None
    if job.spec.gpus <= guard.gpus_max:
        return None
    restarts_s = RESTARTS_PER_ATTEMPT_MIN * view.costs.restart_s
    turn_s = max(options.guard_share * options.guard_wait_s, restarts_s, TURN_S_MIN)
    return started_at_s + turn_s
