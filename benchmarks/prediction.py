"""Prints what a prediction costs a service with a long past: one alone, a batch, and explaining one.

python -m benchmarks.prediction [--history 1000000] [--trained 10000] [--asks 500] [--batch 10000] [--programs 5000] [--seed 1]

``--history`` ended jobs of recurring programs go into a database of their own; the predictor is warmed from it as a
service is, and all models are trained on the newest ``--trained``. Then new jobs come; every model is asked about each, as a
shadow where it does not answer. CPU seconds of the asking thread, on which all of it runs, so that a busy machine measures the
same; the ratio is to a calibration loop. ``alone`` asks for one job at a time, history look-up included; ``batch`` for all at
once, as a cycle does; ``explained`` is what moved the model, from the stored features.
"""

import argparse
import gc
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from sqlalchemy import insert

from benchmarks.calibration import calibrate, line
from policies.model.estimate import EndedJob, PredictionRequest
from policies.model.ids import JobId
from policies.model.job import JobSpec
from predictor.explain import contributions
from predictor.rows import ended_row, newest_by_submission
from predictor.serving import LivePredictor
from predictor.training import train
from service.db.codec import encode
from service.db.history import HISTORY_ROWS_MAX, ended_jobs
from service.db.migrate import upgrade
from service.db.rows import label_values
from service.db.session import Database, open_database
from service.db.tables import HISTORY
from service.runtime.garbage import made_to_stay

ROWS_PER_INSERT = 10_000
PERIOD_S = 60.0


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--history", type=int, default=1_000_000)
    parser.add_argument("--trained", type=int, default=10_000)
    parser.add_argument("--asks", type=int, default=500)
    parser.add_argument("--batch", type=int, default=10_000)
    parser.add_argument("--programs", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()

    unit_s = calibrate()
    print(line(unit_s))
    specs = programs(arguments.programs, arguments.seed)
    with TemporaryDirectory() as folder:
        database = stored(Path(folder), specs, arguments.history, arguments.seed)
        started_s = time.thread_time()
        predictor = LivePredictor()
        predictor.warm(ended_jobs(database, newest=HISTORY_ROWS_MAX))
        print(f"{arguments.history:,} ended jobs in the database; warmed in {time.thread_time() - started_s:.1f} s")
        newest = newest_by_submission(map(ended_row, ended_jobs(database, newest=arguments.trained)), arguments.trained)
        database.close()
    model = train(newest, seed=arguments.seed)
    head = next(iter(model.heads.values()))
    predictor.use(model)
    del newest
    # As the service does once it is up.
    with made_to_stay():
        gc.collect()
    print(f"{len(head.estimators)} models trained on {arguments.trained:,}")
    draw = np.random.default_rng(arguments.seed + 1)
    requests = [
        PredictionRequest(JobId(number + 1), specs[int(program)], PERIOD_S * (arguments.history + number))
        for number, program in enumerate(draw.integers(len(specs), size=arguments.asks + arguments.batch))
    ]
    alone_s = [_timed(predictor, [request]) for request in requests[: arguments.asks]]
    batch_s = _timed(predictor, requests[arguments.asks :])
    (said,) = predictor.predict(0.0, requests[:1])
    assert said is not None
    explained_s = []
    for _ in range(arguments.asks):
        started_s = time.thread_time()
        contributions(model, said.estimate.unit, said.features)
        explained_s.append(time.thread_time() - started_s)
    print(f"{'':12}{'jobs':>8}{'p50 ms':>10}{'p99 ms':>10}{'total s':>10}{'ms a job':>10}{'ratio':>10}")
    for name, jobs, took_s in (
        ("alone", 1, alone_s),
        ("batch", arguments.batch, [batch_s]),
        ("explained", 1, explained_s),
    ):
        p50_s, p99_s = np.quantile(took_s, [0.5, 0.99])
        print(
            f"{name:12}{jobs:8,}{1000.0 * p50_s:10.2f}{1000.0 * p99_s:10.2f}{sum(took_s):10.2f}"
            f"{1000.0 * p50_s / jobs:10.3f}{p50_s / unit_s:10.3f}"
        )


def programs(count: int, seed: int) -> Sequence[JobSpec]:
    """Recurring programs of 400 users in 40 projects."""
    draw = np.random.default_rng(seed)
    return [
        JobSpec(
            f"program{number}", f"user{number % 400}", int(draw.choice([1, 2, 4, 8])), project=f"project{number % 40}"
        )
        for number in range(count)
    ]


def history(specs: Sequence[JobSpec], jobs: int, seed: int) -> Iterator[tuple[int, EndedJob]]:
    """(program, ended job): one a minute, of sizes that belong to their programs, popular ones more often."""
    draw = np.random.default_rng(seed)
    centres = draw.normal(7.0, 1.5, len(specs))
    chosen = np.minimum((len(specs) * draw.random(jobs) ** 2).astype(int), len(specs) - 1)
    totals = np.exp(centres[chosen] + draw.normal(0.0, 0.5, jobs))
    for number, (program, seconds) in enumerate(zip(chosen.tolist(), totals.tolist(), strict=True)):
        submitted_at_s = PERIOD_S * number
        yield (
            program,
            EndedJob(
                JobId(-number - 1),
                specs[program],
                submitted_at_s,
                submitted_at_s + seconds,
                2.0 * seconds,
                seconds,
                "succeeded",
                0.5,
            ),
        )


def stored(folder: Path, specs: Sequence[JobSpec], jobs: int, seed: int) -> Database:
    """A migrated database with so many ended jobs."""
    url = f"sqlite:///{folder / 'sooner.db'}"
    upgrade(url)
    database = open_database(url)
    documents = [encode(spec) for spec in specs]
    rows = []
    with database.writing() as session:
        connection = session.connection()
        for program, label in history(specs, jobs, seed):
            key = str(-int(label.job))
            rows.append(
                {
                    "source": "drawn",
                    "source_key": key,
                    "job_id": None,
                    "spec": documents[program],
                    **label_values(label),
                }
            )
            if len(rows) == ROWS_PER_INSERT:
                connection.execute(insert(HISTORY), rows)
                rows.clear()
        if rows:
            connection.execute(insert(HISTORY), rows)
    return database


def _timed(predictor: LivePredictor, requests: Sequence[PredictionRequest]) -> float:
    started_s = time.thread_time()
    predictor.predict(requests[0].submitted_at_s, requests)
    return time.thread_time() - started_s


if __name__ == "__main__":
    main()
