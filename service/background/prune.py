"""Prune the database: old cycles, consumed requests, expired keys and sessions, dense progress curves, old forecasts, what-if
runs and entries of the audit log, files of ended jobs, and, if ``jobs_kept_s`` is set, the jobs themselves.

Without that limit jobs, their events, predictions and labels are kept. Models are always kept. Each transaction deletes a limited
number of rows, so a scheduling cycle waits only for a short time. If pruning is interrupted, the next run continues.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Table, delete, func, select, update

from policies.model.ids import JobId
from service.config.settings import Settings
from service.db.dialects import take_locks
from service.db.progress import outline_progress, thin_progress
from service.db.retention import (
    DEPENDENCIES_LOCK,
    delete_jobs,
    delete_labels,
    expired_jobs,
    expired_labels,
    newest_job,
    referenced_jobs,
)
from service.db.rows import chunks
from service.db.services import delete_silent
from service.db.session import Database
from service.db.tables import (
    AUDIT_LOG,
    CYCLES,
    FORECASTS,
    IDEMPOTENCY_KEYS,
    JOBS,
    REQUESTS,
    SERVER_EVENTS,
    SIMULATIONS,
    WEB_SESSIONS,
)
from service.domain.simulations import KEPT_S as SIMULATIONS_KEPT_S
from service.engine.crash_points import CrashPoint, reached

DeleteFiles = Callable[[Sequence[JobId]], object]
"""Deletes logs and checkpoints of ended jobs (a method of the executor). It may be called twice for a job."""


FILES_GRACE_S = 86_400.0
"""Minimum time from the deletion of a job's files to the deletion of its rows, seconds."""

ROWS_A_JOB = 20
"""Approximate number of rows in other tables per job: events, attempts, predictions, forecasts."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """Numbers of deleted rows, and of jobs whose files were deleted, in one run."""

    cycles: int
    requests: int
    idempotency_keys: int
    sessions: int
    progress: int
    forecasts: int
    changes: int
    jobs_with_files: int
    jobs: int
    labels: int
    services: int
    server_events: int
    simulations: int


def prune(database: Database, settings: Settings, now_s: float, delete_files: DeleteFiles | None = None) -> Pruned:
    """Prune once. Without ``delete_files`` no files are deleted."""
    cycles_before_s, forecasts_before_s = now_s - settings.cycles_kept_s, now_s - settings.forecasts_kept_s
    # Requests are kept as long as the cycles that acted on them, and forecasts at least until they are scored.
    old_requests = REQUESTS.c.consumed_cycle.is_not(None) & (REQUESTS.c.created_at_s < cycles_before_s)
    old_forecasts = FORECASTS.c.scored_at_s.is_not(None) & (FORECASTS.c.made_at_s < forecasts_before_s)
    old_changes = AUDIT_LOG.c.at_s < now_s - settings.audit_kept_s
    expired = IDEMPOTENCY_KEYS.c.expires_at_s < now_s
    ended = WEB_SESSIONS.c.expires_at_s < now_s
    return Pruned(
        cycles=_prune_cycles(database, settings, now_s),
        requests=_delete(database, settings, REQUESTS, REQUESTS.c.id, old_requests),
        idempotency_keys=_delete(database, settings, IDEMPOTENCY_KEYS, IDEMPOTENCY_KEYS.c.key, expired),
        sessions=_delete(database, settings, WEB_SESSIONS, WEB_SESSIONS.c.token_sha256, ended),
        progress=_prune_progress(database, settings),
        forecasts=_delete(database, settings, FORECASTS, FORECASTS.c.id, old_forecasts),
        changes=_delete(database, settings, AUDIT_LOG, AUDIT_LOG.c.id, old_changes),
        jobs_with_files=0 if delete_files is None else _prune_files(database, settings, now_s, delete_files),
        jobs=_prune_jobs(database, settings, now_s, with_files=delete_files is not None),
        labels=_prune_labels(database, settings, now_s),
        services=delete_silent(database, settings.cycles_kept_s),
        server_events=_delete(
            database, settings, SERVER_EVENTS, SERVER_EVENTS.c.id, SERVER_EVENTS.c.at_s < cycles_before_s
        ),
        simulations=_delete(
            database, settings, SIMULATIONS, SIMULATIONS.c.id, SIMULATIONS.c.ended_at_s < now_s - SIMULATIONS_KEPT_S
        ),
    )


def prune_left_files(database: Database, kept: Collection[JobId], delete_files: DeleteFiles) -> int:
    """Delete the files of those ``kept`` jobs whose files the database marks as deleted. Returns the number of jobs.

    The leader marks the jobs, but can delete only the files in its own folder. Each other service calls this for its folder.
    """
    deleted = 0
    for part in chunks(sorted(kept)):
        with database.reading() as session:
            connection = session.connection()
            newest = connection.execute(select(func.max(JOBS.c.id))).scalar() or 0
            there = select(JOBS.c.id, JOBS.c.files_deleted_at_s.is_not(None)).where(JOBS.c.id.in_(part))
            over = {number: bool(marked) for number, marked in connection.execute(there)}
        # A missing job was pruned long after its files were. A job with a higher number than all rows was submitted after the
        # backup from which the database was restored, so its files are kept.
        ids = [JobId(job) for job in part if over.get(job, job < newest)]
        delete_files(ids)
        deleted += len(ids)
    return deleted


def _prune_cycles(database: Database, settings: Settings, now_s: float) -> int:
    with database.reading() as session:
        connection = session.connection()
        newest = connection.execute(select(func.max(CYCLES.c.number))).scalar()
        dumped = connection.execute(select(func.max(CYCLES.c.number)).where(CYCLES.c.dump.is_not(None))).scalar()
    # A restart needs the newest dump and the newest number, regardless of their age.
    spared = [number for number in (newest, dumped) if number is not None]
    old = (CYCLES.c.at_s < now_s - settings.cycles_kept_s) & CYCLES.c.number.not_in(spared)
    return _delete(database, settings, CYCLES, CYCLES.c.number, old)


def _prune_progress(database: Database, settings: Settings) -> int:
    deleted = 0
    while True:
        with database.writing() as session:
            thinned = thin_progress(session, settings.progress_rows_max, jobs_max=10)
        deleted += thinned
        if not thinned:
            return deleted


def _prune_files(database: Database, settings: Settings, now_s: float, delete_files: DeleteFiles) -> int:
    old = JOBS.c.files_deleted_at_s.is_(None) & (JOBS.c.finished_at_s < now_s - settings.logs_kept_s)
    pruned = 0
    while True:
        with database.reading() as session:
            found = select(JOBS.c.id).where(old).order_by(JOBS.c.finished_at_s).limit(settings.prune_rows_max)
            ids = [JobId(number) for number in session.connection().execute(found).scalars()]
        if not ids:
            return pruned
        # Delete the files first: after a crash in between, the next run finds no files and only sets the mark.
        delete_files(ids)
        reached(CrashPoint.FILES_DELETED)
        with database.writing() as session:
            connection = session.connection()
            outline_progress(session, ids)
            for part in chunks(ids):
                connection.execute(update(JOBS).where(JOBS.c.id.in_(part)).values(files_deleted_at_s=now_s))
        pruned += len(ids)


def _prune_jobs(database: Database, settings: Settings, now_s: float, *, with_files: bool) -> int:
    if settings.jobs_kept_s == 0.0:
        return 0
    before_s = now_s - settings.jobs_kept_s
    # Other services delete their files of a job when they see the mark, so keep the row for a day after it was set.
    files_before_s = now_s - FILES_GRACE_S if with_files else None
    portion = max(1, settings.prune_rows_max // ROWS_A_JOB)
    with database.reading() as session:
        connection = session.connection()
        if not expired_jobs(connection, before_s, files_before_s, 0, 1):
            return 0
    with database.writing() as session:
        take_locks(session.connection(), DEPENDENCIES_LOCK)
        looked_at = newest_job(session.connection())
    with database.reading() as session:
        awaited = referenced_jobs(session.connection())
    deleted, after = 0, 0
    while True:
        with database.writing() as session:
            connection = session.connection()
            take_locks(connection, DEPENDENCIES_LOCK)
            # Jobs that were submitted meanwhile; the many others are read once.
            awaited |= referenced_jobs(connection, above=looked_at)
            looked_at = newest_job(connection)
            old = expired_jobs(connection, before_s, files_before_s, after, portion)
            ids = [job for job in old if job not in awaited]
            if ids:
                delete_jobs(connection, ids)
        deleted += len(ids)
        if len(old) < portion:
            return deleted
        after = old[-1]


def _prune_labels(database: Database, settings: Settings, now_s: float) -> int:
    """Delete old labels, but keep the newest ``retrain_rows_max``, which a training reads."""
    if settings.jobs_kept_s == 0.0:
        return 0
    before_s, portion, deleted = now_s - settings.jobs_kept_s, settings.prune_rows_max, 0
    while True:
        with database.writing() as session:
            connection = session.connection()
            ids = expired_labels(connection, before_s, settings.retrain_rows_max, portion)
            if ids:
                delete_labels(connection, ids)
        deleted += len(ids)
        if len(ids) < portion:
            return deleted


def _delete(
    database: Database, settings: Settings, rows: Table, key: ColumnElement[Any], condition: ColumnElement[bool]
) -> int:
    """Delete in portions of ``prune_rows_max`` keys, each in a transaction of its own. Returns the number of rows."""
    deleted = 0
    while True:
        with database.writing() as session:
            connection = session.connection()
            ids = list(connection.execute(select(key).where(condition).limit(settings.prune_rows_max)).scalars())
            for part in chunks(ids):
                # Use the database's count: a key that is not the whole primary key may match several rows.
                deleted += connection.execute(delete(rows).where(key.in_(part), condition)).rowcount
        if len(ids) < settings.prune_rows_max:
            return deleted
