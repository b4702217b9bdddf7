"""The queued jobs: how many, which ones a caller sees, and what a page of the queue shows of them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, Text, cast, func, literal, select

from policies.lifecycle import JobState
from policies.model.ids import JobId
from service.db.access import seen
from service.db.forecasts import newest_forecasts
from service.db.rows import chunks
from service.db.tables import JOBS, columns
from service.domain.access import Identity
from service.domain.forecast_scores import Milestone

_QUEUED = JOBS.c.state == JobState.QUEUED.value

_QUEUED_LITERALLY = JOBS.c.state == literal(JobState.QUEUED.value, literal_execute=True)
"""The condition of the index ``ix_jobs_queued``: a database does not use it for a parameter, which may have any value."""

_JOB_COLUMNS = columns(JOBS, "id name user project gpus state reason priority held submitted_at_s")


class QueuedJob(NamedTuple):
    """Columns of a queued job, and its newest forecasts."""

    job: Row[Any]
    forecasts: Mapping[Milestone, Row[Any]]


def queued_jobs(connection: Connection) -> int:
    """How many jobs are queued: a count over the index of states."""
    return int(connection.execute(select(func.count()).select_from(JOBS).where(_QUEUED)).scalar_one())


def queued_ids(connection: Connection, caller: Identity) -> list[JobId]:
    """The queued jobs that the caller sees, in the order of their submission. Reads an index of these jobs alone."""
    # One text of all: to make a row of each takes several times as long as to read them.
    statement = select(func.aggregate_strings(cast(JOBS.c.id, Text), ",")).where(_QUEUED_LITERALLY)
    if caller.projects is None:
        parts = [statement]
    else:
        # One project a statement: of several, SQLite would not take the index.
        owners = (replace(caller, projects=frozenset({project})) for project in caller.projects)
        parts = [statement.where(seen(owner, JOBS.c.project, JOBS.c.user)) for owner in owners]
    texts = (connection.execute(part).scalar() for part in parts)
    # As JSON the numbers are read several times as fast as by Python's own means.
    return sorted(job for text in texts if text for job in json.loads(f"[{text}]"))


def queued_rows(connection: Connection, job_ids: Sequence[JobId]) -> dict[JobId, QueuedJob]:
    """Those of these jobs that are queued now. Two statements for a page."""
    rows = [
        row
        for part in chunks(sorted(job_ids))
        for row in connection.execute(select(*_JOB_COLUMNS).where(JOBS.c.id.in_(part), _QUEUED))
    ]
    forecasts = newest_forecasts(connection, [row.id for row in rows])
    return {JobId(row.id): QueuedJob(row, forecasts.get(row.id, {})) for row in rows}
