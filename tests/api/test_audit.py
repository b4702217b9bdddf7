"""The log of changes: written with the change or not at all, never edited, deleted by age alone."""

import re
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from httpx import Client
from sqlalchemy import func, select, update
from sqlalchemy.exc import DBAPIError

from service.api.app import create_app
from service.background.prune import prune
from service.db.audit import Entry, Origin, Outcome, record
from service.db.limits import StoredLimit, store_limit
from service.db.session import Database
from service.db.tables import AUDIT_LOG, JOBS
from service.domain.access import LOCAL, Role
from service.engine.limits import LimitOwner, OwnerLimit, Scope
from tests.api.client import client_of
from tests.api.conftest import NOW_S, World, make_world
from tests.api.helpers import assert_problem, plain_job
from tests.api.people import client as client_for
from tests.api.people import person

SOURCES = Path(__file__).parents[2] / "service"


def lines(client: Client, **filters: Any) -> list[dict[str, Any]]:
    answer = client.get("/v1/audit", params=filters)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["items"])


def count(database: Database, rows: Any) -> int:
    with database.reading() as session:
        return int(session.connection().execute(select(func.count()).select_from(rows)).scalar_one())


def test_a_line_says_who_what_when_from_where_and_what_became_of_it(app: FastAPI, client: Client, world: World) -> None:
    ada = person(world, "ada", Role.SUBMITTER, "nlp")
    with client_for(app, ada) as hers:
        hers.headers["X-Request-Id"] = "ci-4711"
        answer = hers.post("/v1/jobs", json=plain_job(project="nlp", env={"A": "hush"}))
    assert answer.headers["x-request-id"] == "ci-4711"
    assert lines(client) == [
        {
            "id": 1,
            "at": "2026-01-01T00:00:00Z",
            "user": "ada",
            "role": "submitter",
            "key_id": ada.key_id,
            "address": "127.0.0.1",
            "request_id": "ci-4711",
            "action": "POST /v1/jobs",
            "target": "job 1",
            "outcome": "done",
            "status": 201,
            "detail": {"jobs": 1},
        }
    ]


def test_details_tell_what_the_path_does_not(client: Client) -> None:
    client.post("/v1/jobs", json={"jobs": [plain_job(), plain_job()]})
    client.put("/v1/jobs/2/priority", json={"priority": 7})
    client.post("/v1/jobs/2/hold", json={"preempt": True})
    client.post("/v1/cluster/servers", json={"name": "new", "gpus": 1, "gpu_type": "T4"})
    told = [(line["target"], line["detail"]) for line in reversed(lines(client))]
    assert told[:3] == [("jobs 1-2", {"jobs": 2}), ("job 2", {"priority": 7}), ("job 2", {"preempt": True})]
    assert told[3][0] == "server new"


def test_who_was_paused_and_what_was_set_is_told(client: Client) -> None:
    client.post("/v1/queue/pause", json={"user": "ada", "reason": "too many"})
    client.post("/v1/queue/pause", json={"project": "nlp"})
    client.post("/v1/queue/pause", json={})
    client.put("/v1/quotas/user/ada", json={"gpus_running_max": 1})
    client.delete("/v1/quotas/user/ada")
    period = {"starts_at": "2026-01-02T00:00:00Z", "ends_at": "2026-01-03T00:00:00Z"}
    client.post("/v1/reservations", json={"servers": ["a"], "user": "ada", "reason": "demo", **period})
    told = [(line["target"], line["detail"]) for line in reversed(lines(client))]
    reserved = {"servers": ["a"], **period, "user": "ada", "preempt": True, "reason": "demo"}
    assert told == [
        ("user ada", {"reason": "too many"}),
        ("project nlp", {}),
        ("queue", {}),
        ("quota user ada", {"gpus_running_max": 1, "jobs_queued_max": None}),
        ("quota user ada", {}),
        ("reservation 6", reserved),
    ]


def test_a_resumed_part_of_the_queue_is_named(client: Client, world: World) -> None:
    stored = StoredLimit(LimitOwner(Scope.USER, "ada"), OwnerLimit(paused=True), None)
    with world.database.writing() as session:
        store_limit(session.connection(), stored, NOW_S)
    assert client.post("/v1/queue/resume", json={"user": "ada"}).status_code == 202
    assert [line["target"] for line in lines(client)] == ["user ada"]


def test_quotas_arrays_and_reservations_are_named_as_such(client: Client) -> None:
    client.put("/v1/quotas/user/ada", json={"gpus_running_max": 1})
    client.post("/v1/jobs", json=plain_job(array={"indices": [0, 1, 2]}))
    client.post("/v1/jobs/2/hold")
    client.post("/v1/arrays/1/cancel")
    client.post("/v1/jobs", json=plain_job())
    period = {"starts_at": "2026-01-02T00:00:00Z", "ends_at": "2026-01-03T00:00:00Z"}
    made = client.post("/v1/reservations", json={"servers": ["a"], **period}).json()["id"]
    client.post(f"/v1/reservations/{made}/cancel")
    targets = [line["target"] for line in reversed(lines(client))]
    assert targets[:5] == ["quota user ada", "array 1", "job 2", "array 1", "job 4"]
    assert targets[5:] == [f"reservation {made}"] * 2


def test_a_change_that_fails_leaves_neither_itself_nor_a_line(
    client: Client, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no line")

    monkeypatch.setattr("service.api.idempotency.record_all", broken)
    assert_problem(client.post("/v1/jobs", json=plain_job()), "internal")
    assert (count(world.database, JOBS), count(world.database, AUDIT_LOG)) == (0, 0)
    monkeypatch.undo()
    assert_problem(client.post("/v1/jobs/9/cancel"), "not-found")
    assert_problem(client.post("/v1/jobs", json={}), "invalid-body")
    assert count(world.database, AUDIT_LOG) == 0


def test_a_repeated_request_is_one_change(client: Client) -> None:
    for _ in range(2):
        client.post("/v1/jobs", json=plain_job(), headers={"Idempotency-Key": "once"})
    assert len(lines(client)) == 1


def test_what_acts_outside_the_database_has_a_line_before_it_is_tried(client: Client, world: World) -> None:
    client.post("/v1/models/train")
    assert [(line["outcome"], line["status"]) for line in lines(client)] == [("done", 202), ("asked", 0)]
    world.refusal = "a training is running"
    assert_problem(client.post("/v1/models/train"), "conflict")
    assert [line["outcome"] for line in lines(client)] == ["asked", "done", "asked"]


def test_whoever_is_refused_is_named(app: FastAPI, client: Client, world: World) -> None:
    with client_for(app, person(world, "eve", Role.VIEWER)) as eve:
        assert_problem(eve.post("/v1/cluster/servers/a/drain"), "forbidden")
        assert_problem(eve.get("/v1/users"), "forbidden")
    (line,) = lines(client, user="eve")
    assert (line["outcome"], line["status"]) == ("refused", 403)
    assert (line["action"], line["target"]) == ("POST /v1/cluster/servers/{name}/drain", "server a")


def test_refusals_of_one_key_cannot_fill_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.api.security.REFUSALS_BURST", 3)
    world = make_world(tmp_path)
    app = create_app(world.dependencies())
    with client_for(app, person(world, "eve", Role.VIEWER)) as eve:
        for _ in range(6):
            assert_problem(eve.post("/v1/cluster/servers/a/drain"), "forbidden")
    assert count(world.database, AUDIT_LOG) == 3
    world.database.close()


@pytest.mark.parametrize("given", ["", "a b", "x" * 65, "id\ttab", "ü"])
def test_a_request_id_that_is_no_plain_word_is_replaced(app: FastAPI, world: World, given: str) -> None:
    with client_of(app, world.token) as client:
        answer = client.get("/v1/me", headers={b"X-Request-Id": given.encode()})
    assert re.fullmatch("[0-9a-f]{32}", answer.headers["x-request-id"])


def test_lines_are_found_by_user_and_by_target_page_by_page(app: FastAPI, client: Client, world: World) -> None:
    client.post("/v1/jobs", json=plain_job())
    with client_for(app, person(world, "ada", Role.OPERATOR)) as ada:
        for _ in range(3):
            ada.post("/v1/jobs/1/hold")
    assert [line["user"] for line in lines(client, target="job 1")] == ["ada", "ada", "ada", None]
    page = client.get("/v1/audit", params={"user": "ada", "limit": 2}).json()
    rest = lines(client, user="ada", limit=2, after=page["next"])
    assert [line["id"] for line in (*page["items"], *rest)] == [4, 3, 2]
    assert lines(client, user="nobody") == []


def test_the_database_refuses_to_change_a_line(client: Client, world: World) -> None:
    client.post("/v1/jobs", json=plain_job())
    with pytest.raises(DBAPIError, match="append-only"), world.database.writing() as session:
        session.connection().execute(update(AUDIT_LOG).values(user="somebody else"))
    assert lines(client)[0]["user"] is None


def test_lines_go_by_age_alone(world: World) -> None:
    kept_s = world.settings.audit_kept_s
    entry = Entry("POST /v1/jobs", "job 1", Outcome.DONE, 201)
    with world.database.writing() as session:
        for age_s in (kept_s + 1.0, kept_s, 0.0):
            record(session.connection(), Origin(LOCAL, None, str(age_s)), entry, NOW_S - age_s)
    assert prune(world.database, world.settings, NOW_S).changes == 1
    with world.database.reading() as session:
        left = list(session.connection().execute(select(AUDIT_LOG.c.request_id).order_by(AUDIT_LOG.c.id)).scalars())
    assert left == [str(kept_s), "0.0"]


def test_nothing_else_in_the_service_deletes_or_updates_lines() -> None:
    """The table's class is named by those alone who must: whoever else wants it shows up here."""
    named = {
        str(path.relative_to(SOURCES))
        for path in SOURCES.rglob("*.py")
        if re.search(r"\b(AuditRow|AUDIT_LOG)\b", path.read_text("utf-8"))
    }
    assert named == {"db/tables.py", "db/audit.py", "background/prune.py"}
    audit = (SOURCES / "db" / "audit.py").read_text("utf-8")
    assert not re.search(r"\b(update|delete)\(", audit)
    by_name = [path for path in SOURCES.rglob("*.py") if "audit_log" in path.read_text("utf-8")]
    assert {path.name for path in by_name} == {"tables.py"}
