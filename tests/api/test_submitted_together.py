"""Submissions that come at the same time: one transaction and one set of statements, and each is answered as if it were alone."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from fastapi import FastAPI
from httpx import Response
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, Table, event, func, select
from sqlmodel import Session

from policies.model.job import JobSpec
from service.api.submission import JOINT_JOBS_MAX
from service.db.tables import AUDIT_LOG, EVENTS, JOBS, REQUESTS
from service.engine.events import RequestKind
from tests.api.client import client_of
from tests.api.conftest import World
from tests.api.helpers import assert_problem, plain_job

_JOBS = JOBS.c


def together(app: FastAPI, world: World, bodies: Sequence[Any], headers: Sequence[Any] = ()) -> list[Response]:
    """What each is answered when all of them wait for the transaction of somebody before them."""
    group = app.state.idempotency_keys._commits
    entered, leave = threading.Event(), threading.Event()
    answers: dict[int, Response] = {}

    def held(session: Session) -> None:
        entered.set()
        assert leave.wait(60.0)

    def post(number: int) -> None:
        with client_of(app, world.token) as client:
            answers[number] = client.post("/v1/jobs", json=bodies[number], headers=headers[number] if headers else None)

    first = threading.Thread(target=lambda: group.run(held, lambda session, effects: [None for _ in effects]))
    first.start()
    assert entered.wait(60.0)
    threads = [threading.Thread(target=post, args=(number,)) for number in range(len(bodies))]
    for thread in threads:
        waiting = len(group._waiting)
        thread.start()
        while len(group._waiting) == waiting and thread.is_alive():
            thread.join(0.001)
    leave.set()
    for thread in (first, *threads):
        thread.join(60.0)
    return [answers[number] for number in range(len(bodies))]


@contextmanager
def statements(world: World) -> Iterator[list[str]]:
    """What the database is asked meanwhile."""
    asked: list[str] = []

    def remember(connection: object, cursor: object, statement: str, *rest: object) -> None:
        asked.append(statement)

    event.listen(world.database.engine, "before_cursor_execute", remember)
    yield asked
    event.remove(world.database.engine, "before_cursor_execute", remember)


def count(connection: Connection, row: Table) -> int:
    return connection.execute(select(func.count()).select_from(row)).scalar_one()


def test_each_is_answered_with_its_own_job(app: FastAPI, world: World) -> None:
    bodies = [plain_job(name=f"j{number}", gpus=1 + number % 2, priority=number) for number in range(7)]
    answers = together(app, world, bodies)
    assert [answer.status_code for answer in answers] == [201] * 7
    said = [answer.json() for answer in answers]
    assert [(job["name"], job["gpus"], job["priority"]) for job in said] == [
        (f"j{number}", 1 + number % 2, number) for number in range(7)
    ]
    assert [answer.headers["Location"] for answer in answers] == [f"/v1/jobs/{job['id']}" for job in said]
    with client_of(app, world.token) as client:
        assert [client.get(answer.headers["Location"]).json() for answer in answers] == said
        lines = client.get("/v1/audit").json()["items"]
    assert sorted((line["target"], line["request_id"], line["status"]) for line in lines) == sorted(
        (f"job {job['id']}", answer.headers["X-Request-Id"], 201) for job, answer in zip(said, answers, strict=True)
    )
    with world.database.reading() as session:
        assert count(session.connection(), EVENTS) == 0
    requests = world.store.pending_requests(20)
    assert [(request.kind, request.job) for request in requests] == [(RequestKind.SUBMITTED, job["id"]) for job in said]


@pytest.mark.parametrize("keyed", [False, True])
def test_many_take_no_more_statements_than_two(app: FastAPI, world: World, keyed: bool) -> None:
    def asked(count: int, begun: str) -> list[str]:
        headers = [{"Idempotency-Key": f"{begun}{number}"} if keyed else None for number in range(count)]
        with statements(world) as found:
            together(app, world, [plain_job()] * count, headers)
        return found

    of_two, of_many = asked(2, "a"), asked(12, "b")
    # SQLite inserts numbered rows one by one, without a way to anywhere.
    one_by_one = 10 if world.database.one_writer else 0
    assert len(of_many) <= len(of_two) + one_by_one


def test_keys_take_a_look_and_a_note(app: FastAPI, world: World) -> None:
    """New ones have no expired answer that would have to be deleted. PostgreSQL locks them besides, and needs no savepoint."""
    with statements(world) as asked:
        together(app, world, [plain_job()] * 4, [{"Idempotency-Key": f"k{number}"} for number in range(4)])
    assert [each.partition(" ")[0] for each in asked if "idempotency_keys" in each] == ["SELECT", "INSERT"]
    assert any("SAVEPOINT" in each for each in asked) == world.database.one_writer


def test_each_key_has_its_own_answer(app: FastAPI, world: World) -> None:
    """Repeated, used for something else, expired, new, refused and none at all, in one transaction."""
    keys = [{"Idempotency-Key": name} for name in ("again", "other", "old", "new", "refused")]
    with client_of(app, world.token) as client:
        client.post("/v1/jobs", json=plain_job(name="old"), headers=keys[2])
        world.now_s += world.settings.idempotency_kept_s
        said = client.post("/v1/jobs", json=plain_job(name="again"), headers=keys[0])
        client.post("/v1/jobs", json=plain_job(name="other"), headers=keys[1])
    bodies = [plain_job(name=name) for name in ("again", "another", "older", "new")]
    bodies += [plain_job(after=[999]), plain_job(name="none")]
    answers = together(app, world, bodies, [*keys, None])
    assert [answer.status_code for answer in answers] == [201, 422, 201, 201, 422, 201]
    replayed = ["Idempotent-Replayed" in answer.headers for answer in answers]
    assert replayed == [True, False, False, False, False, False]
    assert answers[0].content == said.content
    assert_problem(answers[1], "idempotency-key-reused")
    assert_problem(answers[4], "invalid-body", ["/after/0"])
    with client_of(app, world.token) as client:
        for key, body, answer in ((keys[2], bodies[2], answers[2]), (keys[3], bodies[3], answers[3])):
            again = client.post("/v1/jobs", json=body, headers=key)
            assert (again.headers["Idempotent-Replayed"], again.content) == ("true", answer.content)
        assert client.post("/v1/jobs", json=plain_job(name="mended"), headers=keys[4]).status_code == 201
    with world.database.reading() as session:
        names = session.connection().execute(select(_JOBS.name).order_by(_JOBS.id)).scalars().all()
    assert names == ["old", "again", "other", "older", "new", "none", "mended"]


def test_who_may_not_is_refused_alone(app: FastAPI, world: World) -> None:
    with client_of(app, world.token) as client:
        client.put("/v1/quotas/user/ann", json={"jobs_queued_max": 2})
        client.put("/v1/quotas/project/p", json={"jobs_queued_max": 1})
    bodies = [
        plain_job(user="ann", project="p"),
        plain_job(user="bob", project="p"),
        plain_job(user="bob", after=[999]),
        plain_job(user="ann"),
        plain_job(user="ann"),
        plain_job(user="bob"),
    ]
    answers = together(app, world, bodies)
    assert [answer.status_code for answer in answers] == [201, 429, 422, 201, 429, 201]
    assert "Project 'p'" in assert_problem(answers[1], "queue-full")["detail"]
    assert_problem(answers[2], "invalid-body", ["/after/0"])
    assert "User 'ann'" in assert_problem(answers[4], "queue-full")["detail"]
    with world.database.reading() as session:
        users = session.connection().execute(select(_JOBS.user).order_by(_JOBS.id)).scalars().all()
        assert (users, count(session.connection(), REQUESTS)) == (["ann", "ann", "bob"], 3 + 2)


@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(users=st.lists(st.sampled_from(["ann", "bob", "eve"]), min_size=1, max_size=8))
def test_a_quota_holds_whoever_comes_together(app: FastAPI, world: World, users: list[str]) -> None:
    with world.database.writing() as session:
        for row in (REQUESTS, EVENTS, JOBS):
            session.connection().execute(row.delete())
    with client_of(app, world.token) as client:
        for user, most in (("ann", 1), ("bob", 3)):
            client.put(f"/v1/quotas/user/{user}", json={"jobs_queued_max": most})
    answers = together(app, world, [plain_job(user=user) for user in users])
    left = {"ann": 1, "bob": 3, "eve": 99}
    for user, answer in zip(users, answers, strict=True):
        left[user] -= 1
        assert answer.status_code == (201 if left[user] >= 0 else 429)


def test_one_that_cannot_be_written_takes_no_other_with_it(
    app: FastAPI, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = world.store.submit

    def submit(session: Session, specs: Sequence[JobSpec], now_s: float, sizes: Sequence[int]) -> Any:
        ids = usual(session, specs, now_s, sizes)
        if any(spec.name == "odd" for spec in specs):
            raise ValueError("no database takes that")
        return ids

    monkeypatch.setattr(world.store, "submit", submit)
    app.state.dependencies = world.dependencies()
    answers = together(app, world, [plain_job(name=name) for name in ("a", "odd", "b")])
    assert [answer.status_code for answer in answers] == [201, 500, 201]
    with world.database.reading() as session:
        connection = session.connection()
        names = connection.execute(select(_JOBS.name).order_by(_JOBS.id)).scalars().all()
        counts = [count(connection, row) for row in (REQUESTS, AUDIT_LOG)]
    assert (names, counts) == (["a", "b"], [2, 2])


def test_a_large_one_goes_by_itself(app: FastAPI, world: World) -> None:
    large = {"jobs": [plain_job(name=f"j{number}") for number in range(JOINT_JOBS_MAX + 1)]}
    answers = together(app, world, [plain_job(), large, plain_job()])
    assert [answer.status_code for answer in answers] == [201] * 3
    with world.database.reading() as session:
        assert count(session.connection(), JOBS) == JOINT_JOBS_MAX + 3
