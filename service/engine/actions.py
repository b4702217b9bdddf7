"""Applies a policy's actions to the world. The engine checks the invariants before."""

from policies.lifecycle import AttemptState, Cause, JobState
from policies.model.decision import Action, Change, ChangeKind, Preempt, Start
from policies.model.ids import attempt_id
from policies.model.reasons import Reason
from service.engine.commands import Launch
from service.engine.cycle import Cycle
from service.engine.record import AttemptRecord, JobRecord
from service.engine.requests import request_stop


def apply_action(cycle: Cycle, action: Action) -> Change:
    """Apply one action and return the change that reports it to the policy."""
    job = cycle.world.jobs[action.job]
    if isinstance(action, Start):
        return _start(cycle, job, action)
    if isinstance(action, Preempt):
        request_stop(cycle, job, JobState.PREEMPTING, Cause.PREEMPT_DECIDED, Reason.PREEMPTED)
        return cycle.changes.pop()
    cycle.touch(job)
    job.reservation = action.placement
    if action.placement is not None:
        job.reason = Reason.RESERVED
    return Change(ChangeKind.RESERVED, job.id, action.placement)


def _start(cycle: Cycle, job: JobRecord, action: Start) -> Change:
    job.attempts += 1
    job.reservation = None
    attempt = AttemptRecord(
        id=attempt_id(job.id, job.attempts),
        job=job.id,
        number=job.attempts,
        state=AttemptState.LAUNCHING,
        placement=action.placement,
        gpu_ids=cycle.world.bind(job.id, action.placement),
        opened_at_s=cycle.now_s,
        resume_iteration=job.iterations,
        resume_service_s=job.service_s,
        fencing_token=cycle.settings.fencing_token,
        host=cycle.settings.host,
    )
    job.attempt = attempt
    job.progressing = False
    cycle.move(job, JobState.STARTING, Cause.START_DECIDED, Reason.STARTED)
    cycle.touch(job).attempts.append(attempt)
    cycle.commands.append((job.id, launch_of(job, cycle.settings.fencing_token)))
    return Change(ChangeKind.STARTED, job.id, action.placement)


def launch_of(job: JobRecord, fencing_token: int = 0) -> Launch:
    """The launch of a job's open attempt, equal each time it is sent."""
    attempt = job.attempt
    assert attempt is not None
    return Launch(
        attempt=attempt.id,
        job=job.id,
        number=attempt.number,
        spec=job.own_spec,
        placement=attempt.placement,
        gpu_ids=attempt.gpu_ids,
        resume_iteration=int(attempt.resume_iteration),
        fencing_token=fencing_token,
    )
