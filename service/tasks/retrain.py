"""Training as a scheduled job: export labels, train in a process of its own, register, promote, swap.

The old champion stays whatever goes wrong here, and nothing is trained inside the service's process.
"""

import logging
import os
import shutil
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import func, insert, select, update

from predictor.errors import ArtifactError
from predictor.registry import ModelState, ModelVersion, load_version
from predictor.rows import rows_to_jsonl
from predictor.serving import LivePredictor
from predictor.train_process import load_result
from service.db.history import ended_jobs
from service.db.session import Database
from service.db.tables import HistoryRow, ModelVersionRow, TrainingRunRow, table
from service.settings import Settings

logger = logging.getLogger(__name__)

LABELS_GROWTH_RATIO = 1.1
"""A retraining before its time is due when the labels have grown by this factor."""

_TOO_LITTLE = 1
"""Exit code of the training process where there is too little to learn from."""

_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class TrainingUnderWay(RuntimeError):
    """One training at a time."""


class UnknownModel(LookupError):
    """There is no such model, or its files cannot be used any more."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    word: str
    detail: str = ""


_STOPPED = _Outcome("stopped", "the service was shut down")


class Trainer:
    """Trains and promotes. ``start`` runs in a thread of its own; at most one training is under way."""

    def __init__(
        self, database: Database, settings: Settings, predictor: LivePredictor, now_s: Callable[[], float]
    ) -> None:
        self._database = database
        self._settings = settings
        self._predictor = predictor
        self._now_s = now_s
        self._models = settings.data_dir / "models"
        self._busy = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._launching = threading.Lock()
        self._labels_trained = 0
        self._last_started_s: float | None = None

    def recover(self) -> None:
        """At start: close the runs of a service that died, and take the champion back."""
        runs = table(TrainingRunRow)
        lost = update(runs).where(runs.c.outcome.is_(None)).values(outcome="lost", ended_at_s=self._now_s())
        with self._database.writing() as session:
            session.connection().execute(lost)
        champion = self._row(state=ModelState.CHAMPION)
        if champion is not None:
            try:
                self._predictor.use(load_version(champion))
                self._labels_trained = champion.rows
                self._last_started_s = champion.trained_until_s
            except ArtifactError as error:
                logger.warning("champion %s is refused, a new one will be trained: %s", champion.id, error)
                self._set_state(champion.id, ModelState.RETIRED)

    def due(self) -> bool:
        """Whether a training should start by itself."""
        labels = self._labels()
        if labels < self._settings.retrain_jobs_min:
            return False
        if self._last_started_s is None or self._now_s() - self._last_started_s >= self._settings.retrain_period_s:
            return True
        return labels >= self._labels_trained * LABELS_GROWTH_RATIO and labels > self._labels_trained + 20

    def run_if_due(self) -> None:
        """The scheduled job."""
        if self.due():
            try:
                self.start()
            except TrainingUnderWay:
                logger.info("a training is under way already")

    def start(self) -> int:
        """Start a training in the background; returns the run's id. Raises :class:`TrainingUnderWay`."""
        if not self._busy.acquire(blocking=False):
            raise TrainingUnderWay("a training is under way")
        try:
            run = self._open_run()
            self._thread = threading.Thread(target=self._train, args=(run,), name="training", daemon=True)
            self._thread.start()
        except BaseException:
            self._busy.release()
            raise
        return run

    def promote(self, model_id: str) -> None:
        """Make a model the champion. Raises :class:`UnknownModel`."""
        version = self._row(model_id=model_id)
        if version is None:
            raise UnknownModel(f"there is no model {model_id!r}")
        try:
            model = load_version(version)
        except ArtifactError as error:
            raise UnknownModel(f"model {model_id!r} cannot be used: {error}") from error
        self._predictor.use(model)
        self._crown(version.id)

    def close(self) -> None:
        """End a training that is under way, and wait until its run is closed as stopped. Nothing starts afterwards."""
        with self._launching:
            self._closing.set()
            if self._process is not None:
                self._process.kill()
        if self._thread is not None:
            self._thread.join()

    # One training.

    def _train(self, run: int) -> None:
        try:
            outcome = self._attempt(run)
        except Exception as error:
            logger.exception("training %s failed", run)
            outcome = _Outcome("failed", str(error))
        finally:
            self._process = None
            self._busy.release()
        self._close_run(run, outcome)

    def _attempt(self, run: int) -> _Outcome:
        self._last_started_s = self._now_s()
        self._models.mkdir(mode=0o700, exist_ok=True)
        work = self._models / f"run-{run}-{uuid.uuid4().hex[:8]}"
        rows_file = work.with_suffix(".jsonl.gz")
        try:
            rows = rows_to_jsonl(rows_file, ended_jobs(self._database, newest=self._settings.retrain_rows_max))
            self._labels_trained = rows
            failure = self._run_process(run, rows_file, work)
            if failure is not None:
                shutil.rmtree(work, ignore_errors=True)
                return failure
            return self._register(load_result(work))
        finally:
            rows_file.unlink(missing_ok=True)

    def _run_process(self, run: int, rows_file: Path, out: Path) -> _Outcome | None:
        """The training process; None if it left a model."""
        command = [sys.executable, "-m", "predictor.train_process", "--input", str(rows_file), "--out", str(out)]
        with self._launching:
            # Either the close that comes now sees the process, or the process is never made.
            if self._closing.is_set():
                return _STOPPED
            process = self._process = subprocess.Popen(
                [*command, "--seed", str(run)],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                stdin=subprocess.DEVNULL,
                text=True,
                env={**os.environ, **_ONE_THREAD},
                start_new_session=True,
            )
        self._note_pid(run, process.pid)
        try:
            _, said = process.communicate(timeout=self._settings.retrain_timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return _Outcome("timeout", f"stopped after {self._settings.retrain_timeout_s:g} s (retrain_timeout_s)")
        if self._closing.is_set():
            return _STOPPED
        if process.returncode == 0:
            return None
        detail = said.strip().splitlines()[-1] if said.strip() else f"exit code {process.returncode}"
        return _Outcome("too_little" if process.returncode == _TOO_LITTLE else "failed", detail)

    def _register(self, version: ModelVersion) -> _Outcome:
        self._insert(version)
        if not version.promotable:
            return _Outcome("not_promoted", f"{version.id}: no model passed the gate; the old champion stays")
        # Serving comes first: whoever sees the champion's row may count on its predictions.
        self._predictor.use(load_version(version))
        self._crown(version.id)
        return _Outcome("promoted", f"{version.id} ({version.kind}) from {version.rows} ended jobs")

    # Rows.

    def _labels(self) -> int:
        history = table(HistoryRow)
        with self._database.reading() as session:
            counted = session.connection().execute(
                select(func.count()).select_from(history).where(history.c.service_s > 0.0)
            )
            return int(counted.scalar_one())

    def _open_run(self) -> int:
        statement = insert(table(TrainingRunRow)).returning(table(TrainingRunRow).c.id)
        with self._database.writing() as session:
            return int(session.connection().execute(statement, {"started_at_s": self._now_s()}).scalar_one())

    def _note_pid(self, run: int, pid: int) -> None:
        runs = table(TrainingRunRow)
        with self._database.writing() as session:
            session.connection().execute(update(runs).where(runs.c.id == run).values(pid=pid))

    def _close_run(self, run: int, outcome: _Outcome) -> None:
        logger.info("training %s: %s %s", run, outcome.word, outcome.detail)
        runs = table(TrainingRunRow)
        values = {"outcome": outcome.word, "detail": outcome.detail, "ended_at_s": self._now_s()}
        with self._database.writing() as session:
            session.connection().execute(update(runs).where(runs.c.id == run).values(**values))

    def _insert(self, version: ModelVersion) -> None:
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
            "created_at_s": self._now_s(),
        }
        models = table(ModelVersionRow)
        with self._database.writing() as session:
            connection = session.connection()
            # Training on equal rows with an equal seed gives an equal model: the newer files take the older's place.
            if connection.execute(select(models.c.id).where(models.c.id == version.id)).first() is None:
                connection.execute(insert(models), values)
            else:
                connection.execute(update(models).where(models.c.id == version.id).values(**values))

    def _crown(self, model_id: str) -> None:
        models = table(ModelVersionRow)
        with self._database.writing() as session:
            connection = session.connection()
            former = (models.c.state == ModelState.CHAMPION.value) & (models.c.id != model_id)
            connection.execute(update(models).where(former).values(state=ModelState.RETIRED.value))
            connection.execute(update(models).where(models.c.id == model_id).values(state=ModelState.CHAMPION.value))

    def _set_state(self, model_id: str, state: ModelState) -> None:
        models = table(ModelVersionRow)
        with self._database.writing() as session:
            session.connection().execute(update(models).where(models.c.id == model_id).values(state=state.value))

    def _row(self, *, model_id: str | None = None, state: ModelState | None = None) -> ModelVersion | None:
        models = table(ModelVersionRow)
        statement = select(models)
        if model_id is not None:
            statement = statement.where(models.c.id == model_id)
        if state is not None:
            statement = statement.where(models.c.state == state.value)
        with self._database.reading() as session:
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
