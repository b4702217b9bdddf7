"""The newest scored predictions and jobs, in bulk: what somebody who studies the errors reads."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Row, func, select

from service.db.session import Database
from service.db.tables import JOBS, PREDICTIONS


def scored_predictions(database: Database, newest: int) -> Sequence[Row[Any]]:
    """What was first said of each job that ended, newest jobs first; at most ``newest``. Read in one snapshot.

    Columns: those of the prediction, and ``name``, ``user``, ``project``, ``gpus`` and ``submitted_at_s`` of the job. Jobs
    that did no work are left out: nothing was right or wrong about them.
    """
    jobs, predictions = JOBS.c, PREDICTIONS.c
    scored = predictions.log_error.is_not(None)
    # The newest first, and only then their first: a row holds kilobytes, so nothing here may look at all of them.
    newly = select(predictions.job_id).where(scored).order_by(predictions.id.desc()).limit(newest).subquery()
    of_those = predictions.job_id.in_(select(newly.c.job_id))
    first = select(func.min(predictions.id)).where(scored, of_those).group_by(predictions.job_id)
    columns: tuple[ColumnElement[Any], ...] = (
        *(predictions.job_id, predictions.scored_at_s, predictions.unit, predictions.points),
        *(predictions.p10, predictions.p50, predictions.p90, predictions.point, predictions.actual),
        *(predictions.source, predictions.model_version, predictions.shadows),
        *(jobs.name, jobs.user, jobs.project, jobs.gpus, jobs.submitted_at_s),
    )
    statement = (
        select(*columns)
        .join(JOBS, jobs.id == predictions.job_id)
        .where(predictions.id.in_(first))
        .order_by(predictions.id.desc())
        .limit(newest)
    )
    with database.reading() as session:
        return session.connection().execute(statement).all()


def window_of_newest(database: Database, newest: int) -> float | None:
    """When the first of the ``newest`` jobs was submitted, seconds since the Unix epoch; None where there are no more."""
    jobs = JOBS.c
    with database.reading() as session:
        statement = select(jobs.submitted_at_s).order_by(jobs.id.desc()).offset(newest - 1).limit(1)
        return session.connection().execute(statement).scalar_one_or_none()
