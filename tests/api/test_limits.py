"""Quotas and pauses over HTTP: what is kept, what the engine is told, what is refused, and whose are shown to whom."""

import threading
from typing import Any

import pytest
from httpx import Client, Response

from policies.lifecycle import JobState
from policies.model.cluster import Cluster, Server
from policies.model.job import Level, Topology, Volume
from service.api.parse import parse_submission
from service.api.problems import Problem
from service.config.settings import load_settings
from service.db.limits import uses
from service.engine.events import RequestKind
from service.engine.limits import QUEUE, LimitOwner, OwnerLimit, Scope
from service.wire import examples
from service.wire.bodies import JobBody
from tests.api.conftest import World
from tests.api.helpers import assert_problem, plans_of
from tests.api.test_paging import fill

NLP = LimitOwner(Scope.PROJECT, "nlp")


def submit(client: Client, **changes: Any) -> Response:
    return client.post("/v1/jobs", json=examples.PLAIN_JOB | changes)


def test_a_quota_is_kept_told_to_the_engine_and_listed(client: Client, world: World) -> None:
    answer = client.put("/v1/quotas/project/nlp", json={"gpus_running_max": 16, "jobs_queued_max": 100})
    assert answer.status_code == 200
    assert answer.json() == {
        "scope": "project",
        "name": "nlp",
        "gpus_running_max": 16,
        "jobs_queued_max": 100,
        "gpus_running": 0,
        "jobs": 0,
    }
    [request] = world.store.pending_requests(10)
    assert (request.kind, request.owner, request.gpus_running_max) == (RequestKind.QUOTA_SET, NLP, 16)
    assert world.store.load().limits == {NLP: OwnerLimit(16)}
    assert world.nudges == 1
    submit(client, project="nlp")
    submit(client, project="other")
    assert client.get("/v1/quotas").json() == {"quotas": [answer.json() | {"jobs": 1}]}


def test_a_quota_is_replaced_as_a_whole_and_removed(client: Client, world: World) -> None:
    client.put("/v1/quotas/user/ann", json={"gpus_running_max": 16, "jobs_queued_max": 100})
    changed = client.put("/v1/quotas/user/ann", json={"jobs_queued_max": 5}).json()
    assert (changed["gpus_running_max"], changed["jobs_queued_max"]) == (None, 5)
    assert world.store.load().limits == {}
    assert client.delete("/v1/quotas/user/ann").status_code == 200
    assert client.get("/v1/quotas").json() == {"quotas": []}
    assert_problem(client.delete("/v1/quotas/user/ann"), "not-found")


@pytest.mark.parametrize("name", ["a%0Ab", "team/%07", "%7F"])
def test_a_quota_is_for_a_name_that_a_job_can_have(client: Client, name: str) -> None:
    refusal = assert_problem(client.put(f"/v1/quotas/user/{name}", json={"jobs_queued_max": 5}), "invalid-parameter")
    assert refusal["errors"] == [{"parameter": "name", "detail": "must not have control characters"}]
    assert client.get("/v1/quotas").json() == {"quotas": []}


@pytest.mark.parametrize("scope", ["user", "project"])
def test_a_quota_can_be_for_every_name_that_a_job_can_have(client: Client, scope: str) -> None:
    submit(client, **{scope: "team/nlp"})
    made = client.put(f"/v1/quotas/{scope}/team%2Fnlp", json={"jobs_queued_max": 5})
    assert (made.json()["name"], made.json()["jobs"]) == ("team/nlp", 1)
    assert client.get("/v1/quotas").json() == {"quotas": [made.json()]}
    [line] = client.get("/v1/audit", params={"target": f"quota {scope} team/nlp"}).json()["items"]
    assert line["action"] == "PUT /v1/quotas/{scope}/{name}"
    assert client.delete(f"/v1/quotas/{scope}/team%2Fnlp").status_code == 200
    assert client.get("/v1/quotas").json() == {"quotas": []}


def test_a_quota_and_a_pause_leave_each_other_alone(client: Client, world: World) -> None:
    client.put("/v1/quotas/project/nlp", json={"gpus_running_max": 2})
    client.post("/v1/queue/pause", json={"project": "nlp", "reason": "why"})
    client.delete("/v1/quotas/project/nlp")
    assert world.store.load().limits == {NLP: OwnerLimit(paused=True, pause_reason="why")}
    assert client.get("/v1/quotas").json() == {"quotas": []}
    client.put("/v1/quotas/project/nlp", json={"gpus_running_max": 3})
    client.post("/v1/queue/resume", json={"project": "nlp"})
    assert world.store.load().limits == {NLP: OwnerLimit(3)}


def test_too_many_unfinished_jobs_of_a_project_are_refused(client: Client) -> None:
    client.put("/v1/quotas/project/nlp", json={"jobs_queued_max": 2})
    assert submit(client, project="nlp").status_code == 201
    answer = client.post("/v1/jobs", json={"jobs": [examples.PLAIN_JOB | {"project": "nlp"}] * 2})
    problem = assert_problem(answer, "queue-full")
    assert problem["detail"] == "Project 'nlp' may have at most 2 unfinished jobs (quota jobs_queued_max)."
    assert answer.headers["Retry-After"] == "60"
    assert submit(client, project="nlp").status_code == 201
    assert_problem(submit(client, project="nlp"), "queue-full")
    assert submit(client, project="other").status_code == 201


def test_two_submissions_do_not_pass_together_where_one_may(client: Client) -> None:
    client.put("/v1/quotas/user/ann", json={"jobs_queued_max": 1})
    barrier = threading.Barrier(4)
    answers: list[Response] = []

    def add() -> None:
        barrier.wait()
        answers.append(submit(client, user="ann"))

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answer.status_code for answer in answers) == [201, 429, 429, 429]


def test_the_queue_counts_what_all_owners_use_together(client: Client, world: World) -> None:
    fill(world, [(state, user, "p", "n") for state in JobState for user in ("u", "v")])
    with world.database.reading() as session:
        everything = uses(session.connection())[QUEUE]
    assert everything.jobs > everything.gpus_running > 0
    answer = client.get("/v1/queue").json()
    assert (answer["jobs"], answer["gpus_running"]) == everything


@pytest.mark.parametrize("world", ["sqlite"], indirect=True)
def test_what_owners_use_is_counted_in_the_index_of_queued_jobs(world: World) -> None:
    """A look at the row of each of 60,000 jobs takes ten times as long."""
    queued, holding = plans_of(world.database, uses)
    assert (queued, "ix_jobs_state_id (state=?)" in holding) == ("SCAN jobs USING INDEX ix_jobs_queued", True)


def test_the_queue_is_paused_and_resumed(client: Client, world: World) -> None:
    assert client.get("/v1/queue").json() == {"jobs": 0, "gpus_running": 0, "pauses": []}
    answer = client.post("/v1/queue/pause", json={"reason": "maintenance"})
    assert answer.status_code == 202
    assert answer.json()["accepted"] == "queue_paused"
    client.post("/v1/queue/pause", json={"user": "ann"})
    assert client.get("/v1/queue").json()["pauses"] == [
        {"scope": "queue", "name": "", "reason": "maintenance"},
        {"scope": "user", "name": "ann", "reason": ""},
    ]
    assert world.store.load().limits[QUEUE] == OwnerLimit(paused=True, pause_reason="maintenance")
    assert client.post("/v1/queue/resume", json={}).status_code == 202
    assert [request.kind for request in world.store.pending_requests(10)] == [
        RequestKind.QUEUE_PAUSED,
        RequestKind.QUEUE_PAUSED,
        RequestKind.QUEUE_RESUMED,
    ]
    assert_problem(client.post("/v1/queue/resume", json={}), "not-found")


@pytest.mark.parametrize(
    ("path", "body", "pointer"),
    [
        ("/v1/quotas/project/nlp", {"gpus_running_max": -1}, "/gpus_running_max"),
        ("/v1/quotas/project/nlp", {"gpus_running_max": 1.5}, "/gpus_running_max"),
        ("/v1/quotas/project/nlp", {"gpus": 1}, "/gpus"),
        ("/v1/queue/pause", {"user": "a", "project": "b"}, "/project"),
        ("/v1/queue/pause", {"user": ""}, "/user"),
    ],
)
def test_what_makes_no_sense_is_refused(client: Client, path: str, body: dict[str, Any], pointer: str) -> None:
    answer = client.request("PUT" if "quotas" in path else "POST", path, json=body)
    problem = assert_problem(answer, "invalid-body")
    assert [error["pointer"] for error in problem["errors"]] == [pointer]


def test_there_are_quotas_of_users_and_projects_only(client: Client) -> None:
    assert_problem(client.put("/v1/quotas/queue/x", json={}), "invalid-parameter")


def test_a_promised_run_is_bounded_by_the_operators_setting(client: Client, world: World) -> None:
    limit_s = world.settings.min_run_s_max
    assert limit_s == 3600.0
    assert submit(client, min_run_s=limit_s).status_code == 201
    problem = assert_problem(submit(client, min_run_s=limit_s + 1), "invalid-body")
    assert problem["errors"] == [
        {"pointer": "/min_run_s", "detail": "must be at most 3600, the setting min_run_s_max (got 3601)"}
    ]
    (job,) = world.store.load().jobs or world.store.jobs([1])
    assert job.spec.min_run_s == limit_s


def test_gpu_types_are_kept_in_their_order(client: Client, world: World) -> None:
    assert submit(client, gpu_types=["T4", "V100"]).status_code == 201
    (job,) = world.store.jobs([1])
    assert (job.spec.gpu_type, job.spec.gpu_type_fallbacks) == ("T4", ("V100",))
    for changes, pointer in (
        ({"gpu_type": "T4", "gpu_types": ["V100"]}, "/gpu_types"),
        ({"gpu_types": ["V100", "V100"]}, "/gpu_types"),
    ):
        problem = assert_problem(submit(client, **changes), "invalid-body")
        assert [error["pointer"] for error in problem["errors"]] == [pointer]
    problem = assert_problem(submit(client, gpu_types=["V100", "H100"]), "never-fits")
    assert problem["errors"][0]["pointer"] == "/gpu_types"
    assert_problem(submit(client, gpu_types=["T4", "V100"], gpus=9), "never-fits")
    assert submit(client, gpu_types=["T4", "V100"], gpus=8).status_code == 201


def test_a_number_of_servers_divides_the_gpus_and_can_be_found(client: Client, world: World) -> None:
    problem = assert_problem(submit(client, gpus=5, servers=2), "invalid-body")
    assert problem["errors"] == [{"pointer": "/servers", "detail": "must divide 5, the GPUs of the job (got 2)"}]
    problem = assert_problem(submit(client, gpus=6, servers=3), "never-fits")
    detail = "cannot be placed in equal shares on 3 servers, even empty ones"
    assert problem["errors"] == [{"pointer": "/servers", "detail": detail}], "two servers have V100, one T4"
    problem = assert_problem(submit(client, gpus=6, servers=1), "never-fits")
    detail = "cannot be placed on one server, even an empty one"
    assert problem["errors"] == [{"pointer": "/servers", "detail": detail}]
    assert_problem(submit(client, gpus=2, servers=0), "invalid-body", ["/servers"])
    accepted = submit(client, gpus=6, servers=2)
    assert accepted.status_code == 201
    assert world.store.jobs([accepted.json()["id"]])[0].spec.servers == 2
    assert client.get(f"/v1/jobs/{accepted.json()['id']}/spec").json()["servers"] == 2


def test_a_topology_that_nothing_can_hold_is_refused(client: Client, world: World) -> None:
    rack = {"level": "rack", "required": True}
    problem = assert_problem(submit(client, gpus=6, topology={"level": "server"}), "never-fits")
    assert problem["errors"] == [{"pointer": "/topology", "detail": "no server can hold the job even when empty"}]
    assert submit(client, gpus=6, topology=rack).status_code == 201
    assert submit(client, gpus=6, topology={"level": "server", "required": False}).status_code == 201
    (job,) = world.store.jobs([1])
    assert job.spec.topology == Topology(Level.RACK)
    assert_problem(submit(client, topology={"level": "row"}), "invalid-body")


def test_a_job_that_needs_more_than_the_servers_have_is_refused_with_the_key(client: Client, world: World) -> None:
    world.servers = [
        Server("big", 8, cpus=64, memory_gib=256.0, gpu_memory_gib=80.0),
        Server("small", 8, cpus=16, memory_gib=256.0, gpu_memory_gib=16.0),
    ]
    for needs in (
        {"gpus": 1, "cpus": 64},
        {"gpus": 16, "cpus": 32, "memory_gib": 512},
        {"gpus": 8, "cpus": 64, "memory_gib": 256, "gpu_memory_gib": 80},
    ):
        assert submit(client, **needs).status_code == 201
    for needs, pointer, words in (
        ({"gpus": 1, "cpus": 65}, "/cpus", "needs 65 CPUs beside 1 GPU; no set of servers has so much"),
        ({"gpus": 16, "cpus": 34}, "/cpus", "one has at most 64, all together 80"),
        ({"gpus": 1, "memory_gib": 256.5}, "/memory_gib", "needs 256.5 GiB of memory beside 1 GPU; "),
        ({"gpus": 9, "gpu_memory_gib": 20}, "/gpu_memory_gib", "needs 9 GPUs of at least 20 GiB"),
        ({"gpus": 1, "gpu_memory_gib": 81}, "/gpu_memory_gib", "the largest that the servers state have 80 GiB"),
    ):
        (error,) = assert_problem(submit(client, **needs), "never-fits")["errors"]
        assert (error["pointer"], words in error["detail"]) == (pointer, True), error


def test_needs_beside_gpus_are_bounded_and_name_their_key(client: Client) -> None:
    volume = {"source": "/data", "target": "/in"}
    for bad, pointer in (
        ({"cpus": 0}, "/cpus"),
        ({"cpus": 1.5}, "/cpus"),
        ({"cpus": 10**9}, "/cpus"),
        ({"memory_gib": 0}, "/memory_gib"),
        ({"gpu_memory_gib": -1}, "/gpu_memory_gib"),
        ({"image": ""}, "/image"),
        ({"image": "--privileged"}, "/image"),
        ({"image": "a b"}, "/image"),
        ({"volumes": [volume | {"source": "data"}]}, "/volumes/0/source"),
        ({"volumes": [volume | {"target": "in"}]}, "/volumes/0/target"),
        ({"volumes": [volume | {"mode": "ro"}]}, "/volumes/0/mode"),
    ):
        problem = assert_problem(submit(client, **bad), "invalid-body")
        assert [error["pointer"] for error in problem["errors"]] == [pointer]


def test_images_and_volumes(client: Client, world: World) -> None:
    volume = {"source": "/data", "target": "/in"}
    assert (
        submit(
            client, image="a:1", volumes=[volume, {"source": "/data", "target": "/b", "read_only": True}]
        ).status_code
        == 201
    )
    (job,) = world.store.jobs([1])
    assert (job.spec.image, job.spec.volumes) == (
        "a:1",
        (Volume("/data", "/in"), Volume("/data", "/b", read_only=True)),
    )
    for bad, pointer in (
        ({"volumes": [volume]}, "/volumes"),
        ({"image": "a:1", "volumes": [volume, volume]}, "/volumes/1/target"),
        ({"image": "a:1", "volumes": [volume | {"source": str(world.settings.data_dir)}]}, "/volumes/0/source"),
        ({"image": "a:1", "volumes": [volume | {"source": "/"}]}, "/volumes/0/source"),
    ):
        problem = assert_problem(submit(client, **bad), "invalid-body")
        assert [error["pointer"] for error in problem["errors"]] == [pointer]


def test_an_engine_of_a_cluster_runs_no_images() -> None:
    body = JobBody.model_validate(examples.PLAIN_JOB | {"image": "a:1"})
    with pytest.raises(Problem) as caught:
        parse_submission(body, load_settings({"executor": "slurm"}), Cluster("c", (Server("a", 8),)))
    (fault,) = caught.value.faults
    assert (fault.pointer, "executor=slurm" in fault.detail) == ("/image", True)
