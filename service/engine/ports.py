"""The engine's ports. Each implementation subclasses the conformance suite of its port in ``tests/conformance``."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from policies.model.cluster import Cluster, Server
from policies.model.decision import Action, Change, Preempt
from policies.model.estimate import Attained, EndedJob, Prediction, PredictionRequest, Reported
from policies.model.ids import AttemptId, JobId, ServerIndex
from policies.model.reasons import Reason
from policies.model.resources import demand_of
from service.engine.commands import Command
from service.engine.events import EngineRequest, JobEvent, Report, ServerEvent
from service.engine.record import AttemptRecord, JobRecord, ServerRecord, StoredWorld


class Clock(Protocol):
    """The source of time."""

    def now_s(self) -> float:
        """Seconds; live: since the Unix epoch. The engine uses only differences and order."""


class Predictor(Protocol):
    """Estimates new jobs, and learns from ended ones."""

    def predict(self, now_s: float, requests: Sequence[PredictionRequest]) -> Sequence[Prediction | None]:
        """One answer per request, in order; None = no estimate. Called outside transactions. Must not raise for unusual jobs."""

    def revise(self, now_s: float, reported: Sequence[Reported]) -> Sequence[Prediction | None]:
        """Predictions revised by running jobs' reported totals and first speeds, in order; None = unchanged. Must be cheap: it
        calls no model.
        """

    def watch(self, attained: Callable[[JobId, float], Attained | None]) -> None:
        """From now on ``attained(job, now_s)`` says how far an unfinished job has come, None if it has not run. :meth:`predict`
        may call it.
        """

    def ended(self, label: EndedJob) -> Sequence[JobId]:
        """Learn from an ended job. Called after the commit of its end. Returns the unfinished jobs of which more is known now:
        the next cycle asks for their predictions again.
        """


@dataclass(slots=True)
class JobWrite:
    """One cycle's changes of one job, applied as a whole or not at all.

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


@dataclass(frozen=True, slots=True)
class NewServer:
    """A server that a cycle adds. ``found``: the executor found it; else an operator added it."""

    spec: Server
    found: bool


@dataclass(slots=True)
class CycleBatch:
    """One cycle as it is stored, in one transaction.

    ``servers`` are the changed ones, ``new_servers`` those among them that the store does not have. ``requests`` are consumed
    requests that belong to no job's write. ``dump`` is the policy's state, or None in most cycles.
    """

    cycle: int
    at_s: float
    changes: Sequence[Change]
    actions: Sequence[Action]
    refusals: Sequence[tuple[JobId, Reason]] = ()
    writes: dict[JobId, JobWrite] = field(default_factory=dict)
    servers: dict[ServerIndex, ServerRecord] = field(default_factory=dict)
    new_servers: dict[ServerIndex, NewServer] = field(default_factory=dict)
    server_events: list[ServerEvent] = field(default_factory=list)
    requests: list[int] = field(default_factory=list)
    wake_at_s: float | None = None
    dump: dict[str, Any] | None = None
    duration_s: Mapping[str, float] = field(default_factory=dict)


_AMOUNTS = -1
"""Stands for the CPUs and memory of a server beside the numbers of its GPUs."""


def dropped_with(stale: Iterable[JobId], batch: CycleBatch) -> frozenset[JobId]:
    """The jobs whose writes must be dropped because of stale rows.

    A stale row drops its own write and all writes that depend on it: preemptions for the same reservation (no other start
    needs them), starts on GPUs, CPUs or memory whose release is not committed, and changes of the job's dependents. O(1) if no
    row is stale, else O(writes).
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
    kept = _held(fallen, still=False)
    return {
        job
        for job, write in batch.writes.items()
        if not ended.isdisjoint(write.job.spec.needs) or (kept and not kept.isdisjoint(_held([write], still=True)))
    }


def _held(writes: Iterable[JobWrite], *, still: bool) -> set[tuple[ServerIndex, int]]:
    """What the attempts in these writes hold (or, ``still`` false, have released): GPUs, and :data:`_AMOUNTS` of servers.

    CPUs and memory are amounts without numbers. So a start that takes some counts as built on any release of some on the same
    server.
    """
    held: set[tuple[ServerIndex, int]] = set()
    for write in writes:
        for attempt in write.attempts:
            if attempt.open is still:
                held.update(_gpus(attempt))
                if demand_of(write.job.spec) is not None:
                    held.update((server, _AMOUNTS) for server in attempt.placement.servers)
    return held


def _gpus(attempt: AttemptRecord) -> Iterator[tuple[ServerIndex, int]]:
    for share, ids in zip(attempt.placement.shares, attempt.gpu_ids, strict=True):
        for gpu in ids:
            yield share.server, gpu


class StoreUnavailable(Exception):
    """The whole transaction failed and has no effect. The cycle is tried again."""


class Busy(Exception):
    """A resource is not available now. A later try may succeed."""


class ExecutorUnavailable(Busy):
    """The executor does not answer, so the running attempts are unknown."""


class Store(Protocol):
    """Durable state. The engine is the only writer of job, attempt and server rows; others add jobs and requests."""

    def load(self) -> StoredWorld:
        """Load all unfinished jobs with their open attempts, the servers, and the loop's last position.

        Jobs whose SUBMITTED request is still pending are left out: the next cycle admits them.
        """

    def jobs(self, ids: Sequence[JobId]) -> list[JobRecord]:
        """The committed rows of these jobs, by ascending id. Unknown ids are left out."""

    def pending_requests(self, limit: int) -> Sequence[EngineRequest]:
        """About ``limit`` unconsumed requests, the oldest first, and with each all earlier ones about its job.

        A store may leave out parts of large submissions for later, so that others do not wait for them. It returns fewer than
        ``limit`` only if it returns all.
        """

    def commit(self, batch: CycleBatch) -> frozenset[JobId]:
        """Apply the batch in one transaction and return the jobs that :func:`dropped_with` names for the stale rows.

        Their writes, events, attempts and request marks are left out; all else is applied. Raises
        :class:`StoreUnavailable` when nothing was applied.
        """


class AttemptStatus(StrEnum):
    """The state of an attempt as the executor sees it."""

    PENDING = "pending"
    """The executor has the command; no process runs yet."""
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"
    """No process runs; the report of the end is not acknowledged yet."""


@dataclass(frozen=True, slots=True)
class Abilities:
    """What an executor can do. Placement asks for nothing else.

    ``several_servers``: an attempt may span servers. ``uneven_shares``: with different numbers of GPUs on them.
    ``exact_gpus``: an attempt gets exactly the GPU indices of its launch; else as many, and its start is reported with those it
    got. ``warning``: a stop can warn the program first. ``users``: each job can run as its own system user. ``containers``: in a
    container image.
    """

    several_servers: bool = True
    uneven_shares: bool = True
    exact_gpus: bool = True
    warning: bool = True
    users: bool = False
    containers: bool = False


class Executor(Protocol):
    """Runs attempts. It makes no decisions and never waits for a job."""

    def send(self, commands: Sequence[Command]) -> None:
        """Carry out commands. Idempotent by attempt id: an attempt that exists, has ended or was stopped is never run again.

        The failure of a single command is reported by :meth:`poll` instead of raised.
        """

    def poll(self) -> Sequence[Report]:
        """Unacknowledged reports, oldest first. An end is repeated until it is acknowledged; progress may be dropped."""

    def acknowledge(self, reports: Sequence[Report]) -> None:
        """These reports are committed. The executor may forget ended attempts."""

    def observed(self) -> Mapping[AttemptId, AttemptStatus]:
        """All attempts of the executor whose end is not acknowledged.

        Raises :class:`ExecutorUnavailable` if they cannot be determined.
        """

    def use_cluster(self, cluster: Cluster) -> None:
        """Set the cluster whose servers later launches and reports refer to by position. Servers are only ever appended.

        Called after each change of the cluster and before commands that depend on it. It may be called again with an equal one.
        """


class AttemptLeases(Protocol):
    """Leases of attempts: each attempt ends by itself when the lease of its service expires."""

    def renew_leases(self) -> None:
        """Extend the lease of all attempts. Does not raise. Does nothing if attempts cannot outlive the service.

        The service calls it only while the database counts the service as alive.
        """


class LogPart(Protocol):
    """A part of a log. ``cut_bytes`` before ``data`` are deleted; ``size_bytes`` were written in total."""

    @property
    def data(self) -> bytes: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def cut_bytes(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...


class AttemptLogs(Protocol):
    """The output of attempts."""

    def read_logs(self, job: JobId, attempt: int, offset: int, limit_bytes: int, node: int = 0) -> LogPart:
        """A part of the output of an attempt on one of its servers. A negative offset counts from the end.

        ``node`` is the position of the server in the attempt's placement. An executor that keeps one log for all servers knows
        node 0 alone. Raises KeyError if there is no such log: before the launch, and after the files were deleted.
        """


class ProgressInput(Protocol):
    """Progress that a training program sends over HTTP."""

    def accept_progress(self, attempt: AttemptId, token: str, line: Mapping[str, Any]) -> bool:
        """Accept one line of progress, which :meth:`Executor.poll` returns as a report. False if the line is invalid and ignored.

        Raises PermissionError if the token is not that of this attempt or the attempt does not run, and
        :class:`ExecutorUnavailable` if its files do not answer.
        """


class AttemptFiles(Protocol):
    """Logs, work folders and checkpoints of attempts."""

    @property
    def keeps_files(self) -> bool:
        """Whether attempts have files. If not, jobs are deleted without waiting for their files."""

    def jobs_with_files(self) -> set[JobId]:
        """Jobs that have files."""

    def prune(self, jobs: Iterable[JobId]) -> int:
        """Delete the files of ended jobs; returns the number of attempts. An attempt never runs again afterwards.

        Skips attempts whose end is not acknowledged. May be called again for the same job.
        """


@dataclass(frozen=True, slots=True)
class FoundServer:
    """A server that an executor has found. ``detail``: the reason for its state."""

    server: Server
    drained: bool = False
    down: bool = False
    detail: str = ""


def other_gpus(found: Server, expected: Server) -> str:
    """Why a server with another number of GPUs than the cluster's gets no attempts; "" if the numbers are equal."""
    return (
        f"has {found.gpus} GPU{'' if found.gpus == 1 else 's'}, {expected.gpus} expected"
        if found.gpus != expected.gpus
        else ""
    )


class LiveExecutor(Executor, AttemptLeases, AttemptLogs, ProgressInput, AttemptFiles, Protocol):
    """The executor of a live service. Methods may be called from several threads."""

    @property
    def abilities(self) -> Abilities:
        """What it can do. It does not change while the service runs."""

    @property
    def attempts_host(self) -> str | None:
        """The id that :attr:`service.engine.record.AttemptRecord.host` of its attempts gets; None: that of the service.

        Every service whose executor has the same id can command these attempts.
        """

    def find_servers(self) -> Sequence[FoundServer] | None:
        """The servers with GPUs, by name, and their states. None: it finds none, and the cluster file describes them.

        Called when the service begins to lead. From then on :meth:`poll` reports how states differ from these; before, that of
        every server. Answers from a cache. Raises :class:`ExecutorUnavailable` while there is none.
        """

    def close(self) -> None:
        """Release all resources. Attempts continue, and the next executor of this service finds them."""


class Sink(Protocol):
    """Receives events besides the store: results in simulation; logs and metrics in the live service."""

    def transition(self, event: JobEvent, job: JobRecord) -> None:
        """A job has changed its state. Called after the commit. Submissions are not reported."""

    def cycle(self, batch: CycleBatch) -> None:
        """A cycle was committed."""
