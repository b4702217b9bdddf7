"""What is marked as secret is never shown again; the rest of an environment is its user's and the admins'."""

import logging
from typing import Any

import pytest
from fastapi import FastAPI
from httpx import Client
from sqlalchemy import insert
from sqlalchemy.exc import DBAPIError

from policies.model.job import JobSpec
from service.api.app import route_rules
from service.db import reads
from service.db.codec import encode
from service.db.tables import JOBS
from service.domain.access import Role
from tests.api.conftest import World
from tests.api.helpers import assert_problem, plain_job
from tests.api.people import client as client_for
from tests.api.people import person
from tests.api.test_permissions import path_of

SECRET = "hf_c0ffee-7f3a"
PLAIN = "learning-rate-0.1"


def secret_job(**changes: Any) -> dict[str, Any]:
    return plain_job(env={"HF_TOKEN": SECRET, "LR": PLAIN}, secret_env=["HF_TOKEN"], **changes)


@pytest.fixture
def job(app: FastAPI, world: World) -> int:
    with client_for(app, person(world, "ada", Role.SUBMITTER, "nlp")) as ada:
        answer = ada.post("/v1/jobs", json=secret_job(project="nlp"))
        assert answer.status_code == 201, answer.text
        assert SECRET not in answer.text
        return int(answer.json()["id"])


def test_the_program_gets_it(world: World, job: int) -> None:
    with world.database.reading() as session:
        spec = reads.spec(session.connection(), job)
    assert spec is not None
    assert spec.env == {"HF_TOKEN": SECRET, "LR": PLAIN}
    assert spec.secret_env == ("HF_TOKEN",)


@pytest.mark.parametrize(
    ("user", "role", "value"),
    [
        ("ada", Role.VIEWER, PLAIN),
        ("bob", Role.SUBMITTER, None),
        ("olga", Role.OPERATOR, None),
        ("root", Role.ADMIN, PLAIN),
    ],
)
def test_who_is_shown_what(app: FastAPI, world: World, job: int, user: str, role: Role, value: str | None) -> None:
    with client_for(app, person(world, user, role, "nlp")) as client:
        shown = client.get(f"/v1/jobs/{job}/spec").json()
    assert shown["env"] == {"HF_TOKEN": None, "LR": value}
    assert shown["secret_env"] == ["HF_TOKEN"]
    assert shown["command"] == plain_job()["command"]


def test_no_answer_of_any_route_holds_it(app: FastAPI, client: Client, world: World, job: int) -> None:
    """Asked by its own user, by the local token and by another admin."""
    with (
        client_for(app, person(world, "ada", Role.OPERATOR)) as ada,
        client_for(app, person(world, "root", Role.ADMIN)) as root,
    ):
        for method, path in route_rules():
            for caller in (client, ada, root):
                if method == "GET":
                    assert SECRET not in caller.get(path_of(path, job)).text, path


def test_refusals_do_not_repeat_it(client: Client) -> None:
    for broken in (
        secret_job(gpus="two"),
        secret_job(walltime_s=SECRET),
        secret_job() | {"secret_env": ["HF_TOKEN", SECRET]},
        secret_job() | {"secret_env": SECRET},
        secret_job() | {"env": {"HF_TOKEN": SECRET + "\x00"}},
    ):
        answer = client.post("/v1/jobs", json=broken)
        assert_problem(answer, "invalid-body")
        assert SECRET not in answer.text


def test_a_secret_that_is_not_in_the_environment_is_a_mistake(client: Client) -> None:
    answer = client.post("/v1/jobs", json=plain_job(env={"LR": "1"}, secret_env=["LR", "HF_TOKEN"]))
    assert_problem(answer, "invalid-body", ["/secret_env/1"])


def test_a_printed_spec_has_no_environment() -> None:
    """Whatever is logged, raised or shown by a debugger."""
    spec = JobSpec("a", "u", 1, env={"HF_TOKEN": SECRET, "LR": PLAIN}, secret_env=("HF_TOKEN",))
    for text in (repr(spec), str(spec), f"{[spec]}"):
        assert SECRET not in text
        assert PLAIN not in text
    with pytest.raises(ValueError, match="HF_TOKEN") as raised:
        raise ValueError(spec)
    assert SECRET not in repr(raised.value)


def test_the_service_logs_nothing_of_it(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    for logger in (None, "httpx"):
        caplog.set_level(logging.DEBUG, logger)
    assert client.post("/v1/jobs", json=secret_job()).status_code == 201
    assert "/v1/jobs" in caplog.text
    assert SECRET not in caplog.text


def test_an_error_of_the_database_does_not_bring_it_along(world: World) -> None:
    """It would end in the service's log, with its statement and everything that was to be stored."""
    spec = encode(JobSpec("train", "ada", 1, command=("python", "train.py"), env={"HF_TOKEN": SECRET}))
    broken = insert(JOBS).values(name="a", user="u", project="p", gpus=1, spec=spec, submitted_at_s=0.0)
    with pytest.raises(DBAPIError) as raised, world.database.writing() as session:
        session.connection().execute(broken.values(state="none such", reason="new"))
    assert SECRET not in str(raised.value)
