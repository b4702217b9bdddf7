"""What the database knows of models and of training runs: plain statements, each a transaction of its own."""

from pathlib import Path

from sqlalchemy import func, insert, select, update

from predictor.registry import ModelState, ModelVersion
from service.db.session import Database
from service.db.tables import HISTORY, MODELS, TRAINING_RUNS


class LabelCounter:
    """How many jobs can be learnt from: those that ended after they had run. Looks at each row of the history once."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._counted = 0
        self._newest_id = 0

    def count(self) -> int:
        """All of them, now."""
        fresh = select(func.count(), func.max(HISTORY.c.id)).where(
            HISTORY.c.id > self._newest_id, HISTORY.c.service_s > 0.0
        )
        with self._database.reading() as session:
            counted, newest_id = session.connection().execute(fresh).one()
        self._counted += int(counted)
        self._newest_id = self._newest_id if newest_id is None else int(newest_id)
        return self._counted

    def count_until(self, ended_at_s: float) -> int:
        """Those that had ended by then."""
        counted = select(func.count()).select_from(HISTORY)
        counted = counted.where(HISTORY.c.service_s > 0.0, HISTORY.c.ended_at_s <= ended_at_s)
        with self._database.reading() as session:
            return int(session.connection().execute(counted).scalar_one())


def open_run(database: Database, now_s: float, trigger: str) -> int:
    """A training begins; returns its number. Until it ends, its detail says what set it off."""
    with database.writing() as session:
        statement = insert(TRAINING_RUNS).returning(TRAINING_RUNS.c.id)
        return int(session.connection().execute(statement, {"started_at_s": now_s, "detail": trigger}).scalar_one())


def run_outcomes(database: Database) -> dict[str, int]:
    """How many trainings have ended in which way."""
    counted = (
        select(TRAINING_RUNS.c.outcome, func.count())
        .where(TRAINING_RUNS.c.outcome.is_not(None))
        .group_by(TRAINING_RUNS.c.outcome)
    )
    with database.reading() as session:
        return {str(outcome): int(count) for outcome, count in session.connection().execute(counted)}


def note_pid(database: Database, run: int, pid: int) -> None:
    """The process that is at work for a run."""
    _set_run(database, run, pid=pid)


def close_run(database: Database, run: int, now_s: float, outcome: str, detail: str) -> None:
    """A training has ended."""
    _set_run(database, run, outcome=outcome, detail=detail, ended_at_s=now_s)


def close_lost_runs(database: Database, now_s: float) -> None:
    """The runs of a service that died have ended too."""
    values = {"outcome": "lost", "detail": "the service ended while it trained", "ended_at_s": now_s}
    with database.writing() as session:
        session.connection().execute(update(TRAINING_RUNS).where(TRAINING_RUNS.c.outcome.is_(None)).values(**values))


def _set_run(database: Database, run: int, **values: object) -> None:
    with database.writing() as session:
        session.connection().execute(update(TRAINING_RUNS).where(TRAINING_RUNS.c.id == run).values(**values))


def insert_version(database: Database, version: ModelVersion, now_s: float) -> None:
    """Put a model on record, as a candidate.

    Training on equal rows with an equal seed gives an equal model: the newer files take the older's place.
    """
    values = {
        "id": version.id,
        "kind": version.kind,
        "state": ModelState.CANDIDATE.value,
        "trained_until_s": version.trained_until_s,
        "rows": version.rows,
        "feature_schema": version.feature_schema,
        "libraries": dict(version.libraries),
        "metrics": dict(version.metrics),
        "sha256": version.sha256,
        "path": version.path,
        "created_at_s": now_s,
    }
    with database.writing() as session:
        connection = session.connection()
        if connection.execute(select(MODELS.c.id).where(MODELS.c.id == version.id)).first() is None:
            connection.execute(insert(MODELS), values)
        else:
            connection.execute(update(MODELS).where(MODELS.c.id == version.id).values(**values))


def crown(database: Database, model_id: str) -> None:
    """Make it the champion; the former one retires in the same transaction."""
    with database.writing() as session:
        connection = session.connection()
        former = (MODELS.c.state == ModelState.CHAMPION.value) & (MODELS.c.id != model_id)
        connection.execute(update(MODELS).where(former).values(state=ModelState.RETIRED.value))
        connection.execute(update(MODELS).where(MODELS.c.id == model_id).values(state=ModelState.CHAMPION.value))


def retire(database: Database, model_id: str) -> None:
    """It serves no more."""
    with database.writing() as session:
        statement = update(MODELS).where(MODELS.c.id == model_id).values(state=ModelState.RETIRED.value)
        session.connection().execute(statement)


def folders(database: Database) -> frozenset[str]:
    """The names of the folders that hold registered models."""
    paths = select(MODELS.c.path)
    with database.reading() as session:
        return frozenset(Path(path).name for path in session.connection().execute(paths).scalars())


def find_version(
    database: Database, *, model_id: str | None = None, state: ModelState | None = None
) -> ModelVersion | None:
    """A model by its id or its state."""
    statement = select(MODELS)
    if model_id is not None:
        statement = statement.where(MODELS.c.id == model_id)
    if state is not None:
        statement = statement.where(MODELS.c.state == state.value)
    with database.reading() as session:
        row = session.connection().execute(statement).mappings().first()
    if row is None:
        return None
    return ModelVersion(
        id=row["id"],
        kind=row["kind"],
        trained_until_s=row["trained_until_s"],
        rows=row["rows"],
        feature_schema=row["feature_schema"],
        libraries=row["libraries"],
        metrics=row["metrics"],
        sha256=row["sha256"],
        path=row["path"],
        promotable=True,
        state=ModelState(row["state"]),
    )
