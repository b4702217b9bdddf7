"""Every store against the contract, and what only the database's store promises."""

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import event, select, text

from policies.model.cluster import Server
from policies.model.decision import Preempt, Reserve, Start
from policies.model.estimate import EndedJob, Estimate, Prediction, Unit
from policies.model.ids import JobId, ServerIndex
from policies.model.job import JobSpec
from policies.model.reasons import Reason
from service.db.codec import decode_actions, decode_changes, decode_refusals
from service.db.lease import FencedOff
from service.db.session import Database, open_database
from service.db.store import DuplicateServer, SqlStore
from service.db.tables import (
    ATTEMPTS,
    JOBS,
    CycleRow,
    HistoryRow,
    JobEventRow,
    LeaseRow,
    PredictionRow,
    ServerRow,
    ThroughputRow,
    table,
)
from service.engine.events import EngineRequest, RequestKind
from service.engine.ports import NewServer, Store, StoreUnavailable
from service.engine.record import AttemptRecord, JobRecord, ServerRecord
from tests.conformance.store_suite import PLACEMENT, SPEC, Driver, StoreContract, StoreHarness, ended, start, touched
from tests.durable_store import DurableStore


class MemoryHarness:
    """The memory store, which gets its jobs' ids from outside."""

    def __init__(self) -> None:
        self.memory = DurableStore()
        self._next = 1

    @property
    def store(self) -> Store:
        return self.memory

    def submit(self, specs: Sequence[JobSpec], now_s: float) -> list[JobId]:
        ids = [JobId(self._next + at) for at in range(len(specs))]
        self._next += len(specs)
        for job, spec in zip(ids, specs, strict=True):
            self.memory.submit(JobRecord(job, spec, now_s, priority=spec.priority, held=spec.hold))
        return ids

    def add_request(self, request: EngineRequest) -> int:
        return self.memory.add_request(request).id

    def bump(self, job: JobId) -> None:
        self.memory.bump(job)


class SqlHarness:
    """The store on a database."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.sql = SqlStore(database)

    @property
    def store(self) -> Store:
        return self.sql

    def submit(self, specs: Sequence[JobSpec], now_s: float) -> list[JobId]:
        with self.database.writing() as session:
            return self.sql.submit(session, specs, now_s)

    def add_request(self, request: EngineRequest) -> int:
        with self.database.writing() as session:
            return self.sql.add_request(session, request)

    def bump(self, job: JobId) -> None:
        with self.database.writing() as session:
            session.connection().execute(text("UPDATE jobs SET version = version + 1 WHERE id = :id"), {"id": job})


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def harness(self) -> MemoryHarness:
        return MemoryHarness()


class TestSqliteStore(StoreContract):
    @pytest.fixture
    def harness(self, database: Database) -> SqlHarness:
        return SqlHarness(database)


class TestPostgresStore(StoreContract):
    @pytest.fixture
    def harness(self, postgres_database: Database) -> SqlHarness:
        return SqlHarness(postgres_database)


@pytest.fixture
def sql(any_database: Database) -> SqlHarness:
    return SqlHarness(any_database)


@pytest.fixture
def driver(sql: SqlHarness) -> Driver:
    return Driver(sql.store)


def _rows(database: Database, row: type, *columns: str) -> list[tuple[object, ...]]:
    with database.reading() as session:
        selected = [table(row).c[name] for name in columns]
        return [tuple(found) for found in session.connection().execute(select(*selected))]


def test_every_field_of_the_engines_records_has_a_column() -> None:
    """The engine may add a field; then this asks for a column and a migration."""
    jobs = {field.name for field in fields(JobRecord)} - {"attempt", "gate"}  # a gate is worked out anew at each start
    assert jobs <= set(JOBS.c.keys())
    attempts = {field.name for field in fields(AttemptRecord)} - {"job"}
    assert attempts <= set(ATTEMPTS.c.keys())


def test_a_submission_has_an_event_from_its_admission_on(sql: SqlHarness, driver: Driver) -> None:
    (job, held) = sql.submit([SPEC, replace(SPEC, hold=True)], 5.0)
    assert _rows(sql.database, JobEventRow, "job_id") == []
    driver.admit()
    assert _rows(sql.database, JobEventRow, "job_id", "at_s", "source", "target", "cause", "reason") == [
        (job, 5.0, None, "queued", "submitted", "new"),
        (held, 5.0, None, "queued", "submitted", "held"),
    ]


def test_a_rolled_back_submission_leaves_nothing(sql: SqlHarness) -> None:
    def submit_and_fail() -> None:
        with sql.database.writing() as session:
            sql.sql.submit(session, [SPEC], 5.0)
            raise RuntimeError("the client went away")

    with pytest.raises(RuntimeError):
        submit_and_fail()
    assert sql.store.pending_requests(10) == []
    assert sql.store.jobs([JobId(1)]) == []


def test_a_prediction_is_stored_with_its_interval_and_scored_once(sql: SqlHarness, driver: Driver) -> None:
    sql.submit([SPEC], 5.0)
    (job,) = driver.admit()
    write = touched(job)
    points = tuple(float(10 * number) for number in range(1, 11))
    write.prediction = Prediction(
        Estimate(points, Unit.ITERATIONS, "14 past runs", "qrf-3", 0.5), "f1", (1.0, float("nan"))
    )
    driver.commit(write, at_s=12.0)
    assert _rows(sql.database, PredictionRow, "p10", "p50", "p90", "features", "made_at_s", "scored_at_s") == [
        (20.0, 60.0, 100.0, [1.0, None], 12.0, None)
    ]
    driver.commit(ended(job, iterations=30.0), at_s=31.0)
    ((actual, scored_at_s, log_error),) = _rows(sql.database, PredictionRow, "actual", "scored_at_s", "log_error")
    assert (actual, scored_at_s) == (30.0, 31.0)
    assert log_error == pytest.approx(0.6931471805599453)  # ln(60 / 30): twice too long


@pytest.mark.parametrize(
    ("unit", "iterations", "service_s", "expected"),
    [
        (Unit.SERVICE_S, 30.0, 80.0, (80.0, 0.0)),
        (Unit.ITERATIONS, None, 80.0, (None, None)),
        (Unit.SERVICE_S, None, 0.0, (None, None)),
    ],
)
def test_a_prediction_is_scored_in_its_own_unit(
    sql: SqlHarness,
    driver: Driver,
    unit: Unit,
    iterations: float | None,
    service_s: float,
    expected: tuple[object, ...],
) -> None:
    sql.submit([SPEC], 5.0)
    (job,) = driver.admit()
    write = touched(job)
    write.prediction = Prediction(Estimate((80.0,), unit, "test"))
    driver.commit(write)
    driver.commit(ended(job, iterations=iterations, service_s=service_s))
    assert _rows(sql.database, PredictionRow, "actual", "log_error") == [expected]


def test_an_ended_job_is_history(sql: SqlHarness, driver: Driver) -> None:
    sql.submit([SPEC], 5.0)
    (job,) = driver.admit()
    driver.commit(ended(job))
    columns = ("source", "source_key", "job_id", "spec", "iterations", "service_s", "final_state")
    assert _rows(sql.database, HistoryRow, *columns) == [("sooner", "1", 1, None, 40.0, 80.0, "succeeded")]


def test_throughput_keeps_the_newest_samples_and_counts_all(sql: SqlHarness, driver: Driver) -> None:
    """25 runs of one program at 1, 2, ... 25 s an iteration, and one elsewhere: a median of the newest 20."""
    sql.submit([SPEC] * 26, 5.0)
    jobs = driver.admit()
    for number, job in enumerate(jobs[:5], start=1):
        driver.commit(_with_speed(ended(job), float(number)))
    driver.commit(*(_with_speed(ended(job), float(number)) for number, job in enumerate(jobs[5:25], start=6)))
    driver.commit(_with_speed(ended(jobs[25]), 100.0, gpu_type="A100"))
    columns = ("user", "project", "name", "gpus", "gpu_type", "servers_spanned", "median_s_per_iteration", "count")
    assert sorted(_rows(sql.database, ThroughputRow, *columns)) == [
        ("ada", "nlp", "gpt2", SPEC.gpus, "A100", 2, 100.0, 1),
        ("ada", "nlp", "gpt2", SPEC.gpus, "V100", 2, 15.5, 25),
    ]


def test_a_profile_run_gives_its_speed_and_scores_no_prediction(sql: SqlHarness, driver: Driver) -> None:
    sql.submit([replace(SPEC, labels={"sooner/profile": "5"})], 5.0)
    (job,) = driver.admit()
    write = touched(job)
    write.prediction = Prediction(Estimate((80.0,), Unit.SERVICE_S, "test"))
    driver.commit(write)
    driver.commit(_with_speed(ended(job, service_s=20.0), 0.5))
    assert _rows(sql.database, PredictionRow, "actual", "scored_at_s") == [(None, None)]
    assert _rows(sql.database, ThroughputRow, "name", "median_s_per_iteration", "count") == [("gpt2", 0.5, 1)]


def _with_speed(write: object, seconds: float, gpu_type: str = "V100") -> object:
    write.label = replace(write.label, seconds_per_iteration=seconds, gpu_type=gpu_type)
    assert isinstance(write.label, EndedJob)
    return write


def test_a_cycle_without_changes_and_actions_leaves_no_row(sql: SqlHarness, driver: Driver) -> None:
    sql.submit([SPEC], 5.0)
    (job,) = driver.admit()
    before = len(_rows(sql.database, CycleRow, "number"))
    driver.commit(touched(job))
    assert len(_rows(sql.database, CycleRow, "number")) == before


def test_a_cycles_row_says_what_was_decided_and_what_fell(sql: SqlHarness, driver: Driver) -> None:
    sql.submit([SPEC, SPEC], 5.0)
    one, two = driver.admit()
    sql.bump(two.id)
    actions = [Start(one.id, PLACEMENT), Start(two.id, PLACEMENT)]
    assert driver.commit(
        start(one), start(two), actions=actions, wake_at_s=60.0, refusals=[(one.id, Reason.RESOURCES)]
    ) == {two.id}
    number, changes, decided, refusals, wake_at_s = _rows(
        sql.database, CycleRow, "number", "changes", "actions", "refusals", "wake_at_s"
    )[-1]
    assert (number, wake_at_s) == (2, 60.0)
    assert decode_changes(changes) == []
    assert decode_actions(decided) == actions
    assert decode_refusals(refusals) == [(one.id, Reason.RESOURCES), (two.id, Reason.REFUSED)]


def test_an_added_server_has_an_origin(sql: SqlHarness, driver: Driver) -> None:
    new = {ServerIndex(index): NewServer(Server(name, 4), found=name == "a") for index, name in enumerate("za")}
    driver.commit(servers={index: ServerRecord() for index in reversed(new)}, new_servers=new)
    assert _rows(sql.database, ServerRow, "position", "name", "origin") == [(0, "z", "request"), (1, "a", "file")]


def test_a_servers_name_is_taken_from_the_request_on(sql: SqlHarness, driver: Driver) -> None:
    request = EngineRequest(0, RequestKind.SERVER_ADDED, 1.0, server_spec=Server("s1", 4))
    number = sql.add_request(request)
    with pytest.raises(DuplicateServer, match="'s1'"):
        sql.add_request(request)
    new = {ServerIndex(0): NewServer(Server("s1", 4), found=False)}
    driver.commit(requests=[number], servers={ServerIndex(0): ServerRecord()}, new_servers=new)
    with pytest.raises(DuplicateServer, match="'s1'"):
        sql.add_request(request)


def test_a_leader_that_lost_its_lease_writes_nothing(sql: SqlHarness) -> None:
    sql.submit([SPEC], 5.0)
    with sql.database.writing() as session:
        session.add(LeaseRow(name="leader", holder="me", token=7, expires_at_s=1e12))
    Driver(SqlStore(sql.database, fencing_token=7)).admit()
    (job,) = sql.store.load().jobs
    with sql.database.writing() as session:
        lease = session.get(LeaseRow, "leader")
        assert lease is not None
        lease.token = 8
    with pytest.raises(FencedOff, match="token 8"):
        Driver(SqlStore(sql.database, fencing_token=7), cycle=1).commit(start(job))
    (kept,) = sql.store.load().jobs
    assert kept.attempt is None


def test_a_broken_database_is_unavailable_and_keeps_its_state(sql: SqlHarness, driver: Driver) -> None:
    """The last statement of the transaction fails: nothing of the earlier ones may stay."""
    sql.submit([SPEC], 5.0)
    (job,) = driver.admit()
    with sql.database.writing() as session:
        session.connection().execute(text("ALTER TABLE cycles RENAME TO gone"))
    write = start(job)
    with pytest.raises(StoreUnavailable, match="cycle 2 was not committed"):
        driver.commit(write, actions=[Start(job.id, PLACEMENT)])
    with sql.database.writing() as session:
        session.connection().execute(text("ALTER TABLE gone RENAME TO cycles"))
    (kept,) = sql.store.load().jobs
    assert (kept.version, kept.attempt) == (1, None)
    assert len(_rows(sql.database, JobEventRow, "id")) == 1
    assert driver.commit(write, actions=[Start(job.id, PLACEMENT)]) == frozenset()


@pytest.mark.parametrize("count", [1, 40])
def test_the_number_of_statements_does_not_grow_with_the_jobs(sql: SqlHarness, driver: Driver, count: int) -> None:
    sql.submit([SPEC] * count, 5.0)
    jobs = driver.admit()
    driver.commit(*(start(job) for job in jobs))
    statements: list[str] = []
    event.listen(sql.database.engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))
    writes = []
    for job in jobs:
        attempt = job.attempt
        assert attempt is not None
        writes.append(ended(job))
        writes[-1].attempts.append(attempt)
    driver.commit(*writes, actions=[Start(job.id, PLACEMENT) for job in jobs])
    assert len(statements) <= 13, statements


def test_two_writers_take_turns(sql: SqlHarness) -> None:
    """A reader beside an open writing transaction sees the state before it, and is not held up."""
    with sql.database.writing() as session:
        sql.sql.submit(session, [SPEC], 5.0)
        assert sql.store.pending_requests(10) == []
    assert len(sql.store.pending_requests(10)) == 1


_STEP = st.tuples(
    st.sampled_from(["submit", "admit", "touch", "start", "end", "bump", "reserve"]), st.integers(0, 5), st.booleans()
)


@settings(max_examples=15, deadline=None)
@given(steps=st.lists(_STEP, max_size=14))
def test_all_stores_tell_the_same_story(steps: list[tuple[str, int, bool]], migrated_file: bytes) -> None:
    """The same submissions, cycles and interferences leave every store with the same jobs, requests and positions."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "sooner.db"
        path.write_bytes(migrated_file)
        database = open_database(f"sqlite:///{path}")
        told = [_tell(harness, steps) for harness in (MemoryHarness(), SqlHarness(database))]
        database.close()
    assert told[0] == told[1]


def _tell(harness: StoreHarness, steps: list[tuple[str, int, bool]]) -> list[object]:
    driver = Driver(harness.store)
    story: list[object] = []
    for what, number, stale in steps:
        # Like the engine after a dropped write: what is true is what the store says.
        jobs = harness.store.load().jobs
        if what == "submit":
            story.append(harness.submit([replace(SPEC, priority=number)], float(number)))
        elif what == "admit":
            story.append([job.id for job in driver.admit()])
        elif jobs:
            job, other = jobs[number % len(jobs)], jobs[(number + 1) % len(jobs)]
            if stale or what == "bump":
                harness.bump(job.id)
            if what == "touch":
                story.append(
                    driver.commit(
                        touched(job, requests=[harness.add_request(EngineRequest(0, RequestKind.CANCEL, 1.0, job.id))])
                    )
                )
            elif what == "start" and job.attempt is None:
                story.append(driver.commit(start(job), actions=[Start(job.id, PLACEMENT)]))
            elif what == "end":
                story.append(driver.commit(ended(job)))
            elif what == "reserve" and job is not other:
                actions = [Preempt(job.id, other.id), Reserve(other.id, PLACEMENT)]
                story.append(driver.commit(touched(job), touched(other), actions=actions))
        story.append([(request.id, request.kind, request.job) for request in harness.store.pending_requests(100)])
        story.append([replace(job, anchor_s=0.0) for job in harness.store.load().jobs])
    return story
