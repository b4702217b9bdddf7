"""The cluster: shown as the loop sees it, changed by requests."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from httpx import Client, Response

from policies.model.cluster import Server
from service.api.app import create_app
from service.wire import examples
from tests.api.client import client_of
from tests.api.conftest import World, make_world
from tests.api.helpers import assert_problem


def test_the_cluster_is_shown_with_its_free_gpus(client: Client, world: World) -> None:
    world.free["b"] = 1
    world.usable["c"] = world.free["c"] = 0
    body = client.get("/v1/cluster").json()
    assert {key: body[key] for key in ("name", "gpus", "usable_gpus", "free_gpus")} == {
        "name": "test",
        "gpus": 10,
        "usable_gpus": 8,
        "free_gpus": 5,
    }
    assert [(s["name"], s["gpus"], s["usable_gpus"], s["free_gpus"]) for s in body["servers"]] == [
        ("a", 4, 4, 4),
        ("b", 4, 4, 1),
        ("c", 2, 0, 0),
    ]
    assert body["servers"][2] == {
        "name": "c",
        "state": "up",
        "gpus": 2,
        "usable_gpus": 0,
        "free_gpus": 0,
        "gpu_type": "T4",
        "rack": "r2",
        "nic_gbps": 100.0,
        "intra_gbps": 960.0,
        "gpu_speed": 1.0,
        "gpu_memory_gib": None,
        "cpus": None,
        "free_cpus": None,
        "memory_gib": None,
        "free_memory_gib": None,
        "reservation": None,
        "drained_by": [],
        "detail": "",
    }


def test_drained_and_down_are_told_apart(client: Client, world: World) -> None:
    world.say_of_servers(
        {
            "a": (True, False),
            "b": (True, True),
        }
    )
    states = {server["name"]: server["state"] for server in client.get("/v1/cluster").json()["servers"]}
    assert states == {"a": "drained", "b": "down", "c": "up"}


def test_who_drains_a_server_and_why_is_shown(client: Client, world: World) -> None:
    world.change_server("a", engine_drained=True, detail="disk")
    world.change_server("b", engine_drained=True, drained=True, detail="fan")
    world.change_server("c", drained=True, detail="", health_reason="Xid 79 on GPU 3")
    servers = {server["name"]: server for server in client.get("/v1/cluster").json()["servers"]}
    assert [(servers[name]["state"], servers[name]["drained_by"], servers[name]["detail"]) for name in "abc"] == [
        ("drained", ["engine"], "disk"),
        ("drained", ["operator", "engine"], "fan"),
        ("drained", ["health"], "Xid 79 on GPU 3"),
    ]


def test_changes_of_servers_are_listed_page_by_page(client: Client, world: World) -> None:
    for number in range(3):
        world.change_server("ab"[number % 2], down=True, detail=f"reason {number}")
    first = client.get("/v1/cluster/events", params={"limit": 2}).json()
    assert [(event["server"], event["kind"], event["detail"]) for event in first["items"]] == [
        ("a", "down", "reason 2"),
        ("b", "down", "reason 1"),
    ]
    assert set(first["items"][0]) == {"id", "at", "server", "kind", "detail", "cycle"}
    rest = client.get("/v1/cluster/events", params={"limit": 2, "after": first["next"]}).json()
    assert ([event["detail"] for event in rest["items"]], rest["next"]) == (["reason 0"], None)


def test_a_server_is_added_in_our_units(client: Client, world: World) -> None:
    answer = client.post("/v1/cluster/servers", json=examples.SERVER | {"gpu_speed": 1.5, "gpu_memory_gib": 32})
    assert answer.status_code == 202
    assert answer.json() == {"accepted": "server_added", "job_id": None, "server": "gpu-07"}
    [request] = world.store.pending_requests(10)
    assert request.server_spec == Server("gpu-07", 8, "V100", "r1", 12.5e9, 120e9, 1.5, 32.0)
    assert world.nudges == 1


def test_a_server_without_a_speed_is_warned_of(client: Client, world: World) -> None:
    body = examples.SERVER | {"gpu_type": "A100"}
    [warning] = client.post("/v1/cluster/servers", json=body).json()["warnings"]
    assert warning.startswith("GPU type 'A100' has no gpu_speed") and "write gpu_speed: 2.5" in warning
    [request] = world.store.pending_requests(10)
    assert request.server_spec is not None and request.server_spec.gpu_speed_assumed
    stated = client.post("/v1/cluster/servers", json=body | {"name": "gpu-08", "gpu_speed": 1.0})
    assert stated.json() == {"accepted": "server_added", "job_id": None, "server": "gpu-08"}
    assert client.get("/v1/cluster").json()["warnings"] == []
    world.servers.append(replace(request.server_spec, name="x"))
    assert client.get("/v1/cluster").json()["warnings"] == [warning]


def test_a_server_that_could_never_come_up_is_refused(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    world.machine = frozenset({"a"})
    with client_of(create_app(world.dependencies()), world.token) as client:
        refusal = assert_problem(client.post("/v1/cluster/servers", json=examples.SERVER), "conflict")
        here = assert_problem(client.post("/v1/cluster/servers", json=examples.SERVER | {"name": "a"}), "conflict")
    assert refusal["detail"] == (
        "Server 'gpu-07' is not this machine, where executor=local runs all jobs; set executor=slurm or executor=ray, "
        "or add 'virtual: true' to the cluster file to have this machine pretend."
    )
    assert here["detail"] == "A server named 'a' already exists."
    assert world.store.pending_requests(10) == []
    world.database.close()


def test_a_servers_name_is_taken_once(client: Client, world: World) -> None:
    assert_problem(client.post("/v1/cluster/servers", json=examples.SERVER | {"name": "a"}), "conflict")
    assert client.post("/v1/cluster/servers", json=examples.SERVER).status_code == 202
    # Not added yet, but asked for.
    assert_problem(client.post("/v1/cluster/servers", json=examples.SERVER), "conflict")


def test_a_race_for_a_name_has_one_winner(client: Client, world: World) -> None:
    barrier = threading.Barrier(4)
    answers: list[Response] = []

    def add() -> None:
        barrier.wait()
        answers.append(client.post("/v1/cluster/servers", json=examples.SERVER))

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answer.status_code for answer in answers) == [202, 409, 409, 409]
    assert len(world.store.pending_requests(10)) == 1


@pytest.mark.parametrize(("action", "kind"), [("drain", "server_drained"), ("resume", "server_resumed")])
def test_a_server_is_drained_and_resumed_by_name(client: Client, world: World, action: str, kind: str) -> None:
    answer = client.post(f"/v1/cluster/servers/b/{action}")
    assert (answer.status_code, answer.json()["accepted"]) == (202, kind)
    [request] = world.store.pending_requests(10)
    assert (request.kind.value, request.server) == (kind, 1)
    assert_problem(client.post(f"/v1/cluster/servers/nowhere/{action}"), "not-found")


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"name": ""}, "/name"),
        ({"name": "a b"}, "/name"),
        ({"name": "../x"}, "/name"),
        ({"gpus": 0}, "/gpus"),
        ({"gpus": 1025}, "/gpus"),
        ({"nic_gbps": 0}, "/nic_gbps"),
        ({"nic_gbps": "100"}, "/nic_gbps"),
        ({"gpu_speed": -1}, "/gpu_speed"),
        ({"gpu_memory_gib": 0}, "/gpu_memory_gib"),
        ({"cpus": 0}, "/cpus"),
        ({"cpus": 1.5}, "/cpus"),
        ({"memory_gib": 0}, "/memory_gib"),
        ({"count": 3}, "/count"),
    ],
)
def test_rules_of_servers(client: Client, world: World, changes: dict[str, Any], pointer: str) -> None:
    answer = client.post("/v1/cluster/servers", json=examples.SERVER | changes)
    assert_problem(answer, "invalid-body", [pointer])
    assert not world.store.pending_requests(10)


def test_a_request_without_a_body_takes_an_empty_one_only(client: Client, world: World) -> None:
    assert client.post("/v1/cluster/servers/a/drain", json={}).status_code == 202
    assert_problem(client.post("/v1/cluster/servers/a/drain", json={"force": True}), "invalid-body", ["/force"])


def test_a_server_that_does_not_exist_is_named_whatever_its_name_is(client: Client) -> None:
    for change in ("drain", "resume"):
        answer = assert_problem(client.post(f"/v1/cluster/servers/r1%2Fa/{change}"), "not-found")
        assert answer["detail"] == "There is no server 'r1/a'."
