"""Job arrays: one submission, many jobs, and requests about all of them at once."""

from typing import Any

import pytest
from httpx import Client
from sqlalchemy import update

from policies.model.ids import JobId
from policies.model.job import ArrayPlace
from service.db.tables import JOBS, JobRow
from tests.api.conftest import World
from tests.api.helpers import assert_problem, plain_job
from tests.api.test_jobs import count, requests


def submit_array(client: Client, array: dict[str, Any], **changes: Any) -> list[dict[str, Any]]:
    answer = client.post("/v1/jobs", json=plain_job(array=array, **changes))
    assert answer.status_code == 201, answer.text
    jobs: list[dict[str, Any]] = answer.json()["jobs"]
    return jobs


def set_state(world: World, state: str, *ids: int) -> None:
    with world.database.writing() as session:
        session.connection().execute(update(JOBS).where(JOBS.c.id.in_(ids)).values(state=state))


def test_one_submission_makes_jobs_that_share_all_but_their_index(client: Client, world: World) -> None:
    client.post("/v1/jobs", json=plain_job())
    jobs = submit_array(client, {"count": 3, "max_running": 2}, env={"LR": "0.1"})
    assert [(job["id"], job["array_id"], job["array_index"]) for job in jobs] == [(2, 2, 0), (3, 2, 1), (4, 2, 2)]
    specs = [record.own_spec for record in world.store.jobs([JobId(job["id"]) for job in jobs])]
    assert [spec.array for spec in specs] == [ArrayPlace(index, 3, JobId(2), 2) for index in range(3)]
    assert {(spec.name, spec.command, spec.env["LR"], spec.recurrence) for spec in specs} == {
        ("digits", ("python", "digits.py", "--epochs", "20"), "0.1", ("", "", "digits"))
    }
    assert requests(world) == [("submitted", number) for number in (1, 2, 3, 4)]
    assert client.get("/v1/jobs/3").json()["array_index"] == 1


def test_indices_may_be_chosen_and_arrays_stand_among_other_jobs(client: Client) -> None:
    asked = [plain_job(), plain_job(array={"indices": [7, 3]}), plain_job(), plain_job(), plain_job(array={"count": 1})]
    answer = client.post("/v1/jobs", json={"jobs": asked})
    assert [(job["array_id"], job["array_index"]) for job in answer.json()["jobs"]] == [
        (None, None),
        (2, 7),
        (2, 3),
        (None, None),
        (None, None),
        (6, 0),
    ]
    listed = client.get("/v1/jobs", params={"array": 2}).json()["items"]
    assert [job["id"] for job in listed] == [3, 2]
    assert client.get("/v1/jobs", params={"array": 1}).json()["items"] == []


def test_a_filter_by_state_and_pages_work_within_an_array(client: Client, world: World) -> None:
    ids = [job["id"] for job in submit_array(client, {"count": 5})]
    submit_array(client, {"count": 2})
    set_state(world, "failed", ids[0], ids[3])
    failed = client.get("/v1/jobs", params={"array": ids[0], "state": "failed"}).json()["items"]
    assert [job["array_index"] for job in failed] == [3, 0]
    page = client.get("/v1/jobs", params={"array": ids[0], "limit": 3}).json()
    rest = client.get("/v1/jobs", params={"array": ids[0], "limit": 3, "after": page["next"]}).json()
    assert [job["id"] for job in page["items"] + rest["items"]] == ids[::-1]
    foreign = client.get("/v1/jobs", params={"array": 99, "limit": 3, "after": page["next"]})
    assert_problem(foreign, "invalid-parameter")


def test_each_element_counts_and_all_are_accepted_or_none(client: Client, world: World) -> None:
    object.__setattr__(world.settings, "jobs_per_request_max", 4)
    assert len(submit_array(client, {"count": 4})) == 4
    too_many = client.post("/v1/jobs", json=plain_job(array={"count": 5}))
    assert "jobs_per_request_max" in assert_problem(too_many, "invalid-body", ["/array"])["errors"][0]["detail"]
    together = {"jobs": [plain_job(array={"count": 3}), plain_job(array={"count": 2})]}
    assert_problem(client.post("/v1/jobs", json=together), "invalid-body", ["/jobs"])
    one = {"jobs": [plain_job(), plain_job(array={"count": 5})]}
    assert_problem(client.post("/v1/jobs", json=one), "invalid-body", ["/jobs/1/array"])
    object.__setattr__(world.settings, "jobs_queued_max", 7)
    assert_problem(client.post("/v1/jobs", json=plain_job(array={"count": 4})), "queue-full")
    assert count(world, JobRow) == 4


def test_a_missing_dependency_of_an_array_is_named_once(client: Client) -> None:
    answer = client.post("/v1/jobs", json=plain_job(array={"count": 3}, after=[9]))
    assert_problem(answer, "invalid-body", ["/after/0"])
    many = {"jobs": [plain_job(array={"count": 2}), plain_job(after=[9])]}
    assert_problem(client.post("/v1/jobs", json=many), "invalid-body", ["/jobs/1/after/0"])


@pytest.mark.parametrize(
    ("method", "action"),
    [("POST", "cancel"), ("POST", "hold"), ("POST", "release"), ("POST", "priority"), ("PUT", "priority")],
)
def test_a_request_on_an_array_reaches_every_element_that_has_not_ended(
    client: Client, world: World, method: str, action: str
) -> None:
    ids = [job["id"] for job in submit_array(client, {"count": 4})]
    other = client.post("/v1/jobs", json=plain_job()).json()["id"]
    set_state(world, "succeeded", ids[0])
    body = {"priority": 4} if action == "priority" else {}
    answer = client.request(method, f"/v1/arrays/{ids[0]}/{action}", json=body)
    assert answer.status_code == 202
    assert answer.json() == {"accepted": action, "array_id": ids[0], "jobs": 3}
    asked = [request for request in world.store.pending_requests(100) if request.kind.value == action]
    assert [request.job for request in asked] == ids[1:]
    assert {request.priority for request in asked} == {4 if action == "priority" else None}
    assert other not in [request.job for request in asked]
    assert world.nudges == 3


def test_a_repeated_request_on_an_array_has_its_effect_once(client: Client, world: World) -> None:
    first = submit_array(client, {"count": 2})[0]["id"]
    for _ in range(2):
        answer = client.post(f"/v1/arrays/{first}/hold", json={"preempt": True}, headers={"Idempotency-Key": "k"})
        assert answer.json()["jobs"] == 2
    held = [request for request in world.store.pending_requests(100) if request.kind.value == "hold"]
    assert [request.preempt for request in held] == [True, True]


def test_an_array_is_counted_by_state_and_found_by_its_own_number_alone(client: Client, world: World) -> None:
    ids = [job["id"] for job in submit_array(client, {"count": 3})]
    set_state(world, "running", ids[1])
    shown = client.get(f"/v1/arrays/{ids[0]}").json()
    assert shown == {"array_id": ids[0], "jobs": 3, "states": {"queued": 2, "running": 1}}
    single = client.post("/v1/jobs", json=plain_job()).json()["id"]
    for number in (ids[1], single, 99):
        assert_problem(client.get(f"/v1/arrays/{number}"), "not-found")
        assert_problem(client.post(f"/v1/arrays/{number}/cancel"), "not-found")
    set_state(world, "cancelled", *ids)
    assert_problem(client.post(f"/v1/arrays/{ids[0]}/cancel"), "job-finished")


def test_plans_know_arrays(client: Client, world: World) -> None:
    plans = client.post("/v1/plans", json=plain_job(array={"count": 3})).json()["plans"]
    assert len(plans) == 3
    assert count(world, JobRow) == 0
