"""Applies requests of users and operators to the world. Requests that no longer apply are consumed and ignored."""

from collections.abc import Mapping, Sequence
from math import ceil

from policies.lifecycle import TERMINAL, AttemptState, Cause, JobState
from policies.model.decision import Change, ChangeKind
from policies.model.ids import JobId, ServerIndex
from policies.model.reasons import Reason
from policies.model.server_reservation import ServerReservation, server_reservations_after
from service.engine.commands import Stop
from service.engine.cycle import Cycle
from service.engine.events import EngineRequest, JobEvent, RequestKind, ServerEventKind, limit_after
from service.engine.limits import LimitOwner, OwnerLimit
from service.engine.record import JobRecord
from service.engine.world import World

DependencyStates = Mapping[JobId, JobState]

_NAMED_MAX = 5
"""Largest number of jobs in a sentence. The explanation's ``waiting_for`` holds all."""


def apply_request(cycle: Cycle, request: EngineRequest) -> None:
    """Apply one request other than SUBMITTED. It is consumed together with the job's write."""
    if request.job is None:
        if request.owner is not None:
            _apply_limit(cycle, request, request.owner)
        elif request.window is not None or request.reservation is not None:
            _apply_reservation(cycle, request)
        else:
            _apply_server(cycle, request)
        cycle.requests.append(request.id)
        return
    job = cycle.world.jobs.get(request.job)
    if job is None or job.finished:
        cycle.requests.append(request.id)
        return
    cycle.touch(job).requests.append(request.id)
    if request.kind is RequestKind.CANCEL:
        cancel(cycle, job)
    elif request.kind is RequestKind.HOLD:
        _hold(cycle, job, request.preempt)
    elif request.kind is RequestKind.RELEASE:
        _release(cycle, job)
    elif request.kind is RequestKind.PRIORITY and request.priority is not None:
        job.priority = request.priority
        cycle.world.admission.reprioritize(job)
        cycle.change(ChangeKind.REPRIORITIZED, job)


def admit(cycle: Cycle, job: JobRecord, request: EngineRequest, dependency_states: DependencyStates) -> None:
    """Add a newly submitted job to the world, and write its first event, the submission.

    ``dependency_states`` holds the states of dependencies outside the world.
    """
    write = cycle.touch(job)
    write.requests.append(request.id)
    write.events.append(
        JobEvent(
            job.id,
            job.submitted_at_s,
            None,
            JobState.QUEUED,
            Cause.SUBMITTED,
            Reason.HELD if job.held else Reason.NEW,
            cycle.number,
        )
    )
    cycle.world.add_job(job)
    cycle.admitted.add(job.id)
    failed = count_dependencies(job, cycle.world, dependency_states)
    if failed is not None:
        cancel_dependent(cycle, job, failed)
        return
    job.reason = _first_reason(job)
    cycle.arrive(job)


def _first_reason(job: JobRecord) -> Reason:
    """Why the engine keeps a queued job from starting; NEW if the policy decides."""
    if job.held:
        return Reason.HELD
    if job.unmet_dependencies:
        return Reason.DEPENDENCY
    return Reason.RETRY_BACKOFF if job.not_before_s > 0.0 else Reason.NEW


def count_dependencies(job: JobRecord, world: World, states: DependencyStates) -> JobId | None:
    """Set ``unmet_dependencies`` and register the job as a dependent. Return a dependency that did not succeed, if any.

    The world takes precedence over ``states``, because a job may have ended in this cycle.
    """
    unmet: list[JobId] = []
    for needed in dict.fromkeys(job.spec.needs):
        state = world.jobs[needed].state if needed in world.jobs else states.get(needed)
        ended = state is None or state in TERMINAL
        if ended and state is not JobState.SUCCEEDED and needed in job.spec.after:
            return needed
        if not ended:
            unmet.append(needed)
    job.unmet_dependencies = len(unmet)
    together: dict[JobId, None] = {}
    for needed in unmet:
        together = world.dependents.setdefault(needed, {}).setdefault(_group(job), together)
        together[job.id] = None
    return None


def _group(job: JobRecord) -> JobId:
    """The jobs that wait together have one: the id of their array, or a single job's own."""
    return job.id if job.spec.array is None else job.spec.array.id


def waited_for(job: JobRecord, world: World) -> tuple[str, tuple[JobId, ...]]:
    """The unmet dependencies of a job, as a sentence and as ids."""
    unmet = [needed for needed in dict.fromkeys(job.spec.needs) if needed in world.jobs]
    success = [needed for needed in unmet if needed in job.spec.after]
    end = [needed for needed in unmet if needed not in job.spec.after]
    parts = [f"{_named(jobs)} to {word}" for jobs, word in ((success, "succeed"), (end, "end")) if jobs]
    return f"It waits for {' and for '.join(parts)}." if parts else "", tuple(unmet)


def _named(jobs: Sequence[JobId]) -> str:
    listed = ", ".join(map(str, jobs[:_NAMED_MAX])) + (", ..." if len(jobs) > _NAMED_MAX else "")
    return f"job {listed}" if len(jobs) == 1 else f"{len(jobs)} jobs ({listed})"


def cancel_dependent(cycle: Cycle, job: JobRecord, failed: JobId) -> None:
    """Cancel a job whose dependency did not succeed."""
    cycle.finish(
        job, JobState.CANCELLED, Cause.DEPENDENCY_FAILED, Reason.DEPENDENCY_FAILED, f"job {failed} did not succeed"
    )


def cancel(cycle: Cycle, job: JobRecord) -> None:
    """Cancel a queued job at once, and stop a job that holds GPUs."""
    if job.state is JobState.QUEUED:
        if job.waiting:
            cycle.change(ChangeKind.WITHDRAWN, job)
        cycle.finish(job, JobState.CANCELLED, Cause.CANCEL_REQUESTED, Reason.CANCELLED_BY_USER)
    elif job.state is not JobState.CANCELLING:
        request_stop(cycle, job, JobState.CANCELLING, Cause.CANCEL_REQUESTED, Reason.CANCELLED_BY_USER)


def request_stop(cycle: Cycle, job: JobRecord, target: JobState, cause: Cause, reason: Reason) -> None:
    """Begin to stop a job that holds GPUs. A cancelled job gets no checkpoint warning."""
    attempt = job.attempt
    assert attempt is not None
    job.settle(cycle.now_s)
    job.progressing = False
    already_stopping = attempt.state is AttemptState.STOPPING
    cycle.move(job, target, cause, reason)
    job.stop_cause = reason
    if not already_stopping:
        attempt.stop_requested_at_s = cycle.now_s
        cycle.move_attempt(job, AttemptState.STOPPING)
        cycle.change(ChangeKind.PREEMPTING, job, attempt.placement)
    cycle.commands.append((job.id, stop_of(job, cycle.settings.stop_grace_s, cycle.settings.fencing_token)))


def stop_of(job: JobRecord, stop_grace_s: float, fencing_token: int) -> Stop:
    """The stop of a job's open attempt. It is graceful if a preempted job can checkpoint."""
    assert job.attempt is not None
    wish = job.spec.preemption
    graceful = job.state is JobState.PREEMPTING and job.graceful
    return Stop(
        job.attempt.id,
        graceful=graceful,
        warning_signal=(wish.signal if wish is not None else "SIGUSR1") if graceful else None,
        grace_s=wish.grace_s if wish is not None else stop_grace_s,
        fencing_token=fencing_token,
    )


def _hold(cycle: Cycle, job: JobRecord, preempt: bool) -> None:
    if not job.held:
        was_waiting = job.waiting
        job.held = True
        if job.state is JobState.QUEUED:
            job.reason = Reason.HELD
            job.reservation = None
            cycle.world.admission.forget(job.id)
        if was_waiting:
            cycle.change(ChangeKind.WITHDRAWN, job)
    if preempt and job.state in (JobState.STARTING, JobState.RUNNING):
        request_stop(cycle, job, JobState.PREEMPTING, Cause.PREEMPT_DECIDED, Reason.HELD)


def _release(cycle: Cycle, job: JobRecord) -> None:
    if job.held:
        job.held = False
        if job.state is JobState.QUEUED:
            job.reason = _first_reason(job)
        cycle.arrive(job)


def _apply_limit(cycle: Cycle, request: EngineRequest, owner: LimitOwner) -> None:
    admission = cycle.world.admission
    limit = limit_after(admission.limits.get(owner, OwnerLimit()), request)
    admission.limit(owner, limit, cycle.world.jobs.values())


def _apply_reservation(cycle: Cycle, request: EngineRequest) -> None:
    world = cycle.world
    gone = request.reservation if request.window is None else request.window.id
    for window in world.server_reservations:
        if window.id == gone:
            server_reservation_changed(cycle, window)
    kept = [window for window in world.server_reservations if window.id != gone]
    world.server_reservations = server_reservations_after(
        [*kept, *(() if request.window is None else (request.window,))], cycle.now_s
    )


def server_reservation_changed(cycle: Cycle, reserved: ServerReservation) -> None:
    """Report to the policy that the servers of a server reservation have changed."""
    for server in reserved.servers:
        if server < len(cycle.world.servers):
            server_changed(cycle, server)


def _apply_server(cycle: Cycle, request: EngineRequest) -> None:
    if request.kind is RequestKind.SERVER_ADDED and request.server_spec is not None:
        cycle.add_server(request.server_spec, found=False)
        return
    if request.server is None or not 0 <= request.server < len(cycle.world.servers):
        return
    if request.kind is RequestKind.SERVER_UNHEALTHY:
        _unhealthy(cycle, request.server, request.note, request.drain)
        return
    record = cycle.world.servers[request.server]
    drained = request.kind is RequestKind.SERVER_DRAINED
    if record.drained is drained and not record.health_reason:
        return
    # Drained by an operator from now on, also one that a sign of a fault had drained.
    record.drained, record.health_reason = drained, ""
    cycle.change_server(request.server, ServerEventKind.DRAINED if record.drained else ServerEventKind.RESUMED)


def _unhealthy(cycle: Cycle, server: ServerIndex, reason: str, drain: bool) -> None:
    """Note a sign of a fault and, if wanted, drain the server unless too few others would be usable. O(servers)."""
    servers = cycle.world.servers
    record = servers[server]
    if not drain or not record.usable:
        cycle.note_server(server, ServerEventKind.UNHEALTHY, reason)
        return
    left = sum(other.usable for other in servers) - 1
    needed = max(1, ceil(cycle.settings.usable_servers_min * sum(not other.down for other in servers)))
    if left < needed:
        kept = f"not drained: {left} servers would be usable, and {needed} must be (health_usable_min)"
        cycle.note_server(server, ServerEventKind.UNHEALTHY, f"{reason}; {kept}")
        return
    cycle.note_server(server, ServerEventKind.UNHEALTHY, reason)
    record.drained, record.health_reason = True, reason
    cycle.change_server(server, ServerEventKind.DRAINED, reason)


def server_changed(cycle: Cycle, server: ServerIndex) -> None:
    """Report to the policy that a server has changed."""
    cycle.changes.append(Change(ChangeKind.SERVER_CHANGED, server=server))
