"""The progress curve of a job: reported points, thinned out so that the curve of a long job keeps its shape."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import Connection, delete, func, insert, select
from sqlmodel import Session

from policies.model.ids import AttemptId, JobId, job_of
from service.db.rows import UNFINISHED_JOBS, chunks
from service.db.tables import JOBS, PROGRESS

OUTLINE_ROWS = 64
"""Points that are kept of a job that ended long ago. A million jobs then take a few gigabytes."""


@dataclass(frozen=True, slots=True)
class ProgressPoint:
    """One report of a training program."""

    attempt_id: AttemptId
    at_s: float
    iteration: float
    total_iterations: float | None = None
    checkpoint_iteration: float | None = None
    loss: float | None = None
    input_s: float | None = None


def record_progress(session: Session, points: Sequence[ProgressPoint]) -> None:
    """Store points, in one statement. Each job must exist."""
    if not points:
        return
    rows = [{"job_id": job_of(point.attempt_id), **asdict(point)} for point in points]
    session.connection().execute(insert(PROGRESS), rows)


def thin_progress(session: Session, rows_max: int, jobs_max: int) -> int:
    """Halve the points of at most ``jobs_max`` jobs that have more than ``rows_max``; returns the number deleted.

    Every second point is deleted except the first and the newest. Call it again until it deletes nothing. Jobs whose files were
    deleted are left out: they have few points, and those of years would make this long.
    """
    connection = session.connection()
    # Each part has an index, so the ended jobs of years are not read.
    unfinished = select(JOBS.c.id).where(JOBS.c.state.in_(UNFINISHED_JOBS))
    with_files = select(JOBS.c.id).where(JOBS.c.finished_at_s.is_not(None), JOBS.c.files_deleted_at_s.is_(None))
    growing = PROGRESS.c.job_id.in_(unfinished.union_all(with_files))
    crowded = select(PROGRESS.c.job_id).where(growing).group_by(PROGRESS.c.job_id)
    crowded = crowded.having(func.count() > rows_max).limit(jobs_max)
    deleted = 0
    for job in list(connection.execute(crowded).scalars()):
        surplus = _points_of(connection, job)[1:-1:2]
        _delete(connection, surplus)
        deleted += len(surplus)
    return deleted


def outline_progress(session: Session, jobs: Sequence[JobId]) -> None:
    """Keep at most :data:`OUTLINE_ROWS` points of each of these jobs, evenly spaced from the first to the newest."""
    connection = session.connection()
    for part in chunks(jobs):
        theirs = select(PROGRESS.c.job_id).where(PROGRESS.c.job_id.in_(part)).group_by(PROGRESS.c.job_id)
        for job in list(connection.execute(theirs.having(func.count() > OUTLINE_ROWS)).scalars()):
            points = _points_of(connection, job)
            kept = {round(number * (len(points) - 1) / (OUTLINE_ROWS - 1)) for number in range(OUTLINE_ROWS)}
            _delete(connection, [point for number, point in enumerate(points) if number not in kept])


def _points_of(connection: Connection, job: int) -> list[int]:
    return list(
        connection.execute(select(PROGRESS.c.id).where(PROGRESS.c.job_id == job).order_by(PROGRESS.c.id)).scalars()
    )


def _delete(connection: Connection, points: Sequence[int]) -> None:
    for part in chunks(points):
        connection.execute(delete(PROGRESS).where(PROGRESS.c.id.in_(part)))
