"""Training as a scheduled job: export labels, train in a child process, replay, register, serve, promote.

If any step fails, the old champion stays. No model is trained within the process of the service.
"""

import json
import logging
import pickle
import shutil
import socket
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sqlalchemy.exc import DBAPIError

from policies.model.cluster import Cluster
from predictor.artifacts import ModelState, ModelVersion, load_version
from predictor.errors import ArtifactError
from predictor.rows import rows_to_jsonl
from predictor.serving import LivePredictor
from predictor.train_process import EXIT_TOO_FEW, load_result
from service.background.promotion import decide
from service.background.replay_models import Setup
from service.config.policy import configured_options
from service.config.settings import Settings
from service.db import lease as leases
from service.db import models as model_records
from service.db.history import HISTORY_ROWS_MAX, ended_jobs, last_imported
from service.db.session import Database
from service.engine.crash_points import CrashPoint, reached
from service.runtime.garbage import made_to_stay
from service.runtime.limited_process import Closed, LimitedRunner, ResourceLimits
from service.sim.experiment import SimulationOptions

logger = logging.getLogger(__name__)

LABELS_GROWTH_RATIO = 0.1
"""A retraining is due before the period when the new labels reach this share of the rows of the last training."""

NEW_LABELS_MIN = 20
"""Minimum number of new labels for a retraining before the period. With fewer it would repeat the last one."""

DRIFT_PAUSE_S = 3600.0
"""Minimum time between trainings that a drift alarm causes. Jobs have to end before there are new labels."""

TRAINING_LEASE = "training"

_LEASE_GRACE_S = 60.0

AGAIN_S = 1.0
"""Pause before the end of a training is recorded again, if the database does not answer, and before another look at a predictor
that is being warmed."""


class TrainingUnderWay(RuntimeError):
    """Another training is running."""


class UnknownModel(LookupError):
    """The model does not exist, or its files cannot be loaded."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    word: str
    detail: str = ""


_STOPPED = _Outcome("stopped", "the service was shut down")


class _Ended(Exception):
    """The training ends without a model."""

    def __init__(self, word: str, detail: str) -> None:
        super().__init__(detail)
        self.outcome = _Outcome(word, detail)


class Trainer:
    """Trains and promotes models. A training runs in a thread of its own; at most one per database runs at a time."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        predictor: LivePredictor,
        now_s: Callable[[], float],
        cluster: Cluster,
        warm: Callable[[], bool] = lambda: True,
    ) -> None:
        """``warm``: whether the predictor has read its history and learns of ends as they come."""
        self._database = database
        self._settings = settings
        self._predictor = predictor
        self._now_s = now_s
        self._cluster = cluster
        self._warm = warm
        self._models = settings.models_dir or settings.data_dir / "models"
        self._busy = threading.Lock()
        self._runner = LimitedRunner()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._labels = model_records.LabelCounter(database)
        self._labels_seen = 0
        self._rows_trained = 0
        self._imported_seen = 0
        self._last_started_s: float | None = None

    def recover(self) -> None:
        """At start: close the runs of a crashed service, delete its incomplete models, and load the champion."""
        model_records.close_lost_runs(self._database, self._now_s())
        self._imported_seen = last_imported(self._database)
        named = model_records.folders(self._database)
        for left in (*self._models.glob("run-*"), *self._models.glob(".run-*")):
            # Left by a training that was killed with its service: drafts, and models without a row.
            if left.name not in named:
                shutil.rmtree(left, ignore_errors=True)
        # Also that of a model which was not promoted: a restart is no reason to train the same once more.
        last_s = model_records.last_training_s(self._database)
        champion = model_records.find_version(self._database, state=ModelState.CHAMPION)
        if champion is not None:
            try:
                self._predictor.use(load_version(champion))
                last_s = champion.trained_until_s if last_s is None else last_s
            except ArtifactError as error:
                logger.warning(
                    "champion %s cannot be loaded and is retired; a new one will be trained: %s", champion.id, error
                )
                model_records.retire(self._database, champion.id)
                last_s = None
        if last_s is not None:
            self._last_started_s = last_s
            self._labels_seen = self._labels.count_until(last_s)
            self._rows_trained = min(self._labels_seen, self._settings.retrain_rows_max)

    def due(self) -> str:
        """The reason to start a training now; empty if there is none."""
        labels = self._labels.count()
        if labels < self._settings.retrain_jobs_min:
            return ""
        if self._last_started_s is None:
            return "first training"
        new, pause_s = labels - self._labels_seen, self._now_s() - self._last_started_s
        if pause_s >= self._settings.retrain_period_s:
            return "the retraining period has passed"
        if new < NEW_LABELS_MIN:
            return ""
        if new >= LABELS_GROWTH_RATIO * self._rows_trained:
            return f"{new:,} new labels"
        drifting = [unit for unit, alarm in self._predictor.status().drifting.items() if alarm]
        return f"drift of {', '.join(sorted(drifting))}" if drifting and pause_s >= DRIFT_PAUSE_S else ""

    def run_if_due(self) -> None:
        """The scheduled job: start a training if one is due."""
        reason = self.due()
        if reason:
            try:
                self.start(reason)
            except TrainingUnderWay as error:
                logger.info("training due (%s), but not started: %s", reason, error)

    def start(self, reason: str = "requested") -> int:
        """Start a training in the background; returns the run's id. Raises :class:`TrainingUnderWay`."""
        if not self._busy.acquire(blocking=False):
            raise TrainingUnderWay("a training is running")
        try:
            lease = self._lease()
            run = model_records.open_run(self._database, self._now_s(), reason)
            logger.info("training %s starts: %s", run, reason)
            self._thread = threading.Thread(target=self._train, args=(run, lease), name="training", daemon=True)
            self._thread.start()
        except BaseException:
            self._busy.release()
            raise
        return run

    def promote(self, model_id: str) -> None:
        """Serve a model and make it the champion; the one that serves keeps what it has learnt. Raises :class:`UnknownModel`."""
        version = model_records.find_version(self._database, model_id=model_id)
        if version is None:
            raise UnknownModel(f"there is no model {model_id!r}")
        if self._predictor.model(version.id) is None:
            try:
                self._predictor.use(load_version(version))
            except ArtifactError as error:
                raise UnknownModel(f"model {model_id!r} cannot be loaded: {error}") from error
        model_records.promote(self._database, version.id)

    def close(self) -> None:
        """Stop a running training and wait until its run is recorded as stopped. No training process starts afterwards."""
        self._closing.set()
        self._runner.close()
        if self._thread is not None:
            self._thread.join()

    # One training.

    def _lease(self) -> leases.Lease:
        """Take the training lease, so that one service trains at a time, also during a change of the leader."""
        holder = f"{socket.gethostname()}:{self._settings.data_dir}"
        lease = leases.acquire(
            self._database, TRAINING_LEASE, holder, self._settings.retrain_timeout_s + _LEASE_GRACE_S
        )
        if lease is None:
            raise TrainingUnderWay("another service is training on this database")
        return lease

    def _train(self, run: int, lease: leases.Lease) -> None:
        try:
            self._learn_imported()
            outcome = self._attempt(run, lease)
        except _Ended as ended:
            outcome = ended.outcome
        except Closed:
            outcome = _STOPPED
        except Exception as error:
            logger.exception("training %s failed", run)
            outcome = _Outcome("failed", str(error))
        try:
            logger.info("training %s: %s %s", run, outcome.word, outcome.detail)
            while not self._write_end(run, outcome, lease) and not self._closing.wait(AGAIN_S):
                pass
        finally:
            self._busy.release()

    def _write_end(self, run: int, outcome: _Outcome, lease: leases.Lease) -> bool:
        """Close the run; False if the database does not answer. The next leader closes runs that are left open."""
        try:
            model_records.close_run(self._database, run, self._now_s(), outcome.word, outcome.detail)
            leases.release(self._database, lease)
        except DBAPIError as error:
            logger.warning("the end of training %s could not be recorded: %s", run, " ".join(str(error).split()))
            return False
        return True

    def _learn_imported(self) -> None:
        """Let the predictor learn the history that was imported since its last read. Models predict from this history.

        Not while it is still warmed: it would add the jobs that it reads for that to the same jobs of this history.
        """
        newest = last_imported(self._database)
        if newest <= self._imported_seen:
            return
        while not self._warm():
            if self._closing.wait(AGAIN_S):
                raise Closed("the service stops")
        with made_to_stay():
            self._predictor.relearn(lambda: ended_jobs(self._database, newest=HISTORY_ROWS_MAX))
        self._imported_seen = newest

    def _attempt(self, run: int, lease: leases.Lease) -> _Outcome:
        self._last_started_s = self._now_s()
        deadline_s = time.monotonic() + self._settings.retrain_timeout_s
        self._models.mkdir(mode=0o700, exist_ok=True)
        name = f"run-{run}-{uuid.uuid4().hex[:8]}"
        work, out = self._models / f"{name}.work", self._models / name
        work.mkdir(mode=0o700)
        try:
            version = self._fit(run, work, out, deadline_s)
            reached(CrashPoint.MODEL_TRAINED)
            outcome, version = self._judge(version, work, deadline_s)
            if leases.renew(self._database, lease, _LEASE_GRACE_S) is None:
                raise _Ended("failed", "the training lease was lost to another service; its champion stays")
            self._register(version, promoted=outcome.word == "promoted")
            return outcome
        except BaseException:
            shutil.rmtree(out, ignore_errors=True)
            raise
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def _fit(self, run: int, work: Path, out: Path, deadline_s: float) -> ModelVersion:
        rows_file = work / "rows.jsonl.gz"
        self._labels_seen = self._labels.count()
        newest = self._settings.retrain_rows_max
        self._rows_trained = rows_to_jsonl(rows_file, ended_jobs(self._database, newest=newest))
        arguments = ["--input", str(rows_file), "--out", str(out), "--seed", str(run)]
        if self._settings.retrain_replay_jobs_max:
            arguments += ["--sheet", str(work / "sheet.jsonl.gz")]
            arguments += ["--sheet-jobs", str(self._settings.retrain_replay_jobs_max), *self._champion_arguments()]
        limits = self._limits(deadline_s)
        pid = self._runner.start("predictor.train_process", arguments, limits)
        model_records.set_run_pid(self._database, run, pid)
        ended = self._runner.wait(limits.wall_s)
        if ended.limit:
            raise _Ended("timeout" if ended.timed_out else "failed", f"{ended.limit}; the old champion stays")
        if ended.code != 0:
            raise _Ended("too_little" if ended.code == EXIT_TOO_FEW else "failed", ended.last_line)
        return load_result(out)

    def _champion_arguments(self) -> list[str]:
        champion = model_records.find_version(self._database, state=ModelState.CHAMPION)
        if champion is None:
            return []
        return ["--champion", champion.path, "--champion-sha256", champion.sha256]

    def _limits(self, deadline_s: float) -> ResourceLimits:
        left_s = max(1.0, deadline_s - time.monotonic())
        # The process runs on one thread, so its processor time cannot exceed its real time.
        return ResourceLimits(left_s, left_s, self._settings.retrain_memory_bytes_max)

    def _judge(self, version: ModelVersion, work: Path, deadline_s: float) -> tuple[_Outcome, ModelVersion]:
        """Check the gate, then replay. If the replay fails, the gate decides and the outcome states the failure."""
        if not version.promotable:
            detail = f"{version.id}: the gate refused it ({_refusal(version)}); what served before stays"
            return _Outcome("not_promoted", detail), version
        if not self._settings.retrain_replay_jobs_max:
            return _Outcome("promoted", _described(version)), version
        rehearsal = self._rehearse(work, deadline_s)
        if "mean_jct_s" not in rehearsal:
            detail = f"{_described(version)}; no replay: {rehearsal['failed']}"
            return _Outcome("promoted", detail), _with_replay(version, rehearsal)
        decision = decide(rehearsal)
        if decision.promoted:
            outcome = _Outcome("promoted", f"{_described(version)}; {decision.detail}")
        else:
            outcome = _Outcome("not_promoted", f"{version.id}: {decision.detail}; the current predictor stays")
        return outcome, _with_replay(version, {**rehearsal, "verdict": decision.detail})

    def _rehearse(self, work: Path, deadline_s: float) -> dict[str, Any]:
        settings = self._settings
        options = SimulationOptions(checkpoint_s=settings.checkpoint_s, restart_s=settings.restart_s)
        setup = Setup(settings.policy, configured_options(settings), self._cluster, options)
        (work / "setup").write_bytes(pickle.dumps(setup))
        files = [str(work / name) for name in ("sheet.jsonl.gz", "setup", "replay.json")]
        ended = self._runner.run("service.background.replay_models", files, self._limits(deadline_s))
        if ended.limit or ended.code != 0:
            reason = ended.limit or ended.last_line
            logger.warning("the replay of the candidate models failed: %s", reason)
            return {"failed": reason}
        found: dict[str, Any] = json.loads((work / "replay.json").read_text(encoding="utf-8"))
        return found

    def _register(self, version: ModelVersion, *, promoted: bool) -> None:
        model_records.insert_version(self._database, version, self._now_s())
        reached(CrashPoint.MODEL_REGISTERED)
        if promoted:
            # Serve before the promotion is recorded: clients that read the champion's row rely on its predictions.
            self._predictor.use(load_version(version))
            reached(CrashPoint.MODEL_SERVED)
            model_records.promote(self._database, version.id)
            reached(CrashPoint.MODEL_CROWNED)


def _described(version: ModelVersion) -> str:
    return f"{version.id} ({version.kind}) from {version.rows:,} ended jobs"


def _refusal(version: ModelVersion) -> str:
    """The criteria of the gate that the model failed, head by head: ``service_s: pinball 0.31 is above 1.01 x 0.29``."""
    return "; ".join(f"{unit}: {', '.join(head['verdict']['reasons'])}" for unit, head in version.metrics.items())


def _with_replay(version: ModelVersion, rehearsal: dict[str, Any]) -> ModelVersion:
    return replace(version, metrics={**version.metrics, "replay": rehearsal})
