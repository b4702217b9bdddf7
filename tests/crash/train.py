"""One training that is killed at a crash point: ``python -m tests.crash.train DATA_DIR POINT``."""

import sys
from pathlib import Path

from policies.model.cluster import Cluster, Server
from predictor.serving import LivePredictor
from service.background.retrain import Trainer
from service.config.settings import load_settings
from service.db.session import Database, open_database
from service.engine.crash_points import CrashPoint, on_reached
from tests.crash.dying import Death, Reaper
from tests.crash.serve import die

CLUSTER = Cluster("two", (Server("s0", 4), Server("s1", 4)))


def trainer_of(database: Database, folder: Path, predictor: LivePredictor) -> Trainer:
    """A trainer on the folder, which promotes whatever passes the gate: no jobs are replayed."""
    settings = load_settings({"data_dir": folder, "retrain_jobs_min": 20, "retrain_replay_jobs_max": 0})
    return Trainer(database, settings, predictor, lambda: 1e9, CLUSTER)


def main(folder: Path, point: CrashPoint) -> None:
    """Train once."""
    on_reached(Reaper([Death(point, 1)], die))
    trainer = trainer_of(open_database(f"sqlite:///{folder / 'sooner.db'}"), folder, LivePredictor())
    trainer.recover()
    trainer.start()
    assert trainer._thread is not None
    trainer._thread.join()


if __name__ == "__main__":
    main(Path(sys.argv[1]), CrashPoint(sys.argv[2]))
