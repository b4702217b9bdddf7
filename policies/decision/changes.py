"""Step 1 of a cycle: the indexes follow what has changed since the last cycle.

Each function that touches running jobs returns whether one of them has become easier to displace: only then can jobs that
could displace none in the last scan displace one now.
"""

import math
from collections.abc import Sequence

from policies.decision.decider import Decider
from policies.decision.migration import stretch
from policies.lifecycle import JobState
from policies.model.decision import Change, ChangeKind
from policies.model.ids import JobId, ServerIndex
from policies.model.resources import demand_of
from policies.model.view import ClusterView, JobView
from policies.options import Preemption, Queue
from policies.state.scheduler_state import SchedulerState


def index_changes(policy: Decider, view: ClusterView, changes: Sequence[Change], state: SchedulerState) -> bool:
    """Index all changes and the ranks that are due. O((changes + due ranks) log n)."""
    victims_changed = _follow_server_reservations(view, state)
    projects = state.shares.absorb(view, changes) if state.shares is not None else ()
    touched: dict[JobId, float] = {}
    for change in changes:
        victims_changed |= _index_change(policy, view, change, state, touched)
    for project in projects:
        _index_project(policy, view, state, project)
        victims_changed = True
    for job_id, rank_waiting in touched.items():
        job = view.jobs.get(job_id)
        if job is not None and job.state in (JobState.STARTING, JobState.RUNNING):
            victims_changed |= policy.index_running(view, job, state, rank_waiting)
    for job_id in state.running.due_refreshes(view.now_s):
        victims_changed |= policy.index_running(view, view.jobs[job_id], state)
    return victims_changed


def note_stretch(policy: Decider, view: ClusterView, job: JobView, state: SchedulerState) -> None:
    """Note a job that holds GPUs and would be faster with another placement."""
    if policy.options.preemption is Preemption.NEVER or job.placement is None:
        return
    if (ratio := stretch(job, view.cluster, job.placement)) is not None:
        state.placements.add_stretch(job, ratio)


def _index_change(
    policy: Decider, view: ClusterView, change: Change, state: SchedulerState, touched: dict[JobId, float]
) -> bool:
    """Index one change.

    ``touched`` collects the running jobs to index once all changes are known, and the rank by which each was waiting if it
    has just started (else minus infinity).
    """
    kind = change.kind
    if kind is ChangeKind.SERVER_CHANGED:
        assert change.server is not None
        return _server_changed(policy, view, change.server, state)
    assert change.job is not None
    job = view.jobs.get(change.job)
    if kind is ChangeKind.VACATED:
        assert change.placement is not None
        state.vacate(change.job, change.placement)
        if job is not None and not job.waiting:
            state.guard.leave(job)
    elif kind is ChangeKind.FINISHED:
        assert job is not None
        policy.on_withdrawal(change.job, state)
        state.end(job)
    elif job is None:
        return False
    elif kind is ChangeKind.ARRIVED:
        if job.waiting:
            state.guard.compete(job)
            policy.on_arrival(view, job, state)
            state.reasons.require(job.id)
    elif kind is ChangeKind.WITHDRAWN:
        policy.on_withdrawal(job.id, state)
        state.dequeue(job.id)
        state.ledger.release(job.id)
        state.reasons.drop(job.id)
        if not job.waiting:
            state.guard.leave(job)
    else:
        return _index_change_of_unfinished(policy, view, change, job, state, touched)
    return False


def _index_change_of_unfinished(
    policy: Decider, view: ClusterView, change: Change, job: JobView, state: SchedulerState, touched: dict[JobId, float]
) -> bool:
    kind = change.kind
    if kind is ChangeKind.STARTED:
        assert change.placement is not None
        waited = state.waiting.keys.get(job.id)
        touched[job.id] = waited[1].rank if waited is not None else -math.inf
        policy.on_withdrawal(job.id, state)
        state.dequeue(job.id)
        state.ledger.release(job.id)
        state.delays.end(job.id)
        state.reasons.drop(job.id)
        state.hold(job, view.cluster, change.placement)
        note_stretch(policy, view, job, state)
        if job.placement is None:
            state.vacate(job.id, change.placement)
    elif kind is ChangeKind.PREEMPTING:
        assert change.placement is not None
        if job.state in (JobState.PREEMPTING, JobState.CANCELLING):
            state.leave(job, change.placement)
    elif kind is ChangeKind.ESTIMATED and job.state in (JobState.STARTING, JobState.RUNNING):
        # The learnt slowdown is part of the estimate.
        state.placements.forget_stretch(job.id)
        note_stretch(policy, view, job, state)
    elif kind in (ChangeKind.RESERVED, ChangeKind.REFUSED):
        # The job's own reservation counts, whether the action was applied or not.
        state.ledger.release(job.id)
        if job.reservation is not None:
            state.ledger.reserve(job.id, job.reservation, demand_of(job.spec))
    if job.state in (JobState.STARTING, JobState.RUNNING):
        touched.setdefault(job.id, -math.inf)
        return kind not in (ChangeKind.STARTED, ChangeKind.PROGRESSED) or not job.graceful
    if job.waiting and job.id in state.waiting:
        policy.on_arrival(view, job, state)
    return False


def _server_changed(policy: Decider, view: ClusterView, server: ServerIndex, state: SchedulerState) -> bool:
    """A server was added, failed, drained or came back."""
    state.servers_changed()
    state.ledger.touch_server(server)
    if server >= len(state.pool):
        state.ledger.sync_server(view, server)
    state.unusable.discard(server)
    if view.usable_gpus(server) == 0:
        state.unusable.add(server)
    state.gpus_by_type = view.cluster.gpus_by_type
    gpus = max(1, view.cluster.gpus)
    if gpus == state.gpus:
        return False
    before, state.gpus = state.gpus, gpus
    if policy.options.queue is Queue.SKIP:
        state.guard.gpus_max = policy.options.guard_share * gpus
    return policy.on_resize(view, state, before)


def _follow_server_reservations(view: ClusterView, state: SchedulerState) -> bool:
    """Index waiting jobs again when server reservations were made or are over: they are part of a gang class. O(n log n)."""
    if view.server_reservations is state.server_reservations:
        return False
    state.server_reservations = view.server_reservations
    state.servers_changed()
    for job_id in list(state.waiting.keys):
        state.enqueue(view.jobs[job_id], state.waiting.keys[job_id][1].rank)
    return True


def _index_project(policy: Decider, view: ClusterView, state: SchedulerState, project: str) -> None:
    """Index the jobs of a project again whose level has changed. O(its jobs log n)."""
    assert state.shares is not None
    state.scan.valid = False
    for job_id in list(state.shares.members.get(project, ())):
        if (waiting := state.waiting.keys.get(job_id)) is not None and waiting[1].tier:
            state.enqueue(view.jobs[job_id], waiting[1].rank)
        elif job_id in state.running.keys:
            policy.index_running(view, view.jobs[job_id], state)
