"""Forecasts and plans over HTTP."""

from fastapi import FastAPI
from httpx import Client
from sqlalchemy import insert

from policies.lifecycle import Cause, JobState
from policies.model.ids import JobId
from policies.model.reasons import Reason
from service.background.forecasts import ForecastKeeper
from service.db import reads
from service.db.forecasts import score_forecasts
from service.db.rows import event_values
from service.db.tables import EVENTS, JOBS, REQUESTS
from service.engine.events import JobEvent
from service.forecast.forecast import Forecast, JobForecast, Spread
from tests.api.conftest import NOW_S, World
from tests.api.helpers import assert_problem, plain_job

START = Spread(NOW_S, NOW_S + 60.0, NOW_S + 3600.0)
START_DOCUMENT = {"p10": "2026-01-01T00:00:00Z", "p50": "2026-01-01T00:01:00Z", "p90": "2026-01-01T01:00:00Z"}


def told(number: int, reason: str | None = None) -> JobForecast:
    return JobForecast(JobId(number), None if reason else START, None if reason else START, 20, "14 past runs", reason)


def set_state(world: World, number: int, state: str) -> None:
    with world.database.writing() as session:
        session.connection().execute(JOBS.update().where(JOBS.c.id == number).values(state=state))


def test_the_queue_and_one_job(client: Client, world: World) -> None:
    for _ in range(2):
        client.post("/v1/jobs", json=plain_job())
    world.forecast = Forecast(NOW_S, 20, {JobId(2): told(2, "It is held."), JobId(1): told(1)})
    whole = client.get("/v1/forecasts").json()
    assert (whole["made_at"], whole["samples"]) == ("2026-01-01T00:00:00Z", 20)
    assert [each["job_id"] for each in whole["forecasts"]] == [1, 2]
    assert whole["forecasts"][0] == {
        "job_id": 1,
        "made_at": "2026-01-01T00:00:00Z",
        "start_at": START_DOCUMENT,
        "finish_at": START_DOCUMENT,
        "samples": 20,
        "source": "14 past runs",
        "reason": None,
    }
    assert whole["forecasts"][1]["start_at"] is None
    assert whole["forecasts"][1]["reason"] == "It is held."
    assert client.get("/v1/forecasts", params={"job": [2, 9]}).json()["forecasts"] == whole["forecasts"][1:]
    for number in (1, 2):
        assert client.get(f"/v1/jobs/{number}/forecast").json() == whole["forecasts"][number - 1]


def test_times_beyond_all_calendars_are_told_as_the_last_day(client: Client, world: World) -> None:
    client.post("/v1/jobs", json=plain_job())
    world.forecast = Forecast(NOW_S, 20, {JobId(1): JobForecast(JobId(1), None, Spread(NOW_S, 3e11, 1e18), 20, "told")})
    finish = client.get("/v1/jobs/1/forecast").json()["finish_at"]
    assert finish == {
        "p10": "2026-01-01T00:00:00Z",
        "p50": "9999-12-30T00:00:00Z",
        "p90": "9999-12-30T00:00:00Z",
    }


def test_every_absence_has_a_reason(client: Client, world: World) -> None:
    assert_problem(client.get("/v1/jobs/1/forecast"), "not-found")
    client.post("/v1/jobs", json=plain_job())
    for path in ("/v1/forecasts", "/v1/jobs/1/forecast"):
        assert assert_problem(client.get(path), "conflict")["detail"] == "No unfinished job has a prediction yet."
    world.forecast = Forecast(NOW_S, 20, {})
    assert "next cycle" in assert_problem(client.get("/v1/jobs/1/forecast"), "conflict")["detail"]
    set_state(world, 1, "failed")
    assert "failed" in assert_problem(client.get("/v1/jobs/1/forecast"), "job-finished")["detail"]


def test_a_job_document_names_the_route(client: Client) -> None:
    job = client.post("/v1/jobs", json=plain_job()).json()
    assert job["eta"] is None
    assert "/v1/jobs/{id}/forecast" in job["eta_reason"]
    assert job["forecasts"] == []


def keep(world: World, made_at_s: float, *numbers: int) -> None:
    """Put the forecasts of these jobs on record, as the service does."""
    keeper = ForecastKeeper(world.database, lambda: NOW_S, 1.0, 100)
    keeper.keep(3, Forecast(made_at_s, 16, {JobId(number): told(number) for number in numbers}, "asrpt"))


def end(world: World, number: int, at_s: float) -> None:
    """The job has started and ended then."""
    jobs, event = (
        JOBS,
        JobEvent(JobId(number), at_s, JobState.QUEUED, JobState.STARTING, Cause.START_DECIDED, Reason.STARTED, 1),
    )
    with world.database.writing() as session:
        connection = session.connection()
        connection.execute(insert(EVENTS), [event_values(event)])
        ended = {"state": "succeeded", "finished_at_s": at_s, "attempts": 1}
        connection.execute(jobs.update().where(jobs.c.id == number).values(**ended))
        score_forecasts(connection, at_s, 100)


def test_a_job_shows_what_was_last_told_of_it_and_all_that_was(client: Client, world: World) -> None:
    first, second = (client.post("/v1/jobs", json=plain_job()).json() for _ in range(2))
    keep(world, NOW_S - 100.0, 1)
    keep(world, NOW_S, 1)
    job = client.get("/v1/jobs/1").json()
    assert [each["milestone"] for each in job["forecasts"]] == ["start", "finish"]
    assert (job["eta"], job["eta_reason"]) == (START_DOCUMENT["p50"], None)
    assert job["forecasts"][1] == {
        "id": 4,
        "job_id": 1,
        "milestone": "finish",
        "made_at": "2026-01-01T00:00:00Z",
        **START_DOCUMENT,
        "samples": 20,
        "source": "14 past runs",
        "policy": "asrpt",
        "model_version": None,
        "cycle": 3,
        "actual_at": None,
        "scored_at": None,
        "error_s": None,
        "inside": None,
        "pinball_s": None,
    }
    listed = client.get("/v1/jobs").json()["items"]
    assert [len(each["forecasts"]) for each in listed] == [0, 2]
    assert second["forecasts"] == []

    end(world, 1, NOW_S + 90.0)
    path = first["links"]["forecasts"]
    page = client.get(path, params={"limit": 3}).json()
    rest = client.get(path, params={"limit": 3, "after": page["next"]}).json()
    assert [each["id"] for each in page["items"] + rest["items"]] == [1, 2, 3, 4]
    assert rest["items"][0]["error_s"] == -30.0
    assert rest["items"][0]["actual_at"] == "2026-01-01T00:01:30Z"
    assert rest["items"][0]["inside"] is True
    assert client.get("/v1/jobs/1").json()["eta"] is None
    assert client.get("/v1/jobs/2/forecasts").json() == {"items": [], "next": None}
    assert_problem(client.get("/v1/jobs/9/forecasts"), "not-found")


def test_accuracy_by_horizon_and_gang(client: Client, world: World) -> None:
    nothing = {"all": None, "by_horizon": [], "by_gpus": []}
    empty = client.get("/v1/forecasts/accuracy").json()
    assert empty == {"since": "2025-12-02T00:00:00Z", "forecasts": 0, "start": nothing, "finish": nothing}
    for gpus in (1, 3):
        client.post("/v1/jobs", json=plain_job(gpus=gpus))
    keep(world, NOW_S, 1, 2)
    end(world, 1, NOW_S + 90.0)
    end(world, 2, NOW_S + 7200.0)
    found = client.get("/v1/forecasts/accuracy", params={"days": 1}).json()
    assert (found["since"], found["forecasts"]) == ("2025-12-31T00:00:00Z", 4)
    tally = found["finish"]["all"]
    assert (tally["forecasts"], tally["jobs"], tally["coverage_80"]) == (2, 2, 0.5)
    assert (tally["median_error_s"], tally["median_absolute_error_s"]) == ((-30.0 - 7140.0) / 2, (30.0 + 7140.0) / 2)
    assert tally["mean_width_s"] == 3600.0
    (horizon,) = found["finish"]["by_horizon"]
    assert (horizon["horizon_s_min"], horizon["horizon_s_max"], horizon["forecasts"]) == (60.0, 600.0, 2)
    # What a forecast says of its gang is the forecast's own; these were made of gangs of one.
    assert [(each["gpus_min"], each["gpus_max"]) for each in found["finish"]["by_gpus"]] == [(1, 1)]
    assert found["start"]["all"] == tally
    assert_problem(client.get("/v1/forecasts/accuracy", params={"days": 0}), "invalid-parameter")


def test_a_plan_says_what_would_come_and_stores_nothing(client: Client, world: World) -> None:
    world.outlook = told(7)
    answer = client.post("/v1/plans", json={"jobs": [plain_job(name="a", gpus=6), plain_job(name="b", gpus=1)]})
    assert answer.status_code == 200
    body = answer.json()
    assert body["made_at"] == "2026-01-01T00:00:00Z"
    assert [each["name"] for each in body["plans"]] == ["a", "b"] == [spec.name for spec in world.planned]
    first = body["plans"][0]
    assert first["prediction"] == {
        "p10": 10.0,
        "p50": 20.0,
        "p90": 30.0,
        "unit": "iterations",
        "source": "told",
        "model_version": None,
        "seconds_per_unit": 0.5,
    }
    assert first["placement"] == [{"server": "a", "gpus": 4}, {"server": "b", "gpus": 2}]
    assert (first["start_at"], first["finish_at"]) == (START_DOCUMENT, START_DOCUMENT)
    assert (first["samples"], first["source"], first["reason"]) == (20, "14 past runs", None)
    assert world.nudges == 0
    with world.database.reading() as session:
        assert reads.unfinished_jobs(session.connection()) == 0
        assert session.connection().execute(REQUESTS.select()).all() == []


def test_a_plan_is_checked_like_a_submission(client: Client, world: World) -> None:
    assert_problem(client.post("/v1/plans", json=plain_job(colour="red")), "invalid-body", ["/colour"])
    assert_problem(client.post("/v1/plans", json=plain_job(gpus=9)), "never-fits", ["/gpus"])
    assert_problem(client.post("/v1/plans", json=plain_job(after=[5])), "invalid-body", ["/after/0"])
    assert world.planned == []


def test_a_plan_behind_a_failed_job_says_that_it_would_be_cancelled(client: Client, world: World) -> None:
    client.post("/v1/jobs", json=plain_job())
    set_state(world, 1, "failed")
    world.outlook = told(7)
    (found,) = client.post("/v1/plans", json=plain_job(after=[1])).json()["plans"]
    assert found["start_at"] is None
    assert found["finish_at"] is None
    assert found["reason"] == "Job 1 in 'after' has not succeeded: this job would be cancelled at once."
    set_state(world, 1, "succeeded")
    (found,) = client.post("/v1/plans", json=plain_job(after=[1])).json()["plans"]
    assert found["start_at"] == START_DOCUMENT


def test_a_plan_that_would_overfill_the_queue_is_refused(app: FastAPI, world: World, client: Client) -> None:
    world.settings = world.settings.model_copy(update={"jobs_queued_max": 1})
    app.state.dependencies = world.dependencies()
    assert client.post("/v1/plans", json=plain_job()).status_code == 200
    assert_problem(client.post("/v1/plans", json={"jobs": [plain_job()] * 2}), "queue-full")


def test_a_plan_beyond_a_quota_is_refused_as_its_submission_is(client: Client) -> None:
    client.put("/v1/quotas/user/ann", json={"jobs_queued_max": 1})
    assert client.post("/v1/plans", json=plain_job(user="ann")).status_code == 200
    assert client.post("/v1/jobs", json=plain_job(user="ann")).status_code == 201
    submitted = assert_problem(client.post("/v1/jobs", json=plain_job(user="ann")), "queue-full")
    planned = assert_problem(client.post("/v1/plans", json=plain_job(user="ann")), "queue-full")
    assert (
        planned["detail"]
        == submitted["detail"]
        == "User 'ann' may have at most 1 unfinished job (quota jobs_queued_max)."
    )
    assert client.post("/v1/plans", json=plain_job(user="bob")).status_code == 200
