"""The trainer on a real database and in real training processes: when it starts, how it ends, and what serves afterwards."""

import gzip
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.exc import OperationalError

from policies.model.cluster import Cluster, Server
from policies.model.estimate import EndedJob, PredictionRequest, Unit
from predictor import artifacts
from predictor.artifacts import ModelState, model_version
from predictor.serving import LivePredictor, PredictorStatus
from service.background import retrain
from service.background.retrain import DRIFT_PAUSE_S, TRAINING_LEASE, Trainer, TrainingUnderWay
from service.config.settings import Settings, load_settings
from service.db import lease as leases
from service.db import models as model_records
from service.db.history import ImportedJob, ended_jobs, import_history
from service.db.session import Database
from service.db.tables import MODELS, TRAINING_RUNS
from service.server.warming import WarmingPredictor
from tests.unit.predictor.predictor_history import ended, recurring_history, small_model

CLUSTER = Cluster("two", (Server("s0", 4), Server("s1", 4)))
DAY_S = 86_400.0
UNUSABLE_S = 2e12
"""A job of so many seconds is no label: a training process that is given such jobs ends at once, for want of any."""


class Drifting(LivePredictor):
    """One whose errors have grown."""

    def status(self) -> PredictorStatus:
        return replace(super().status(), drifting={Unit.SERVICE_S: True, Unit.ITERATIONS: False})


class Now:
    """A clock that stands where it is put."""

    def __init__(self) -> None:
        self.s = 1e9

    def __call__(self) -> float:
        return self.s


@pytest.fixture
def now() -> Now:
    return Now()


@pytest.fixture
def trainer(database: Database, tmp_path: Path, now: Now) -> Iterator[Trainer]:
    trainer = _trainer(database, tmp_path, now)
    yield trainer
    trainer.close()


def _trainer(
    database: Database, folder: Path, now: Now, predictor: LivePredictor | None = None, **more: object
) -> Trainer:
    settings: Settings = load_settings(
        {"data_dir": folder, "retrain_jobs_min": 20, "retrain_rows_max": 200, "policy": "sjf", **more}
    )
    return Trainer(database, settings, predictor or LivePredictor(), now, CLUSTER)


def _learn(database: Database, jobs: int, service_s: float = UNUSABLE_S, first: int = 0) -> None:
    """So many more labels."""
    labels = (ended(job, None, submitted_at_s=float(job), service_s=service_s) for job in range(first, first + jobs))
    _store(database, labels, first)


def _store(database: Database, labels: Iterator[EndedJob] | list[EndedJob], first: int = 0) -> None:
    with database.writing() as session:
        import_history(session, "test", (ImportedJob(str(first + n), label) for n, label in enumerate(labels)))


def _run(database: Database, run: int) -> dict[str, object]:
    with database.reading() as session:
        return dict(
            session.connection().execute(select(TRAINING_RUNS).where(TRAINING_RUNS.c.id == run)).mappings().one()
        )


def _finish(trainer: Trainer, run: int, database: Database) -> dict[str, object]:
    """Wait for its end."""
    assert trainer._thread is not None
    trainer._thread.join(600.0)
    assert not trainer._thread.is_alive()
    return _run(database, run)


def _pid(database: Database, run: int) -> int:
    deadline_s = time.monotonic() + 60.0
    while (pid := _run(database, run)["pid"]) is None:
        assert time.monotonic() < deadline_s
        os.sched_yield()
    assert isinstance(pid, int)
    return pid


def _crown_stored(database: Database, folder: Path) -> str:
    """A champion from earlier."""
    out = folder / "models" / "earlier"
    digest = artifacts.save(small_model(), out)
    version = model_version(small_model(), out, digest)
    model_records.insert_version(database, version, 0.0)
    model_records.promote(database, version.id)
    return version.id


def test_the_first_training_is_due_when_enough_jobs_have_ended(database: Database, trainer: Trainer) -> None:
    _learn(database, 19)
    assert trainer.due() == ""
    _learn(database, 1, first=19)
    assert trainer.due() == "first training"


def test_imported_history_is_used_by_the_next_training(database: Database, tmp_path: Path, now: Now) -> None:
    predictor = LivePredictor()
    trainer = _trainer(database, tmp_path, now, predictor)
    trainer.recover()
    _store(database, [ended(n, None, name="digits", submitted_at_s=float(n), service_s=60.0) for n in range(5)])
    assert predictor.status().known_jobs[Unit.SERVICE_S] == 0
    _finish(trainer, trainer.start(), database)
    assert predictor.status().known_jobs[Unit.SERVICE_S] == 5
    # Its own ends are not learnt twice when the next training finds nothing new.
    predictor.ended(ended(9, None, name="digits", submitted_at_s=9.0, service_s=60.0))
    _finish(trainer, trainer.start(), database)
    assert predictor.status().known_jobs[Unit.SERVICE_S] == 6
    trainer.close()


def test_imported_history_is_learnt_once_while_the_predictor_is_warmed(
    database: Database, tmp_path: Path, now: Now
) -> None:
    """A training begins while the history is read at the start, after an import. The jobs of both are the same."""
    predictor, reading, looked = LivePredictor(), threading.Event(), threading.Event()
    warming = WarmingPredictor(predictor)

    def read() -> Iterator[EndedJob]:
        yield from list(ended_jobs(database))
        reading.set()
        assert looked.wait(60.0)

    def warm() -> bool:
        looked.set()
        return warming.warm

    settings = load_settings({"data_dir": tmp_path, "retrain_jobs_min": 20, "policy": "sjf"})
    trainer = Trainer(database, settings, predictor, now, CLUSTER, warm)
    trainer.recover()
    _store(database, [ended(n, None, name="digits", submitted_at_s=float(n), service_s=60.0) for n in range(5)])
    warmed = threading.Thread(target=warming.warm_with, args=(lambda: predictor.warm(read()),))
    warmed.start()
    assert reading.wait(60.0)
    # Its end is stored and so in both reads; the predictor hears of it while it is warmed.
    late = ended(5, None, name="digits", submitted_at_s=5.0, service_s=60.0)
    _store(database, [late], 5)
    [stored] = [each for each in ended_jobs(database) if each.submitted_at_s == 5.0]
    warming.ended(stored)
    run = trainer.start()
    _finish(trainer, run, database)
    warmed.join(60.0)
    assert predictor.status().known_jobs[Unit.SERVICE_S] == 6
    trainer.close()


def test_a_training_that_waits_for_the_predictor_ends_with_the_service(
    database: Database, tmp_path: Path, now: Now
) -> None:
    looked = threading.Event()

    def warm() -> bool:
        looked.set()
        return False

    settings = load_settings({"data_dir": tmp_path, "policy": "sjf"})
    trainer = Trainer(database, settings, LivePredictor(), now, CLUSTER, warm)
    _store(database, [ended(0, None, service_s=60.0)])
    run = trainer.start()
    assert looked.wait(60.0)
    trainer.close()
    assert _run(database, run)["outcome"] == "stopped"


def test_labels_are_counted_once_and_exclude_jobs_that_never_ran(database: Database) -> None:
    counter = model_records.LabelCounter(database)
    assert counter.count() == 0
    _learn(database, 5)
    _learn(database, 2, service_s=0.0, first=5)
    assert (counter.count(), counter.count()) == (5, 5)
    _learn(database, 3, first=7)
    assert counter.count() == 8 == model_records.LabelCounter(database).count()
    # They all end as many seconds after their submission, at 0, 1, 2 ... s.
    assert counter.count_until(UNUSABLE_S + 3.0) == 4


def test_a_training_is_due_when_new_labels_reach_a_tenth_of_its_rows(
    database: Database, trainer: Trainer, now: Now
) -> None:
    """Of 300 jobs it learns from the newest 200: 30 more are a tenth of neither all nor too few, 19 would be."""
    _learn(database, 300)
    run = _finish(trainer, trainer.start(), database)
    assert (run["outcome"], run["detail"]) == (
        "too_little",
        "a training needs at least 100 labelled jobs (got 0)",
    )
    assert trainer.due() == "", "nothing is new although there are more labels than it may learn from"
    _learn(database, 19, first=300)
    assert trainer.due() == ""
    _learn(database, 1, first=319)
    assert trainer.due() == "20 new labels"
    now.s += DAY_S
    assert trainer.due() == "the retraining period has passed"


def test_a_restart_repeats_no_training_whether_its_model_was_promoted_or_not(
    database: Database, tmp_path: Path, now: Now
) -> None:
    """The champion has learnt jobs that ended days ago, and the newer model was refused an hour before the restart."""
    _crown_stored(database, tmp_path)
    _learn(database, 100, service_s=60.0)
    last = model_records.open_run(database, now.s - 3600.0, "requested")
    model_records.close_run(database, last, now.s - 3500.0, "not_promoted", "the gate refused it")
    lost = model_records.open_run(database, now.s - 60.0, "requested")
    trainer = _trainer(database, tmp_path, now)
    trainer.recover()
    assert _run(database, lost)["outcome"] == "lost"
    assert trainer.due() == ""
    _learn(database, 20, first=100)
    assert trainer.due() == "20 new labels"
    now.s += DAY_S - 3600.0
    assert trainer.due() == "the retraining period has passed"


def test_drift_makes_a_training_due_with_new_labels_and_after_a_pause(
    database: Database, tmp_path: Path, now: Now
) -> None:
    trainer = _trainer(database, tmp_path, now, Drifting(), retrain_rows_max=1000)
    _learn(database, 300)
    run = trainer.start("first training")
    assert _run(database, run)["detail"] == "first training"
    _finish(trainer, run, database)
    now.s += DRIFT_PAUSE_S
    assert trainer.due() == ""
    _learn(database, 20, first=300)
    assert trainer.due() == "drift of service_s"
    now.s -= 1.0
    assert trainer.due() == ""
    trainer.close()


def test_two_services_run_one_training_at_a_time(database: Database, tmp_path: Path, now: Now) -> None:
    _learn(database, 30)
    first, second = _trainer(database, tmp_path / "a", now), _trainer(database, tmp_path / "b", now)
    for trainer in (first, second):
        trainer._models.parent.mkdir()
    run = first.start()
    with pytest.raises(TrainingUnderWay, match="a training is running"):
        first.start()
    with pytest.raises(TrainingUnderWay, match="another service is training on this database"):
        second.start()
    _finish(first, run, database)
    assert _finish(second, second.start(), database)["outcome"] == "too_little"
    first.close()
    second.close()


def test_a_killed_training_keeps_the_champion(database: Database, tmp_path: Path, now: Now) -> None:
    champion = _crown_stored(database, tmp_path)
    _store(database, recurring_history(200, reports=False))
    predictor = LivePredictor()
    trainer = _trainer(database, tmp_path, now, predictor)
    trainer.recover()
    assert predictor.status().model_version == champion
    run = trainer.start()
    os.kill(_pid(database, run), signal.SIGKILL)
    closed = _finish(trainer, run, database)
    assert (closed["outcome"], closed["detail"]) == ("failed", "ended by signal 9")
    assert predictor.status().model_version == champion
    found = model_records.find_version(database, state=ModelState.CHAMPION)
    assert found is not None
    assert found.id == champion
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["earlier"], "no half model stays"
    trainer.close()


def test_a_training_that_fails_unforeseen_is_not_one_of_too_few_jobs(
    database: Database, tmp_path: Path, now: Now, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python ends a program with exit code 1 after any exception, such as that of a full disk or of a file that is cut short."""

    def cut_short(path: Path, labels: object) -> int:
        path.write_bytes(gzip.compress(b"{}")[:15])
        return 0

    monkeypatch.setattr(retrain, "rows_to_jsonl", cut_short)
    trainer = _trainer(database, tmp_path, now)
    closed = _finish(trainer, trainer.start(), database)
    assert closed["outcome"] == "failed"
    assert str(closed["detail"]).startswith("EOFError")
    trainer.close()


def test_a_training_beyond_its_time_limit_is_stopped(database: Database, tmp_path: Path, now: Now) -> None:
    trainer = _trainer(database, tmp_path, now, retrain_timeout_s=1.0)
    _store(database, recurring_history(200, reports=False))
    run = trainer.start()
    with suppress(ProcessLookupError):  # its second may be over
        os.kill(_pid(database, run), signal.SIGSTOP)  # a fast machine trains in a second
    closed = _finish(trainer, run, database)
    assert closed["outcome"] == "timeout"
    assert closed["detail"] == "stopped after 1 s (retrain_timeout_s); the old champion stays"
    trainer.close()


def test_the_end_of_a_training_is_recorded_after_a_database_outage(
    database: Database, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    close, away = model_records.close_run, [1, 1]

    def close_run(*arguments: Any) -> None:
        if away:
            away.pop()
            raise OperationalError("BEGIN", None, Exception("the database is away"))
        close(*arguments)

    def fit(*_: Any) -> None:
        raise ValueError("nothing to learn from")

    monkeypatch.setattr(model_records, "close_run", close_run)
    monkeypatch.setattr(retrain, "AGAIN_S", 0.0)
    monkeypatch.setattr(trainer, "_fit", fit)
    first = trainer.start()
    assert _finish(trainer, first, database)["outcome"] == "failed"
    assert _finish(trainer, trainer.start(), database)["outcome"] == "failed", "and the next one may begin"
    monkeypatch.setattr(retrain, "AGAIN_S", 3600.0)
    away += [1, 1]
    left = trainer.start()
    trainer.close()
    assert _run(database, left)["outcome"] is None, "nobody waits for a database at the end"


def test_closing_the_service_ends_its_training(database: Database, tmp_path: Path, now: Now) -> None:
    trainer = _trainer(database, tmp_path, now)
    _store(database, recurring_history(200, reports=False))
    run = trainer.start()
    trainer.close()
    assert _run(database, run)["outcome"] == "stopped"
    assert list((tmp_path / "models").iterdir()) == []


def test_after_a_crash_the_run_is_closed_and_its_files_are_deleted(
    database: Database, tmp_path: Path, now: Now
) -> None:
    run = model_records.open_run(database, now(), "first training")
    lease = leases.acquire(database, TRAINING_LEASE, "elsewhere:/gone", 0.0)
    assert lease is not None
    for name in ("run-1-aa.work", ".run-1-aa-draft"):
        (tmp_path / "models" / name).mkdir(parents=True)
    trainer = _trainer(database, tmp_path, now)
    trainer.recover()
    closed = _run(database, run)
    assert (closed["outcome"], closed["detail"]) == ("lost", "the service ended during the training")
    assert list((tmp_path / "models").iterdir()) == []
    _learn(database, 30)
    assert _finish(trainer, trainer.start(), database)["outcome"] == "too_little"
    trainer.close()


def test_a_damaged_champion_is_retired_and_history_serves(database: Database, tmp_path: Path, now: Now) -> None:
    champion = _crown_stored(database, tmp_path)
    (tmp_path / "models" / "earlier" / "service_s.xgboost.ubj").write_bytes(b"garbage")
    predictor = LivePredictor()
    trainer = _trainer(database, tmp_path, now, predictor)
    trainer.recover()
    assert predictor.status().model_version == ""
    found = model_records.find_version(database, model_id=champion)
    assert found is not None
    assert found.state is ModelState.RETIRED


def test_promoting_the_model_that_serves_forgets_nothing_of_what_it_learnt(
    database: Database, tmp_path: Path, now: Now
) -> None:
    champion = _crown_stored(database, tmp_path)
    predictor = LivePredictor()
    trainer = _trainer(database, tmp_path, now, predictor)
    trainer.recover()
    predictor.warm([])
    for job in recurring_history(30, seed=1, reports=False):
        predictor.predict(job.submitted_at_s, [PredictionRequest(job.job, job.spec, job.submitted_at_s)])
        predictor.ended(job)
    before = predictor.status()
    trainer.promote(champion)
    assert predictor.status() == before
    assert model_records.find_version(database, model_id=champion, state=ModelState.CHAMPION) is not None


@pytest.mark.slow
def test_a_refused_model_is_recorded_with_the_criteria_that_it_failed(
    database: Database, tmp_path: Path, now: Now
) -> None:
    """Of equal totals a baseline knows all."""
    _learn(database, 120, service_s=0.5)
    trainer = _trainer(database, tmp_path, now)
    closed = _finish(trainer, trainer.start(), database)
    assert closed["outcome"] == "not_promoted"
    detail = str(closed["detail"])
    assert "the gate refused it (service_s: " in detail
    assert "all totals of the test are equal, so that there is nothing to rank" in detail
    assert detail.endswith("); what served before stays")
    trainer.close()


@pytest.mark.slow
def test_a_good_model_is_promoted_after_its_jobs_were_replayed(database: Database, tmp_path: Path, now: Now) -> None:
    """400 jobs of which the models are known to pass the gate; then the same once more, with a champion to beat."""
    _store(database, recurring_history(400, reports=False))
    predictor = LivePredictor()
    trainer = _trainer(database, tmp_path, now, predictor, retrain_rows_max=1000)
    first = _finish(trainer, trainer.start(), database)
    second = _finish(trainer, trainer.start(), database)
    assert [first["outcome"], second["outcome"]] == ["promoted", "promoted"]
    with database.reading() as session:
        rows = session.connection().execute(select(MODELS)).mappings().all()
    old, new = sorted(rows, key=lambda row: row["state"] == "champion")
    assert (old["state"], new["state"]) == ("retired", "champion")
    assert predictor.status().model_version == new["id"]
    for row, run, arms in ((old, first, {"baselines", "new"}), (new, second, {"baselines", "new", "champion"})):
        replay = row["metrics"]["replay"]
        assert str(run["detail"]).endswith(replay["verdict"])
        assert (replay["policy"], replay["jobs"], replay["skipped"]) == ("sjf", 160, 0)
        assert set(replay["mean_jct_s"]) == arms
    assert not list((tmp_path / "models").glob("*.work"))
    trainer.close()
