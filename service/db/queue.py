"""The queued jobs: how many, which ones a caller sees, and what a page of the queue shows of them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, Select, Text, bindparam, cast, func, literal, select

from policies.lifecycle import JobState
from policies.model.ids import JobId
from service.db.access import seen
from service.db.forecasts import newest_forecasts
from service.db.rows import chunks
from service.db.tables import JOBS, columns
from service.domain.access import Identity
from service.domain.forecast_scores import Milestone

_QUEUED = JOBS.c.state == JobState.QUEUED.value

QUEUED_LITERALLY = JOBS.c.state == literal(JobState.QUEUED.value, literal_execute=True)
"""The condition of the index ``ix_jobs_queued``: a database does not use it for a parameter, which may have any value."""

_JOB_COLUMNS = columns(JOBS, "id name user project gpus state reason priority held submitted_at_s")


_ROWS = select(*_JOB_COLUMNS).where(JOBS.c.id.in_(bindparam("ids", expanding=True)), _QUEUED)
"""Built once: it is read with every overview."""


class QueuedJob(NamedTuple):
    """Columns of a queued job, and its newest forecasts."""

    job: Row[Any]
    forecasts: Mapping[Milestone, Row[Any]]


def queued_jobs(connection: Connection, caller: Identity) -> int:
    """How many queued jobs the caller sees: a count over an index of these jobs alone."""
    if caller.projects is None:
        return int(connection.execute(select(func.count()).select_from(JOBS).where(_QUEUED)).scalar_one())
    counted = select(func.count()).select_from(JOBS).where(QUEUED_LITERALLY)
    return sum(connection.execute(part).scalar_one() for part in _of_projects(counted, caller, caller.projects))


def queued_ids(connection: Connection, caller: Identity) -> list[JobId]:
    """The queued jobs that the caller sees, in the order of their submission. Reads an index of these jobs alone."""
    # One text of all: to make a row of each takes several times as long as to read them.
    statement = select(func.aggregate_strings(cast(JOBS.c.id, Text), ",")).where(QUEUED_LITERALLY)
    parts = [statement] if caller.projects is None else _of_projects(statement, caller, caller.projects)
    texts = (connection.execute(part).scalar() for part in parts)
    # As JSON the numbers are read several times as fast as by Python's own means.
    return sorted(job for text in texts if text for job in json.loads(f"[{text}]"))


def _of_projects(statement: Select[Any], caller: Identity, projects: Iterable[str]) -> list[Select[Any]]:
    """One project a statement: of several, SQLite would not take the index."""
    owners = (replace(caller, projects=frozenset({project})) for project in projects)
    return [statement.where(seen(owner, JOBS.c.project, JOBS.c.user)) for owner in owners]


def queued_rows(connection: Connection, job_ids: Sequence[JobId]) -> dict[JobId, QueuedJob]:
    """Those of these jobs that are queued now. Two statements for a page."""
    rows = [row for part in chunks(sorted(job_ids)) for row in connection.execute(_ROWS, {"ids": part})]
    forecasts = newest_forecasts(connection, [row.id for row in rows])
    return {JobId(row.id): QueuedJob(row, forecasts.get(row.id, {})) for row in rows}
