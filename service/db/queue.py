"""The queued jobs: how many, which ones a caller sees, and what a page of the queue shows of them."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, func, select

from policies.lifecycle import JobState
from policies.model.ids import JobId
from service.db.access import seen
from service.db.forecasts import newest_forecasts
from service.db.rows import chunks
from service.db.tables import JOBS, columns
from service.domain.access import Identity
from service.domain.forecast_scores import Milestone

_QUEUED = JOBS.c.state == JobState.QUEUED.value

_JOB_COLUMNS = columns(JOBS, "id name user project gpus state reason priority held submitted_at_s")


class QueuedJob(NamedTuple):
    """Columns of a queued job, and its newest forecasts."""

    job: Row[Any]
    forecasts: Mapping[Milestone, Row[Any]]


def queued_jobs(connection: Connection) -> int:
    """How many jobs are queued: a count over the index of states."""
    return int(connection.execute(select(func.count()).select_from(JOBS).where(_QUEUED)).scalar_one())


def queued_ids(connection: Connection, caller: Identity) -> list[JobId]:
    """The queued jobs that the caller sees, in the order of their submission. One pass over the queued jobs in the database."""
    # The state alone may choose the index: a small project may have a million ended jobs.
    project, user = (func.coalesce(JOBS.c[name], JOBS.c[name]) for name in ("project", "user"))
    statement = select(JOBS.c.id).where(_QUEUED, seen(caller, project, user)).order_by(JOBS.c.id)
    return list(connection.execute(statement).scalars())


def queued_rows(connection: Connection, job_ids: Sequence[JobId]) -> dict[JobId, QueuedJob]:
    """Those of these jobs that are queued now. Two statements for a page."""
    rows = [
        row
        for part in chunks(sorted(job_ids))
        for row in connection.execute(select(*_JOB_COLUMNS).where(JOBS.c.id.in_(part), _QUEUED))
    ]
    forecasts = newest_forecasts(connection, [row.id for row in rows])
    return {JobId(row.id): QueuedJob(row, forecasts.get(row.id, {})) for row in rows}
