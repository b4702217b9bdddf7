"""Prints how much memory a queued job takes in the service: its record, the policy's indexes, the predictor, a prediction.

python -m benchmarks.queue_memory [--queued 100000] [--policy asrpt] [--predicted 2000]

The queued jobs, of a thousand programs and fifty users, are read from a database as when a service starts. The predictions are
made as for new jobs of recurring programs, with all models; those of the service are kept until their jobs end, for at most
100,000 jobs. Bytes that Python has allocated: a process takes more, as no allocator fills all of its pages.
"""

import argparse
import gc
import tracemalloc
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.filling import fill
from benchmarks.prediction import PERIOD_S, history, programs
from policies.lifecycle import JobState
from policies.model.cluster import Cluster, Server
from policies.model.estimate import PredictionRequest
from policies.model.ids import JobId
from policies.registry import make_policy
from predictor.rows import ended_row
from predictor.serving import LivePredictor
from predictor.training import train
from service.db.migrate import upgrade
from service.db.session import open_database
from service.db.store import SqlStore
from service.engine.world import Costs, world_of

_PROGRAMS = 2_000
_TRAINED = 5_000
_LATER_S = 1e6
"""The present of the policy: long after the submissions."""


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queued", type=int, default=100_000)
    parser.add_argument("--policy", default="asrpt")
    parser.add_argument("--predicted", type=int, default=2_000)
    arguments = parser.parse_args()
    parts = queued_bytes(arguments.queued, arguments.policy)
    for part, each in parts.items():
        print(f"{part:24}{each:8,.0f} bytes a job")
    print(f"{'together':24}{sum(parts.values()):8,.0f} bytes a job")
    print(f"{'a prediction besides':24}{prediction_bytes(arguments.predicted):8,.0f} bytes a job")


def queued_bytes(queued: int, policy_name: str) -> dict[str, float]:
    """Bytes a queued job by part, without its prediction."""
    with TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'sooner.db'}"
        upgrade(url)
        database = open_database(url)
        fill(database, queued, JobState.QUEUED)
        cluster = Cluster("memory", tuple(Server(f"s{index}", 8) for index in range(100)))
        policy, predictor = make_policy(policy_name), LivePredictor()
        tracemalloc.start(1)
        try:
            marks = [_allocated()]
            world = world_of(SqlStore(database).load(), cluster, Costs())
            world.now_s = _LATER_S
            marks.append(_allocated())
            state = policy.rebuild(world)
            policy.decide(world, (), state)
            marks.append(_allocated())
            predictor.warm((), [PredictionRequest(job.id, job.spec, job.submitted_at_s) for job in world.jobs.values()])
            marks.append(_allocated())
        finally:
            tracemalloc.stop()
            database.close()
    parts = ("record", f"indexes of {policy_name}", "predictor")
    return {part: (after - before) / queued for part, before, after in zip(parts, marks, marks[1:], strict=False)}


def prediction_bytes(predicted: int) -> float:
    """Bytes of the prediction of a job, its estimate included."""
    specs = programs(_PROGRAMS, seed=1)
    labels = [label for _, label in history(specs, 4 * _TRAINED, seed=1)]
    predictor = LivePredictor()
    predictor.warm(labels)
    predictor.use(train([ended_row(label) for label in labels[-_TRAINED:]], seed=1))
    draw = np.random.default_rng(2)
    requests = [
        PredictionRequest(JobId(number + 1), specs[int(program)], PERIOD_S * (len(labels) + number))
        for number, program in enumerate(draw.integers(len(specs), size=2 * predicted))
    ]
    # What the first prediction loads, and what belongs to programs instead of jobs, does not count.
    predictor.predict(0.0, requests[:predicted])
    tracemalloc.start(1)
    try:
        before = _allocated()
        told = predictor.predict(0.0, requests[predicted:])
        kept = [None if each is None else each.estimate for each in told]
        del told
        after = _allocated()
    finally:
        tracemalloc.stop()
    assert all(kept)
    return (after - before) / predicted


def _allocated() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


if __name__ == "__main__":
    main()
