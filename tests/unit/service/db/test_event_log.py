"""The log of job events has one order: what becomes visible later has larger numbers, and each job has one first event."""

import threading
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Connection, insert

from policies.model.cluster import Cluster, Server
from policies.model.ids import JobId
from policies.model.job import ArrayPlace, JobSpec
from policies.registry import make_policy
from service.db import migrate, reads
from service.db.event_log import job_events
from service.db.lease import LEADER_LEASE, FencedOff, acquire
from service.db.rows import new_job_values
from service.db.servers import enroll
from service.db.session import Database, open_database
from service.db.store import SqlStore
from service.db.tables import EVENTS, JOBS, REQUESTS
from service.engine import crash_points
from service.engine.crash_points import CrashPoint
from service.engine.engine import Engine, Ports
from service.engine.events import EngineRequest, RequestKind
from service.engine.ports import CycleBatch
from service.engine.record import JobRecord
from service.executors.fake import FakeExecutor
from service.sim.predictors import NoPredictor
from tests.null_sink import NullSink
from tests.postgres import PostgresServer

SUBMITTED_AT_S = 1000.0

Event = tuple[int, int, str | None, str, str, str, float]
"""Number, job, source, target, cause, reason, time."""


@dataclass
class Clock:
    at_s: float = 2000.0

    def now_s(self) -> float:
        return self.at_s


def engine_of(database: Database, store: SqlStore | None = None) -> Engine[Any]:
    """An engine with one server of one GPU."""
    clock = Clock()
    cluster = enroll(database, Cluster("c", (Server("a", 1),)))
    return Engine(
        make_policy("fifo"),
        cluster,
        Ports(store or SqlStore(database), FakeExecutor(clock), clock, NoPredictor(), NullSink()),
    )


def submit(database: Database, *specs: JobSpec) -> list[JobId]:
    with database.writing() as session:
        return SqlStore(database).submit(session, specs, SUBMITTED_AT_S)


def log_of(database: Database) -> list[Event]:
    with database.reading() as session:
        rows = [row for _, row in job_events(session.connection(), 0, 1000)]
    return [(row.id, row.job_id, row.source, row.target, row.cause, row.reason, row.at_s) for row in rows]


def first_events(database: Database) -> list[tuple[int, str, float]]:
    """Job, reason and time of each first event, in the order of the log."""
    return [(event[1], event[5], event[6]) for event in log_of(database) if event[2] is None]


def test_a_job_has_its_first_event_from_the_cycle_that_admits_it(any_database: Database) -> None:
    ids = submit(any_database, JobSpec("a", "ann", 1), JobSpec("b", "ann", 1, hold=True), JobSpec("c", "ann", 1))
    assert log_of(any_database) == []
    engine = engine_of(any_database)
    assert not engine.cycle().failed
    assert first_events(any_database) == [
        (job, reason, SUBMITTED_AT_S) for job, reason in zip(ids, ("new", "held", "new"), strict=True)
    ]
    with any_database.reading() as session:
        for job in ids:
            first, *others = reads.events(session.connection(), job, 0, 10)
            assert (first.source, first.cycle) == (None, 1)
            assert all(other.source is not None and other.id > first.id for other in others)
    for _ in range(3):
        engine.cycle()
    engine_of(any_database).cycle()
    assert len(first_events(any_database)) == 3


def test_each_element_of_an_array_has_one_first_event(any_database: Database) -> None:
    ids = submit(any_database, *(JobSpec("a", "ann", 1, array=ArrayPlace(at, 4)) for at in range(4)))
    engine_of(any_database).cycle()
    assert [job for job, _, _ in first_events(any_database)] == ids


def test_a_job_that_is_cancelled_before_its_admission_has_both_events(any_database: Database) -> None:
    [job] = submit(any_database, JobSpec("a", "ann", 1))
    with any_database.writing() as session:
        SqlStore(any_database).add_request(session, EngineRequest(0, RequestKind.CANCEL, 1500.0, job))
    engine_of(any_database).cycle()
    assert [event[2:] for event in log_of(any_database)] == [
        (None, "queued", "submitted", "new", SUBMITTED_AT_S),
        ("queued", "cancelled", "cancel_requested", "cancelled_by_user", 2000.0),
    ]


class Died(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("point", [CrashPoint.DECIDED, CrashPoint.WRITTEN, CrashPoint.COMMITTED])
def test_a_crash_around_the_admission_leaves_one_first_event(any_database: Database, point: CrashPoint) -> None:
    [job] = submit(any_database, JobSpec("a", "ann", 1))
    engine = engine_of(any_database)

    def die(reached: CrashPoint) -> None:
        if reached is point:
            raise Died

    crash_points.on_reached(die)
    try:
        with pytest.raises(Died):
            engine.cycle()
    finally:
        crash_points.on_reached(None)
    assert len(first_events(any_database)) == (point is CrashPoint.COMMITTED)
    for _ in range(2):
        engine_of(any_database).cycle()
    assert first_events(any_database) == [(job, "new", SUBMITTED_AT_S)]


def test_an_admission_that_is_dropped_for_a_stale_row_is_repeated_without_a_second_first_event(
    any_database: Database,
) -> None:
    first, second = submit(any_database, JobSpec("a", "ann", 1), JobSpec("b", "ann", 1))
    engine = engine_of(any_database)
    bumped = False

    def bump(reached: CrashPoint) -> None:
        nonlocal bumped
        if reached is CrashPoint.DECIDED and not bumped:
            bumped = True
            any_database.execute(sa.update(JOBS).where(JOBS.c.id == first).values(version=JOBS.c.version + 1))

    crash_points.on_reached(bump)
    try:
        engine.cycle()
        assert [job for job, _, _ in first_events(any_database)] == [second]
        engine.cycle()
    finally:
        crash_points.on_reached(None)
    assert [job for job, _, _ in first_events(any_database)] == [second, first]


def test_events_of_a_former_leader_become_visible_before_those_of_its_successor(postgres_database: Database) -> None:
    """The successor takes the lease while the former leader's transaction is open, and has to wait for its end."""
    database = postgres_database
    [job] = submit(database, JobSpec("a", "ann", 1))
    old = acquire(database, LEADER_LEASE, "old", 0.0)
    assert old is not None
    former = engine_of(database, SqlStore(database, fencing_token=old.token))
    writing, end = threading.Event(), threading.Event()
    tokens: list[int] = []

    def wait(reached: CrashPoint) -> None:
        if reached is CrashPoint.WRITTEN and threading.current_thread() is first:
            writing.set()
            assert end.wait(60.0)

    def take_over() -> None:
        new = acquire(database, LEADER_LEASE, "new", 60.0)
        assert new is not None
        tokens.append(new.token)
        engine = engine_of(database, SqlStore(database, fencing_token=new.token))
        with database.writing() as session:
            SqlStore(database).add_request(session, EngineRequest(0, RequestKind.CANCEL, 1500.0, job))
        assert not engine.cycle().failed

    first, second = threading.Thread(target=former.cycle), threading.Thread(target=take_over)
    crash_points.on_reached(wait)
    try:
        first.start()
        assert writing.wait(60.0)
        second.start()
        _wait_until_blocked(database)
        assert (tokens, log_of(database)) == ([], [])
    finally:
        end.set()
        first.join(60.0)
        second.join(60.0)
        crash_points.on_reached(None)
    assert tokens == [old.token + 1]
    assert [event[2:4] for event in log_of(database)] == [
        (None, "queued"),
        ("queued", "starting"),
        ("starting", "cancelling"),
    ]
    with pytest.raises(FencedOff):
        SqlStore(database, fencing_token=old.token).commit(CycleBatch(99, 3000.0, (), ()))


def _wait_until_blocked(database: Database) -> None:
    """Another transaction waits for a lock."""
    blocked = sa.text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    until_s = time.monotonic() + 60.0
    while not database.value(blocked):
        assert time.monotonic() < until_s
        time.sleep(0.01)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_an_upgrade_leaves_one_first_event_to_each_job(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Job 1 was admitted before the upgrade, job 2 was not; requests wrote both first events."""
    url = f"sqlite:///{tmp_path / 'old.db'}"
    if kind == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres")
        url = server.url(server.create())
    with closing(open_database(url)) as database:
        with database.writing() as session:
            connection = session.connection()
            migrate.upgrade_to(connection, "0013")
            _submit_as_release_0_1(connection, 1, admitted=True)
            _submit_as_release_0_1(connection, 2, admitted=False)
        migrate.upgrade(url)
        assert [job for job, _, _ in first_events(database)] == [1]
        with database.reading() as session:
            [shown] = reads.events(session.connection(), 2, 0, 10)
        assert (shown.id, shown.at_s, shown.cause) == (0, SUBMITTED_AT_S, "submitted")
        for _ in range(2):
            engine_of(database).cycle()
        assert first_events(database) == [(1, "new", SUBMITTED_AT_S), (2, "new", SUBMITTED_AT_S)]


def _submit_as_release_0_1(connection: Connection, number: int, *, admitted: bool) -> None:
    """A job, its first event and its request."""
    spec = JobSpec(f"j{number}", "ann", 1)
    job = JobRecord(JobId(number), spec, SUBMITTED_AT_S, version=int(admitted), anchor_s=SUBMITTED_AT_S)
    rows = {
        JOBS: new_job_values(spec, SUBMITTED_AT_S, job) | {"id": number},
        EVENTS: {"job_id": number, "at_s": SUBMITTED_AT_S, "target": "queued", "cause": "submitted", "reason": "new"}
        | {"cycle": 0, "detail": ""},
        REQUESTS: {"kind": "submitted", "job_id": number, "payload": {"v": 1}, "created_at_s": SUBMITTED_AT_S}
        | {"consumed_cycle": 1 if admitted else None},
    }
    for declared, row in rows.items():
        # Columns of later revisions are not there yet.
        there = {column["name"] for column in sa.inspect(connection).get_columns(declared.name)}
        old = sa.table(declared.name, *(sa.column(column.name, column.type) for column in declared.c))
        connection.execute(insert(old), [{name: value for name, value in row.items() if name in there}])
