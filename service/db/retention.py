"""Deletion of jobs that ended long ago: their rows in every table, but not what was learnt from them.

A training label takes over the job's spec, so training goes on as before. Usage is summed by day and refers to no job.
"""

from collections.abc import Sequence

from sqlalchemy import Connection, Text, and_, cast, delete, func, or_, select, update

from policies.model.ids import JobId
from service.db.prediction_rows import delete_unused_predictions
from service.db.rows import ENDED_JOBS, OWN_HISTORY, chunks
from service.db.specs import RecentSpecs, SpecReader, delete_unused_array_specs
from service.db.tables import ATTEMPTS, EVENTS, FORECASTS, HISTORY, JOBS, PREDICTIONS, PROGRESS, REQUESTS

_OF_JOBS = (PROGRESS, PREDICTIONS, FORECASTS, EVENTS, REQUESTS, ATTEMPTS)


DEPENDENCIES_LOCK = "dependencies"
"""The lock for submissions with jobs in ``after``, and for deleting jobs: what is in ``after`` stays from then on."""


def newest_job(connection: Connection) -> int:
    """The largest id of a job, 0 without jobs. Under the lock: jobs with dependencies that come later have larger ids."""
    return connection.execute(select(func.max(JOBS.c.id))).scalar() or 0


def referenced_jobs(connection: Connection, above: int = 0) -> set[JobId]:
    """Jobs that an unfinished job with an id above ``above`` refers to, as its dependency or as the first element of its array.

    A restarted engine needs the end of a dependency, and the owner of an array is that of its first element.
    """
    texts = select(cast(JOBS.c.spec, Text)).where(JOBS.c.state.not_in(ENDED_JOBS), JOBS.c.id > above)
    specs = SpecReader(connection, RecentSpecs())
    referenced: set[JobId] = set()
    for text in connection.execute(texts, execution_options={"yield_per": 1000}).scalars():
        spec = specs.read(text)
        referenced.update(spec.needs)
        if spec.array is not None:
            referenced.add(spec.array.id)
    return referenced


def expired_jobs(
    connection: Connection, ended_before_s: float, files_gone_before_s: float | None, after: int, limit: int
) -> list[JobId]:
    """At most ``limit`` jobs with ids above ``after`` that ended before an instant, in ascending id.

    With ``files_gone_before_s`` only jobs whose files were deleted before that. A job with unscored forecasts or unconsumed
    requests is kept.
    """
    old = and_(JOBS.c.state.in_(ENDED_JOBS), JOBS.c.finished_at_s < ended_before_s, JOBS.c.id > after)
    if files_gone_before_s is not None:
        old = and_(old, JOBS.c.files_deleted_at_s < files_gone_before_s)
    pending = select(REQUESTS.c.job_id).where(REQUESTS.c.consumed_cycle.is_(None), REQUESTS.c.job_id.is_not(None))
    unscored = select(FORECASTS.c.job_id).where(FORECASTS.c.scored_at_s.is_(None))
    found = select(JOBS.c.id).where(old, JOBS.c.id.not_in(pending), JOBS.c.id.not_in(unscored))
    return [JobId(number) for number in connection.execute(found.order_by(JOBS.c.id).limit(limit)).scalars()]


def delete_jobs(connection: Connection, ids: Sequence[JobId]) -> None:
    """Delete these jobs and all rows that belong to them."""
    of_arrays = select(JOBS.c.array_id).where(JOBS.c.id.in_(ids), JOBS.c.array_id.is_not(None)).distinct()
    arrays = connection.execute(of_arrays).scalars().all()
    spec, array = (
        select(column).where(JOBS.c.id == HISTORY.c.job_id).scalar_subquery()
        for column in (JOBS.c.spec, JOBS.c.array_id)
    )
    taken_over = {"spec": spec, "array_id": array, "job_id": None}
    connection.execute(update(HISTORY).where(HISTORY.c.job_id.in_(ids)).values(taken_over))
    of_shared = select(PREDICTIONS.c.shared_id).where(
        PREDICTIONS.c.job_id.in_(ids), PREDICTIONS.c.shared_id.is_not(None)
    )
    shared = connection.execute(of_shared.distinct()).scalars().all()
    for rows in _OF_JOBS:
        connection.execute(delete(rows).where(rows.c.job_id.in_(ids)))
    connection.execute(delete(JOBS).where(JOBS.c.id.in_(ids)))
    delete_unused_predictions(connection, shared)
    delete_unused_array_specs(connection, arrays)


def delete_labels(connection: Connection, ids: Sequence[int]) -> None:
    """Delete these labels, and the specs of arrays that no other row needs."""
    for part in chunks(ids):
        of_arrays = select(HISTORY.c.array_id).where(HISTORY.c.id.in_(part), HISTORY.c.array_id.is_not(None)).distinct()
        arrays = connection.execute(of_arrays).scalars().all()
        connection.execute(delete(HISTORY).where(HISTORY.c.id.in_(part)))
        delete_unused_array_specs(connection, arrays)


def expired_labels(connection: Connection, ended_before_s: float, kept: int, limit: int) -> list[int]:
    """At most ``limit`` labels of deleted jobs that ended before an instant and are not among the newest ``kept`` labels."""
    history = HISTORY.c
    newest = select(history.ended_at_s, history.id).order_by(history.ended_at_s.desc(), history.id.desc())
    oldest_kept = connection.execute(newest.offset(max(0, kept - 1)).limit(1)).one_or_none()
    if oldest_kept is None:
        return []
    before = or_(
        history.ended_at_s < oldest_kept.ended_at_s,
        and_(history.ended_at_s == oldest_kept.ended_at_s, history.id < oldest_kept.id),
    )
    ours = and_(history.source == OWN_HISTORY, history.job_id.is_(None), history.ended_at_s < ended_before_s)
    return list(connection.execute(select(history.id).where(ours, before).limit(limit)).scalars())
