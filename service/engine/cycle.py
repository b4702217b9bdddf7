"""The data that one cycle collects before its commit: writes, changes for the policy, commands, labels."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from policies.lifecycle import AttemptState, Cause, JobState, check_attempt_transition, check_transition
from policies.model.cluster import Server
from policies.model.decision import Change, ChangeKind
from policies.model.ids import JobId, ServerIndex
from policies.model.placement import Placement
from policies.model.reasons import Reason
from service.engine.commands import Command
from service.engine.events import JobEvent, Report, ServerEvent, ServerEventKind
from service.engine.ports import JobWrite, NewServer
from service.engine.record import JobRecord, ServerRecord
from service.engine.world import World

STATE_UNKNOWN = "its state is not known yet"


@dataclass(slots=True)
class EngineSettings:
    """Limits and costs of the engine. Seconds; counts."""

    retry_backoff_s: float = 0.0
    """Pause before a failed job may start again, times the number of failures so far; likewise after yields without progress."""
    yields_max: int = 1000
    """Unrequested exits with code 75 after which a job fails. The limit ends programs that yield for ever."""
    facts_per_cycle_max: int = 10_000
    """Requests consumed in one cycle. The limit keeps cycles short under many submissions."""
    dump_every_s: float = 30.0
    """The policy's state is stored with the first committed cycle so long after the last one with it."""
    enforce_walltime: bool = True
    stop_grace_s: float = 30.0
    """Seconds between the stop signals for a job that did not choose its own."""
    enforce_invariants: bool = True
    fencing_token: int = 0
    host: str = ""
    """The service whose executor runs the attempts started by this engine."""
    usable_servers_min: float = 0.5
    """Share of the servers that answer and that no sign of a fault drains."""


class Reached(NamedTuple):
    """The work of a job when an attempt of it ended. ``iterations`` None: it reports none."""

    service_s: float
    iterations: float | None


@dataclass(slots=True)
class Cycle:
    """The working set of one cycle. ``timer(at_s, job)`` has the engine examine the job again at that time."""

    number: int
    now_s: float
    world: World
    settings: EngineSettings
    timer: Callable[[float, JobId], None]
    loaded_at_s: float = 0.0
    """When the engine loaded the world: it did not see what happened before."""
    changes: list[Change] = field(default_factory=list)
    writes: dict[JobId, JobWrite] = field(default_factory=dict)
    servers: dict[ServerIndex, ServerRecord] = field(default_factory=dict)
    new_servers: dict[ServerIndex, NewServer] = field(default_factory=dict)
    server_events: list[ServerEvent] = field(default_factory=list)
    requests: list[int] = field(default_factory=list)
    commands: list[tuple[JobId | None, Command]] = field(default_factory=list)
    handled: list[tuple[JobId | None, Report]] = field(default_factory=list)
    ended: list[JobId] = field(default_factory=list)
    reached: dict[JobId, Reached] = field(default_factory=dict)
    """How far jobs were when a program of theirs failed or was stopped, which took them back to their checkpoints."""
    admitted: set[JobId] = field(default_factory=set)
    totals: dict[JobId, float] = field(default_factory=dict)
    """The newest total iterations that a running job reported, or its declaration that it has exceeded."""
    measured: dict[JobId, None] = field(default_factory=dict)
    """Running jobs without a stage graph whose speed was measured for the first time at a span."""
    curves: dict[JobId, None] = field(default_factory=dict)
    """Running jobs whose loss curve has a new point, or whose estimate was made again without it."""

    def touch(self, job: JobRecord) -> JobWrite:
        """The write of this job. The first call creates it and increments the job's version."""
        write = self.writes.get(job.id)
        if write is None:
            write = self.writes[job.id] = JobWrite(job, job.version)
            job.version += 1
        return write

    def change(self, kind: ChangeKind, job: JobRecord, placement: Placement | None = None) -> None:
        """Add a change for the policy."""
        self.changes.append(Change(kind, job.id, placement))

    def move(self, job: JobRecord, target: JobState, cause: Cause, reason: Reason, detail: str = "") -> None:
        """Change a job's state. No other code does so. Raises ImpossibleTransition."""
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
        check_attempt_transition(attempt.id, attempt.state, target)
        attempt.state = target
        self.note_attempt(job)

    def note_attempt(self, job: JobRecord) -> None:
        """Write the open attempt, which has changed otherwise than in its state."""
        attempts = self.touch(job).attempts
        if not any(known is job.attempt for known in attempts):
            assert job.attempt is not None
            attempts.append(job.attempt)

    def change_server(self, server: ServerIndex, kind: ServerEventKind, detail: str = "") -> None:
        """Store the changed record of a server with an event, and report the change to the policy."""
        self.servers[server] = self.world.servers[server]
        self.note_server(server, kind, detail)
        self.changes.append(Change(ChangeKind.SERVER_CHANGED, server=server))
        self.world.servers_changed()

    def note_server(self, server: ServerIndex, kind: ServerEventKind, detail: str) -> None:
        """Write an event of a server whose state does not change."""
        self.server_events.append(ServerEvent(server, self.now_s, kind, self.number, detail))

    def add_server(self, spec: Server, *, found: bool) -> None:
        """Append a server, unless the cluster has one of this name. A ``found`` one is down until a report says that it is up."""
        if any(server.name == spec.name for server in self.world.cluster.servers):
            return
        index = ServerIndex(len(self.world.servers))
        self.world.add_server(spec, ServerRecord(down=found, detail=STATE_UNKNOWN if found else ""))
        self.new_servers[index] = NewServer(spec, found)
        self.change_server(index, ServerEventKind.ADDED)

    def arrive(self, job: JobRecord) -> None:
        """Report to the policy that the job may start, if it is eligible and admission lets it compete now."""
        if job.eligible and self.world.admission.arrive(job):
            self.change(ChangeKind.ARRIVED, job)

    def settle_admission(self) -> None:
        """Report admitted and withdrawn jobs to the policy, and set the reasons of the jobs that admission holds back."""
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

    def close_attempt(
        self, job: JobRecord, state: AttemptState, reason: Reason, exit_code: int | None, at_s: float
    ) -> float:
        """End the open attempt, free its GPUs and account for them; return when it ended.

        ``at_s``: the end as reported, not before the attempt was opened. It counts if the engine was away then. An end that it
        saw was now: the clock of the attempt's machine may be wrong. The job's progress must be settled and final.
        """
        attempt = job.attempt
        assert attempt is not None
        self.move_attempt(job, state)
        ended_at_s = max(at_s if at_s < self.loaded_at_s else self.now_s, attempt.started_at_s or 0.0)
        attempt.ended_at_s = ended_at_s
        attempt.reason = reason
        attempt.exit_code = exit_code
        held_s = ended_at_s - attempt.opened_at_s
        counted_s = max(0.0, job.service_s - attempt.resume_service_s)
        job.held_gpu_s += job.spec.gpus * held_s
        job.wasted_gpu_s += job.spec.gpus * max(0.0, held_s - counted_s)
        job.progressing = False
        job.iterations_per_s = 0.0
        self.world.give(job.id, attempt.placement, attempt.gpu_ids)
        job.attempt = None
        self.change(ChangeKind.VACATED, job, attempt.placement)
        return ended_at_s

    def finish(
        self,
        job: JobRecord,
        target: JobState,
        cause: Cause,
        reason: Reason,
        detail: str = "",
        at_s: float | None = None,
    ) -> None:
        """Move the job to a terminal state, and update the jobs that depend on it, directly and indirectly.

        ``at_s``: when its last attempt ended; by default it ends now.
        """
        self._end(job, target, cause, reason, detail, self.now_s if at_s is None else at_s)
        if not self.world.dependents:
            return
        settled = deque([job])
        while settled:
            ended = settled.popleft()
            for other_id in chain.from_iterable(self.world.dependents.pop(ended.id, {}).values()):
                other = self.world.jobs.get(other_id)
                if other is None or other.state is not JobState.QUEUED:
                    continue
                if ended.state is JobState.SUCCEEDED or ended.id not in other.spec.after:
                    self._meet(other)
                else:
                    detail = f"job {ended.id} {ended.state}"
                    self._end(
                        other, JobState.CANCELLED, Cause.DEPENDENCY_FAILED, Reason.DEPENDENCY_FAILED, detail, self.now_s
                    )
                    settled.append(other)

    def _end(self, job: JobRecord, target: JobState, cause: Cause, reason: Reason, detail: str, at_s: float) -> None:
        self.move(job, target, cause, reason, detail)
        job.finished_at_s = at_s
        job.reservation = None
        self.world.admission.forget(job.id)
        self.change(ChangeKind.FINISHED, job)
        self.ended.append(job.id)

    def _meet(self, job: JobRecord) -> None:
        """Count one dependency of the job as met."""
        self.touch(job)
        job.unmet_dependencies -= 1
        if job.unmet_dependencies == 0 and not job.held:
            job.reason = Reason.NEW
        self.arrive(job)
