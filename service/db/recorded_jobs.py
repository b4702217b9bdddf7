"""The recorded jobs of the service: their specs, predictions, attempts and ends. Read in one snapshot, a few statements."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, bindparam, func, or_, select

from policies.lifecycle import TERMINAL
from policies.model.cluster import Server
from policies.model.estimate import Estimate
from service.db.codec import decode
from service.db.history import OWN_LABEL
from service.db.prediction_rows import prediction_columns
from service.db.rows import OWN_HISTORY, JobReader, attempt_record, chunks, estimate_of, server_record
from service.db.session import Database
from service.db.tables import ATTEMPTS, HISTORY, JOBS, PREDICTIONS, SERVERS
from service.engine.cycle import Reached
from service.engine.record import AttemptRecord, JobRecord, ServerRecord

_JOBS_PER_STATEMENT = 1000


@dataclass(frozen=True, slots=True)
class RecordedJob:
    """One job of this service, ended or not, with all its attempts. ``predicted`` is its first prediction.

    ``reached``: the work of its label; None before it has ended. The record of a job that failed was taken back to its last
    checkpoint.
    """

    record: JobRecord
    predicted: Estimate | None = None
    attempts: Sequence[AttemptRecord] = ()
    reached: Reached | None = None


def recorded_jobs(database: Database, since_s: float | None, until_s: float | None) -> list[RecordedJob]:
    """The jobs that were submitted before ``until_s`` and not ended by ``since_s``, in order of submission.

    So the first of them may have been submitted before ``since_s``: they were unfinished when the window began.
    """
    jobs = JOBS.c
    wanted = JobReader.query().order_by(None).order_by(jobs.submitted_at_s, jobs.id)
    if until_s is not None:
        wanted = wanted.where(jobs.submitted_at_s < until_s)
    if since_s is not None:
        came = jobs.submitted_at_s >= since_s
        wanted = wanted.where(or_(came, jobs.finished_at_s.is_(None), jobs.finished_at_s > since_s))
    with database.reading() as session:
        return list(_read(session.connection(), wanted))


def _read(connection: Connection, wanted: Select[Any]) -> Iterator[RecordedJob]:
    records = list(JobReader(connection).read(wanted, {}))
    for part in chunks(records, _JOBS_PER_STATEMENT):
        ids = sorted(record.id for record in part)
        attempts, predictions, reached = (
            _attempts(connection, ids),
            _first_predictions(connection, ids),
            _reached(connection, ids),
        )
        for record in part:
            yield RecordedJob(record, predictions.get(record.id), attempts.get(record.id, ()), reached.get(record.id))


def newest_jobs(connection: Connection, since_s: float, limit: int) -> list[tuple[JobRecord, Estimate | None]]:
    """The newest jobs, at most ``limit``, submitted since an instant, with their first predictions, in order of submission."""
    jobs = JOBS.c
    wanted = JobReader.query().order_by(None).where(jobs.submitted_at_s >= since_s).order_by(jobs.id.desc())
    return _predicted(connection, wanted.limit(limit))


def jobs_from(connection: Connection, since_s: float, limit: int) -> list[tuple[JobRecord, Estimate | None]]:
    """The same of the first jobs that were submitted since an instant.

    No index has submissions, but numbers ascend nearly as they do, so the first one is found by halving: O(log jobs + limit).
    """
    jobs = JOBS.c
    newest_to = select(jobs.submitted_at_s).where(jobs.id <= bindparam("to")).order_by(jobs.id.desc()).limit(1)
    before, newest = 0, connection.execute(select(func.max(jobs.id))).scalar() or 0
    while before < newest:
        middle = (before + newest + 1) // 2
        submitted_at_s = connection.execute(newest_to, {"to": middle}).scalar()
        if submitted_at_s is None or submitted_at_s < since_s:
            before = middle
        else:
            newest = middle - 1
    wanted = JobReader.query().order_by(None).where(jobs.id > before).order_by(jobs.id)
    return _predicted(connection, wanted.limit(limit))


def _predicted(connection: Connection, wanted: Select[Any]) -> list[tuple[JobRecord, Estimate | None]]:
    records = list(JobReader(connection).read(wanted, {}))
    predictions: dict[int, Estimate] = {}
    for part in chunks(records, _JOBS_PER_STATEMENT):
        predictions |= _first_predictions(connection, [record.id for record in part])
    records.sort(key=lambda record: (record.submitted_at_s, record.id))
    return [(record, predictions.get(record.id)) for record in records]


def first_submission_s(connection: Connection) -> float | None:
    """When the first job that is kept was submitted; None without a job."""
    found: float | None = connection.execute(select(JOBS.c.submitted_at_s).order_by(JOBS.c.id).limit(1)).scalar()
    return found


def ended_in(database: Database, since_s: float | None, until_s: float | None, newest: int) -> tuple[int, float | None]:
    """How many jobs of a window ran and ended, and when the oldest of the ``newest`` of them was submitted; None if all are.

    In a window are jobs submitted from ``since_s`` on and before ``until_s``.
    """
    jobs = JOBS.c
    wanted = [jobs.state.in_(sorted(state.value for state in TERMINAL)), HISTORY.c.service_s > 0.0]
    if since_s is not None:
        wanted.append(jobs.submitted_at_s >= since_s)
    if until_s is not None:
        wanted.append(jobs.submitted_at_s < until_s)
    order = (jobs.submitted_at_s.desc(), jobs.id.desc())
    labelled = JOBS.join(HISTORY, OWN_LABEL)
    oldest = (
        select(jobs.submitted_at_s).select_from(labelled).where(*wanted).order_by(*order).offset(newest - 1).limit(1)
    )
    with database.reading() as session:
        connection = session.connection()
        count = connection.execute(select(func.count()).select_from(labelled).where(*wanted)).scalar_one()
        return count, connection.execute(oldest).scalar() if count > newest else None


def _attempts(connection: Connection, ids: Sequence[int]) -> Mapping[int, list[AttemptRecord]]:
    attempts = ATTEMPTS.c
    found: dict[int, list[AttemptRecord]] = {}
    statement = select(ATTEMPTS).where(attempts.job_id.in_(ids)).order_by(attempts.job_id, attempts.number)
    for row in connection.execute(statement).mappings():
        found.setdefault(row["job_id"], []).append(attempt_record(row))
    return found


def _reached(connection: Connection, ids: Sequence[int]) -> Mapping[int, Reached]:
    history, numbers = HISTORY.c, [str(job) for job in ids]
    statement = select(history.job_id, history.service_s, history.iterations).where(
        history.source == OWN_HISTORY, history.source_key.in_(numbers)
    )
    return {job: Reached(service_s, iterations) for job, service_s, iterations in connection.execute(statement)}


def _first_predictions(connection: Connection, ids: Sequence[int]) -> Mapping[int, Estimate]:
    """The first prediction of each job."""
    predictions = PREDICTIONS.c
    first = select(func.min(predictions.id)).where(predictions.job_id.in_(ids)).group_by(predictions.job_id)
    rows = connection.execute(prediction_columns().where(predictions.id.in_(first))).mappings()
    return {row["job_id"]: estimate_of(row) for row in rows}


def stored_servers(database: Database) -> list[tuple[Server, ServerRecord]]:
    """Every server, present or past, at its position, and its newest state."""
    statement = select(SERVERS).order_by(SERVERS.c.position)
    with database.reading() as session:
        rows = session.connection().execute(statement).mappings()
        return [(decode(Server, row["spec"]), server_record(row)) for row in rows]
