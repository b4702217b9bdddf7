"""The engine's ports. Each implementation subclasses the conformance suite of its port in ``tests/conformance``."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from policies.model.cluster import Cluster
from policies.model.decision import Action, Change, Preempt
from policies.model.estimate import EndedJob, Prediction, PredictionRequest, Reported
from policies.model.ids import AttemptId, JobId, ServerIndex
from policies.model.reasons import Reason
from service.engine.commands import Command
from service.engine.events import EngineRequest, JobEvent, Report
from service.engine.record import AttemptRecord, JobRecord, ServerRecord, StoredWorld


class Clock(Protocol):
    """Where time comes from."""

    def now_s(self) -> float:
        """Seconds; only differences and order matter to the engine (live: since the Unix epoch)."""


class Predictor(Protocol):
    """Estimates new jobs, learns from ended ones."""

    def predict(self, now_s: float, requests: Sequence[PredictionRequest]) -> Sequence[Prediction | None]:
        """One answer a request, in order; None = no estimate. Called outside any transaction. Must not raise for odd jobs."""

    def revise(self, now_s: float, reported: Sequence[Reported]) -> Sequence[Prediction | None]:
        """What running jobs' own reports change of their estimates, in order; None = nothing. Cheap: it asks no model."""

    def ended(self, label: EndedJob) -> None:
        """A job ended (after the commit that says so)."""


@dataclass(slots=True)
class JobWrite:
    """All that one cycle changes of one job, applied together or not at all.

    ``job`` already holds the new values; ``job.version`` is ``expected_version`` + 1 (expected -1: a row that the cycle
    itself creates, as the simulator does). ``prediction`` is new, ``label`` is given when the job ended in this cycle.
    """

    job: JobRecord
    expected_version: int
    events: list[JobEvent] = field(default_factory=list)
    attempts: list[AttemptRecord] = field(default_factory=list)
    requests: list[int] = field(default_factory=list)
    prediction: Prediction | None = None
    label: EndedJob | None = None


@dataclass(slots=True)
class CycleBatch:
    """One cycle as the store persists it, in one transaction.

    ``requests`` are consumed requests that belong to no job's write. ``dump`` is the policy's state, given now and then.
    """

    cycle: int
    at_s: float
    changes: Sequence[Change]
    actions: Sequence[Action]
    refusals: Sequence[tuple[JobId, Reason]] = ()
    writes: dict[JobId, JobWrite] = field(default_factory=dict)
    servers: dict[ServerIndex, ServerRecord] = field(default_factory=dict)
    requests: list[int] = field(default_factory=list)
    wake_at_s: float | None = None
    dump: dict[str, Any] | None = None
    duration_s: Mapping[str, float] = field(default_factory=dict)


def dropped_with(stale: Iterable[JobId], batch: CycleBatch) -> frozenset[JobId]:
    """The jobs whose writes fall together with stale rows.

    A stale row drops its own write, and with it what was built on it: the preemptions made for the same reservation (none
    of them is needed by another start), the start of a job on GPUs whose release is not committed, and what the end of the
    job did to those that wait for it. O(writes) unless nothing is stale.
    """
    dropped = set(stale)
    if not dropped:
        return frozenset()
    groups: dict[JobId, set[JobId]] = {}
    for action in batch.actions:
        if isinstance(action, Preempt) and action.for_job is not None:
            groups.setdefault(action.for_job, {action.for_job}).add(action.job)
    before = -1
    while before != len(dropped):
        before = len(dropped)
        for members in groups.values():
            if not dropped.isdisjoint(members):
                dropped |= members
        dropped |= _built_on(dropped, batch)
    return frozenset(dropped)


def _built_on(dropped: set[JobId], batch: CycleBatch) -> set[JobId]:
    fallen = [batch.writes[job] for job in dropped if job in batch.writes]
    ended = {write.job.id for write in fallen if write.job.finished}
    kept = {gpu for write in fallen for attempt in write.attempts if not attempt.open for gpu in _gpus(attempt)}
    return {
        job
        for job, write in batch.writes.items()
        if not ended.isdisjoint(write.job.spec.needs)
        or (kept and any(attempt.open and not kept.isdisjoint(_gpus(attempt)) for attempt in write.attempts))
    }


def _gpus(attempt: AttemptRecord) -> Iterator[tuple[ServerIndex, int]]:
    for share, ids in zip(attempt.placement.shares, attempt.gpu_ids, strict=True):
        for gpu in ids:
            yield share.server, gpu


class StoreUnavailable(Exception):
    """The transaction failed as a whole; nothing of it is visible. The cycle will be tried again."""


class Busy(Exception):
    """It cannot be had now; whoever asks again in a moment may get it."""


class ExecutorUnavailable(Busy):
    """The executor does not answer, so nothing is known of what runs."""


class Store(Protocol):
    """Durable state. The engine is the only writer of job, attempt and server rows; others add jobs and requests."""

    def load(self) -> StoredWorld:
        """All unfinished jobs with their open attempts, servers, and the loop's last position.

        Jobs whose SUBMITTED request is still pending are left out: the next cycle admits them.
        """

    def jobs(self, ids: Sequence[JobId]) -> list[JobRecord]:
        """Those jobs as committed (newly submitted or stale ones), in ascending id; unknown ids are left out."""

    def pending_requests(self, limit: int) -> Sequence[EngineRequest]:
        """Unconsumed requests in the order they became visible, oldest first."""

    def commit(self, batch: CycleBatch) -> frozenset[JobId]:
        """Apply the batch in one transaction and return the jobs that :func:`dropped_with` names for the stale rows.

        Their writes, events, attempts and request marks are left out; all else is applied. Raises
        :class:`StoreUnavailable` when nothing was applied.
        """


class AttemptStatus(StrEnum):
    """What an executor sees of an attempt."""

    PENDING = "pending"
    """The command was taken; nothing runs yet."""
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"
    """No process any more; the end's report waits for its acknowledgement."""


class Executor(Protocol):
    """Makes attempts run. It never decides and never waits for a job."""

    def send(self, commands: Sequence[Command]) -> None:
        """Carry out commands. Idempotent by attempt id: an attempt that exists, or ended, or was stopped is never run again.

        Does not raise for one command's failure: that comes back as a report.
        """

    def poll(self) -> Sequence[Report]:
        """Reports not acknowledged yet, oldest first. An end is repeated until it is acknowledged; progress need not be."""

    def acknowledge(self, reports: Sequence[Report]) -> None:
        """These reports are committed; an ended attempt may be forgotten."""

    def observed(self) -> Mapping[AttemptId, AttemptStatus]:
        """Every attempt the executor knows and has not been told to forget: what reconciling compares with.

        Raises :class:`ExecutorUnavailable` where that cannot be said.
        """


class AttemptLeases(Protocol):
    """Attempts must not outlive a service that is gone: each ends by itself when the lease of its service runs out."""

    def renew_leases(self) -> None:
        """Extend the lease of all attempts. Does not raise. Does nothing if attempts cannot outlive the service.

        The service calls it only while the database counts the service as alive.
        """


class LogPart(Protocol):
    """A part of a log. ``cut_bytes`` in front of ``data`` are gone; ``size_bytes`` were written in all so far."""

    @property
    def data(self) -> bytes: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def cut_bytes(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...


class AttemptLogs(Protocol):
    """What attempts print."""

    def read_logs(self, job: JobId, attempt: int | None, offset: int, limit_bytes: int) -> LogPart:
        """A part of the output of an attempt (None: the newest). A negative offset counts from the end.

        Raises KeyError if there is no such log: before the launch, and after the files were deleted.
        """


class ProgressInput(Protocol):
    """Progress that a training program sends over HTTP."""

    def accept_progress(self, attempt: AttemptId, token: str, line: Mapping[str, Any]) -> bool:
        """Take one line of progress; it comes back as a report. False if the line breaks a rule and was ignored.

        Raises PermissionError if the token is not that of this attempt or the attempt does not run, and
        :class:`ExecutorUnavailable` if its files do not answer.
        """


class AttemptFiles(Protocol):
    """Logs, work folders and checkpoints that attempts leave behind."""

    @property
    def keeps_files(self) -> bool:
        """Whether attempts leave files at all. If not, jobs are forgotten without a wait for their files."""

    def jobs_with_files(self) -> set[JobId]:
        """Jobs whose files are still here."""

    def prune(self, jobs: Iterable[JobId]) -> int:
        """Delete the files of ended jobs; returns the number of attempts. An attempt never runs again afterwards.

        Skips attempts whose end is not acknowledged. May be called again for the same job.
        """


class LiveExecutor(Executor, AttemptLeases, AttemptLogs, ProgressInput, AttemptFiles, Protocol):
    """All that a live service needs of an engine executor. Methods may be called from several threads."""

    def use_cluster(self, cluster: Cluster) -> None:
        """Placements of later launches refer to the servers of this cluster."""

    def close(self) -> None:
        """Release everything. Attempts run on, and the next executor of this service finds them."""


class Sink(Protocol):
    """Where the story goes besides the store: results in simulation, logs and metrics live."""

    def transition(self, event: JobEvent, job: JobRecord) -> None:
        """A job changed its state; called after the commit. Submissions are not reported."""

    def cycle(self, batch: CycleBatch) -> None:
        """A cycle was committed."""


class NullSink:
    """Keeps nothing."""

    def transition(self, event: JobEvent, job: JobRecord) -> None:
        """Ignore."""

    def cycle(self, batch: CycleBatch) -> None:
        """Ignore."""
