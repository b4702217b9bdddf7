"""What was first said of each job, as the predictor said it: what it goes on from after a restart."""

from collections.abc import Iterator, Sequence

from sqlalchemy import func, select

from policies.model.estimate import Prediction
from policies.model.ids import JobId
from service.db.rows import chunks, prediction_of
from service.db.session import Database
from service.db.tables import PREDICTIONS


def first_said(database: Database, newest: int, unfinished: Sequence[JobId] = ()) -> Iterator[tuple[JobId, Prediction]]:
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
        for part in chunks(sorted(ids), 500):
            statement = select(PREDICTIONS).where(predictions.id.in_(part)).order_by(predictions.id)
            for row in connection.execute(statement).mappings():
                yield JobId(row["job_id"]), prediction_of(row)
