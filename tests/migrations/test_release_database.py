"""A database that release 0.1 wrote opens, upgrades, and gives every row back through the functions that the API reads with.

``release_0_1.db.xz`` comes from one service with the fake executor: jobs in every state, an array, dependencies, keys, quotas,
pauses, reservations, webhooks, forecasts, an imported history, a trained model, a request that no cycle has consumed.
"""

import json
import lzma
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from policies.lifecycle import JobState
from policies.model.ids import JobId
from policies.model.plan import PipelineSchedule
from service.db import access, attempt_reports, audit, event_log, forecasts, limits, reads, webhooks
from service.db.check import check
from service.db.codec import decode_actions, decode_changes, decode_refusals
from service.db.history import ended_jobs
from service.db.migrate import SchemaState, upgrade
from service.db.reservations import open_reservations
from service.db.services import services
from service.db.session import Database, open_database
from service.db.store import SqlStore
from service.db.usage import GROUPS, UsageWanted, usage
from service.domain.access import LOCAL

FIXTURE = Path(__file__).with_name("release_0_1.db.xz")

Raw = Mapping[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Database, Raw]]:
    """The upgraded database, and its rows as release 0.1 left them."""
    file = tmp_path_factory.mktemp("release") / "sooner.db"
    file.write_bytes(lzma.decompress(FIXTURE.read_bytes()))
    with closing(sqlite3.connect(file)) as connection:
        connection.row_factory = sqlite3.Row
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        raw = {name: [dict(row) for row in connection.execute(f'SELECT * FROM "{name}"')] for name in names}
    url = f"sqlite:///{file}"
    assert upgrade(url) in (SchemaState.CURRENT, SchemaState.OLDER)
    assert upgrade(url) is SchemaState.CURRENT
    with closing(open_database(url)) as database:
        yield database, raw


def _agree(found: Iterable[Any], rows: Sequence[Mapping[str, Any]], key: str = "id") -> None:
    """Every stored row was found, and each plain value is the stored one."""
    found = list(found)
    by_key = {row[key]: row for row in rows}
    assert [row._mapping[key] for row in found] and sorted(row._mapping[key] for row in found) == sorted(by_key)
    for row in found:
        for name, value in row._mapping.items():
            if not isinstance(value, dict | list):
                assert value == by_key[row._mapping[key]].get(name, value), (key, name)


def _pages(read: Callable[[Any, int], Sequence[Any]], position: Callable[[Any], Any], start: Any = None) -> list[Any]:
    """All rows of a list that is read by pages of three."""
    found: list[Any] = []
    while page := read(start, 3):
        found += page
        start = position(page[-1])
    return found


def _pending_submissions(raw: Raw) -> set[int]:
    """Jobs that no cycle has admitted."""
    return {row["job_id"] for row in raw["facts"] if row["consumed_cycle"] is None and row["kind"] == "submitted"}


@pytest.fixture
def connection(stored: tuple[Database, Raw]) -> Iterator[Connection]:
    with stored[0].reading() as session:
        yield session.connection()


@pytest.fixture
def raw(stored: tuple[Database, Raw]) -> Raw:
    return stored[1]


def test_every_table_has_rows(raw: Raw) -> None:
    assert [name for name, rows in raw.items() if not rows] == []
    assert {row["state"] for row in raw["jobs"]} >= {"queued", "running", "succeeded", "failed", "cancelled"}


def test_the_database_is_sound(stored: tuple[Database, Raw]) -> None:
    health = check(str(stored[0].engine.url))
    assert health.faults == ()
    assert health.jobs == len(stored[1]["jobs"])


def test_jobs(connection: Connection, raw: Raw) -> None:
    found = _pages(
        lambda before, limit: reads.jobs(connection, reads.JobFilter(), before, limit), lambda summary: summary.job.id
    )
    _agree((summary.job for summary in found), raw["jobs"])
    assert {row["job_id"] for row in raw["predictions"]} == {
        each.job.id for each in found if each.prediction is not None
    }
    assert {row["job_id"] for row in raw["forecasts"]} == {each.job.id for each in found if each.forecasts}
    assert {row["job_id"] for row in raw["attempts"] if row["ended_at_s"] is None} == {
        each.job.id for each in found if each.servers
    }
    for row in raw["jobs"]:
        spec = reads.spec(connection, row["id"])
        assert spec is not None
        assert (spec.name, spec.user, spec.project, spec.gpus) == (
            row["name"],
            row["user"],
            row["project"],
            row["gpus"],
        )
    for state in JobState:
        narrowed = reads.jobs(connection, reads.JobFilter(states=(state,)), None, 100)
        assert {each.job.id for each in narrowed} == {row["id"] for row in raw["jobs"] if row["state"] == state.value}


def test_what_belongs_to_jobs(connection: Connection, raw: Raw) -> None:
    ids = [row["id"] for row in raw["jobs"]]
    _agree((row for job in ids for row, _ in reads.attempts(connection, job, 0, 100)), raw["attempts"])
    pending = _pending_submissions(raw)
    admitted = [row for row in raw["job_events"] if row["job_id"] not in pending]
    _agree((row for job in ids if job not in pending for row in reads.events(connection, job, 0, 1000)), admitted)
    _agree((row for job in ids for row in reads.progress(connection, job, 0, 1000)), raw["progress"])
    _agree((row for job in ids for row in forecasts.forecasts_of(connection, job, 0, 1000)), raw["forecasts"])
    _agree((row for _, row in event_log.job_events(connection, 0, 1000)), admitted)
    _agree(_pages(lambda at, n: reads.predictions(connection, None, at, n), lambda row: row.id), raw["predictions"])


def test_a_submission_that_no_cycle_has_admitted_shows_the_event_that_release_0_1_wrote(
    connection: Connection, raw: Raw
) -> None:
    """The stored event is deleted, because the admission writes it."""
    [job] = _pending_submissions(raw)
    [written] = [row for row in raw["job_events"] if row["job_id"] == job]
    [shown] = reads.events(connection, job, 0, 1000)
    assert dict(shown._mapping) == {name: written[name] for name in shown._mapping} | {"id": 0}


def test_cycles(connection: Connection, raw: Raw) -> None:
    found = _pages(lambda at, n: reads.cycles(connection, at, n), lambda row: row.number)
    _agree(found, raw["cycles"], "number")
    for row in found:
        decode_changes(row.changes), decode_actions(row.actions), decode_refusals(row.refusals)
        assert reads.cycle(connection, row.number) is not None


def test_models_and_throughput(connection: Connection, raw: Raw) -> None:
    _agree(reads.models(connection, None, 10), raw["model_versions"])
    _agree((reads.training_run(connection, row["id"]) for row in raw["training_runs"]), raw["training_runs"])
    _agree(reads.throughput(connection, None, 10), raw["throughput"], "name")
    _agree(reads.servers(connection), raw["servers"], "position")


def test_access_and_audit(connection: Connection, raw: Raw) -> None:
    _agree(_pages(lambda at, n: access.users(connection, at, n), lambda row: row.name), raw["users"], "name")
    _agree(access.keys(connection, None, None, 10), raw["api_keys"])
    for row in raw["api_keys"]:
        key = access.stored_key(connection, row["id"])
        assert key is not None
        assert (key.identity.user, key.secret_sha256) == (row["user"], row["secret_sha256"])
    members = access.members_of(connection, access.projects(connection, None, 10))
    assert {(p, user) for p, users in members.items() for user in users} == {
        (row["project"], row["user"]) for row in raw["memberships"]
    }
    lines = _pages(lambda at, n: audit.lines(connection, audit.AuditFilter(), at, n), lambda row: row.id)
    _agree(lines, raw["audit_log"])


def test_limits_reservations_and_usage(connection: Connection, raw: Raw) -> None:
    found = {(each.owner.scope.value, each.owner.name): each for each in limits.stored_limits(connection)}
    assert found.keys() == {(row["scope"], row["name"]) for row in raw["queue_limits"]}
    for row in raw["queue_limits"]:
        stored = found[row["scope"], row["name"]]
        assert (stored.limit.gpus_running_max, stored.jobs_queued_max) == (
            row["gpus_running_max"],
            row["jobs_queued_max"],
        )
        assert (stored.limit.paused, stored.limit.pause_reason) == (bool(row["paused"]), row["pause_reason"])
    open_ones = {each.window.id: each for each in open_reservations(connection, 0.0)}
    assert open_ones.keys() == {row["id"] for row in raw["reservations"] if row["cancelled_at_s"] is None}
    for row in raw["reservations"]:
        if row["id"] in open_ones:
            assert open_ones[row["id"]].window.starts_at_s == row["starts_at_s"]
    ended = [row for row in raw["attempts"] if row["ended_at_s"] is not None]
    days = [row["day"] for row in raw["usage"]]
    sums = usage(connection, UsageWanted(GROUPS, min(days), max(days) + 1, LOCAL), 0.0, 100)
    assert sums is not None
    assert sum(each.attempts for _, each in sums) >= sum(row["attempts"] for row in raw["usage"]) == len(ended)


def test_webhooks(connection: Connection, raw: Raw) -> None:
    hooks = webhooks.webhooks(connection, None, 0, 10)
    _agree(hooks, raw["webhooks"])
    _agree(
        (row for hook in hooks for row in webhooks.deliveries(connection, hook.id, None, 100)),
        raw["webhook_deliveries"],
    )


def test_services_and_history(stored: tuple[Database, Raw]) -> None:
    database, raw = stored
    assert [each.registered.name for each in services(database)] == [row["name"] for row in raw["services"]]
    assert [report.attempt for report in attempt_reports.pending_reports(database)] == [
        row["attempt_id"] for row in raw["attempt_reports"]
    ]
    labels = list(ended_jobs(database))
    assert len(labels) == sum(row["service_s"] > 0.0 for row in raw["history"])


def test_the_engine_loads_the_unfinished_jobs(stored: tuple[Database, Raw]) -> None:
    database, raw = stored
    store = SqlStore(database)
    loaded = store.load()
    unfinished = {row["id"] for row in raw["jobs"] if row["finished_at_s"] is None}
    assert {job.id for job in loaded.jobs} == unfinished - _pending_submissions(raw)
    assert {job.attempt.id for job in loaded.jobs if job.attempt is not None} == {
        row["id"] for row in raw["attempts"] if row["ended_at_s"] is None
    }
    assert loaded.cycle == max(row["number"] for row in raw["cycles"])
    assert {request.id for request in store.pending_requests(100)} == {
        row["id"] for row in raw["facts"] if row["consumed_cycle"] is None
    }
    assert len(store.jobs([job.id for job in loaded.jobs])) == len(loaded.jobs)


def test_a_pipeline_keeps_its_schedule_under_its_new_name(stored: tuple[Database, Raw]) -> None:
    """``1f1b`` of the release never flushed."""
    database, raw = stored
    old = {row["id"]: json.loads(row["spec"]).get("parallelism") for row in raw["jobs"] if row["spec"]}
    pipelines = [job for job, parallelism in old.items() if parallelism is not None]
    assert pipelines and all(old[job]["schedule"] == "1f1b" for job in pipelines)
    for record in SqlStore(database).jobs([JobId(job) for job in pipelines]):
        assert record.spec.parallelism is not None
        assert record.spec.parallelism.schedule is PipelineSchedule.PIPEDREAM
