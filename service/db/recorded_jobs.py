"""The recorded jobs of the service: their specs, predictions, attempts and ends. Read in one snapshot, a few statements."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection, RowMapping, Select, func, or_, select

from policies.lifecycle import JobState
from policies.model.cluster import Server
from policies.model.estimate import Estimate
from policies.model.ids import JobId
from policies.model.job import IterationTimes, JobSpec
from policies.model.placement import Placement
from service.db.codec import decode
from service.db.rows import chunks, estimate_of
from service.db.session import Database
from service.db.tables import ATTEMPTS, JOBS, PREDICTIONS, SERVERS
from service.engine.record import ServerRecord

_JOBS_PER_STATEMENT = 1000


@dataclass(frozen=True, slots=True)
class PastAttempt:
    """One attempt of a recorded job. ``started_at_s`` is None if it never ran, ``ended_at_s`` while it is open."""

    placement: Placement
    opened_at_s: float
    started_at_s: float | None
    ended_at_s: float | None


@dataclass(frozen=True, slots=True)
class PastJob:
    """One job of this service, ended or not; instants in seconds since the Unix epoch.

    ``predicted`` is its first prediction. ``iterations`` is None for a job that reported none. ``graceful``: a preemption
    loses no work.
    """

    id: JobId
    spec: JobSpec
    submitted_at_s: float
    state: JobState
    finished_at_s: float | None
    first_started_at_s: float | None
    iterations: float | None
    service_s: float
    held_gpu_s: float
    wasted_gpu_s: float
    preemptions: int
    graceful: bool
    iteration_times: IterationTimes | None
    predicted: Estimate | None
    attempts: Sequence[PastAttempt] = field(default=())


def past_jobs(database: Database, since_s: float | None, until_s: float | None) -> list[PastJob]:
    """The jobs that were submitted before ``until_s`` and not ended by ``since_s``, in order of submission.

    So the first of them may have been submitted before ``since_s``: they were unfinished when the window began.
    """
    jobs = JOBS.c
    wanted = select(JOBS).order_by(jobs.submitted_at_s, jobs.id)
    if until_s is not None:
        wanted = wanted.where(jobs.submitted_at_s < until_s)
    if since_s is not None:
        came = jobs.submitted_at_s >= since_s
        wanted = wanted.where(or_(came, jobs.finished_at_s.is_(None), jobs.finished_at_s > since_s))
    with database.reading() as session:
        return list(_read(session.connection(), wanted))


def _read(connection: Connection, wanted: "Select[tuple[object, ...]]") -> Iterator[PastJob]:
    rows = connection.execute(wanted).mappings().all()
    for at in range(0, len(rows), _JOBS_PER_STATEMENT):
        part = rows[at : at + _JOBS_PER_STATEMENT]
        ids = sorted(row["id"] for row in part)
        attempts, predictions = _attempts(connection, ids), _first_predictions(connection, ids)
        for row in part:
            yield _past_job(row, attempts.get(row["id"], ()), predictions.get(row["id"]))


def _past_job(row: RowMapping, attempts: Sequence[PastAttempt], predicted: Estimate | None) -> PastJob:
    spec = decode(JobSpec, row["spec"])
    times = row["iteration_times"]
    return PastJob(
        id=JobId(row["id"]),
        spec=spec,
        submitted_at_s=row["submitted_at_s"],
        state=JobState(row["state"]),
        finished_at_s=row["finished_at_s"],
        first_started_at_s=row["first_started_at_s"],
        iterations=row["iterations"] if row["reports_iterations"] else None,
        service_s=row["service_s"],
        held_gpu_s=row["held_gpu_s"],
        wasted_gpu_s=row["wasted_gpu_s"],
        preemptions=row["preemptions"],
        graceful=spec.preemption is not None or row["reports_checkpoints"],
        iteration_times=decode(IterationTimes, times) if times is not None else None,
        predicted=predicted,
        attempts=attempts,
    )


def _attempts(connection: Connection, ids: Sequence[int]) -> Mapping[int, list[PastAttempt]]:
    attempts = ATTEMPTS.c
    columns = (attempts.job_id, attempts.placement, attempts.opened_at_s, attempts.started_at_s, attempts.ended_at_s)
    found: dict[int, list[PastAttempt]] = {}
    for part in chunks(ids):
        statement = select(*columns).where(attempts.job_id.in_(part)).order_by(attempts.job_id, attempts.number)
        for job, placement, opened_at_s, started_at_s, ended_at_s in connection.execute(statement):
            attempt = PastAttempt(decode(Placement, placement), opened_at_s, started_at_s, ended_at_s)
            found.setdefault(job, []).append(attempt)
    return found


def _first_predictions(connection: Connection, ids: Sequence[int]) -> Mapping[int, Estimate]:
    """The first prediction of each job."""
    predictions = PREDICTIONS.c
    found: dict[int, Estimate] = {}
    for part in chunks(ids):
        first = select(func.min(predictions.id)).where(predictions.job_id.in_(part)).group_by(predictions.job_id)
        for row in connection.execute(select(PREDICTIONS).where(predictions.id.in_(first))).mappings():
            found[row["job_id"]] = estimate_of(row)
    return found


def stored_servers(database: Database) -> list[tuple[Server, ServerRecord]]:
    """Every server, present or past, at its position, and its newest state."""
    servers = SERVERS.c
    statement = select(servers.spec, servers.drained, servers.down).order_by(servers.position)
    with database.reading() as session:
        return [
            (decode(Server, spec), ServerRecord(drained, down))
            for spec, drained, down in session.connection().execute(statement)
        ]
