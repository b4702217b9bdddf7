"""Rows of predictions. The numbers that the elements of an array have in common are stored once, in ``shared_predictions``."""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, RowMapping, Select, case, delete, select

from policies.model.estimate import Prediction
from policies.model.ids import JobId
from service.db.codec import encode_shadows
from service.db.dialects import insert_numbered, insert_rows
from service.db.rows import Values, prediction_of, prediction_values
from service.db.tables import PREDICTIONS, SHARED_PREDICTIONS

_DOCUMENTS = ("points", "features", "shadows")
_EMPTY: Values = {"points": [], "features": [], "shadows": encode_shadows(())}


class NewPrediction(NamedTuple):
    """A prediction to be stored; several jobs may have the very same one."""

    job: JobId
    prediction: Prediction


def insert_predictions(connection: Connection, new: Sequence[NewPrediction], cycle: int, made_at_s: float) -> None:
    """Insert one row for each, in their order."""
    alike: dict[int, list[NewPrediction]] = {}
    for each in new:
        alike.setdefault(id(each.prediction), []).append(each)
    values = {
        key: prediction_values(members[0].job, cycle, made_at_s, members[0].prediction)
        for key, members in alike.items()
    }
    shared = [key for key, members in alike.items() if len(members) > 1]
    numbers = insert_numbered(
        connection, SHARED_PREDICTIONS, [{name: values[key][name] for name in _DOCUMENTS} for key in shared]
    )
    for key, number in zip(shared, numbers, strict=True):
        values[key] |= {**_EMPTY, "shared_id": number}
    rows = [{"shared_id": None} | values[id(each.prediction)] | {"job_id": each.job} for each in new]
    insert_rows(connection, PREDICTIONS, rows)


def prediction_columns(names: Collection[str] | None = None) -> Select[Any]:
    """Select columns of predictions (None: all) with the shared numbers in their place; to be narrowed."""
    wanted = [column for column in PREDICTIONS.c if names is None or column.name in names]
    joined = PREDICTIONS.outerjoin(SHARED_PREDICTIONS, SHARED_PREDICTIONS.c.id == PREDICTIONS.c.shared_id)
    return select(*(_whole(column) if column.name in _DOCUMENTS else column for column in wanted)).select_from(joined)


def _whole(column: ColumnElement[Any]) -> ColumnElement[Any]:
    name = str(column.key)
    return case((PREDICTIONS.c.shared_id.is_(None), column), else_=SHARED_PREDICTIONS.c[name]).label(name)


class PredictionReader:
    """Makes predictions of rows with all columns. Rows that share their numbers share one value."""

    def __init__(self) -> None:
        self._shared: dict[int, Prediction] = {}

    def read(self, row: RowMapping) -> Prediction:
        """The prediction of a row."""
        number = row["shared_id"]
        if number is None:
            return prediction_of(row)
        if number not in self._shared:
            self._shared[number] = prediction_of(row)
        return self._shared[number]


def delete_unused_predictions(connection: Connection, shared: Collection[int]) -> None:
    """Delete those of these shared numbers that no prediction refers to any more."""
    if shared:
        used = select(PREDICTIONS.c.id).where(PREDICTIONS.c.shared_id == SHARED_PREDICTIONS.c.id)
        unused = ~used.correlate(SHARED_PREDICTIONS).exists()
        connection.execute(delete(SHARED_PREDICTIONS).where(SHARED_PREDICTIONS.c.id.in_(shared), unused))
