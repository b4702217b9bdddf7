"""Which attempt holds which GPU now."""

from typing import Any

from fastapi import FastAPI
from httpx import Client
from sqlalchemy import update

from policies.model.cluster import Server
from policies.model.ids import ServerIndex
from policies.model.placement import ServerShare, place
from policies.model.server_reservation import ServerReservation
from service.db.tables import ATTEMPTS, JOBS
from service.domain.access import Role
from service.engine.events import EngineRequest, RequestKind
from tests.api import people
from tests.api.conftest import NOW_S, World
from tests.api.helpers import assert_problem, graph_job, plain_job
from tests.api.people import person
from tests.api.test_details import STAGES_PLACEMENT, TWO_STAGES, started
from tests.api.timelines import put, with_servers


def gpus(client: Client) -> dict[str, Any]:
    """The answer's servers by name."""
    answer = client.get("/v1/gpus")
    assert answer.status_code == 200, answer.text
    return {server["server"]: server for server in answer.json()["servers"]}


def states(server: dict[str, Any]) -> list[str | int]:
    """The job of each GPU that is held, else its state."""
    assert [gpu["index"] for gpu in server["gpus"]] == sorted({gpu["index"] for gpu in server["gpus"]})
    return [gpu["state"] if gpu["job_id"] is None else gpu["job_id"] for gpu in server["gpus"]]


def test_every_gpu_is_held_free_or_unusable(client: Client, world: World) -> None:
    put(world, 4, -9.0, held=((0, (1, 3)), (1, (0,))))
    put(world, 5, -9.0, -1.0)
    put(world, 6, -9.0, held=((2, (1,)),))
    world.say_of_servers({"b": (True, False), "c": (False, True)})
    found = gpus(client)
    assert {name: states(server) for name, server in found.items()} == {
        "a": ["free", 4, "free", 4],
        "b": [4, "unusable", "unusable", "unusable"],
        "c": ["unusable", 6],
    }
    assert [server["state"] for server in found.values()] == ["up", "drained", "down"]
    assert found["a"]["gpus"][1] == {
        "index": 1,
        "state": "held",
        "attempt": "4.1",
        "job_id": 4,
        "stage": None,
        "replica": None,
    }
    assert (found["c"]["rack"], found["c"]["gpu_type"]) == ("r2", "T4")


def test_gpus_of_a_pipeline_show_their_stage_and_replica(client: Client, world: World) -> None:
    staged = started(client, world, body=graph_job(**TWO_STAGES), placement=STAGES_PLACEMENT)
    found = gpus(client)
    seated = [(gpu["index"], gpu["stage"], gpu["replica"]) for gpu in found["a"]["gpus"] if gpu["job_id"] == staged]
    assert seated == [(0, 0, 1), (1, 1, 0)]
    assert [(gpu["index"], gpu["stage"], gpu["replica"]) for gpu in found["b"]["gpus"] if gpu["job_id"]] == [(3, 0, 0)]
    shown = client.get(f"/v1/jobs/{staged}/attempts").json()["items"][0]["placement"]
    seats = {
        (share["server"], seat["gpu_id"]): (seat["stage"], seat["replica"])
        for share in shown
        for seat in share["seats"]
    }
    assert seats == {
        (name, gpu["index"]): (gpu["stage"], gpu["replica"])
        for name, server in found.items()
        for gpu in server["gpus"]
        if gpu["state"] == "held"
    }


def test_elements_of_an_array_have_stages_too(client: Client, world: World) -> None:
    array = client.post("/v1/jobs", json=graph_job(**TWO_STAGES, array={"count": 2})).json()
    first = array["id"] if "id" in array else array["jobs"][0]["id"]
    put_attempt_of(world, client, first)
    assert [gpu["stage"] for gpu in gpus(client)["a"]["gpus"]] == [0, 1, None, None]


def put_attempt_of(world: World, client: Client, job: int) -> None:
    """Give a submitted job of three GPUs and two stages an open attempt."""
    other = started(client, world, body=graph_job(**TWO_STAGES), placement=STAGES_PLACEMENT)
    with world.database.writing() as session:
        statement = update(ATTEMPTS).where(ATTEMPTS.c.job_id == other).values(job_id=job, id=f"{job}.1")
        session.connection().execute(statement)
        session.connection().execute(update(JOBS).where(JOBS.c.id == other).values(state="cancelled"))


def test_the_gpus_that_an_engine_reported_count(client: Client, world: World) -> None:
    put(world, 1, -1.0, held=((2, (0,)),), got=((7,),))
    found = gpus(client)["c"]["gpus"]
    assert [(gpu["index"], gpu["state"]) for gpu in found] == [(0, "free"), (1, "free"), (7, "held")]


def test_reserved_servers_are_marked(client: Client, world: World) -> None:
    window = ServerReservation(0, (ServerIndex(1),), NOW_S, NOW_S + 10.0)
    with world.database.writing() as session:
        request = EngineRequest(0, RequestKind.RESERVATION_MADE, NOW_S, window=window)
        number = world.store.add_request(session, request)
    assert [server["reservation"] for server in gpus(client).values()] == [None, number, None]
    world.now_s += 10.0
    assert [server["reservation"] for server in gpus(client).values()] == [None, None, None]


def test_gpus_of_hidden_jobs_are_held_by_nothing_that_has_a_name(app: FastAPI, client: Client, world: World) -> None:
    body = graph_job(**TWO_STAGES, user="eve", project="secret")
    hidden = started(client, world, body=body, placement=STAGES_PLACEMENT)
    own = put_own(client, world)
    with people.client(app, person(world, "ada", Role.VIEWER, "nlp")) as viewer:
        found = gpus(viewer)
    assert {name: states(server) for name, server in found.items()} == {
        "a": ["held", "held", "free", "free"],
        "b": ["free", "free", "free", "held"],
        "c": [own, "free"],
    }
    nothing = {"state": "held", "attempt": None, "job_id": None, "stage": None, "replica": None}
    assert found["a"]["gpus"][0] == nothing | {"index": 0}
    assert states(gpus(client)["a"])[0] == hidden


def put_own(client: Client, world: World) -> int:
    body = plain_job(gpus=1, user="ada", project="nlp")
    job = int(client.post("/v1/jobs", json=body).json()["id"])
    other = started(client, world, 2, plain_job(gpus=3), place([ServerShare(ServerIndex(2), 1)]))
    with world.database.writing() as session:
        statement = update(ATTEMPTS).where(ATTEMPTS.c.job_id == other)
        session.connection().execute(statement.values(job_id=job, id=f"{job}.1", gpu_ids=[[0]]))
    return job


def test_servers_that_are_asked_for_come_alone(client: Client, world: World) -> None:
    with_servers(world, *(Server(name, 2) for name in ("a", "b", "c")))
    put(world, 7, -10.0, held=((1, (0,)), (2, (1,))))
    whole = client.get("/v1/gpus").json()["servers"]
    assert [each["server"] for each in whole] == ["a", "b", "c"]
    asked = client.get("/v1/gpus", params={"server": ["c", "a"]}).json()["servers"]
    assert asked == [whole[0], whole[2]]
    assert states(asked[1]) == states(whole[2])
    assert_problem(client.get("/v1/gpus", params={"server": "d"}), "invalid-parameter")
