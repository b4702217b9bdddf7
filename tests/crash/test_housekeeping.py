"""Death in the middle of what nobody waits for: deleting files of ended jobs, and putting a new model in place."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import select, update

from policies.model.ids import JobId
from policies.model.job import JobSpec
from predictor.artifacts import ModelState
from predictor.serving import LivePredictor
from service.background.prune import prune
from service.config.settings import load_settings
from service.db import models as model_records
from service.db.history import ImportedJob, import_history
from service.db.session import Database
from service.db.store import SqlStore
from service.db.tables import JOBS, MODELS, TRAINING_RUNS
from service.engine.crash_points import CrashPoint
from tests.crash.dying import Crash, Death, dying
from tests.crash.train import trainer_of
from tests.unit.predictor.predictor_history import recurring_history

ROOT = Path(__file__).parents[2]


def test_files_that_were_deleted_before_a_death_are_marked_by_the_next_pass(database: Database, tmp_path: Path) -> None:
    with database.writing() as session:
        ids = SqlStore(database).submit(session, [JobSpec(f"j{n}", "ada", 1) for n in range(5)], 0.0)
        session.connection().execute(update(JOBS).values(finished_at_s=1.0, state="succeeded"))
    settings = load_settings({"data_dir": tmp_path, "prune_rows_max": 2, "logs_kept_s": 10.0})
    deleted: list[JobId] = []
    with dying(Death(CrashPoint.FILES_DELETED, 2)), pytest.raises(Crash):
        prune(database, settings, 1e6, deleted.extend)
    assert sorted(deleted) == ids[:4]
    assert _marked(database) == ids[:2]
    prune(database, settings, 1e6, deleted.extend)
    assert sorted(deleted) == sorted([*ids, *ids[2:4]]), "deleting twice is all that a death costs"
    assert _marked(database) == ids


def _marked(database: Database) -> list[JobId]:
    with database.reading() as session:
        marked = select(JOBS.c.id).where(JOBS.c.files_deleted_at_s.is_not(None)).order_by(JOBS.c.id)
        return [JobId(number) for number in session.connection().execute(marked).scalars()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "rows", "champions"),
    [
        (CrashPoint.MODEL_TRAINED, 0, 0),
        (CrashPoint.MODEL_REGISTERED, 1, 0),
        (CrashPoint.MODEL_SERVED, 1, 0),
        (CrashPoint.MODEL_CROWNED, 1, 1),
    ],
)
def test_death_while_a_model_takes_its_place(
    database: Database, tmp_path: Path, point: CrashPoint, rows: int, champions: int
) -> None:
    """What serves afterwards is what the database calls champion; the run is closed; no files are left that no row names."""
    with database.writing() as session:
        labels = enumerate(recurring_history(150, reports=False))
        import_history(session, "test", (ImportedJob(str(n), label) for n, label in labels))
    command = [sys.executable, "-m", "tests.crash.train", str(tmp_path), point.value]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == -signal.SIGKILL

    predictor = LivePredictor()
    trainer = trainer_of(database, tmp_path, predictor)
    trainer.recover()
    champion = model_records.find_version(database, state=ModelState.CHAMPION)
    assert (champion is not None) == bool(champions)
    assert predictor.status().model_version == (champion.id if champion is not None else "")
    with database.reading() as session:
        connection = session.connection()
        runs = connection.execute(select(TRAINING_RUNS.c.outcome)).scalars().all()
        named = {Path(path).name for path in connection.execute(select(MODELS.c.path)).scalars()}
    assert runs == ["lost"]
    assert len(named) == rows
    assert {path.name for path in (tmp_path / "models").iterdir()} == named
    trainer.close()
