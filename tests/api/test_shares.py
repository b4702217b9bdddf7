"""Shares of users and projects, beside their quotas and present use."""

from typing import Any

import pytest
from fastapi import FastAPI
from httpx import Client

from policies.lifecycle import JobState
from policies.model.reasons import Reason
from policies.model.shares import ShareAccount, Shares
from service.domain.access import Role
from tests.api.conftest import World
from tests.api.helpers import assert_problem
from tests.api.people import client as client_for
from tests.api.people import person
from tests.api.test_overview import store_jobs
from tests.unit.service.client.both import KINDS, Kind, client_of

NOT_COUNTED = dict.fromkeys(("weight", "share", "used_gpu_h", "used_share", "level"))
NO_QUOTA = {"gpus_running_max": None, "jobs_queued_max": None}


def names(found: list[dict[str, Any]]) -> list[str | None]:
    return [each["name"] for each in found]


@pytest.fixture
def counted(client: Client, world: World) -> None:
    """A policy that counts both, jobs of two users, and quotas of two projects."""
    world.shares = Shares(
        users=(ShareAccount("ada", 1.0, 7200.0, 5), ShareAccount("bob", 1.0, 0.0, 0), ShareAccount("eve", 1.0, 0.0, 5)),
        projects=(ShareAccount("", 1.0, 900.0, -3), ShareAccount("nlp", 3.0, 2700.0, 4)),
        half_life_s=604_800.0,
    )
    store_jobs(
        world,
        (JobState.RUNNING, Reason.STARTED, 3, "ada", "nlp", 9.0),
        (JobState.QUEUED, Reason.PRIORITY, 2, "ada", "nlp", 9.0),
        (JobState.QUEUED, Reason.PRIORITY, 1, "zoe", "", 9.0),
    )
    assert client.put("/v1/quotas/project/nlp", json={"gpus_running_max": 6, "jobs_queued_max": 9}).status_code == 200
    assert client.put("/v1/quotas/project/idle", json={"gpus_running_max": 1}).status_code == 200


def test_without_shares_the_reason_is_given(client: Client) -> None:
    assert client.get("/v1/shares").json() == {
        "at": "2026-01-01T00:00:00Z",
        "policy": "asrpt",
        "half_life_s": None,
        "users": [],
        "users_reason": "Policy asrpt does not rank jobs by the use of their users; policy fair does.",
        "projects": [],
        "projects_reason": "The policy does not share use between projects: its option fair_share is not set.",
    }


def test_quotas_and_use_are_shown_without_shares(client: Client, world: World, counted: None) -> None:
    world.shares = Shares()
    found = client.get("/v1/shares").json()
    assert names(found["users"]) == ["ada", "zoe"]
    assert found["projects"] == [
        NOT_COUNTED | NO_QUOTA | {"name": None, "gpus": 0, "jobs": 1},
        NOT_COUNTED | {"name": "idle", "gpus": 0, "jobs": 0, "gpus_running_max": 1, "jobs_queued_max": None},
        NOT_COUNTED | {"name": "nlp", "gpus": 3, "jobs": 2, "gpus_running_max": 6, "jobs_queued_max": 9},
    ]


def test_what_the_policy_has_counted_comes_first_by_level(client: Client, counted: None) -> None:
    found = client.get("/v1/shares").json()
    assert (found["half_life_s"], found["users_reason"], found["projects_reason"]) == (604_800.0, None, None)
    assert names(found["users"]) == ["bob", "ada", "eve", "zoe"]
    assert found["users"][1] == NO_QUOTA | {
        "name": "ada",
        "weight": 1.0,
        "share": pytest.approx(1 / 3),
        "used_gpu_h": 2.0,
        "used_share": 1.0,
        "level": 5,
        "gpus": 3,
        "jobs": 2,
    }
    assert names(found["projects"]) == [None, "nlp", "idle"]
    assert found["projects"][1] == {
        "name": "nlp",
        "weight": 3.0,
        "share": 0.75,
        "used_gpu_h": 0.75,
        "used_share": 0.75,
        "level": 4,
        "gpus": 3,
        "jobs": 2,
        "gpus_running_max": 6,
        "jobs_queued_max": 9,
    }


def test_nothing_used_is_no_share_of_it(client: Client, world: World) -> None:
    world.shares = Shares(users=(ShareAccount("ada", 1.0, 0.0, 0),))
    [found] = client.get("/v1/shares").json()["users"]
    assert (found["share"], found["used_share"]) == (1.0, 0.0)


def test_members_of_projects_see_themselves_and_these(app: FastAPI, world: World, counted: None) -> None:
    with client_for(app, person(world, "ada", Role.VIEWER, "nlp")) as ada:
        found = ada.get("/v1/shares").json()
        assert (names(found["users"]), names(found["projects"])) == (["ada"], ["nlp"])
        # Parts are those of the whole.
        assert (found["users"][0]["share"], found["projects"][0]["share"]) == (pytest.approx(1 / 3), 0.75)
    with client_for(app, person(world, "eve", Role.SUBMITTER, "vision")) as eve:
        found = eve.get("/v1/shares").json()
        assert (names(found["users"]), names(found["projects"])) == (["eve"], [])
    with client_for(app, person(world, "bob", Role.OPERATOR, "vision")) as bob:
        assert len(bob.get("/v1/shares").json()["users"]) == 4


@pytest.mark.parametrize("kind", KINDS)
def test_the_client_shows_them(app: FastAPI, world: World, counted: None, kind: Kind) -> None:
    with client_of(kind, app, world.token) as client:
        assert names(client.shares.show()["projects"]) == [None, "nlp", "idle"]


def test_a_standby_lets_the_leader_answer(world: World, client: Client) -> None:
    world.leads = False
    assert_problem(client.get("/v1/shares"), "no-leader")
