"""What other lists than that of jobs leave out: predictions, forecasts, speeds, past jobs like one's own, usage."""

import pytest
from fastapi import FastAPI
from httpx import Client

from policies.model.ids import JobId
from service.db.tables import ThroughputRow
from service.domain.access import Role
from service.forecast.forecast import Forecast
from tests.api.conftest import NOW_S, World
from tests.api.helpers import assert_problem, plain_job
from tests.api.people import client as client_for
from tests.api.people import person, submitted
from tests.api.test_forecasts import told
from tests.api.test_learning import add_rows
from tests.api.test_predictions import end, said, take_in

OWN, COLLEAGUE, FOREIGN, PRIVATE = 1, 2, 3, 4


@pytest.fixture
def ada(app: FastAPI, world: World) -> Client:
    """A member of nlp, who sees the first two jobs of four."""
    ids = submitted(
        app,
        world,
        plain_job(user="ada", project="nlp"),
        plain_job(user="bob", project="nlp"),
        plain_job(user="eve", project="vision"),
        plain_job(user="eve", project=None),
    )
    assert ids == [OWN, COLLEAGUE, FOREIGN, PRIVATE]
    return client_for(app, person(world, "ada", Role.VIEWER, "nlp"))


def test_predictions(ada: Client, client: Client, world: World) -> None:
    for number, job in enumerate((OWN, FOREIGN, PRIVATE, COLLEAGUE), 1):
        take_in(world, job, said(), number)
    assert [each["job_id"] for each in client.get("/v1/predictions").json()["items"]] == [2, 4, 3, 1]
    assert [each["job_id"] for each in ada.get("/v1/predictions").json()["items"]] == [COLLEAGUE, OWN]
    page = ada.get("/v1/predictions?limit=1").json()
    rest = ada.get("/v1/predictions", params={"limit": 1, "after": page["next"]}).json()
    assert ([each["job_id"] for each in rest["items"]], rest["next"]) == ([OWN], None)
    assert ada.get("/v1/predictions", params={"job": FOREIGN}).json()["items"] == []


def test_forecasts(ada: Client, client: Client, world: World) -> None:
    world.forecast = Forecast(NOW_S, 20, {JobId(job): told(job) for job in (FOREIGN, COLLEAGUE, OWN, PRIVATE)})
    assert [each["job_id"] for each in client.get("/v1/forecasts").json()["forecasts"]] == [1, 2, 3, 4]
    assert [each["job_id"] for each in ada.get("/v1/forecasts").json()["forecasts"]] == [OWN, COLLEAGUE]
    assert_problem(ada.get(f"/v1/jobs/{FOREIGN}/forecast"), "not-found")


def test_speeds(ada: Client, client: Client, world: World) -> None:
    keys = [("ada", "nlp"), ("bob", "nlp"), ("eve", "vision"), ("eve", ""), ("ada", "")]
    common = {"name": "x", "gpus": 1, "gpu_type": "V100", "servers_spanned": 1, "samples": [0.5]}
    rows = [
        {"user": user, "project": project, **common, "median_s_per_iteration": 0.5, "count": 1, "updated_at_s": NOW_S}
        for user, project in keys
    ]
    add_rows(world, ThroughputRow, rows)
    assert len(client.get("/v1/throughput").json()["items"]) == len(keys)
    seen = [(each["user"], each["project"]) for each in ada.get("/v1/throughput").json()["items"]]
    assert seen == [("ada", ""), ("ada", "nlp"), ("bob", "nlp")]


def test_past_jobs_like_a_prediction(app: FastAPI, client: Client, world: World) -> None:
    """The same user's job in a project that the caller is not in is no example for him."""
    hidden, shown, job = submitted(
        app,
        world,
        plain_job(user="ada", project="vision", name="old"),
        plain_job(user="ada", project="nlp", name="older"),
        plain_job(user="ada", project="nlp", name="new"),
    )
    end(world, [hidden, shown])
    take_in(world, job, said())
    assert {each["job_id"] for each in client.get(f"/v1/jobs/{job}/prediction").json()["similar"]} == {hidden, shown}
    with client_for(app, person(world, "bob", Role.VIEWER, "nlp")) as bob:
        assert [each["job_id"] for each in bob.get(f"/v1/jobs/{job}/prediction").json()["similar"]] == [shown]


def test_usage(ada: Client, client: Client) -> None:
    """No numbers of users and projects that are not the caller's."""
    for path in ("/v1/usage", "/v1/usage?group=user,project", "/v1/usage?format=csv"):
        assert client.get(path).status_code == 200
        answer = ada.get(path)
        assert answer.status_code == 200
        assert "eve" not in answer.text
        assert "vision" not in answer.text


def test_whoever_looks_after_the_queue_sees_its_numbers_alone(ada: Client) -> None:
    for path in ("/v1/queue", "/v1/cluster", "/metrics"):
        answer = ada.get(path)
        assert answer.status_code == 200, answer.text
        assert "eve" not in answer.text
