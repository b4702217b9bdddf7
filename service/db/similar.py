"""Past jobs like another one: what a person compares a prediction with. Bounded work, however long the history."""

import math
from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Connection, Row, select

from policies.lifecycle import TERMINAL
from service.db.tables import JOBS, PREDICTIONS, columns

LOOKED_AT_MAX: Final = 2_000
"""Newest jobs of the name, or of the user, among which is looked: an index walk, a few milliseconds."""

_COLUMNS = columns(
    JOBS,
    "id name user project gpus state finished_at_s iterations reports_iterations service_s",
)


def stored_prediction(connection: Connection, job_id: int) -> Row[Any] | None:
    """The newest prediction of a job with all its columns, the feature vector among them; or None."""
    return connection.execute(
        select(PREDICTIONS).where(PREDICTIONS.c.job_id == job_id).order_by(PREDICTIONS.c.id.desc()).limit(1)
    ).one_or_none()


def similar_jobs(connection: Connection, job: Row[Any], before_s: float, limit: int) -> Sequence[Row[Any]]:
    """At most ``limit`` jobs that had run and ended before ``before_s``: of the same user, project and name if there are any,
    else of the same user. Nearest number of GPUs first, then the newest.

    ``job`` has at least the columns id, name, user, project and gpus. Columns of an answer: id, name, user, project, gpus,
    state, finished_at_s, iterations, reports_iterations and service_s.
    """
    same_name = [
        row
        for row in _ended(connection, "name", job.name, job.id, before_s)
        if (row.user, row.project) == (job.user, job.project)
    ]
    found = same_name or (_ended(connection, "user", job.user, job.id, before_s) if job.user else [])
    return sorted(found, key=lambda row: (abs(math.log(row.gpus / job.gpus)), -row.finished_at_s, -row.id))[:limit]


def _ended(connection: Connection, column: str, value: str, before_id: int, before_s: float) -> Sequence[Row[Any]]:
    """Of the newest jobs with this value that came before the job, those that had run and ended."""
    newest = (
        select(JOBS.c.id)
        .where(JOBS.c[column] == value, JOBS.c.id < before_id)
        .order_by(JOBS.c.id.desc())
        .limit(LOOKED_AT_MAX)
    )
    statement = select(*_COLUMNS).where(
        JOBS.c.id.in_(newest),
        JOBS.c.state.in_(sorted(state.value for state in TERMINAL)),
        JOBS.c.finished_at_s <= before_s,
        JOBS.c.service_s > 0.0,
    )
    return connection.execute(statement).all()
