"""A service at a fixed time, with the jobs of an ordinary day: what the screenshots of the documentation show."""

import math
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import update

from policies.lifecycle import JobState
from policies.model.cluster import Cluster, Server
from policies.model.estimate import Estimate, Prediction, Unit
from policies.model.ids import JobId
from policies.model.reasons import Explanation, Reason
from policies.registry import make_policy
from predictor.head_state import BucketStatus
from predictor.serving import LivePredictor, PredictorStatus
from service.api.app import create_app
from service.db.prediction_rows import NewPrediction, insert_predictions
from service.db.services import Registered, ServiceNow
from service.db.tables import ATTEMPTS, JOBS, MODELS, PREDICTIONS, USAGE
from service.domain.forecast_scores import Milestone
from service.engine.engine import Engine, Ports
from service.executors.fake import FakeExecutor
from service.forecast.forecast import JobForecast, Spread
from service.sim.predictors import NoPredictor
from service.web.app import install
from tests.api.conftest import NOW_S, World, make_world
from tests.api.live import listening
from tests.api.people import submitted
from tests.api.test_learning import add_rows, model_row
from tests.api.timelines import Held, forecast, put, with_servers
from tests.null_sink import NullSink

HOUR_S = 3600.0
PROGRAMS = (
    ("resnet-50", "ada", "vision", 2),
    ("llama3-8b-sft", "bob", "nlp", 8),
    ("bert-base", "cleo", "nlp", 4),
    ("detr-sweep", "ada", "vision", 1),
    ("whisper-tune", "dora", "speech", 4),
)
FIRST, QUEUED = 100, 200
"""Numbers of the first job, and of the first that waits."""

SHOWN = 147
"""The running job whose page is shown."""

_LOG = b"".join(b"iteration %d  loss %.4f\n" % (step, 1.9 + 40.0 / step**0.5) for step in range(119_800, 121_800, 200))


class _Clock:
    def now_s(self) -> float:
        return NOW_S


def _bucket(name: str, expert: str, jobs: int, coverage: float) -> BucketStatus:
    weights = {expert: 0.46, "quantile_forest": 0.31, "past_runs": 0.17, "recurrence_median20": 0.06}
    return BucketStatus(name, weights, jobs, coverage)


class _Predictor(LivePredictor):
    """The status of a trained model. That of a real one has numbers that differ with the versions of its libraries."""

    def status(self) -> PredictorStatus:
        heads = {
            Unit.ITERATIONS: (
                _bucket("0", "xgboost", 61, 0.79),
                _bucket("1-4", "xgboost", 140, 0.82),
                _bucket("5-19", "recurrence_ewma", 288, 0.81),
                _bucket("20+", "recurrence_ewma", 511, 0.80),
            ),
            Unit.SERVICE_S: (_bucket("0", "xgboost", 44, 0.78),),
        }
        counts = {unit: sum(bucket.jobs for bucket in buckets) for unit, buckets in heads.items()}
        return PredictorStatus(
            "m-20251230",
            heads,
            drifting=dict.fromkeys(heads, False),
            recent_log_error=dict.fromkeys(heads, 0.24),
            known_jobs=counts,
            pending=0,
        )


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The service's address until the end of the block."""
    data = folder / "scene"
    data.mkdir()
    world = make_world(data)
    world.stopping = False
    world.predictor = _Predictor()
    registered = Registered("scene", "sched-1", "http://sched-1:8080", "1", 60.0)
    world.services = [ServiceNow(registered, True, NOW_S - 86_400.0, NOW_S, 0.0, False)]
    world.logs = {(SHOWN, attempt): _LOG for attempt in (None, 1)}
    app = create_app(world.dependencies())
    install(app)
    # In a thread of its own: the browser of the tests has an event loop in this one.
    with ThreadPoolExecutor(1) as threads:
        threads.submit(_fill, world, app).result()
    with listening(app, world.settings) as (host, port):
        yield f"http://{host}:{port}"
        world.stopping = True
    world.database.close()


def _fill(world: World, app: Any) -> None:
    chance = random.Random(11)
    with_servers(world, *(Server(f"gpu-{number:02}", 8, "A100", rack=f"r{1 + number // 4}") for number in range(8)))
    put(world, QUEUED - 1, -30 * HOUR_S, -29 * HOUR_S, name="warm-up", user="ada", project="vision")
    _end(world, QUEUED - 1, -29 * HOUR_S)
    _queue(world, app)
    free = _run(world, chance)
    world.free = {server.name: count for server, count in zip(world.servers, free, strict=True)}
    world.held_gpus = sum(server.gpus for server in world.servers) - sum(free)
    _use(world, chance)
    add_rows(
        world,
        MODELS,
        [_model("m-20251230", -2 * 86_400.0, "champion", 0.21), _model("m-20260101", -HOUR_S, "candidate", 0.23)],
    )


def _queue(world: World, app: Any) -> None:
    """Jobs that wait, in the order of a policy that has seen them."""
    sizes = ((8, 0), (4, 5), (16, 0), (4, 0), (8, 0), (8, -1))
    bodies: list[dict[str, object]] = []
    for number, (gpus, priority) in enumerate(sizes):
        name, user, project, _ = PROGRAMS[number % len(PROGRAMS)]
        bodies.append(
            {"name": name, "user": user, "project": project, "command": ["python", "train.py"]}
            | {"gpus": gpus, "priority": priority}
        )
    jobs = submitted(app, world, *bodies)
    world.say_of_servers({server.name: (True, False) for server in world.servers})
    ports = Ports(world.store, FakeExecutor(_Clock()), _Clock(), NoPredictor(), NullSink())
    world.engine = Engine(make_policy("fifo_backfill"), Cluster("test", tuple(world.servers)), ports)
    assert not world.engine.cycle().failed
    world.say_of_servers({server.name: (False, False) for server in world.servers})
    with world.database.writing() as session:
        for number, job in enumerate(jobs):
            reason = Reason.RESOURCES if number == 1 else Reason.PRIORITY
            values = {"submitted_at_s": NOW_S - 2400.0 + 300.0 * number, "reason": reason.value}
            session.connection().execute(update(JOBS).where(JOBS.c.id == job).values(values))
    jobs[:2] = reversed(jobs[:2])
    for number, job in enumerate(jobs):
        mid_s = 900.0 * (number + 1)
        forecast(world, job, 0.6 * mid_s, mid_s, 1.5 * mid_s, milestone=Milestone.START)
        forecast(world, job, 2.0 * mid_s, 3.0 * mid_s, 4.5 * mid_s)
    ahead = Explanation(Reason.RESOURCES, 8, 3, 2, jobs_ahead=1)
    world.explanations = {JobId(job): ahead for job in jobs}
    world.outlook = JobForecast(
        JobId(jobs[-1] + 1),
        Spread(NOW_S + 600.0, NOW_S + 1500.0, NOW_S + 3000.0),
        Spread(NOW_S + 2.0 * HOUR_S, NOW_S + 3.0 * HOUR_S, NOW_S + 5.0 * HOUR_S),
        100,
        "14 past runs",
    )
    points = tuple(84_000.0 * math.exp(0.35 * step / 4.0) for step in range(-8, 9))
    world.planned_total = Estimate(points, Unit.ITERATIONS, "recurrence: 14 past runs", seconds_per_unit=0.25)


def _run(world: World, chance: random.Random) -> list[int]:
    """A day of attempts, server by server; returns the free GPUs of each now."""
    job = FIRST
    free = []
    for position in range(len(world.servers)):
        left = 0
        for first, count in _parts(chance):
            at_s = -26 * HOUR_S
            while at_s < 0.0:
                name, user, project, _ = chance.choice(PROGRAMS)
                lasts_s = HOUR_S * chance.uniform(3.0, 14.0)
                ends_s = None if at_s + lasts_s >= 0.0 else at_s + lasts_s
                if job < QUEUED - 1:
                    held: Held = ((position, tuple(range(first, first + count))),)
                    attempt = put(world, job, at_s, ends_s, held, name=name, user=user, project=project)
                    started = {"started_at_s": NOW_S + at_s + 20.0}
                    world.database.execute(update(ATTEMPTS).where(ATTEMPTS.c.id == attempt).values(started))
                    _predict(world, chance, job, at_s, lasts_s, ends_s)
                    if ends_s is None:
                        forecast(world, job, *(at_s + lasts_s * factor for factor in (1.0, 1.2, 1.6)))
                    job += 1
                idle_s = HOUR_S * chance.choice((0.0, 0.1, 0.5, 3.0))
                if ends_s is not None and ends_s + idle_s >= 0.0:
                    left += count
                at_s += lasts_s + idle_s
        free.append(left)
    return free


def _parts(chance: random.Random) -> list[tuple[int, int]]:
    """The GPUs of a server as gangs: from which GPU on, and how many."""
    return chance.choice(([(0, 8)], [(0, 4), (4, 4)], [(0, 4), (4, 2), (6, 2)]))


def _predict(world: World, chance: random.Random, job: int, at_s: float, lasts_s: float, ends_s: float | None) -> None:
    """A prediction that was off by a factor of 1.3, as a rule; scored if the job has ended."""
    actual = round(lasts_s * 4.0)
    middle = actual * math.exp(chance.gauss(0.0, 0.3))
    points = tuple(middle * math.exp(0.35 * step / 4.0) for step in range(-8, 9))
    prediction = Prediction(
        Estimate(points, Unit.ITERATIONS, f"recurrence: {chance.randint(2, 19)} past runs", seconds_per_unit=0.25),
        "",
        (),
    )
    with world.database.writing() as session:
        connection = session.connection()
        insert_predictions(connection, [NewPrediction(JobId(job), prediction)], 1, NOW_S + at_s)
        values: dict[str, Any] = {
            "submitted_at_s": NOW_S + at_s - 300.0,
            "first_started_at_s": NOW_S + at_s,
            "attempts": 1,
        }
        if ends_s is None:
            values["reason"] = Reason.STARTED.value
        values |= {"reports_iterations": True, "iterations": float(actual if ends_s is not None else -at_s * 4.0)}
        connection.execute(update(JOBS).where(JOBS.c.id == job).values(values))
        if ends_s is not None:
            error = math.log(prediction.estimate.median / actual)
            scored = {"actual": float(actual), "log_error": error, "scored_at_s": NOW_S + ends_s}
            connection.execute(update(PREDICTIONS).where(PREDICTIONS.c.job_id == job).values(scored))
    if ends_s is not None:
        _end(world, job, ends_s)


def _end(world: World, job: int, at_s: float) -> None:
    values = {"state": JobState.SUCCEEDED.value, "reason": Reason.COMPLETED.value, "finished_at_s": NOW_S + at_s}
    world.database.execute(update(JOBS).where(JOBS.c.id == job).values(values))


def _use(world: World, chance: random.Random) -> None:
    today = int(NOW_S // 86_400)
    rows = []
    for day in range(today - 29, today + 1):
        for user, project in (("ada", "vision"), ("bob", "nlp"), ("cleo", "nlp"), ("dora", "speech")):
            held_s = HOUR_S * chance.uniform(60.0, 340.0) * (0.4 if day % 7 in (2, 3) else 1.0)
            row = {"day": day, "user": user, "project": project, "held_gpu_s": held_s}
            row |= {"useful_gpu_s": held_s * chance.uniform(0.85, 1.0), "attempts": 9, "preemptions": 1, "jobs": 8}
            rows.append(row)
    add_rows(world, USAGE, rows)


def _model(name: str, made_s: float, state: str, loss: float) -> dict[str, Any]:
    scores = {"jobs": 400, "pinball_log": loss, "within_2x": 0.86, "coverage_80": 0.79}
    head = {
        "rows": 2000,
        "verdict": {"passed": True, "reasons": []},
        "models": {
            "aggregation": scores,
            "aggregation_without_models": scores | {"pinball_log": 0.26, "within_2x": 0.79},
        },
    }
    return model_row(name, NOW_S + made_s, state) | {"kind": "xgboost", "metrics": {"iterations": head}}
