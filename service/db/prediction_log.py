"""The log of predictions in bulk and by job: for a restarted predictor, for studies of errors, and for users who compare."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

from sqlalchemy import Connection, Row, func, select

from policies.lifecycle import TERMINAL
from policies.model.estimate import Prediction
from policies.model.ids import JobId
from service.db.history import OWN_LABEL
from service.db.prediction_rows import PredictionReader, prediction_columns
from service.db.rows import chunks
from service.db.session import Database
from service.db.tables import HISTORY, JOBS, PREDICTIONS, columns

COMPARED_JOBS_MAX: Final = 2_000
"""Newest jobs of the same name, or of the same user, that are searched: one index walk, a few milliseconds."""

_SCORED = frozenset(
    "job_id scored_at_s unit points p10 p50 p90 point actual source model_version shadows".split()  # noqa: SIM905
)
_SUBMITTED = columns(JOBS, "name user project gpus submitted_at_s service_s")
_SIMILAR = (*columns(JOBS, "id name user project gpus state finished_at_s"), *columns(HISTORY, "iterations service_s"))


def first_predictions(
    database: Database, newest: int, unfinished: Sequence[JobId] = ()
) -> Iterator[tuple[JobId, Prediction]]:
    """The first prediction of each of the ``newest`` jobs that have one, and of those ``unfinished``; oldest first.

    Read in one snapshot, which ends with the iteration.
    """
    predictions = PREDICTIONS.c
    first = select(func.min(predictions.id)).group_by(predictions.job_id)
    with database.reading() as session:
        connection = session.connection()
        ids = set(connection.execute(first.order_by(func.min(predictions.id).desc()).limit(newest)).scalars())
        for jobs in chunks(sorted(unfinished)):
            ids |= set(connection.execute(first.where(predictions.job_id.in_(jobs))).scalars())
        reader = PredictionReader()
        for part in chunks(sorted(ids), 500):
            statement = prediction_columns().where(predictions.id.in_(part)).order_by(predictions.id)
            for row in connection.execute(statement).mappings():
                yield JobId(row["job_id"]), reader.read(row)


def scored_predictions(database: Database, newest: int) -> Sequence[Row[Any]]:
    """The first prediction of each job that ended, newest jobs first; at most ``newest``. Read in one snapshot.

    Columns: those of the prediction, and ``name``, ``user``, ``project``, ``gpus``, ``submitted_at_s`` and ``service_s`` of the
    job. Jobs that did no work are left out: their predictions have no error.
    """
    predictions = PREDICTIONS.c
    scored = predictions.log_error.is_not(None)
    # Find the newest jobs before their first predictions: a row holds kilobytes, so nothing here may read all of them. A job has
    # one for each report that changed its estimate, so the newest predictions may all be of a few jobs.
    told = select(predictions.id).where(scored, predictions.job_id == JOBS.c.id).exists()
    first_told = select(func.min(predictions.job_id)).scalar_subquery()
    newest_jobs = select(JOBS.c.id).where(JOBS.c.finished_at_s.is_not(None), JOBS.c.id >= first_told, told)
    of_those = predictions.job_id.in_(newest_jobs.order_by(JOBS.c.id.desc()).limit(newest).scalar_subquery())
    first = select(func.min(predictions.id)).where(scored, of_those).group_by(predictions.job_id)
    statement = prediction_columns(_SCORED).add_columns(*_SUBMITTED).join(JOBS, JOBS.c.id == predictions.job_id)
    return database.rows(statement.where(predictions.id.in_(first)).order_by(predictions.id.desc()).limit(newest))


def submission_of_newest(database: Database, newest: int) -> float | None:
    """When the oldest of the ``newest`` jobs was submitted, seconds since the Unix epoch; None if there are fewer jobs."""
    submitted_at_s: float | None = database.value(
        select(JOBS.c.submitted_at_s).order_by(JOBS.c.id.desc()).offset(newest - 1).limit(1)
    )
    return submitted_at_s


def newest_prediction(connection: Connection, job_id: int) -> Row[Any] | None:
    """The newest prediction of a job with all its columns, the feature vector among them; or None."""
    statement = prediction_columns().where(PREDICTIONS.c.job_id == job_id).order_by(PREDICTIONS.c.id.desc()).limit(1)
    return connection.execute(statement).one_or_none()


def similar_jobs(connection: Connection, job: Row[Any], before_s: float, limit: int) -> Sequence[Row[Any]]:
    """At most ``limit`` jobs that had run and ended before ``before_s``: of the same user, project and name if there are any,
    else of the same user. Nearest number of GPUs first, then the newest.

    ``job`` has at least the columns id, name, user, project and gpus. Columns of the result: id, name, user, project, gpus,
    state, finished_at_s, iterations (None: it reported none) and service_s.
    """
    same_name = [
        row
        for row in _ended(connection, "name", job.name, job.id, before_s)
        if (row.user, row.project) == (job.user, job.project)
    ]
    found = same_name or (_ended(connection, "user", job.user, job.id, before_s) if job.user else [])
    return sorted(found, key=lambda row: (abs(math.log(row.gpus / job.gpus)), -row.finished_at_s, -row.id))[:limit]


def _ended(connection: Connection, column: str, value: str, before_id: int, before_s: float) -> Sequence[Row[Any]]:
    """Among the newest jobs with this value that precede the job, those that had run and ended."""
    newest = select(JOBS.c.id).where(JOBS.c[column] == value, JOBS.c.id < before_id).order_by(JOBS.c.id.desc())
    statement = (
        select(*_SIMILAR)
        .select_from(JOBS.join(HISTORY, OWN_LABEL))
        .where(
            JOBS.c.id.in_(newest.limit(COMPARED_JOBS_MAX)),
            JOBS.c.state.in_(sorted(state.value for state in TERMINAL)),
            JOBS.c.finished_at_s <= before_s,
            HISTORY.c.service_s > 0.0,
        )
    )
    return connection.execute(statement).all()
