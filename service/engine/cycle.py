"""What one cycle gathers before it is committed: writes, changes for the policy, commands, labels."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from policies.lifecycle import AttemptState, Cause, JobState, check_attempt_transition, check_transition
from policies.model.decision import Change, ChangeKind
from policies.model.ids import JobId, ServerIndex
from policies.model.placement import Placement
from policies.model.reasons import Reason
from service.engine.commands import Command
from service.engine.events import JobEvent, Report
from service.engine.ports import JobWrite
from service.engine.record import JobRecord, ServerRecord
from service.engine.world import World


@dataclass(slots=True)
class EngineSettings:
    """Limits and costs of the engine. Seconds; counts."""

    retry_backoff_s: float = 0.0
    """Pause before a failed job may start again, times the number of failures so far."""
    yields_max: int = 1000
    """Unasked exits with code 75 before a job counts as failed: a program that yields for ever makes no progress."""
    facts_per_cycle_max: int = 10_000
    """Facts consumed in one cycle, so that a flood of submissions cannot stall the loop."""
    dump_every_cycles: int = 100
    """How often the policy's state is stored with a cycle."""
    enforce_walltime: bool = True
    stop_grace_s: float = 30.0
    """Seconds between the stop signals for a job that did not choose its own."""
    enforce_invariants: bool = True
    fencing_token: int = 0
    host: str = ""
    """The service whose executor runs what is started from now on."""


@dataclass(slots=True)
class Cycle:
    """The working set of one cycle. ``timer`` asks the engine to look at a job again at a time."""

    number: int
    now_s: float
    world: World
    settings: EngineSettings
    timer: Callable[[float, JobId], None]
    changes: list[Change] = field(default_factory=list)
    writes: dict[JobId, JobWrite] = field(default_factory=dict)
    servers: dict[ServerIndex, ServerRecord] = field(default_factory=dict)
    requests: list[int] = field(default_factory=list)
    commands: list[tuple[JobId | None, Command]] = field(default_factory=list)
    handled: list[tuple[JobId | None, Report]] = field(default_factory=list)
    ended: list[JobId] = field(default_factory=list)
    admitted: set[JobId] = field(default_factory=set)
    totals: dict[JobId, float] = field(default_factory=dict)
    """The newest total of itself that a running job has named in its reports, or has outlived."""

    def touch(self, job: JobRecord) -> JobWrite:
        """The write of this job, opened (and its version raised) at the first touch."""
        write = self.writes.get(job.id)
        if write is None:
            write = self.writes[job.id] = JobWrite(job, job.version)
            job.version += 1
        return write

    def change(self, kind: ChangeKind, job: JobRecord, placement: Placement | None = None) -> None:
        """Tell the policy."""
        self.changes.append(Change(kind, job.id, placement))

    def move(self, job: JobRecord, target: JobState, cause: Cause, reason: Reason, detail: str = "") -> None:
        """Change a job's state: the only place where that happens. Raises ImpossibleTransition."""
        write = self.touch(job)
        source = job.state
        check_transition(job.id, source, target, cause)
        attempt = job.attempt.id if job.attempt is not None else None
        write.events.append(JobEvent(job.id, self.now_s, source, target, cause, reason, self.number, attempt, detail))
        job.state = target
        job.reason = reason

    def move_attempt(self, job: JobRecord, target: AttemptState) -> None:
        """Change the open attempt's state."""
        attempt = job.attempt
        assert attempt is not None
        attempts = self.touch(job).attempts
        check_attempt_transition(attempt.id, attempt.state, target)
        attempt.state = target
        if not any(known is attempt for known in attempts):
            attempts.append(attempt)

    def arrive(self, job: JobRecord) -> None:
        """Tell the policy that the job may start now, if it may; else the gates may let it through later."""
        if job.eligible and self.world.admission.arrive(job):
            self.change(ChangeKind.ARRIVED, job)

    def settle_admission(self) -> None:
        """Tell the policy whom the gates let through and send back, and the jobs why."""
        settled = self.world.admission.settle()
        for job in settled.sent_back:
            job.reservation = None
            self.change(ChangeKind.WITHDRAWN, job)
        for job in settled.noted:
            if job.reason is not job.gate:
                assert job.gate is not None
                self.touch(job)
                job.reason = job.gate
        for job in settled.admitted:
            if job.reason is not Reason.NEW:
                self.touch(job)
                job.reason = Reason.NEW
            self.change(ChangeKind.ARRIVED, job)

    def close_attempt(self, job: JobRecord, state: AttemptState, reason: Reason, exit_code: int | None) -> None:
        """End the open attempt, free its GPUs and account for them. Progress must be settled and final by now."""
        attempt = job.attempt
        assert attempt is not None
        self.move_attempt(job, state)
        attempt.ended_at_s = self.now_s
        attempt.reason = reason
        attempt.exit_code = exit_code
        held_s = max(0.0, self.now_s - attempt.opened_at_s)
        counted_s = max(0.0, job.service_s - attempt.resume_service_s)
        job.held_gpu_s += job.spec.gpus * held_s
        job.wasted_gpu_s += job.spec.gpus * max(0.0, held_s - counted_s)
        job.progressing = False
        job.iterations_per_s = 0.0
        self.world.give(job.id, attempt.placement, attempt.gpu_ids)
        job.attempt = None
        self.change(ChangeKind.VACATED, job, attempt.placement)

    def finish(self, job: JobRecord, target: JobState, cause: Cause, reason: Reason, detail: str = "") -> None:
        """Move to a terminal state and settle the jobs that waited for it, and those that waited for them."""
        self._end(job, target, cause, reason, detail)
        settled = deque([job])
        while settled:
            ended = settled.popleft()
            for other_id in self.world.dependents.pop(ended.id, ()):
                other = self.world.jobs.get(other_id)
                if other is None or other.state is not JobState.QUEUED:
                    continue
                if ended.state is JobState.SUCCEEDED or ended.id not in other.spec.after:
                    self._meet(other)
                else:
                    story = f"job {ended.id} {ended.state}"
                    self._end(other, JobState.CANCELLED, Cause.DEPENDENCY_FAILED, Reason.DEPENDENCY_FAILED, story)
                    settled.append(other)

    def _end(self, job: JobRecord, target: JobState, cause: Cause, reason: Reason, detail: str) -> None:
        self.move(job, target, cause, reason, detail)
        job.finished_at_s = self.now_s
        job.reservation = None
        self.world.admission.forget(job.id)
        self.change(ChangeKind.FINISHED, job)
        self.ended.append(job.id)

    def _meet(self, job: JobRecord) -> None:
        """One of the jobs that this one waits for has ended as it wants."""
        self.touch(job)
        job.unmet_dependencies -= 1
        if job.unmet_dependencies == 0 and not job.held:
            job.reason = Reason.NEW
        self.arrive(job)
