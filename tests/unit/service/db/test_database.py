"""The database beside the store: transactions, leases, enrolled servers and history."""

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Executable, func, select, text, update
from sqlalchemy.exc import IntegrityError, OperationalError, StatementError

from policies.model.cluster import Cluster, Server
from policies.model.estimate import EndedJob
from policies.model.ids import AttemptId, JobId, ServerIndex
from policies.model.job import JobSpec
from service.db import dialects
from service.db import session as session_module
from service.db.codec import CodecError
from service.db.dialects import take_locks
from service.db.history import ImportedJob, ended_jobs, import_history
from service.db.lease import FencedOff, acquire, check_fence, release, renew
from service.db.progress import ProgressPoint, record_progress
from service.db.rows import attempt_values
from service.db.servers import ServerInUse, enroll
from service.db.session import Database, open_database, sqlite_path
from service.db.store import SqlStore
from service.db.tables import (
    ATTEMPTS,
    HISTORY,
    JOBS,
    HistoryRow,
    LeaseRow,
    ServerRow,
    table,
)
from service.engine.events import EngineRequest, RequestKind
from service.engine.ports import FoundServer, NewServer, StoreUnavailable
from service.engine.record import ServerRecord
from tests.conformance.store_suite import SPEC, Driver, ended, start


@pytest.fixture
def database(any_database: Database) -> Database:
    """Everything here holds on SQLite and on PostgreSQL."""
    return any_database


@pytest.fixture
def sqlite(migrated_file: bytes, tmp_path: Path) -> Iterator[Database]:
    """What has a meaning on SQLite alone."""
    (tmp_path / "sqlite.db").write_bytes(migrated_file)
    database = open_database(f"sqlite:///{tmp_path / 'sqlite.db'}")
    yield database
    database.close()


def column(database: Database, row: type, name: str) -> list[object]:
    with database.reading() as session:
        return list(
            session.connection().execute(select(table(row).c[name]).order_by(*table(row).primary_key)).scalars()
        )


def submit(database: Database, count: int, now_s: float = 5.0) -> list[JobId]:
    with database.writing() as session:
        return SqlStore(database).submit(session, [SPEC] * count, now_s)


# Transactions.


def test_every_sqlite_connection_is_durable(sqlite: Database) -> None:
    with sqlite.reading() as session:
        pragmas = [
            session.connection().execute(text(f"PRAGMA {name}")).scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys", "journal_size_limit")
        ]
    assert pragmas == ["wal", 2, 1, 64 * 1024 * 1024]


def test_every_postgresql_connection_has_limits(postgres_database: Database) -> None:
    """A reader is given minutes, a writer that stands still seconds, and nobody waits for a lock for ever."""
    names = ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout", "transaction_isolation")
    found = []
    for context in (postgres_database.reading, postgres_database.writing, lambda: postgres_database.writing(600.0)):
        with context() as session:
            shown = [session.connection().exec_driver_sql(f"SHOW {name}").scalar() for name in names]
        found.append(tuple(shown))
    assert found == [
        ("10s", "5min", "5min", "repeatable read"),
        ("10s", "5min", "10s", "read committed"),
        ("10min", "0", "5min", "read committed"),
    ]
    with pytest.raises(OperationalError, match="read-only"), postgres_database.reading() as session:
        session.connection().exec_driver_sql("DELETE FROM properties")


def test_references_are_checked(database: Database) -> None:
    with pytest.raises(IntegrityError), database.writing() as session:
        record_progress(session, [ProgressPoint(AttemptId("99.1"), 1.0, 1.0)])


def test_a_nan_is_refused_where_it_is_made(database: Database) -> None:
    with pytest.raises((StatementError, ValueError), match="not JSON compliant"), database.writing() as session:
        session.connection().execute(update(JOBS).values(spec={"x": float("nan")}))


def test_the_file_and_its_journals_are_the_owners_alone(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        fresh = open_database(f"sqlite:///{tmp_path / 'fresh.db'}")
        with fresh.writing() as session:
            session.connection().execute(text("CREATE TABLE t (x INTEGER)"))
            modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.glob("fresh.db*")}
        fresh.close()
    finally:
        os.umask(old)
    assert modes == {"fresh.db": 0o600, "fresh.db-wal": 0o600, "fresh.db-shm": 0o600}


def test_an_exception_rolls_back_and_a_reader_never_writes(database: Database) -> None:
    def write_and_fail() -> None:
        with database.writing() as session:
            session.add(LeaseRow(name="x", holder="h", token=1, expires_at_s=0.0))
            session.flush()
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        write_and_fail()
    with database.reading() as session:
        session.add(LeaseRow(name="y", holder="h", token=1, expires_at_s=0.0))
    assert column(database, LeaseRow, "name") == []


def test_a_look_sees_what_is_committed_by_then(database: Database) -> None:
    def add(name: str) -> None:
        with database.writing() as session:
            session.add(LeaseRow(name=name, holder="h", token=1, expires_at_s=0.0))

    names = select(LeaseRow.name).order_by(LeaseRow.name)
    with database.reading() as snapshot, database.looking() as connection:
        assert snapshot.scalars(names).all() == connection.scalars(names).all() == []
        add("a")
        assert snapshot.scalars(names).all() == []
        assert connection.scalars(names).all() == ["a"]
    assert database.rows(names) == [("a",)]
    assert database.value(names) == "a"


def _looked_at_once(database: Database, query: Executable) -> list[object]:
    with database.at_once() as connection:
        assert connection is not None
        return list(connection.scalars(query))


def test_a_look_at_once_waits_for_nobody(sqlite: Database) -> None:
    """Neither for a writer, nor for another look, nor for a process that has the whole file to itself."""
    names = select(LeaseRow.name)
    with sqlite.writing() as session:
        session.add(LeaseRow(name="a", holder="h", token=1, expires_at_s=0.0))
        session.flush()
        with sqlite.at_once() as connection, sqlite.at_once() as second:
            assert connection is not None
            assert connection.scalars(names).all() == []
            assert second is None
    assert _looked_at_once(sqlite, names) == ["a"]
    sqlite.close()
    path = sqlite_path(sqlite.engine.url)
    assert path is not None
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(OperationalError, match="locked"):
            _looked_at_once(sqlite, names)
    assert _looked_at_once(sqlite, text("PRAGMA busy_timeout")) == [0]


def test_there_is_no_look_at_once_where_a_server_answers(postgres_database: Database) -> None:
    with postgres_database.at_once() as connection:
        assert connection is None


def test_writers_queue_instead_of_failing(database: Database) -> None:
    """Each reads, then writes: without a lock before it reads, one of two such transactions must fail or lose a count."""
    with database.writing() as session:
        session.add(LeaseRow(name="counter", holder="", token=0, expires_at_s=0.0))
    rounds, failures = 25, []

    def count() -> None:
        try:
            for _ in range(rounds):
                with database.writing() as session:
                    take_locks(session.connection(), "counter")
                    lease = session.get(LeaseRow, "counter")
                    assert lease is not None
                    lease.token += 1
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert failures == []
    assert column(database, LeaseRow, "token") == [4 * rounds]


def test_a_lock_of_another_name_holds_nobody_up(postgres_database: Database) -> None:
    """Two writers at a time, each inside the other's transaction."""
    with postgres_database.writing() as one, postgres_database.writing() as two:
        take_locks(one.connection(), "a")
        take_locks(two.connection(), "b")
        one.add(LeaseRow(name="a", holder="", token=0, expires_at_s=0.0))
        two.add(LeaseRow(name="b", holder="", token=0, expires_at_s=0.0))
    assert column(postgres_database, LeaseRow, "name") == ["a", "b"]


def test_a_writer_that_stands_still_loses_its_transaction(
    postgres_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that is paused inside a transaction holds the row of its lease: the server ends that, and another takes over."""
    monkeypatch.setattr(dialects, "_WRITE_IDLE_S", 1.0)
    lease = acquire(postgres_database, "leader", "paused", -1.0)
    assert lease is not None

    def stand_still() -> None:
        with postgres_database.writing() as session:
            check_fence(session.connection(), "leader", lease.token)
            other = acquire(postgres_database, "leader", "other", 3600.0)
            assert other is not None
            assert other.token > lease.token

    with pytest.raises(OperationalError):
        stand_still()
    with pytest.raises(FencedOff):
        Driver(SqlStore(postgres_database, fencing_token=lease.token)).commit()


def test_writers_are_served_in_the_order_in_which_they_came(sqlite: Database) -> None:
    """Otherwise a flood of submissions keeps the scheduling cycle waiting for ever."""
    served: list[int] = []

    def write(number: int) -> None:
        with sqlite.writing():
            served.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(12)]
    waiting = sqlite._writers._waiting
    with sqlite.writing():
        for number, thread in enumerate(threads, start=1):
            thread.start()
            deadline_s = time.monotonic() + 30.0
            while len(waiting) < number and time.monotonic() < deadline_s:
                thread.join(0.001)
    for thread in threads:
        thread.join(60.0)
    assert served == list(range(12))


def test_a_writer_that_waits_too_long_gives_up_and_leaves_no_trace(
    sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "BUSY_TIMEOUT_S", 0.01)
    with sqlite.writing():
        with pytest.raises(OperationalError, match="writing for"), sqlite.writing():
            pytest.fail("two writers at once")
        with pytest.raises(StoreUnavailable):
            Driver(SqlStore(sqlite)).commit()
    with sqlite.writing() as session:
        session.add(LeaseRow(name="x", holder="h", token=1, expires_at_s=0.0))
    assert column(sqlite, LeaseRow, "name") == ["x"]


def test_the_databases_clock_is_the_epochs(database: Database) -> None:
    before_s = time.time()
    with database.reading() as session:
        told_s = database.now_s(session)
    assert before_s - 1.0 <= told_s <= time.time() + 1.0


# Leases.


def test_one_holder_at_a_time_and_growing_tokens(database: Database) -> None:
    first = acquire(database, "leader", "a", 3600.0)
    assert first is not None
    assert acquire(database, "leader", "b", 3600.0) is None
    renewed = renew(database, first, 7200.0)
    assert renewed is not None
    assert renewed.expires_at_s > first.expires_at_s + 3000.0
    release(database, renewed)
    second = acquire(database, "leader", "b", 3600.0)
    assert second is not None
    assert (first.token, second.token) == (1, 2)
    assert renew(database, first, 3600.0) is None, "taken by another"
    release(database, first)
    assert acquire(database, "leader", "c", 3600.0) is None, "a late release frees nothing"


def test_a_lease_that_ran_out_is_free_and_a_restart_fences_its_earlier_self(database: Database) -> None:
    first = acquire(database, "leader", "a", -1.0)
    assert first is not None
    second = acquire(database, "leader", "b", 3600.0)
    assert second is not None
    again = acquire(database, "leader", "b", 3600.0)
    assert again is not None
    assert (second.token, again.token) == (2, 3)
    assert renew(database, second, 3600.0) is None


def test_an_expired_lease_that_nobody_took_is_renewed(database: Database) -> None:
    lease = acquire(database, "leader", "a", -1.0)
    assert lease is not None
    assert renew(database, lease, 3600.0) is not None
    assert acquire(database, "leader", "b", 3600.0) is None


def test_a_race_has_one_winner(database: Database) -> None:
    barrier, won = threading.Barrier(6), []

    def run(holder: str) -> None:
        barrier.wait()
        if acquire(database, "leader", holder, 3600.0) is not None:
            won.append(holder)

    threads = [threading.Thread(target=run, args=(str(number),)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert len(won) == 1


# Servers.


def test_a_servers_position_is_for_ever(database: Database) -> None:
    enroll(database, Cluster("c", (Server("b", 4), Server("a", 4))))
    found = enroll(
        database, Cluster("c", (Server("a", 4, nic_bytes_s=1e9), Server("new", 8), Server("b", 4)), rack_bytes_s=5.0)
    )
    assert [(server.name, server.nic_bytes_s) for server in found.servers] == [
        ("b", 12.5e9),
        ("a", 1e9),
        ("new", 12.5e9),
    ]
    assert (found.name, found.rack_bytes_s) == ("c", 5.0)


def test_a_server_goes_with_the_file_but_one_that_was_asked_for_stays(database: Database) -> None:
    enroll(database, Cluster("c", (Server("a", 4), Server("b", 4))))
    with database.writing() as session:
        request = SqlStore(database).add_request(
            session, EngineRequest(0, RequestKind.SERVER_ADDED, 1.0, server_spec=Server("c", 2))
        )
    new = {ServerIndex(2): NewServer(Server("c", 2), found=False)}
    Driver(SqlStore(database)).commit(requests=[request], servers={ServerIndex(2): ServerRecord()}, new_servers=new)
    assert [server.name for server in enroll(database, Cluster("c", (Server("a", 4),))).servers] == ["a", "b", "c"]
    assert column(database, ServerRow, "down") == [False, True, False]
    enroll(database, Cluster("c", (Server("b", 4), Server("a", 4))))
    assert column(database, ServerRow, "down") == [False, False, False]


def test_an_executor_that_finds_no_servers_sets_none_up(database: Database) -> None:
    with database.writing() as session:
        request = SqlStore(database).add_request(
            session, EngineRequest(0, RequestKind.SERVER_ADDED, 1.0, server_spec=Server("a", 2))
        )
    new = {ServerIndex(0): NewServer(Server("a", 2), found=False)}
    down = ServerRecord(down=True, detail="no answer")
    Driver(SqlStore(database)).commit(requests=[request], servers={ServerIndex(0): down}, new_servers=new)
    enroll(database, Cluster("c", ()), [])
    assert SqlStore(database).load().servers == [down]
    enroll(database, Cluster("c", ()))
    assert SqlStore(database).load().servers == [ServerRecord()]


def test_the_states_that_an_executor_found_are_stored_and_an_operators_drain_stays(database: Database) -> None:
    a, b = Server("a", 4), Server("b", 4)
    cluster = Cluster("c", (a, b))
    enroll(database, cluster, [FoundServer(a, drained=True, detail="disk"), FoundServer(b)])
    states = SqlStore(database).load().servers
    assert states == [ServerRecord(engine_drained=True, detail="disk"), ServerRecord()]
    Driver(SqlStore(database)).commit(servers={ServerIndex(0): ServerRecord(drained=True, engine_drained=True)})
    enroll(database, cluster, [FoundServer(a), FoundServer(b, down=True, detail="no answer")])
    states = SqlStore(database).load().servers
    assert states == [ServerRecord(drained=True), ServerRecord(down=True, detail="no answer")]
    enroll(database, Cluster("c", (a,)), [FoundServer(a)])
    assert SqlStore(database).load().servers[1] == ServerRecord(down=True, detail="the cluster no longer lists it")


def test_draining_outlives_a_restart(database: Database) -> None:
    cluster = Cluster("c", (Server("a", 4),))
    enroll(database, cluster)
    Driver(SqlStore(database)).commit(servers={ServerIndex(0): ServerRecord(drained=True)})
    enroll(database, cluster)
    assert SqlStore(database).load().servers == [ServerRecord(drained=True)]


def test_a_row_that_cannot_be_read_is_named(database: Database) -> None:
    (job,) = submit(database, 1)
    with database.writing() as session:
        session.connection().execute(update(JOBS).values(spec={"v": 1, "name": "a", "user": "u"}))
    with pytest.raises(CodecError, match=r"job 1\.JobSpec: the field 'gpus' is missing"):
        SqlStore(database).jobs([job])


def test_gpus_in_use_are_not_redefined(database: Database) -> None:
    enroll(database, Cluster("c", (Server("a", 4), Server("b", 4))))
    submit(database, 1)
    driver = Driver(SqlStore(database))
    (job,) = driver.admit()
    driver.commit(start(job))
    with pytest.raises(ServerInUse, match=r"'a' now has 2 GPUs .* attempt 1\.1"):
        enroll(database, Cluster("c", (Server("a", 2), Server("b", 4))))
    less = Server("a", 2)
    detected = enroll(database, Cluster("c", (less, Server("b", 4))), detected=True)
    assert detected.servers[0].gpus == 4, "nor must a GPU that has failed"
    assert SqlStore(database).load().servers[0] == ServerRecord(engine_drained=True, detail="has 2 GPUs, 4 expected")
    enroll(database, Cluster("c", (Server("a", 4), Server("b", 4))), detected=True)
    assert SqlStore(database).load().servers[0] == ServerRecord(), "it is back"
    found = enroll(database, Cluster("c", (less, Server("b", 4))), [FoundServer(less), FoundServer(Server("b", 4))])
    assert found.servers[0].gpus == 4, "an executor's finding must not end the service"
    states = SqlStore(database).load().servers
    assert states == [ServerRecord(engine_drained=True, detail="has 2 GPUs, 4 expected"), ServerRecord()]
    assert job.attempt is not None
    with database.writing() as session:
        values = attempt_values(job.attempt) | {"state": "completed"}
        session.connection().execute(update(ATTEMPTS).values(**values))
    assert enroll(database, Cluster("c", (Server("a", 2), Server("b", 4)))).servers[0].gpus == 2


# History.


def _past(number: int, ended_at_s: float, service_s: float = 60.0) -> ImportedJob:
    spec = JobSpec(f"family{number % 3}", "ada", 2, project="nlp")
    return ImportedJob(
        f"p{number}",
        EndedJob(JobId(0), spec, ended_at_s - 90.0, ended_at_s, 100.0, service_s, "succeeded", 0.6, "V100", 1),
    )


def test_imported_and_own_labels_are_one_stream_in_the_order_of_their_end(database: Database) -> None:
    submit(database, 2)
    driver = Driver(SqlStore(database))
    one, two = driver.admit()
    driver.commit(ended(one), ended(two, service_s=0.0))
    with database.writing() as session:
        assert import_history(session, "demo", [_past(1, 50.0), _past(2, 10.0), _past(3, 20.0, service_s=0.0)]) == 3
    labels = list(ended_jobs(database))
    assert [(label.ended_at_s, label.spec.name) for label in labels] == [
        (10.0, "family2"),
        (30.0, "gpt2"),
        (50.0, "family1"),
    ]
    assert labels[1] == EndedJob(one.id, SPEC, 5.0, 30.0, 40.0, 80.0, "succeeded", 2.0, "V100", 2)
    assert labels[0] == replace(_past(2, 10.0).label, job=labels[0].job)
    assert labels[0].job < 0, "an imported job is nobody's here"
    assert [label.ended_at_s for label in ended_jobs(database, newest=2)] == [30.0, 50.0]


def test_loading_the_same_past_twice_changes_nothing(database: Database) -> None:
    past = [_past(number, float(number)) for number in range(1, 2500)]
    for expected in (2499, 0):
        with database.writing() as session:
            assert import_history(session, "demo", past) == expected
    with database.writing() as session:
        assert import_history(session, "other", past[:2]) == 2
    assert len(column(database, HistoryRow, "id")) == 2501


def test_nobody_imports_under_our_own_name(database: Database) -> None:
    with pytest.raises(ValueError, match="is reserved"), database.writing() as session:
        import_history(session, "sooner", [_past(1, 1.0)])


def test_a_page_of_history_is_found_by_index(sqlite: Database) -> None:
    """The training reads the newest rows of a table that only grows."""
    with sqlite.reading() as session:
        plan = session.connection().execute(
            text("EXPLAIN QUERY PLAN SELECT id FROM history ORDER BY ended_at_s DESC, id DESC LIMIT 10")
        )
        assert "ix_history_ended_at_s_id" in str(plan.all())
        assert session.connection().execute(select(func.count()).select_from(HISTORY)).scalar() == 0
