"""Submitting, listing, showing and changing jobs."""

import json
from typing import Any

import pytest
from httpx import Client
from sqlalchemy import func, select

from policies.model.ids import JobId
from service.db.tables import JOBS, REQUESTS
from service.wire import examples
from tests.api.conftest import World
from tests.api.helpers import assert_problem, graph_job, plain_job


def count(world: World, row: Any) -> int:
    with world.database.reading() as session:
        return int(session.connection().execute(select(func.count()).select_from(row)).scalar_one())


def requests(world: World) -> list[tuple[str, int | None]]:
    return [(request.kind.value, request.job) for request in world.store.pending_requests(1000)]


def test_a_job_goes_in_and_is_shown_as_it_was_asked_for(client: Client, world: World) -> None:
    answer = client.post("/v1/jobs", json=graph_job(user="ann", priority=3, hold=True))
    assert answer.status_code == 201
    body = answer.json()
    assert answer.headers["location"] == f"/v1/jobs/{body['id']}" == body["links"]["self"]
    expected = {
        "name": "gpt2-medium-pretrain",
        "user": "ann",
        "project": "nlp",
        "state": "queued",
        "reason": "held",
        "gpus": 2,
        "priority": 3,
        "held": True,
        "submitted_at": "2026-01-01T00:00:00Z",
        "started_at": None,
        "finished_at": None,
        "attempts": 0,
        "preemptions": 0,
        "iterations_done": None,
        "prediction": None,
        "eta": None,
        "servers": [],
        "exit_code": None,
        "array_id": None,
        "array_index": None,
    }
    assert {key: body[key] for key in expected} == expected
    assert body["reason_sentence"] == "The job is held; it can start when it is released."
    assert body["eta_reason"] == body["reason_sentence"]
    assert client.get(answer.headers["location"]).json() == body
    assert requests(world) == [("submitted", body["id"])]
    assert world.nudges == 1


def test_the_store_gets_the_spec_that_the_body_describes(client: Client, world: World) -> None:
    sent = graph_job(
        env={"LR": "0.1"},
        walltime_s=60,
        labels={"team": "x"},
        preemption={"signal": "SIGUSR2", "grace_s": 5},
        launch="gpu",
        gpus_min=1,
        gpus_max=4,
        recurrence_key="nightly",
        tensor_across_servers=True,
        checkpoint_period_s=None,
    )
    number = client.post("/v1/jobs", json=sent).json()["id"]
    spec = world.store.jobs([JobId(number)])[0].spec
    assert spec.command == ("python", "train.py")
    assert spec.env == {"LR": "0.1"}
    assert (spec.walltime_s, spec.labels, spec.launch.value) == (60.0, {"team": "x"}, "gpu")
    assert spec.preemption is not None
    assert (spec.preemption.signal, spec.preemption.grace_s) == ("SIGUSR2", 5.0)
    assert (spec.gpus, spec.gpus_min, spec.gpus_max) == (2, 1, 4)
    assert spec.recurrence == ("", "nlp", "nightly")
    assert spec.checkpoint_period_s is None
    assert spec.parallelism is not None
    assert (spec.parallelism.replicas, spec.parallelism.tensor) == ((1, 1), (1, 1))
    assert spec.parallelism.tensor_across_servers
    assert spec.stage_graph is not None
    assert [stage.forward_s for stage in spec.stage_graph.stages] == [0.004, 0.006]


@pytest.mark.parametrize("example", [examples.JOB, examples.CATALOGUE_JOB, examples.PLAIN_JOB])
def test_every_documented_job_is_accepted(client: Client, example: dict[str, Any]) -> None:
    assert client.post("/v1/jobs", json=example).status_code == 201


def test_many_jobs_go_in_together(client: Client, world: World) -> None:
    answer = client.post("/v1/jobs", json={"jobs": [plain_job(name="one"), graph_job(name="two")]})
    assert answer.status_code == 201
    assert [job["name"] for job in answer.json()["jobs"]] == ["one", "two"]
    assert answer.headers["location"] == "/v1/jobs"
    assert count(world, JOBS) == 2
    assert world.nudges == 1


def test_one_broken_job_of_many_stops_all_and_every_fault_is_named(client: Client, world: World) -> None:
    jobs = [plain_job(), plain_job(gpus_min=9), graph_job(gpus=3), plain_job(gpus=4000)]
    answer = client.post("/v1/jobs", json={"jobs": jobs})
    assert_problem(answer, "invalid-body", ["/jobs/1/gpus_min", "/jobs/2/gpus", "/jobs/3/gpus"])
    assert count(world, JOBS) == 0
    assert count(world, REQUESTS) == 0


def test_a_dependency_must_exist(client: Client, world: World) -> None:
    first = client.post("/v1/jobs", json=plain_job()).json()["id"]
    assert client.post("/v1/jobs", json=plain_job(after=[first, first])).status_code == 201
    assert world.store.jobs([JobId(first + 1)])[0].spec.after == (first,)
    assert_problem(client.post("/v1/jobs", json=plain_job(after=[first, 99])), "invalid-body", ["/after/1"])
    # Neither itself (it would be number 3) nor another job of the same request: their numbers do not exist yet.
    jobs = [plain_job(), plain_job(after=[3])]
    assert_problem(client.post("/v1/jobs", json={"jobs": jobs}), "invalid-body", ["/jobs/1/after/0"])
    assert count(world, JOBS) == 2


def test_a_dependency_may_be_met_by_any_end(client: Client, world: World) -> None:
    for _ in range(3):
        client.post("/v1/jobs", json=plain_job())
    after = [{"job": 1, "when": "any"}, {"job": 2}, 3, {"job": 3, "when": "any"}, {"job": 1, "when": "any"}]
    number = client.post("/v1/jobs", json=plain_job(after=after)).json()["id"]
    spec = world.store.jobs([JobId(number)])[0].spec
    assert (spec.after, spec.after_any) == ((2, 3), (1,))
    missing = client.post("/v1/jobs", json=plain_job(after=[1, 1, {"job": 99, "when": "any"}]))
    assert_problem(missing, "invalid-body", ["/after/2"])


@pytest.mark.parametrize(
    ("changes", "pointer", "word"),
    [
        ({"gpus": 5}, None, ""),
        ({"gpus": 9}, "/gpus", "8"),
        ({"gpus": 2, "gpu_type": "NVIDIA Tesla T4"}, None, ""),
        ({"gpus": 3, "gpu_type": "T4"}, "/gpus", "2 of type T4"),
        ({"gpus": 3, "gpu_type": "Tesla-T4"}, "/gpus", "2 of type Tesla-T4"),
        ({"gpu_types": ["H100", "t4"]}, "/gpu_types", "'H100'"),
        ({"gpu_type": "H100"}, "/gpu_type", "T4, V100"),
    ],
)
def test_a_job_that_can_never_run_is_refused_with_the_reason(
    client: Client, changes: dict[str, Any], pointer: str | None, word: str
) -> None:
    answer = client.post("/v1/jobs", json=plain_job(**changes))
    if pointer is None:
        assert answer.status_code == 201
    else:
        assert word in assert_problem(answer, "never-fits", [pointer])["detail"]


@pytest.mark.parametrize(
    ("action", "kind"), [("cancel", "cancel"), ("hold", "hold"), ("release", "release"), ("priority", "priority")]
)
def test_a_request_on_a_job_is_stored(client: Client, world: World, action: str, kind: str) -> None:
    number = client.post("/v1/jobs", json=plain_job()).json()["id"]
    body = {"json": {"priority": -7}} if action == "priority" else {}
    answer = client.post(f"/v1/jobs/{number}/{action}", **body)
    assert answer.status_code == 202
    assert answer.json() == {"accepted": kind, "job_id": number, "server": None}
    request = world.store.pending_requests(10)[-1]
    assert (request.kind.value, request.job) == (kind, number)
    assert request.priority == (-7 if action == "priority" else None)
    assert world.nudges == 2


def test_priority_may_be_put_and_hold_may_preempt(client: Client, world: World) -> None:
    number = client.post("/v1/jobs", json=plain_job()).json()["id"]
    assert client.put(f"/v1/jobs/{number}/priority", json={"priority": 5}).status_code == 202
    assert client.post(f"/v1/jobs/{number}/hold", json={"preempt": True}).status_code == 202
    put, hold = world.store.pending_requests(10)[-2:]
    assert (put.priority, hold.preempt) == (5, True)


def test_a_job_that_does_not_exist_is_nowhere(client: Client) -> None:
    for path in ("", "/explanation", "/attempts", "/events", "/logs", "/progress", "/prediction"):
        assert_problem(client.get(f"/v1/jobs/12{path}"), "not-found")
    for action in ("cancel", "hold", "release"):
        assert_problem(client.post(f"/v1/jobs/12/{action}"), "not-found")
    assert_problem(client.post("/v1/jobs/12/priority", json={"priority": 1}), "not-found")
    assert_problem(client.get(f"/v1/jobs/{2**70}"), "invalid-parameter")
    assert_problem(client.get("/v1/jobs/0"), "invalid-parameter")


def test_a_change_can_be_bound_to_the_state_that_was_seen(client: Client, world: World) -> None:
    number = client.post("/v1/jobs", json=plain_job()).json()["id"]
    tag = client.get(f"/v1/jobs/{number}").headers["etag"]
    unchanged = client.get(f"/v1/jobs/{number}", headers={"If-None-Match": tag})
    assert (unchanged.status_code, unchanged.content) == (304, b"")
    assert unchanged.headers["etag"] == tag
    refused = client.post(f"/v1/jobs/{number}/cancel", headers={"If-Match": '"other"'})
    assert_problem(refused, "precondition-failed")
    assert refused.headers["etag"] == tag
    assert len(requests(world)) == 1
    assert client.post(f"/v1/jobs/{number}/cancel", headers={"If-Match": f'"x", {tag}'}).status_code == 202
    assert client.post(f"/v1/jobs/{number}/cancel", headers={"If-Match": "*"}).status_code == 202


def test_the_queue_has_a_limit(client: Client, world: World) -> None:
    object.__setattr__(world.settings, "jobs_queued_max", 3)
    assert client.post("/v1/jobs", json={"jobs": [plain_job(), plain_job()]}).status_code == 201
    answer = client.post("/v1/jobs", json={"jobs": [plain_job(), plain_job()]})
    assert "jobs_queued_max" in assert_problem(answer, "queue-full")["detail"]
    assert int(answer.headers["retry-after"]) > 0
    assert client.post("/v1/jobs", json=plain_job()).status_code == 201
    assert_problem(client.post("/v1/jobs", json=plain_job()), "queue-full")


def test_nothing_of_a_value_is_echoed(client: Client) -> None:
    body = plain_job(env={"API_KEY": [12345678]}, command=["x", "hunter2\x00"])
    answer = client.post("/v1/jobs", content=json.dumps(body), headers={"Content-Type": "application/json"})
    assert_problem(answer, "invalid-body", ["/env/API_KEY", "/command/1"])
    assert "hunter2" not in answer.text
    assert "12345678" not in answer.text
