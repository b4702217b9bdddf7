"""Prints what a database with a long history costs: warming a predictor at start, looking whether to train, and a training.

python -m benchmarks.training [--rows 1000000] [--folder DIR]

A SQLite database of its own is filled with labels of recurring programs (one in twenty is long, one in ten fails). Each step is
then carried out in a process of its own, so that its peak resident memory is its own; "training" is the real training process
with as many of the newest jobs as the service gives it, its prequential test and its replay sheet included.
"""

import argparse
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.calibration import calibrate, line
from policies.model.estimate import EndedJob
from policies.model.ids import JobId
from policies.model.job import JobSpec
from predictor.prequential import ROWS_MAX
from predictor.rows import rows_to_jsonl
from predictor.serving import LivePredictor
from service.config.settings import Settings
from service.db import migrate
from service.db.history import ImportedJob, ended_jobs, import_history
from service.db.models import LabelCounter
from service.db.session import Database, open_database

_MIB = 1 << 20
_GAP_S = 60.0
"""Between two submissions."""


def labels(rows: int) -> Iterator[EndedJob]:
    """A seeded history of 200 users with 2,000 programs."""
    rng = np.random.default_rng(0)
    centre = 5.0 + rng.normal(size=2_000) + 3.0 * (rng.random(2_000) < 0.05)
    for job in range(rows):
        program = int(2_000 * rng.random() ** 2)
        gpus = int(2 ** rng.integers(0, 4))
        service_s = float(np.exp(centre[program] + 0.3 * np.log(gpus) + 0.4 * rng.normal()))
        failed = rng.random() < 0.1
        service_s *= 0.2 if failed else 1.0
        spec = JobSpec(
            name=f"program{program}", user=f"user{program % 200}", gpus=gpus, project=f"project{program % 20}"
        )
        at_s = job * _GAP_S
        yield EndedJob(
            JobId(job),
            spec,
            submitted_at_s=at_s,
            ended_at_s=at_s + service_s,
            iterations=None,
            service_s=service_s,
            final_state="failed" if failed else "succeeded",
        )


def fill(database: Database, rows: int) -> None:
    """Import the history."""
    with database.writing() as session:
        import_history(session, "benchmark", (ImportedJob(str(label.job), label) for label in labels(rows)))


def _warm(database: Database, folder: Path) -> None:
    LivePredictor().warm(ended_jobs(database, newest=ROWS_MAX))


def _due(database: Database, folder: Path) -> None:
    LabelCounter(database).count()


def _export(database: Database, folder: Path) -> None:
    rows_to_jsonl(folder / "rows.jsonl.gz", ended_jobs(database, newest=_default("retrain_rows_max")))


def _default(setting: str) -> int:
    return int(Settings.model_fields[setting].default)


STEPS = {"warm": _warm, "due": _due, "export": _export}


class Cost(NamedTuple):
    """What a process took: real and processor seconds, peak resident MiB."""

    wall_s: float
    cpu_s: float
    peak_mib: float

    def line(self, step: str) -> str:
        """One row of the table."""
        return f"{step:10}{_three(self.wall_s):>9}{_three(self.cpu_s):>9}{_three(self.peak_mib):>10}"


def _three(value: float) -> str:
    """A number to three significant digits, never as a power of ten."""
    decimals = 2 - math.floor(math.log10(value)) if value > 0.0 else 0
    return f"{round(value, decimals):.{max(0, decimals)}f}"


def _measured(command: list[str]) -> Cost:
    started_s = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"{command[2]} failed")
    return Cost(time.monotonic() - started_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024.0)


def _training(folder: Path) -> list[str]:
    memory_bytes = _default("retrain_memory_bytes_max")
    code = f"import resource, runpy; resource.setrlimit(resource.RLIMIT_AS, ({memory_bytes},) * 2); " + (
        "runpy.run_module('predictor.train_process', run_name='__main__')"
    )
    files = [
        "--input",
        str(folder / "rows.jsonl.gz"),
        "--out",
        str(folder / "model"),
        "--sheet",
        str(folder / "sheet.gz"),
    ]
    return [sys.executable, "-c", code, *files]


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="ended jobs in the database")
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help="where to put the database; a temporary folder otherwise")
    options = parser.parse_args()
    if options.step:
        database = open_database(_url(options.folder))
        STEPS[options.step](database, options.folder)
        database.close()
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        _run(Path(name), options.rows)


def _url(folder: Path) -> str:
    return f"sqlite:///{folder / 'sooner.db'}"


def _run(folder: Path, rows: int) -> None:
    print(line(calibrate()))
    migrate.upgrade(_url(folder))
    database = open_database(_url(folder))
    started_s = time.monotonic()
    fill(database, rows)
    database.close()
    own_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0
    size_mib = (folder / "sooner.db").stat().st_size / _MIB
    print(f"{rows:,} ended jobs in a database of {size_mib:,.0f} MiB")
    print(f"{'step':10}{'wall s':>9}{'CPU s':>9}{'peak MiB':>10}")
    print(Cost(time.monotonic() - started_s, time.process_time(), own_mib).line("fill"), flush=True)
    for step in STEPS:
        again = [sys.executable, "-m", "benchmarks.training", "--step", step, "--folder", str(folder)]
        print(_measured(again).line(step), flush=True)
    print(_measured(_training(folder)).line("training"), flush=True)


if __name__ == "__main__":
    main()
