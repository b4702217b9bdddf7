"""Idempotency-Key: one effect a key, the same answer to every repetition."""

import threading

import pytest
from fastapi import FastAPI
from httpx import Client, Response
from sqlalchemy import func, select
from sqlmodel import Session

from policies.model.job import JobSpec
from service.api.app import create_app
from service.api.idempotency import Answer, KeyedRequest, Keys
from service.db.tables import IDEMPOTENCY_KEYS, JOBS, ModelVersionRow
from service.wire import examples
from tests.api.client import client_of
from tests.api.conftest import World
from tests.api.helpers import assert_problem, plain_job
from tests.api.test_learning import add_rows, model_row

KEY = {"Idempotency-Key": "3f1c"}


def jobs(world: World) -> int:
    with world.database.reading() as session:
        return int(session.connection().execute(select(func.count()).select_from(JOBS)).scalar_one())


def test_a_repeated_submission_is_answered_again_and_done_once(client: Client, world: World) -> None:
    first = client.post("/v1/jobs", json=plain_job(), headers=KEY)
    again = client.post("/v1/jobs", json=plain_job(), headers=KEY)
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.content == first.content
    assert again.headers["location"] == first.headers["location"]
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert jobs(world) == 1
    other = client.post("/v1/jobs", json=plain_job(), headers={"Idempotency-Key": "4"})
    assert other.json()["id"] != first.json()["id"]


def test_a_repetition_is_answered_even_when_the_job_would_be_refused_now(client: Client, world: World) -> None:
    first = client.post("/v1/jobs", json=plain_job(gpus=8), headers=KEY)
    del world.servers[0]
    assert_problem(client.post("/v1/jobs", json=plain_job(gpus=8)), "never-fits")
    assert client.post("/v1/jobs", json=plain_job(gpus=8), headers=KEY).content == first.content


def test_a_key_stands_for_one_body(client: Client, world: World) -> None:
    client.post("/v1/jobs", json=plain_job(), headers=KEY)
    assert_problem(client.post("/v1/jobs", json=plain_job(gpus=2), headers=KEY), "idempotency-key-reused")
    assert jobs(world) == 1


def test_a_key_stands_for_one_path(client: Client, world: World) -> None:
    number = client.post("/v1/jobs", json=plain_job(), headers=KEY).json()["id"]
    held = client.post(f"/v1/jobs/{number}/hold", headers=KEY)
    assert held.json()["accepted"] == "hold"
    assert client.post(f"/v1/jobs/{number}/hold", headers=KEY).content == held.content
    assert client.post(f"/v1/jobs/{number}/release", headers=KEY).json()["accepted"] == "release"
    assert [request.kind.value for request in world.store.pending_requests(10)] == ["submitted", "hold", "release"]


def test_a_refused_request_leaves_its_key_free(client: Client, world: World) -> None:
    assert_problem(client.post("/v1/jobs", json=plain_job(after=[5]), headers=KEY), "invalid-body")
    assert_problem(client.post("/v1/jobs", json=plain_job(gpus=99), headers=KEY), "never-fits")
    assert client.post("/v1/jobs", json=plain_job(), headers=KEY).status_code == 201


def test_keys_expire(client: Client, world: World) -> None:
    client.post("/v1/jobs", json=plain_job(), headers=KEY)
    world.now_s += world.settings.idempotency_kept_s - 1
    assert "idempotent-replayed" in client.post("/v1/jobs", json=plain_job(), headers=KEY).headers
    world.now_s += 1
    assert "idempotent-replayed" not in client.post("/v1/jobs", json=plain_job(gpus=2), headers=KEY).headers
    assert jobs(world) == 2
    assert "idempotent-replayed" in client.post("/v1/jobs", json=plain_job(gpus=2), headers=KEY).headers


@pytest.mark.parametrize("key", ["", "x" * 256, "with space", "naïve"])
def test_a_key_is_a_short_word(client: Client, key: str) -> None:
    answer = client.post("/v1/jobs", json=plain_job(), headers={b"Idempotency-Key": key.encode("latin-1")})
    document = assert_problem(answer, "invalid-parameter")
    assert document["errors"][0]["parameter"] == "idempotency-key"


def test_training_starts_once_a_key(client: Client, world: World) -> None:
    answers = [client.post("/v1/models/train", headers=KEY) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [202, 202]
    assert answers[0].json() == answers[1].json() == {"training_run": 1}
    assert world.trainings == 1


def test_a_race_of_one_key_has_one_effect(app: FastAPI, world: World) -> None:
    barrier = threading.Barrier(8)
    answers: list[Response] = []

    def post() -> None:
        with client_of(app, world.token) as client:
            barrier.wait()
            answers.append(client.post("/v1/jobs", json=plain_job(), headers=KEY))

    threads = [threading.Thread(target=post) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done = [answer for answer in answers if answer.status_code == 201]
    assert len(answers) == 8
    assert done
    assert len({answer.content for answer in done}) == 1
    assert sum("idempotent-replayed" not in answer.headers for answer in done) == 1
    for answer in answers:
        if answer not in done:
            assert_problem(answer, "request-in-progress")
    assert jobs(world) == 1


def test_a_race_between_two_services_has_one_effect(world: World) -> None:
    """Two applications on one database share no memory: the database's lock decides, and nobody is turned away."""
    apps = [create_app(world.dependencies()) for _ in range(4)]
    barrier = threading.Barrier(4)
    answers: list[Response] = []

    def post(app: FastAPI) -> None:
        with client_of(app, world.token) as client:
            barrier.wait()
            answers.append(client.post("/v1/jobs", json=plain_job(), headers=KEY))

    threads = [threading.Thread(target=post, args=(app,)) for app in apps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answer.status_code for answer in answers] == [201] * 4
    assert len({answer.content for answer in answers}) == 1
    assert jobs(world) == 1


def test_while_the_first_runs_the_second_is_told_so(world: World) -> None:
    keys = Keys(world.database, lambda: world.now_s, 60.0)
    request = KeyedRequest("k", "POST /v1/jobs", "0" * 64)
    entered, leave = threading.Event(), threading.Event()

    def slow(session: Session) -> Answer:
        entered.set()
        assert leave.wait(60.0)
        return Answer(201, {"done": True})

    first = threading.Thread(target=lambda: keys.run(request, lambda: slow))
    first.start()
    assert entered.wait(60.0)
    with pytest.raises(Exception, match="409"):
        keys.run(request, lambda: slow)
    leave.set()
    first.join()
    assert keys.run(request, lambda: slow).headers["Idempotent-Replayed"] == "true"


def test_a_failure_inside_the_effect_keeps_neither_effect_nor_key(world: World) -> None:
    keys = Keys(world.database, lambda: world.now_s, 60.0)
    request = KeyedRequest("k", "POST /v1/jobs", "0" * 64)

    def half(session: Session) -> Answer:
        world.store.submit(session, [JobSpec("x", "u", 1)], world.now_s)
        raise RuntimeError("the process died here")

    with pytest.raises(RuntimeError):
        keys.run(request, lambda: half)
    assert jobs(world) == 0
    with world.database.reading() as session:
        assert session.connection().execute(select(IDEMPOTENCY_KEYS)).all() == []
    assert keys.run(request, lambda: lambda session: Answer(201, {})).status_code == 201


def test_the_loop_is_never_asked_inside_a_writing_transaction(client: Client, world: World) -> None:
    """The loop writes while others wait to look at it: whoever asks it with the write lock in hand waits for ever."""
    add_rows(world, ModelVersionRow, [model_row("m1", 5.0)])
    world.refuses_writers = True
    number = client.post("/v1/jobs", json=plain_job(), headers=KEY).json()["id"]
    tag = client.get(f"/v1/jobs/{number}").headers["etag"]
    requests = [
        ("POST", f"/v1/jobs/{number}/hold", None),
        ("POST", f"/v1/jobs/{number}/priority", {"priority": 1}),
        ("POST", f"/v1/jobs/{number}/cancel", None),
        ("POST", "/v1/cluster/servers", examples.SERVER),
        ("POST", "/v1/cluster/servers/a/drain", None),
        ("POST", "/v1/models/train", None),
        ("POST", "/v1/models/m1/promote", None),
        ("GET", f"/v1/jobs/{number}/explanation", None),
        ("GET", "/v1/cluster", None),
    ]
    for method, path, body in requests:
        answer = client.request(method, path, json=body, headers={**KEY, "If-Match": tag})
        assert answer.status_code in (200, 202), (path, answer.text)
    assert world.asked >= len(requests)
