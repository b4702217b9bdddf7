"""What-if runs over HTTP: asked for, refused, listed, shown, cancelled. How they are made: tests of the background."""

from typing import Any

import pytest
from httpx import Client, Response
from sqlalchemy import update

from service.background.prune import prune
from service.db.tables import SIMULATIONS
from service.domain.access import Role
from service.domain.simulations import KEPT_S, WAITING_MAX
from tests.api.client import client_of
from tests.api.conftest import NOW_S, World, app_of
from tests.api.helpers import assert_problem
from tests.api.people import person

DAY_S = 86_400.0


def ask(client: Client, **changes: Any) -> Response:
    return client.post("/v1/simulations", json={"policies": ["current"]} | changes)


def change(world: World, number: int, **values: Any) -> None:
    world.database.execute(update(SIMULATIONS).where(SIMULATIONS.c.id == number).values(values))


def test_a_run_that_was_asked_for_waits(client: Client) -> None:
    answer = ask(client, policies=["current", "srtf:preemption=never"], servers="+2")
    assert (answer.status_code, answer.headers["Location"]) == (202, "/v1/simulations/1")
    assert answer.json() == {
        "id": 1,
        "state": "queued",
        "request": {
            "policies": ["current", "srtf:preemption=never"],
            "from_now": False,
            "since": None,
            "until": None,
            "servers": "+2",
            "predictor": None,
            "preemption": None,
            "network": None,
            "samples": None,
            "seed": 0,
        },
        "user": None,
        "created_at": "2026-01-01T00:00:00Z",
        "started_at": None,
        "ended_at": None,
        "starts": 0,
        "progress": None,
        "error": None,
    }
    assert client.get("/v1/simulations/1").json() == answer.json() | {"report": None}


def test_progress_report_and_tag(client: Client, world: World) -> None:
    number = ask(client).json()["id"]
    change(world, number, state="running", started_at_s=NOW_S, starts=1, done=3, total=12, eta_s=4.5)
    here = f"/v1/simulations/{number}"
    first = client.get(here)
    assert first.json()["progress"] == {"done": 3, "total": 12, "eta_s": 4.5}
    tag = first.headers["ETag"]
    assert client.get(here, headers={"If-None-Match": tag}).status_code == 304
    report = {"schema": "sooner.sim.whatif/1", "runs": []}
    change(world, number, state="succeeded", ended_at_s=NOW_S + 60.0, done=12, eta_s=None, report=report)
    later = client.get(here, headers={"If-None-Match": tag})
    assert later.status_code == 200
    assert (later.json()["state"], later.json()["ended_at"]) == ("succeeded", "2026-01-01T00:01:00Z")
    assert later.json()["report"] == report
    [listed] = client.get("/v1/simulations").json()["items"]
    assert listed == {key: value for key, value in later.json().items() if key != "report"}


def test_the_newest_come_first_by_pages(client: Client) -> None:
    numbers = [ask(client).json()["id"] for _ in range(3)]
    first = client.get("/v1/simulations", params={"limit": 2}).json()
    assert [each["id"] for each in first["items"]] == numbers[:0:-1]
    second = client.get("/v1/simulations", params={"limit": 2, "after": first["next"]}).json()
    assert ([each["id"] for each in second["items"]], second["next"]) == (numbers[:1], None)


def test_so_many_wait_and_no_more(client: Client, world: World) -> None:
    numbers = [ask(client).json()["id"] for _ in range(WAITING_MAX)]
    detail = assert_problem(ask(client), "conflict")["detail"]
    assert detail == "At most 10 simulations wait at a time, and so many do: repeat later, or cancel one."
    change(world, numbers[0], state="running")
    assert ask(client).status_code == 202
    assert_problem(ask(client), "conflict")
    assert client.post(f"/v1/simulations/{numbers[1]}/cancel").status_code == 200
    assert ask(client).status_code == 202


def test_a_repeated_request_asks_once_and_the_audit_log_has_it(client: Client) -> None:
    key = {"Idempotency-Key": "once"}
    body = {"policies": ["current"], "from_now": True}
    first = client.post("/v1/simulations", json=body, headers=key)
    again = client.post("/v1/simulations", json=body, headers=key)
    assert again.json() == first.json()
    assert again.headers["Idempotent-Replayed"] == "true"
    assert len(client.get("/v1/simulations").json()["items"]) == 1
    client.post("/v1/simulations/1/cancel")
    cancelled, asked = client.get("/v1/audit").json()["items"]
    assert (asked["action"], asked["target"]) == ("POST /v1/simulations", "simulation 1")
    assert asked["detail"] == {"policies": ["current"], "from_now": True}
    assert (cancelled["action"], cancelled["target"]) == (
        "POST /v1/simulations/{simulation_id}/cancel",
        "simulation 1",
    )


@pytest.mark.parametrize("state", ["queued", "running"])
def test_an_open_run_can_be_cancelled_once(client: Client, world: World, state: str) -> None:
    number = ask(client).json()["id"]
    change(world, number, state=state)
    answer = client.post(f"/v1/simulations/{number}/cancel")
    assert (answer.status_code, answer.json()["state"]) == (200, "cancelled")
    assert answer.json()["ended_at"] == "2026-01-01T00:00:00Z"
    problem = assert_problem(client.post(f"/v1/simulations/{number}/cancel"), "conflict")
    assert problem["detail"] == f"Simulation {number} has ended (cancelled)."


def test_a_run_that_does_not_exist(client: Client) -> None:
    assert assert_problem(client.get("/v1/simulations/7"), "not-found")["detail"] == "There is no simulation 7."
    assert_problem(client.post("/v1/simulations/7/cancel"), "not-found")
    assert_problem(client.get("/v1/simulations/seven"), "invalid-parameter")


def test_only_operators_ask_see_and_cancel(client: Client, world: World) -> None:
    number = ask(client).json()["id"]
    requests = (("POST", "/v1/simulations"), ("GET", "/v1/simulations"), ("GET", f"/v1/simulations/{number}"))
    requests = (*requests, ("POST", f"/v1/simulations/{number}/cancel"))
    for role, allowed in ((Role.VIEWER, False), (Role.SUBMITTER, False), (Role.OPERATOR, True)):
        somebody = client_of(app_of(world), person(world, role.value, role).key)
        for method, path in requests:
            body = {"policies": ["current"]} if (method, path) == requests[0] else None
            answer = somebody.request(method, path, json=body)
            if allowed:
                assert answer.status_code in (200, 202), answer.text
            else:
                assert_problem(answer, "forbidden")
    assert client.get("/v1/simulations").json()["items"][0]["user"] == Role.OPERATOR.value


PAST = "must be left out with from_now"


@pytest.mark.parametrize(
    ("changes", "pointer", "detail"),
    [
        ({"policies": []}, "/policies", "must not be empty"),
        ({"policies": ["current"] * 9}, "/policies", "must have at most 8 entries"),
        ({"policies": ["srtf", "srtf"]}, "/policies/1", "must differ from policies/0"),
        ({"policies": ["nope"]}, "/policies/0", "unknown policy 'nope'; known: "),
        ({"policies": ["srtf", "asrpt:tau"]}, "/policies/1", "'tau' is not NAME=VALUE"),
        ({"policies": ["asrpt:tau=1:tau=2"]}, "/policies/0", "tau is given twice"),
        ({"policies": ["asrpt:tau=much"]}, "/policies/0", "tau"),
        ({"policies": ["fifo"], "preemption": "always"}, "/policies/0", "policy fifo does not preempt"),
        ({"policies": ["srtf:preemption=never"], "preemption": "never"}, "/policies/0", "for all policies"),
        ({"policies": ["shadow"]}, "/policies/0", "needs the setting SOONER_SHADOW_POLICY, which is empty"),
        ({"policies": ["a\nb"]}, "/policies/0", "must not have control characters"),
        ({"policies": ["x" * 201]}, "/policies/0", "must have at most 200 characters"),
        ({"policies": ["\u202eevil"]}, "/policies/0", r"unknown policy '\u202eevil'"),
        ({"policies": "current"}, "/policies", "must be a list"),
        ({"since": "yesterday"}, "/since", "must be a time in ISO 8601 with a zone"),
        ({"since": "2025-12-01T00:00:00"}, "/since", "must be a time in ISO 8601 with a zone"),
        ({"since": "2026-02-01T00:00:00Z"}, "/since", "must be in the past"),
        ({"since": "2025-12-01T00:00:00Z", "until": "2025-12-01T00:00:00Z"}, "/until", "must be after since"),
        ({"servers": "+0"}, "/servers", "must be +1 to +10000 (got +0)"),
        ({"servers": "+10001"}, "/servers", "must be +1 to +10000 (got +10001)"),
        ({"servers": "two"}, "/servers", "must be a list of servers, or a text such as '+2'"),
        ({"servers": []}, "/servers", "must not be empty"),
        ({"servers": [{"gpus": 0}]}, "/servers/0/gpus", "must be at least 1 (got 0)"),
        ({"servers": [{"gpus": 8, "cpu": 3}]}, "/servers/0/cpu", "is unknown; did you mean 'cpus'?"),
        ({"servers": [{"gpus": 8, "count": 10_001}]}, "/servers", "must be at most 10000 servers together (got 10001)"),
        ({"servers": [{"gpus": 8, "names": ["a", "a"]}]}, "/servers", "'a' names two servers"),
        ({"predictor": "crystal"}, "/predictor", "unknown predictor 'crystal'"),
        ({"predictor": "noisy:"}, "/predictor", "noisy"),
        ({"preemption": "maybe"}, "/preemption", "must be one of"),
        ({"network": "fast"}, "/network", "fast"),
        ({"samples": 16}, "/samples", "must be left out without from_now"),
        ({"samples": 4, "from_now": True}, "/samples", "must be at least 5 (got 4)"),
        ({"samples": 1001, "from_now": True}, "/samples", "must be at most 1000 (got 1001)"),
        ({"seed": -1}, "/seed", "must be at least 0 (got -1)"),
        ({"from_now": True, "since": "2025-12-01T00:00:00Z"}, "/since", PAST),
        ({"from_now": True, "servers": "+1"}, "/servers", PAST),
        ({"from_now": True, "predictor": "oracle"}, "/predictor", PAST),
        ({"from_now": True, "network": "reserved"}, "/network", PAST),
        ({"police": 1}, "/police", "is unknown; did you mean 'policies'?"),
    ],
)
def test_a_wrong_body_is_refused_with_field_value_and_limit(
    client: Client, changes: dict[str, Any], pointer: str, detail: str
) -> None:
    problem = assert_problem(ask(client, **changes), "invalid-body", [pointer])
    assert detail in problem["errors"][0]["detail"]
    assert client.get("/v1/simulations").json()["items"] == []


def test_all_faults_are_named(client: Client) -> None:
    answer = ask(client, policies=["nope", "srtf:x"], until="never", network="fast", samples=9)
    assert_problem(answer, "invalid-body", ["/policies/0", "/policies/1", "/until", "/network", "/samples"])


def test_servers_keep_what_was_left_out_of_them(client: Client) -> None:
    servers = [
        {"gpus": 8, "count": 2},
        {"gpus": 4, "names": ["<script>", "b c"], "gpu_type": "A100", "nic_gbps": 100.0},
    ]
    assert ask(client, servers=servers).json()["request"]["servers"] == servers


def test_a_shadow_policy_that_is_set_can_be_simulated(client: Client, world: World) -> None:
    world.settings = world.settings.model_copy(update={"shadow_policy": "srtf"})
    with_shadow = client_of(app_of(world), world.token)
    assert ask(with_shadow, policies=["current", "shadow"]).status_code == 202


def test_ended_runs_are_kept_for_a_month(world: World, client: Client) -> None:
    for number, ended_at_s in enumerate((NOW_S - KEPT_S - 1.0, NOW_S - KEPT_S + 1.0, None), start=1):
        assert ask(client).json()["id"] == number
        change(world, number, ended_at_s=ended_at_s, state="queued" if ended_at_s is None else "succeeded")
    assert prune(world.database, world.settings, NOW_S).simulations == 1
    assert [each["id"] for each in client.get("/v1/simulations").json()["items"]] == [3, 2]
    assert KEPT_S == 30 * DAY_S
