"""Why a job was predicted as it was, and waiting for a prediction."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from httpx import Client
from sqlalchemy import delete, insert, update

from policies.lifecycle import JobState
from policies.model.estimate import EndedJob, Estimate, Prediction, Unit
from policies.model.ids import JobId
from policies.model.job import JobSpec
from predictor import features
from predictor.feature_schema import schema
from service.api import submission
from service.api.idempotency import REPLAYED_HEADER
from service.db import prediction_log
from service.db.rows import own_history_values
from service.db.tables import HISTORY, JOBS, PREDICTIONS
from service.domain.calibration import LEVELS
from service.engine.ports import CycleBatch, JobWrite
from tests.api.conftest import NOW_S, World
from tests.api.helpers import assert_problem, plain_job
from tests.unit.predictor.predictor_history import small_model


def vector(**of: float) -> tuple[float, ...]:
    """A feature vector in which these are known."""
    values = dict.fromkeys(features.NAMES, features.MISSING) | {"recurrence_gpus.log_count": 0.0, "cold_level": 3.0}
    return tuple((values | {name.replace("__", "."): value for name, value in of.items()}).values())


def submit(client: Client, **changes: Any) -> int:
    return int(client.post("/v1/jobs", json=plain_job(**changes)).json()["id"])


def take_in(world: World, job_id: int, prediction: Prediction | None, number: int = 1) -> None:
    """What a cycle does with a new job."""
    job = world.store.jobs([JobId(job_id)])[0]
    job.version += 1
    taken = [request.id for request in world.store.pending_requests(100) if request.job == job_id]
    write = JobWrite(job, job.version - 1, requests=taken, prediction=prediction)
    assert world.store.commit(CycleBatch(number, NOW_S + 50.0, [], [], writes={job.id: write})) == frozenset()


def end(
    world: World,
    job_ids: Sequence[int],
    *,
    finished_at_s: float = NOW_S + 1.0,
    service_s: float = 60.0,
    iterations: float | None = None,
    kept_s: float = 60.0,
) -> None:
    """End jobs with a label. ``kept_s``: what a failure left of their work."""
    label = EndedJob(JobId(0), JobSpec("", "", 1), NOW_S, finished_at_s, iterations, service_s, "succeeded")
    labels = [own_history_values(replace(label, job=JobId(job))) for job in job_ids]
    over = {"state": JobState.SUCCEEDED.value, "finished_at_s": finished_at_s, "service_s": kept_s}
    with world.database.writing() as session:
        connection = session.connection()
        connection.execute(update(JOBS).where(JOBS.c.id.in_(job_ids)).values(**over))
        connection.execute(delete(HISTORY).where(HISTORY.c.job_id.in_(job_ids)))
        connection.execute(insert(HISTORY), labels)


def said(source: str = "recurrence: 14 past runs", version: str = "", **more: Any) -> Prediction:
    estimate = Estimate((100.0, 200.0), Unit.SERVICE_S, source, version, **more)
    known = {"recurrence_gpus__log_count": math.log1p(14.0), "cold_level": 0.0, "base": math.log(150.0)}
    return Prediction(estimate, schema(), vector(**known))


def test_a_prediction_of_a_model_says_what_moved_it(client: Client, world: World) -> None:
    model = small_model()
    world.models[model.version] = model
    job_id = submit(client)
    take_in(world, job_id, said(version=f"{model.version}/quantile_forest"))
    found = client.get(f"/v1/jobs/{job_id}/prediction").json()
    assert (found["trust"], found["past_runs"], found["bucket"]) == ("model", 14, "5-19")
    assert (found["level"], found["source"]) == ("recurrence_gpus", "recurrence: 14 past runs")
    moved = found["contributions"]
    assert found["contributions_reason"] is None
    assert moved["model_version"] == f"{model.version}/xgboost"
    assert moved["history_median"] == pytest.approx(150.0)
    factors = [each["factor"] for each in moved["top"]] + [moved["others_factor"], moved["usual_factor"]]
    assert math.prod(factors) * 150.0 == pytest.approx(moved["total"], rel=1e-6)
    assert len(moved["top"]) == 6


@pytest.mark.parametrize(
    ("prediction", "trust", "reason"),
    [
        (said(), "history", "No model took part in the prediction."),
        (said(trusted=False), "attained_service", "No model took part in the prediction."),
        (
            said(version="m-gone/xgboost"),
            "model",
            "Model m-gone has been deleted, or none of its parts can be explained.",
        ),
        (
            Prediction(said(version="m1/blend").estimate, "features/0:abc", (1.0, 2.0)),
            "model",
            "The prediction was made from the features of another version of Sooner.",
        ),
    ],
)
def test_where_no_model_can_be_explained_it_says_why(
    client: Client, world: World, prediction: Prediction, trust: str, reason: str
) -> None:
    job_id = submit(client)
    take_in(world, job_id, prediction)
    found = client.get(f"/v1/jobs/{job_id}/prediction").json()
    assert (found["trust"], found["contributions"], found["contributions_reason"]) == (trust, None, reason)
    assert (found["past_runs"] is None) == (prediction.feature_schema != schema())


def test_an_ended_job_without_a_prediction_is_not_said_to_get_one(client: Client, world: World) -> None:
    waits, ended = submit(client), submit(client)
    end(world, [ended])
    for job_id, detail in (
        (waits, "has no prediction yet: no cycle has taken it in, or there is no history to predict it from."),
        (ended, "has ended without a prediction: there was no history to predict it from."),
    ):
        problem = assert_problem(client.get(f"/v1/jobs/{job_id}/prediction"), "not-found")
        assert problem["detail"] == f"Job {job_id} {detail}"


def test_similar_jobs_are_of_the_same_program_nearest_gang_and_newest_first(client: Client, world: World) -> None:
    same = [submit(client, gpus=gpus) for gpus in (1, 4, 2, 2)]
    submit(client, gpus=2)  # still waits
    others = [submit(client, user="somebody else"), submit(client, name="other"), submit(client, project="other")]
    job_id = submit(client, gpus=2)
    later = submit(client, gpus=2)
    end(world, [*same, *others, later], iterations=500.0)
    end(world, [same[2]], finished_at_s=NOW_S + 2.0, kept_s=0.0)
    never_ran, too_late = submit(client, gpus=2), same[3]
    end(world, [never_ran], service_s=0.0)
    take_in(world, job_id, said())
    found = client.get(f"/v1/jobs/{job_id}/prediction").json()["similar"]
    assert [each["job_id"] for each in found] == [same[2], same[3], same[1], same[0]]
    assert [each["total"] for each in found] == [60.0] * 4
    assert found[0]["link"] == f"/v1/jobs/{same[2]}"
    assert (found[0]["state"], found[0]["ended_at"]) == ("succeeded", "2026-01-01T00:00:02Z")
    end(world, [too_late], finished_at_s=NOW_S + 51.0)
    found = client.get(f"/v1/jobs/{job_id}/prediction").json()["similar"]
    assert too_late not in [each["job_id"] for each in found], "it ended after the prediction was made"


def test_totals_of_similar_jobs_are_in_the_unit_of_the_prediction(client: Client, world: World) -> None:
    reported, silent, job_id = submit(client), submit(client), submit(client)
    end(world, [reported], iterations=500.0)
    end(world, [silent])
    take_in(world, job_id, Prediction(Estimate((7.0,), Unit.ITERATIONS, "told")))
    found = client.get(f"/v1/jobs/{job_id}/prediction").json()["similar"]
    assert {each["job_id"]: each["total"] for each in found} == {reported: 500.0, silent: None}


def test_without_a_past_run_the_users_jobs_are_similar(client: Client, world: World) -> None:
    first = submit(client, name="first", user="ada", gpus=8)
    nobodys = submit(client, name="second", user="")
    job_id, lonely = submit(client, name="new", user="ada"), submit(client, name="newer", user="")
    end(world, [first, nobodys])
    for number in (job_id, lonely):
        take_in(world, number, said(), number=number)
    assert [each["job_id"] for each in client.get(f"/v1/jobs/{job_id}/prediction").json()["similar"]] == [first]
    assert client.get(f"/v1/jobs/{lonely}/prediction").json()["similar"] == []


def test_only_the_newest_jobs_of_a_name_are_looked_at(
    client: Client, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [submit(client) for _ in range(5)]
    end(world, ids[:4])
    take_in(world, ids[4], said())
    monkeypatch.setattr(prediction_log, "COMPARED_JOBS_MAX", 2)
    found = client.get(f"/v1/jobs/{ids[4]}/prediction").json()["similar"]
    assert [each["job_id"] for each in found] == [ids[3], ids[2]]


def test_a_submission_may_wait_for_its_prediction(client: Client, world: World) -> None:
    passes: list[int] = []

    def on_pass() -> None:
        # The first pass was under way when the job came and knows nothing of it.
        passes.append(len(passes))
        if len(passes) == 2:
            take_in(world, 1, said())

    world.on_pass = on_pass
    answer = client.post("/v1/jobs?wait_prediction=1", json=plain_job())
    assert (answer.status_code, answer.headers["location"], passes) == (201, "/v1/jobs/1", [0, 1])
    assert answer.json()["prediction"]["source"] == "recurrence: 14 past runs"
    assert answer.json() == client.get("/v1/jobs/1").json()
    plain = client.post("/v1/jobs", json=plain_job())
    assert (plain.status_code, plain.json()["prediction"], len(passes)) == (201, None, 2), "nobody waits unasked"


def test_whoever_waits_gets_an_answer_also_where_nothing_is_predicted(client: Client, world: World) -> None:
    def on_pass() -> None:
        take_in(world, 1, None)
        take_in(world, 2, said(), number=2)

    world.on_pass = on_pass
    body = {"jobs": [plain_job(), plain_job(name="b")]}
    answer = client.post("/v1/jobs?wait_prediction=true", json=body, headers={"Idempotency-Key": "k"})
    assert (answer.status_code, answer.headers["location"]) == (201, "/v1/jobs")
    assert [job["prediction"] is None for job in answer.json()["jobs"]] == [True, False]
    world.on_pass = None
    again = client.post("/v1/jobs?wait_prediction=true", json=body, headers={"Idempotency-Key": "k"})
    assert (again.json(), again.headers[REPLAYED_HEADER]) == (answer.json(), "true")


def test_nobody_waits_for_ever(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "PREDICTION_WAIT_S", 0.0)
    answer = client.post("/v1/jobs?wait_prediction=1", json=plain_job())
    assert (answer.status_code, answer.json()["prediction"]) == (201, None)


def test_a_refused_submission_does_not_wait(client: Client) -> None:
    assert_problem(client.post("/v1/jobs?wait_prediction=1", json=plain_job(gpus=99_999)), "never-fits")
    assert_problem(client.post("/v1/jobs?wait_prediction=perhaps", json=plain_job()), "invalid-parameter")


def test_calibration_is_of_the_first_predictions_of_ended_jobs(client: Client, world: World) -> None:
    assert client.get("/v1/predictions/calibration").json() == {"jobs": 0, "coverage": []}
    jobs = [submit(client) for _ in range(5)]
    for number, (job, actual) in enumerate(zip(jobs, (50.0, 150.0, 250.0, 90.0, None), strict=True), 1):
        take_in(world, job, said(), number)
        if actual is not None:
            error = {"actual": actual, "log_error": math.log(200.0 / actual), "scored_at_s": NOW_S + 60.0}
            world.database.execute(update(PREDICTIONS).where(PREDICTIONS.c.job_id == job).values(**error))
            world.database.execute(update(JOBS).where(JOBS.c.id == job).values(finished_at_s=NOW_S + 60.0))
    found = client.get("/v1/predictions/calibration").json()
    assert found["jobs"] == 4
    levels = {each["level"]: each["observed"] for each in found["coverage"]}
    # Each job was predicted by the equal-mass points 100 and 200.
    assert levels == {level: 0.5 if level < 0.5 else 0.75 for level in LEVELS}
