"""The overview: sums of the service, and what an operator must look at."""

from dataclasses import replace
from typing import Any

import pytest
from httpx import Client

from policies.lifecycle import JobState
from policies.model.estimate import Unit
from policies.model.ids import JobId, ServerIndex
from policies.model.job import JobSpec
from policies.model.reasons import Reason
from policies.model.server_reservation import ServerReservation
from service.db.limits import StoredLimit, store_limit
from service.db.reservations import keep_reservation
from service.db.rows import new_job_values
from service.db.servers import NOT_LISTED
from service.db.services import Registered, ServiceNow
from service.db.tables import JOBS, MODELS
from service.domain.access import Role
from service.engine.events import EngineRequest, RequestKind
from service.engine.limits import LimitOwner, OwnerLimit, Scope
from service.engine.record import JobRecord
from tests.api.client import client_of
from tests.api.conftest import NOW_S, World, app_of
from tests.api.people import person
from tests.api.test_learning import add_rows, model_row, with_fickle_jobs


def service(name: str, **changes: Any) -> ServiceNow:
    """A service that leads."""
    registered = Registered(f"id of {name}", name, f"http://{name}.example", "1.0", 60.0)
    return replace(ServiceNow(registered, True, NOW_S - 500.0, NOW_S, 0.0, False), **changes)


def shown(world: World, key: str | None = None) -> dict[str, Any]:
    """The overview, from a new reading."""
    answer = client_of(app_of(world), key or world.token).get("/v1/overview")
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def attention(world: World, key: str | None = None) -> list[tuple[str, str, str]]:
    return [(each["kind"], each["text"], each["link"]) for each in shown(world, key)["attention"]]


def store_jobs(world: World, *jobs: tuple[JobState, Reason, int, str, str, float]) -> list[int]:
    """Jobs with (state, reason, GPUs, user, project, seconds since the submission)."""
    rows = []
    for state, reason, gpus, user, project, age_s in jobs:
        spec = JobSpec("j", user, gpus, project)
        record = JobRecord(JobId(0), spec, NOW_S - age_s, state=state, reason=reason)
        rows.append(new_job_values(spec, NOW_S - age_s, record))
    with world.database.writing() as session:
        statement = JOBS.insert().returning(JOBS.c.id, sort_by_parameter_order=True)
        return list(session.connection().execute(statement, rows).scalars())


def test_an_idle_service(world: World) -> None:
    world.services = [service("one")]
    assert shown(world) == {
        "at": "2026-01-01T00:00:00Z",
        "gpus": {"total": 10, "usable": 10, "busy": 0, "free": 10, "down": 0, "drained": 0, "reserved": 0},
        "queue": {
            "queued": 0,
            "held": 0,
            "reasons": {},
            "starting": 0,
            "running": 0,
            "stopping": 0,
            "oldest_wait_s": None,
            "oldest_job_id": None,
        },
        "cycle": {"number": 7, "at": "2026-01-01T00:00:00Z", "age_s": 0.0, "healthy": True, "duration_s": 0.25},
        "leader": {"id": "id of one", "name": "one", "version": "1.0", "started_at": "2025-12-31T23:51:40Z"},
        "model": {"version": None, "trained_at": None, "drifting": False, "known_jobs": 0},
        "policy": "asrpt",
        "attention": [],
    }


def test_jobs_are_counted_by_state_and_reason(world: World) -> None:
    queued = JobState.QUEUED
    ids = store_jobs(
        world,
        (queued, Reason.HELD, 1, "ada", "nlp", 900.0),
        (queued, Reason.DEPENDENCY, 1, "ada", "nlp", 800.0),
        (queued, Reason.RETRY_BACKOFF, 1, "ada", "nlp", 700.0),
        (JobState.RUNNING, Reason.STARTED, 3, "ada", "nlp", 650.0),
        (queued, Reason.RESOURCES, 8, "bob", "vision", 600.0),
        (queued, Reason.PRIORITY, 1, "ada", "nlp", 500.0),
        (JobState.STARTING, Reason.STARTED, 2, "ada", "nlp", 400.0),
        (JobState.PREEMPTING, Reason.PREEMPTED, 1, "ada", "nlp", 300.0),
        (JobState.CANCELLING, Reason.CANCELLED_BY_USER, 1, "ada", "nlp", 200.0),
        (JobState.SUCCEEDED, Reason.COMPLETED, 4, "ada", "nlp", 100.0),
    )
    queue = shown(world)["queue"]
    reasons = {"held": 1, "dependency": 1, "retry_backoff": 1, "resources": 1, "priority": 1}
    assert queue == {
        "queued": 5,
        "held": 1,
        "reasons": reasons,
        "starting": 1,
        "running": 1,
        "stopping": 2,
        "oldest_wait_s": 600.0,
        "oldest_job_id": ids[4],
    }
    # The number of a job that the caller may not see stays hidden; the sums are those of all users.
    viewer = shown(world, person(world, "ada", Role.VIEWER, "nlp").key)["queue"]
    assert viewer == queue | {"oldest_job_id": None}
    assert shown(world, person(world, "bob", Role.VIEWER, "vision").key)["queue"] == queue


def test_gpus_by_the_state_of_their_servers(world: World) -> None:
    world.say_of_servers({"a": (True, False), "c": (True, True)})
    world.usable, world.free, world.held_gpus = {"a": 0, "c": 0}, {"a": 0, "b": 1, "c": 0}, 5
    window = ServerReservation(0, (ServerIndex(0), ServerIndex(2)), NOW_S - 10.0, NOW_S + 10.0, "ada", None)
    later = replace(window, servers=(ServerIndex(1),), starts_at_s=NOW_S + 1.0)
    with world.database.writing() as session:
        for number, each in enumerate((window, later), 1):
            request = EngineRequest(0, RequestKind.RESERVATION_MADE, NOW_S, window=each)
            keep_reservation(session.connection(), request, number)
    gpus = {"total": 10, "usable": 4, "busy": 5, "free": 1, "down": 2, "drained": 4, "reserved": 6}
    assert shown(world)["gpus"] == gpus


def test_what_predicts_is_shown(world: World) -> None:
    status = with_fickle_jobs(world)
    add_rows(world, MODELS, [model_row(status.model_version, NOW_S - 60.0, "champion")])
    model = shown(world)["model"]
    assert (model["version"], model["trained_at"], model["known_jobs"]) == (
        status.model_version,
        "2025-12-31T23:59:00Z",
        300,
    )


def test_low_coverage_and_drift_ask_for_attention(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    status = with_fickle_jobs(world)
    buckets = status.buckets[Unit.SERVICE_S]
    covered = [replace(bucket, coverage=share) for bucket, share in zip(buckets, (0.65, 0.64, None, 0.9), strict=True)]
    status = replace(
        status,
        buckets={Unit.ITERATIONS: (), Unit.SERVICE_S: tuple(covered)},
        drifting={Unit.ITERATIONS: True, Unit.SERVICE_S: False},
    )
    monkeypatch.setattr(world.predictor, "status", lambda: status)
    assert shown(world)["model"]["drifting"] is True
    drift = "The errors of the predictions (iterations) have drifted from those of the past."
    low = "64% of the newest jobs with 1-4 past runs ended inside their 80% interval (service_s); 65% is the least."
    assert attention(world) == [("drift", drift, "predictions"), ("coverage_low", low, "predictions")]


def test_servers_that_are_down_or_drained_for_a_fault_ask_for_attention(world: World) -> None:
    world.change_server("a", down=True, detail="no answer")
    world.change_server("b", drained=True, detail="", health_reason="Xid 79 on GPU 3")
    world.change_server("c", drained=True, detail="")
    down = ("servers_down", "1 server is down: a.", "cluster")
    assert attention(world) == [
        down,
        ("servers_unhealthy", "1 server is drained for signs of a fault: b (Xid 79 on GPU 3).", "cluster"),
    ]
    world.change_server("c", down=True, drained=False, detail="x")
    world.change_server("b", drained=False, health_reason="", detail="")
    assert attention(world) == [("servers_down", "2 servers are down: a, c.", "cluster")]
    # An operator has taken it off the list: nothing is wrong.
    world.change_server("c", down=True, detail=NOT_LISTED)
    assert attention(world) == [down]


def test_a_stale_loop_and_a_pending_migration_ask_for_attention(world: World) -> None:
    world.healthy, world.migrated = False, False
    world.last_cycle_at_s = NOW_S - 95.0
    assert attention(world) == [
        ("loop_stale", "The scheduling loop is stale: no cycle has ended for 1 min 35 s.", "admin"),
        ("migration_pending", "The database needs a migration: run `sooner db upgrade`.", "admin"),
    ]
    assert shown(world)["cycle"]["age_s"] == 95.0
    world.migrated, world.last_cycle_at_s = True, None
    assert attention(world) == [("loop_stale", "The scheduling loop is stale: no cycle has run yet.", "admin")]
    assert shown(world)["cycle"]["age_s"] is None


def test_pauses_ask_those_for_attention_whom_they_concern(world: World) -> None:
    with world.database.writing() as session:
        for owner, reason in ((LimitOwner(Scope.QUEUE), "Maintenance."), (LimitOwner(Scope.PROJECT, "nlp"), "")):
            limit = StoredLimit(owner, OwnerLimit(paused=True, pause_reason=reason), None)
            store_limit(session.connection(), limit, NOW_S)
    queue = ("queue_paused", "The queue is paused: Maintenance.", "queue")
    project = ("queue_paused", "Project 'nlp' is paused.", "queue")
    assert sorted(attention(world)) == sorted([queue, project])
    assert sorted(attention(world, person(world, "ada", Role.VIEWER, "nlp").key)) == sorted([queue, project])
    assert attention(world, person(world, "eve", Role.VIEWER, "vision").key) == [queue]


def test_a_condemned_service_asks_for_attention(world: World) -> None:
    world.services = [service("one"), service("two", leads=False, silent_s=900.0, condemned=True)]
    text = "1 service was silent for too long; their attempts count as lost: two."
    assert attention(world) == [("service_silent", text, "admin")]


def test_without_a_leader_the_database_answers(world: World) -> None:
    """Also a service that another one has asked: it asks no third one."""
    store_jobs(world, (JobState.RUNNING, Reason.STARTED, 3, "ada", "nlp", 5.0))
    world.leads = world.healthy = False
    world.services = [service("one", leads=False)]
    found = shown(world)
    assert (found["leader"], found["model"], found["gpus"]["free"], found["gpus"]["busy"]) == (None, None, None, 3)
    assert found["queue"]["running"] == 1
    assert attention(world) == [("no_leader", "No service leads: no job starts and no server is watched.", "admin")]


def test_callers_share_a_reading_until_a_cycle_has_run(client: Client, world: World) -> None:
    client.get("/v1/overview")
    asked = world.asked
    for _ in range(3):
        client.get("/v1/overview")
    assert world.asked == asked
