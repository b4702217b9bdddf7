"""Jobs that are to run as their users are refused at once if they cannot."""

import pwd
from dataclasses import replace

import pytest
from fastapi import FastAPI
from httpx import Client

from tests.api.conftest import World
from tests.api.helpers import assert_problem, plain_job

ENTRY = next(entry for entry in pwd.getpwall() if entry.pw_uid != 0)


@pytest.fixture(autouse=True)
def as_submitters(app: FastAPI, world: World) -> None:
    settings = world.settings.model_copy(update={"run_as": "submitter", "run_as_users": {"alice": ENTRY.pw_name}})
    app.state.dependencies = replace(app.state.dependencies, settings=settings)


@pytest.mark.parametrize("user", ["alice", ENTRY.pw_name])
def test_of_users_that_exist(client: Client, user: str) -> None:
    assert client.post("/v1/jobs", json=plain_job(user=user)).status_code == 201


@pytest.mark.parametrize(
    ("user", "reason"),
    [(None, "has no user"), ("no-such-user-here", "no system user for this one"), ("root", "none runs as root")],
)
def test_of_users_that_do_not(client: Client, user: str | None, reason: str) -> None:
    problem = assert_problem(client.post("/v1/jobs", json=plain_job(user=user)), "invalid-body", ["/user"])
    assert reason in problem["errors"][0]["detail"]
    jobs = [plain_job(user="alice"), plain_job(user=user), plain_job(user="alice", array={"count": 3})]
    assert_problem(client.post("/v1/jobs", json={"jobs": jobs}), "invalid-body", ["/jobs/1/user"])
