"""Forgetting jobs that ended long ago: their rows in every table, but not what was learnt from them.

A label keeps the job's spec for itself, so training goes on as before. Sums of usage are by day and have no job.
"""

from collections.abc import Sequence

from sqlalchemy import Connection, and_, delete, or_, select, update

from policies.lifecycle import TERMINAL
from policies.model.ids import JobId
from policies.model.job import JobSpec
from service.db.codec import decode
from service.db.rows import OWN_HISTORY
from service.db.tables import ATTEMPTS, EVENTS, FACTS, FORECASTS, HISTORY, JOBS, PREDICTIONS, PROGRESS

_ENDED = tuple(state.value for state in TERMINAL)
_OF_JOBS = (PROGRESS, PREDICTIONS, FORECASTS, EVENTS, FACTS, ATTEMPTS)


def awaited_jobs(connection: Connection) -> set[JobId]:
    """Jobs that one which has not ended names: as its dependency, whose end it must find out also after a restart, or as the
    first one of its array, whose owner is asked for where somebody acts on the array."""
    specs = select(JOBS.c.spec).where(JOBS.c.state.not_in(_ENDED))
    rows = connection.execute(specs, execution_options={"yield_per": 1000}).scalars()
    awaited: set[JobId] = set()
    for row in rows:
        spec = decode(JobSpec, row)
        awaited.update(spec.needs)
        if spec.array is not None:
            awaited.add(spec.array.id)
    return awaited


def forgettable_jobs(
    connection: Connection, ended_before_s: float, files_gone_before_s: float | None, after: int, limit: int
) -> list[JobId]:
    """At most ``limit`` jobs that ended before an instant, by their numbers, from the one after ``after`` on.

    With ``files_gone_before_s`` only jobs whose files were given up before that: whoever still has some asks for the mark.
    A job whose forecasts or requests are still open stays.
    """
    jobs, facts, forecasts = JOBS.c, FACTS.c, FORECASTS.c
    old = and_(jobs.state.in_(_ENDED), jobs.finished_at_s < ended_before_s, jobs.id > after)
    if files_gone_before_s is not None:
        old = and_(old, jobs.files_deleted_at_s < files_gone_before_s)
    pending = select(facts.job_id).where(facts.consumed_cycle.is_(None), facts.job_id.is_not(None))
    unscored = select(forecasts.job_id).where(forecasts.scored_at_s.is_(None))
    found = select(jobs.id).where(old, jobs.id.not_in(pending), jobs.id.not_in(unscored)).order_by(jobs.id).limit(limit)
    return [JobId(number) for number in connection.execute(found).scalars()]


def forget_jobs(connection: Connection, ids: Sequence[JobId]) -> None:
    """Delete these jobs and all that is told of them."""
    spec = select(JOBS.c.spec).where(JOBS.c.id == HISTORY.c.job_id).scalar_subquery()
    connection.execute(update(HISTORY).where(HISTORY.c.job_id.in_(ids)).values(spec=spec, job_id=None))
    for rows in _OF_JOBS:
        connection.execute(delete(rows).where(rows.c.job_id.in_(ids)))
    connection.execute(delete(JOBS).where(JOBS.c.id.in_(ids)))


def surplus_labels(connection: Connection, ended_before_s: float, kept: int, limit: int) -> list[int]:
    """At most ``limit`` labels of forgotten jobs that are older than that, and than the newest ``kept`` labels of all."""
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
