"""Trained models and training runs in the database. Each function is a transaction of its own."""

from dataclasses import asdict
from pathlib import Path

from sqlalchemy import func, insert, select, update

from predictor.artifacts import ModelState, ModelVersion
from service.db.dialects import upsert
from service.db.session import Database
from service.db.tables import HISTORY, MODELS, TRAINING_RUNS, columns

_RAN = HISTORY.c.service_s > 0.0
_VERSION = columns(MODELS, "id kind trained_until_s rows feature_schema libraries metrics sha256 path state")


class LabelCounter:
    """Counts the jobs to train on: those that ended after they had run. Reads each row of the history once."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._counted = 0
        self._newest_id = 0

    def count(self) -> int:
        """The number of such jobs now."""
        new = select(func.count(), func.max(HISTORY.c.id)).where(HISTORY.c.id > self._newest_id, _RAN)
        counted, newest_id = self._database.rows(new)[0]
        self._counted += int(counted)
        self._newest_id = self._newest_id if newest_id is None else int(newest_id)
        return self._counted

    def count_until(self, ended_at_s: float) -> int:
        """The number of such jobs that had ended by then."""
        counted = select(func.count()).select_from(HISTORY).where(_RAN, HISTORY.c.ended_at_s <= ended_at_s)
        return int(self._database.value(counted))


def open_run(database: Database, now_s: float, trigger: str) -> int:
    """Insert a training run and return its number. ``trigger`` is its detail until it ends."""
    with database.writing() as session:
        statement = insert(TRAINING_RUNS).values(started_at_s=now_s, detail=trigger).returning(TRAINING_RUNS.c.id)
        return int(session.connection().execute(statement).scalar_one())


def last_training_s(database: Database) -> float | None:
    """When the last training began that left a model, promoted or not; None without one."""
    left_a_model = TRAINING_RUNS.c.outcome.in_(("promoted", "not_promoted"))
    found: float | None = database.value(select(func.max(TRAINING_RUNS.c.started_at_s)).where(left_a_model))
    return found


def run_outcomes(database: Database) -> dict[str, int]:
    """The number of training runs with each outcome."""
    outcome = TRAINING_RUNS.c.outcome
    counted = select(outcome, func.count()).where(outcome.is_not(None)).group_by(outcome)
    return {str(row[0]): int(row[1]) for row in database.rows(counted)}


def set_run_pid(database: Database, run: int, pid: int) -> None:
    """Store the process that trains."""
    database.execute(update(TRAINING_RUNS).where(TRAINING_RUNS.c.id == run).values(pid=pid))


def close_run(database: Database, run: int, now_s: float, outcome: str, detail: str) -> None:
    """Store how a training run ended."""
    values = {"outcome": outcome, "detail": detail, "ended_at_s": now_s}
    database.execute(update(TRAINING_RUNS).where(TRAINING_RUNS.c.id == run).values(values))


def close_lost_runs(database: Database, now_s: float) -> None:
    """Close the training runs of a service that ended while they ran."""
    values = {"outcome": "lost", "detail": "the service ended during the training", "ended_at_s": now_s}
    database.execute(update(TRAINING_RUNS).where(TRAINING_RUNS.c.outcome.is_(None)).values(values))


def insert_version(database: Database, version: ModelVersion, now_s: float) -> None:
    """Store a model as a candidate.

    Training on equal rows with an equal seed gives an equal model: the newer files replace the older ones.
    """
    values = {name: value for name, value in asdict(version).items() if name in MODELS.c}
    values |= {"state": ModelState.CANDIDATE.value, "created_at_s": now_s}
    with database.writing() as session:
        upsert(session.connection(), MODELS, [values])


def promote(database: Database, model_id: str) -> None:
    """Make a model the champion; the former champion is retired in the same transaction."""
    with database.writing() as session:
        connection = session.connection()
        former = (MODELS.c.state == ModelState.CHAMPION.value) & (MODELS.c.id != model_id)
        connection.execute(update(MODELS).where(former).values(state=ModelState.RETIRED.value))
        connection.execute(update(MODELS).where(MODELS.c.id == model_id).values(state=ModelState.CHAMPION.value))


def retire(database: Database, model_id: str) -> None:
    """Retire a model."""
    database.execute(update(MODELS).where(MODELS.c.id == model_id).values(state=ModelState.RETIRED.value))


def folders(database: Database) -> frozenset[str]:
    """The names of the folders that hold stored models."""
    return frozenset(Path(path).name for [path] in database.rows(select(MODELS.c.path)))


def find_version(
    database: Database, *, model_id: str | None = None, state: ModelState | None = None
) -> ModelVersion | None:
    """A model by its id or its state, or None."""
    statement = select(*_VERSION)
    if model_id is not None:
        statement = statement.where(MODELS.c.id == model_id)
    if state is not None:
        statement = statement.where(MODELS.c.state == state.value)
    found = database.rows(statement.limit(1))
    if not found:
        return None
    values = found[0]._asdict()
    return ModelVersion(**values | {"state": ModelState(values["state"]), "promotable": True})
