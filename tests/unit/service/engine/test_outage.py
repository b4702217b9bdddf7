"""The database goes away for a while: the API says so, the loop goes on when it is back, and nothing is lost."""

import resource
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from fastapi import FastAPI
from sqlalchemy import event, select
from sqlalchemy.exc import OperationalError

from policies.lifecycle import JobState
from policies.model.cluster import Cluster, Server
from policies.model.estimate import EndedJob, Prediction, PredictionRequest
from policies.model.ids import JobId, ServerIndex
from policies.model.job import JobSpec
from policies.registry import make_policy
from service.api.app import create_app
from service.api.deps import ApiDependencies
from service.db import session as session_module
from service.db.commit import _stale
from service.db.migrate import upgrade
from service.db.servers import enroll
from service.db.session import Database, open_database
from service.db.store import SqlStore
from service.db.tables import EVENTS
from service.domain.access import Role
from service.engine.engine import Engine, Ports
from service.engine.events import EngineRequest, JobEvent, RequestKind
from service.engine.ports import CycleBatch, JobWrite, StoreUnavailable
from service.engine.record import JobRecord
from service.executors.fake import FakeExecutor
from tests.api.client import client_of
from tests.api.conftest import World, WorldProcess, make_world
from tests.api.helpers import assert_problem, plain_job
from tests.api.people import person
from tests.postgres import PostgresServer


@pytest.fixture(scope="module")
def mortal(postgres: PostgresServer) -> Iterator[PostgresServer]:
    """A server of our own, which we may stop. Asking for the shared one first skips or fails where there is none."""
    server = PostgresServer(durable=True)
    yield server
    server.close()


@pytest.fixture
def mortal_url(mortal: PostgresServer) -> Iterator[str]:
    with mortal.database() as url:
        upgrade(url)
        yield url


@contextmanager
def _away(server: PostgresServer, how: signal.Signals = signal.SIGINT) -> Iterator[None]:
    server.stop(how)
    try:
        yield
    finally:
        server.start()


# The engine.


@dataclass
class _Clock:
    at_s: float = 1000.0

    def now_s(self) -> float:
        return self.at_s


class _NoPredictor:
    def predict(self, now_s: float, requests: Sequence[PredictionRequest]) -> Sequence[Prediction | None]:
        return [None] * len(requests)

    def watch(self, attained: object) -> None:
        pass

    def ended(self, label: EndedJob) -> Sequence[JobId]:
        return ()


class _Sink:
    def transition(self, event: JobEvent, job: JobRecord) -> None:
        pass

    def cycle(self, batch: CycleBatch) -> None:
        pass


def _engine(database: Database, clock: _Clock) -> Engine[object]:
    cluster = enroll(database, Cluster("c", (Server("a", 4),)))
    ports = Ports(SqlStore(database), FakeExecutor(clock), clock, _NoPredictor(), _Sink())
    return Engine(make_policy("fifo"), cluster, ports)


def _submit(database: Database, *durations_s: float) -> list[JobId]:
    specs = [
        JobSpec(f"j{at}", "ada", 2, labels={"fake_duration_s": str(value)}) for at, value in enumerate(durations_s)
    ]
    with database.writing() as session:
        return SqlStore(database).submit(session, specs, 1000.0)


def _story(database: Database) -> list[tuple[int, str]]:
    rows = EVENTS.c
    with database.reading() as session:
        return [tuple(row) for row in session.connection().execute(select(rows.job_id, rows.target).order_by(rows.id))]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT], ids=["stopped", "crashed"])
def test_a_job_that_ends_during_a_database_outage_is_reported_once(
    mortal: PostgresServer, mortal_url: str, how: signal.Signals
) -> None:
    clock = _Clock()
    with closing(open_database(mortal_url)) as database:
        engine = _engine(database, clock)
        (short, long) = _submit(database, 5.0, 500.0)
        for _ in range(3):
            assert not engine.cycle().failed
            clock.at_s += 1.0
        with _away(mortal, how):
            for _ in range(6):
                clock.at_s += 10.0
                assert engine.cycle().failed
        clock.at_s += 1.0
        assert not engine.cycle().failed
        engine.reconcile()
        assert [job.state for job in SqlStore(database).jobs([short, long])] == [JobState.SUCCEEDED, JobState.RUNNING]
        assert [target for job, target in _story(database) if job == short] == [
            "queued",
            "starting",
            "running",
            "succeeded",
        ]
        clock.at_s += 500.0
        engine.cycle()
        (job,) = SqlStore(database).jobs([long])
        assert (job.state, job.attempts) == (JobState.SUCCEEDED, 1)


def test_a_crash_inside_a_transaction_rolls_it_back(mortal: PostgresServer, mortal_url: str) -> None:
    def submit_and_lose() -> None:
        with database.writing() as session:
            SqlStore(database).submit(session, [JobSpec("a", "u", 1)], 1.0)
            mortal.stop(signal.SIGQUIT)

    with closing(open_database(mortal_url)) as database:
        with pytest.raises(OperationalError):
            submit_and_lose()
        with pytest.raises(StoreUnavailable):
            SqlStore(database).load()
        mortal.start()
        assert SqlStore(database).pending_requests(10) == []
        assert SqlStore(database).jobs([JobId(1)]) == []


# The API.


def _unavailable_then_well(app: FastAPI, world: World, away: Callable[[], AbstractContextManager[None]]) -> None:
    """What a client sees; ``away`` is a context in which the database cannot be used."""
    key = {"Idempotency-Key": "k"}
    with client_of(app, world.token) as client, client_of(app, person(world, "ada", Role.VIEWER).key) as guest:
        assert client.post("/v1/jobs", json=plain_job()).status_code == 201
        assert guest.get("/v1/jobs").status_code == 200
        with away():
            asked = (
                client.post("/v1/jobs", json=plain_job(), headers=key),
                client.get("/v1/jobs"),
                guest.get("/v1/jobs"),
            )
            for answer in asked:
                assert_problem(answer, "unavailable")
                assert int(answer.headers["retry-after"]) > 0
            assert client.get("/healthz").status_code == 200
            assert client.get("/readyz").status_code == 503
        accepted = client.post("/v1/jobs", json=plain_job(), headers=key)
        assert accepted.status_code == 201, accepted.text
        assert client.post("/v1/jobs", json=plain_job(), headers=key).content == accepted.content
        assert len(client.get("/v1/jobs").json()["items"]) == 2


def test_a_client_gets_retry_after_during_an_outage(mortal: PostgresServer, mortal_url: str, tmp_path: Path) -> None:
    world = make_world(tmp_path, mortal_url)
    _unavailable_then_well(create_app(_knowing(world)), world, lambda: _away(mortal))
    world.database.close()


def _knowing(world: World) -> ApiDependencies:
    """Dependencies whose readiness asks the database, as the service's do."""

    class Asking(WorldProcess):
        def is_migrated(self) -> bool:
            with world.database.reading() as session:
                return bool(session.connection().exec_driver_sql("SELECT 1").scalar())

    return replace(world.dependencies(), process=Asking(world))


# SQLite: a full disk, and another process that holds the file.


@contextmanager
def _full_disk(path: Path) -> Iterator[None]:
    """No file of this process may grow beyond what the journal has now: what a full disk feels like."""
    wal = path.with_name(path.name + "-wal")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = max(wal.stat().st_size if wal.exists() else 0, 4096)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def _full_database(database: Database) -> Iterator[None]:
    """SQLite's own word for it: the file may not have one page more."""

    def limit(connection: sqlite3.Connection, *_: object) -> None:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")

    def freed(connection: sqlite3.Connection, *_: object) -> None:
        connection.execute("PRAGMA max_page_count = 1000000000")

    event.listen(database.engine, "checkout", limit)
    try:
        yield
    finally:
        event.remove(database.engine, "checkout", limit)
        event.listen(database.engine, "checkout", freed)


def _fill_up(world: World) -> None:
    """Take the free pages inside the file, so that the next row needs a new one."""
    with world.database.writing() as session:
        SqlStore(world.database).submit(session, [JobSpec("filler", "u", 1, env={"X": "y" * 300})] * 400, 1.0)


@pytest.mark.parametrize("kind", ["disk", "file"])
def test_a_full_disk_loses_nothing(tmp_path: Path, kind: str) -> None:
    world = make_world(tmp_path)
    store, clock = SqlStore(world.database), _Clock()
    engine = _engine(world.database, clock)
    (job,) = _submit(world.database, 5.0)
    for _ in range(3):
        assert not engine.cycle().failed
        clock.at_s += 1.0
    _fill_up(world)
    story = _story(world.database)
    full = _full_disk(tmp_path / "sooner.db") if kind == "disk" else _full_database(world.database)
    with full, client_of(create_app(world.dependencies()), world.token) as client:
        clock.at_s += 60.0
        assert engine.cycle().failed
        big = plain_job(env={"X": "y" * 30_000})
        answer = client.post("/v1/jobs", json=big)
        assert_problem(answer, "unavailable")
        assert client.get(f"/v1/jobs/{job}").status_code == 200, "what is there can still be read"
        assert _story(world.database) == story
    assert not engine.cycle().failed
    assert [found.state for found in store.jobs([job])] == [JobState.SUCCEEDED]
    with closing(sqlite3.connect(tmp_path / "sooner.db")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    world.database.close()


def test_a_locked_database_file_is_waited_for_until_the_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "BUSY_TIMEOUT_S", 0.05)
    world = make_world(tmp_path)

    @contextmanager
    def held() -> Iterator[None]:
        with closing(sqlite3.connect(tmp_path / "sooner.db", isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield

    with client_of(create_app(world.dependencies()), world.token) as client:
        with held():
            assert_problem(client.post("/v1/jobs", json=plain_job()), "unavailable")
            assert client.get("/v1/jobs").status_code == 200
        assert client.post("/v1/jobs", json=plain_job()).status_code == 201
    world.database.close()


# Requests that come through several servers.


def test_a_request_with_an_earlier_id_and_a_later_commit_is_consumed_once(postgres_database: Database) -> None:
    """Ids 1 and 2 are taken, 2 is committed first: a mark finds both, a growing id would have missed the first."""
    database, store = postgres_database, SqlStore(postgres_database)
    request = EngineRequest(0, RequestKind.SERVER_DRAINED, 1.0, server=ServerIndex(0))
    taken, seen = threading.Event(), threading.Event()
    numbers: list[int] = []

    def slow() -> None:
        with database.writing() as session:
            numbers.append(store.add_request(session, request))
            taken.set()
            assert seen.wait(30.0)

    thread = threading.Thread(target=slow)
    thread.start()
    assert taken.wait(30.0)
    with database.writing() as session:
        second = store.add_request(session, request)
    first_look = [request.id for request in store.pending_requests(10)]
    store.commit(CycleBatch(1, 1.0, (), (), requests=first_look))
    seen.set()
    thread.join(30.0)
    second_look = [request.id for request in store.pending_requests(10)]
    store.commit(CycleBatch(2, 2.0, (), (), requests=second_look))
    assert numbers[0] < second
    assert (first_look, second_look, store.pending_requests(10)) == ([second], numbers, [])


def test_a_cycle_does_not_block_requests_for_its_jobs(postgres_database: Database) -> None:
    """A request refers to its job's row: a cycle that is writing that row must not make it wait."""
    database, store = postgres_database, SqlStore(postgres_database)
    (job,) = _submit(database, 5.0)
    (record,) = store.jobs([job])
    with database.writing() as cycle:
        batch = CycleBatch(1, 1.0, (), (), writes={job: JobWrite(record, record.version)})
        assert _stale(cycle.connection(), batch) == []
        with database.writing() as session:
            session.connection().exec_driver_sql("SET LOCAL lock_timeout = '2s'")
            store.add_request(session, EngineRequest(0, RequestKind.CANCEL, 1.0, job))
    assert len(store.pending_requests(10)) == 2
