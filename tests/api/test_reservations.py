"""Reservations over HTTP: made, listed, cancelled, refused, and shown in the cluster."""

from typing import Any

import pytest
from httpx import Client, Response

from policies.model.ids import ServerIndex
from policies.model.server_reservation import ServerReservation
from service.engine.events import RequestKind
from tests.api.conftest import NOW_S, World
from tests.api.helpers import assert_problem

BODY = {"servers": ["a", "c"], "starts_at": "2026-01-01T10:00:00Z", "ends_at": "2026-01-01T14:00:00+02:00"}


def reserve(client: Client, **changes: Any) -> Response:
    body = {key: value for key, value in (BODY | changes).items() if value is not None}
    return client.post("/v1/reservations", json=body)


def test_a_reservation_is_kept_told_to_the_engine_and_listed(client: Client, world: World) -> None:
    answer = reserve(client, project="nlp", reason="deadline", preempt=False)
    assert answer.status_code == 201
    body = answer.json()
    assert body | {"id": 0} == {
        "id": 0,
        "servers": ["a", "c"],
        "starts_at": "2026-01-01T10:00:00Z",
        "ends_at": "2026-01-01T12:00:00Z",
        "user": None,
        "project": "nlp",
        "preempt": False,
        "reason": "deadline",
        "created_at": "2026-01-01T00:00:00Z",
        "active": False,
    }
    [request] = world.store.pending_requests(10)
    hour_s = 3600.0
    window = ServerReservation(
        body["id"], (ServerIndex(0), ServerIndex(2)), NOW_S + 10 * hour_s, NOW_S + 12 * hour_s, None, "nlp", False
    )
    assert (request.kind, request.window) == (RequestKind.RESERVATION_MADE, window)
    assert world.store.load().windows == (window,)
    assert client.get("/v1/reservations").json() == {"reservations": [body]}
    assert world.nudges == 1


def test_servers_are_reserved_once_at_a_time(client: Client) -> None:
    first = reserve(client).json()["id"]
    problem = assert_problem(reserve(client, servers=["b", "c"], starts_at="2026-01-01T11:00:00Z"), "conflict")
    assert problem["detail"] == f"Reservation {first} includes c at that time."
    assert reserve(client, starts_at="2026-01-01T12:00:00Z", ends_at="2026-01-01T13:00:00Z").status_code == 201
    assert reserve(client, servers=["b"]).status_code == 201
    assert client.post(f"/v1/reservations/{first}/cancel").status_code == 202
    assert reserve(client, servers=["c"]).status_code == 201


def test_a_number_of_servers_takes_the_freest_that_are_open(client: Client, world: World) -> None:
    world.free["a"] = 1
    assert reserve(client, servers=None, count=1).json()["servers"] == ["b"]
    assert reserve(client, servers=None, count=2).json()["servers"] == ["a", "c"]
    refused = assert_problem(reserve(client, servers=None, count=1), "conflict")
    assert refused["detail"] == "No server is up and not reserved at that time (count is 1)."
    world.usable["a"] = 0
    problem = assert_problem(
        reserve(client, servers=None, count=3, starts_at="2026-01-02T00:00:00Z", ends_at="2026-01-02T01:00:00Z"),
        "conflict",
    )
    assert problem["detail"] == "Only 2 servers are up and not reserved at that time (count is 3)."
    world.usable["b"] = 0
    problem = assert_problem(
        reserve(client, servers=None, count=3, starts_at="2026-01-02T00:00:00Z", ends_at="2026-01-02T01:00:00Z"),
        "conflict",
    )
    assert problem["detail"] == "Only 1 server is up and not reserved at that time (count is 3)."


def test_it_is_over_by_itself_or_by_request(client: Client, world: World) -> None:
    number = reserve(client).json()["id"]
    assert client.post(f"/v1/reservations/{number}/cancel").json()["accepted"] == "reservation_cancelled"
    assert client.get("/v1/reservations").json() == {"reservations": []}
    assert world.store.load().windows == ()
    assert_problem(client.post(f"/v1/reservations/{number}/cancel"), "not-found")
    second = reserve(client).json()["id"]
    world.now_s = NOW_S + 13 * 3600.0
    assert client.get("/v1/reservations").json() == {"reservations": []}
    assert_problem(client.post(f"/v1/reservations/{second}/cancel"), "not-found")


def test_the_cluster_shows_what_is_reserved_now(client: Client, world: World) -> None:
    number = reserve(client).json()["id"]
    assert [server["reservation"] for server in client.get("/v1/cluster").json()["servers"]] == [None, None, None]
    world.now_s = NOW_S + 10 * 3600.0
    assert [server["reservation"] for server in client.get("/v1/cluster").json()["servers"]] == [number, None, number]


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"starts_at": "tomorrow"}, "/starts_at"),
        ({"ends_at": "2026-01-01T12:00:00"}, "/ends_at"),
        ({"ends_at": "2026-01-01T10:00:00Z"}, "/ends_at"),
        ({"starts_at": "2025-01-01T10:00:00Z", "ends_at": "2025-01-02T10:00:00Z"}, "/ends_at"),
        ({"ends_at": "2027-06-01T10:00:00Z"}, "/ends_at"),
        ({"servers": None}, "/servers"),
        ({"count": 1}, "/servers"),
        ({"servers": ["a", "z"]}, "/servers/1"),
        ({"servers": []}, "/servers"),
        ({"who": "me"}, "/who"),
    ],
)
def test_what_makes_no_sense_is_refused(client: Client, changes: dict[str, Any], pointer: str) -> None:
    problem = assert_problem(reserve(client, **changes), "invalid-body")
    assert [error["pointer"] for error in problem["errors"]] == [pointer]
