"""What old rows and files become: the service forgets by age, and never what it still needs."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import insert, select, update

from policies.model.ids import AttemptId, JobId, ServerIndex
from service.background.prune import prune
from service.config.settings import Settings, load_settings
from service.db.progress import OUTLINE_ROWS, ProgressPoint, record_progress
from service.db.session import Database, open_database
from service.db.store import SqlStore
from service.db.tables import (
    CYCLES,
    IDEMPOTENCY_KEYS,
    JOBS,
    PROGRESS,
    REQUESTS,
    CycleRow,
    IdempotencyKeyRow,
    JobEventRow,
    JobRow,
    ProgressRow,
    RequestRow,
)
from service.engine.events import EngineRequest, RequestKind
from tests.conformance.store_suite import Driver, ended
from tests.unit.service.db.test_database import column, submit

DAY_S = 86_400.0


@pytest.fixture
def database(any_database: Database) -> Database:
    """Everything here holds on SQLite and on PostgreSQL."""
    return any_database


@pytest.fixture
def limits(tmp_path: Path) -> Settings:
    return load_settings({"data_dir": tmp_path, "prune_rows_max": 3, "progress_rows_max": 10})


def test_old_cycles_and_requests_are_deleted_except_the_newest_dump_and_number(
    database: Database, limits: Settings
) -> None:
    empty = {"v": 1, "items": []}
    rows = [
        {
            "number": number,
            "at_s": number * DAY_S,
            "changes": empty,
            "actions": empty,
            "refusals": empty,
            "duration_s": {},
        }
        for number in range(1, 51)
    ]
    with database.writing() as session:
        session.connection().execute(insert(CYCLES), rows)
        session.connection().execute(update(CYCLES).where(CYCLES.c.number.in_([3, 7])).values(dump={"x": 1}))
        store = SqlStore(database)
        requests = [
            store.add_request(session, EngineRequest(0, RequestKind.SERVER_DRAINED, at * DAY_S, server=ServerIndex(0)))
            for at in (1, 2, 49)
        ]
    with database.writing() as session:
        session.connection().execute(update(REQUESTS).where(REQUESTS.c.id != requests[1]).values(consumed_cycle=1))
    pruned = prune(database, limits, 50 * DAY_S)
    assert column(database, CycleRow, "number") == [7, *range(20, 51)]
    assert column(database, RequestRow, "id") == requests[1:], "an unconsumed request is never forgotten"
    assert (pruned.cycles, pruned.requests) == (18, 1)
    prune(database, limits, 5000 * DAY_S)
    assert column(database, CycleRow, "number") == [7, 50]
    world = SqlStore(database).load()
    assert (world.cycle, world.policy_dump) == (50, {"x": 1})


def test_expired_keys_are_deleted(database: Database, limits: Settings) -> None:
    with database.writing() as session:
        for number in range(8):
            session.add(
                IdempotencyKeyRow(
                    key=f"k{number // 2}",
                    route=f"r{number % 2}",
                    body_sha256="",
                    state="done",
                    created_at_s=0.0,
                    expires_at_s=float(number),
                )
            )
    assert prune(database, limits, 6.5).idempotency_keys == 7
    assert column(database, IdempotencyKeyRow, "expires_at_s") == [7.0]


def test_the_largest_portion_is_no_statement_too_long(database: Database, tmp_path: Path) -> None:
    count = 70_000
    key = {"route": "r", "body_sha256": "", "state": "done", "created_at_s": 0.0, "expires_at_s": 1.0}
    with database.writing() as session:
        session.connection().execute(insert(IDEMPOTENCY_KEYS), [key | {"key": f"k{at}"} for at in range(count)])
    largest = load_settings({"data_dir": tmp_path, "prune_rows_max": 100_000})
    assert prune(database, largest, 2.0).idempotency_keys == count


def test_files_of_ended_jobs_are_deleted_once_and_the_jobs_stay(database: Database, limits: Settings) -> None:
    submit(database, 6)
    driver = Driver(SqlStore(database))
    jobs = driver.admit()
    driver.commit(*(ended(job) for job in jobs[:5]))
    with database.writing() as session:
        record_progress(session, [ProgressPoint(AttemptId(f"{job.id}.1"), 1.0, 2.0) for job in jobs])
        long = [ProgressPoint(AttemptId(f"{jobs[4].id}.1"), 1.0, float(at)) for at in range(3, 1000)]
        record_progress(session, long)
    asked: list[int] = []
    limits = load_settings({"data_dir": limits.data_dir, "prune_rows_max": 3, "progress_rows_max": 2000})
    assert prune(database, limits, 30.0 + 7 * DAY_S, asked.extend).jobs_with_files == 0, "not a second too early"
    pruned = prune(database, limits, 31.0 + 7 * DAY_S, asked.extend)
    assert (asked, pruned.jobs_with_files) == ([1, 2, 3, 4, 5], 5)
    assert prune(database, limits, 99.0 + 7 * DAY_S, asked.extend).jobs_with_files == 0
    assert column(database, JobRow, "id") == [1, 2, 3, 4, 5, 6]
    assert len(column(database, JobEventRow, "id")) == 11
    assert Counter(column(database, ProgressRow, "job_id")) == {1: 1, 2: 1, 3: 1, 4: 1, 5: OUTLINE_ROWS, 6: 1}
    iterations = sorted(column(database, ProgressRow, "iteration"))[5:]
    steps = [after - before for before, after in pairwise(iterations)]
    assert (iterations[0], iterations[-1], max(steps) - min(steps)) == (2.0, 999.0, 1.0)


def test_curves_that_grow_no_more_are_not_counted_again(database: Database, limits: Settings) -> None:
    submit(database, 3)
    driver = Driver(SqlStore(database))
    jobs = driver.admit()
    driver.commit(*(ended(job) for job in jobs[:2]))
    with database.writing() as session:
        session.connection().execute(update(JOBS).where(JOBS.c.id == 1).values(files_deleted_at_s=50.0))
        points = [ProgressPoint(AttemptId(f"{job.id}.1"), float(at), float(at)) for job in jobs for at in range(12)]
        record_progress(session, points)
    assert prune(database, limits, 100.0).progress == 10, "half of the others' points but the newest"
    assert Counter(column(database, ProgressRow, "job_id")) == {1: 12, 2: 7, 3: 7}


def test_a_crash_after_deleting_files_repeats_the_deletion(database: Database, limits: Settings) -> None:
    submit(database, 1)
    driver = Driver(SqlStore(database))
    driver.commit(ended(driver.admit()[0]))
    asked: list[int] = []

    def crash(jobs: Sequence[JobId]) -> None:
        asked.extend(jobs)
        raise OSError("the power went")

    with pytest.raises(OSError, match="power"):
        prune(database, limits, 100 * DAY_S, crash)
    prune(database, limits, 100 * DAY_S, asked.extend)
    assert asked == [1, 1]


@settings(max_examples=8, deadline=None)
@given(counts=st.lists(st.integers(0, 90), min_size=1, max_size=3))
def test_a_thinned_curve_keeps_its_ends_and_its_shape(
    migrated_file: bytes, tmp_path_factory: pytest.TempPathFactory, counts: list[int]
) -> None:
    path = tmp_path_factory.mktemp("curve") / "sooner.db"
    path.write_bytes(migrated_file)
    database = open_database(f"sqlite:///{path}")
    jobs = submit(database, len(counts))
    with database.writing() as session:
        points = [
            ProgressPoint(AttemptId(f"{job}.1"), float(at), float(at))
            for job, count in zip(jobs, counts, strict=True)
            for at in range(count)
        ]
        record_progress(session, points)
    prune(database, load_settings({"data_dir": path.parent, "progress_rows_max": 10}), 1e6)
    for job, count in zip(jobs, counts, strict=True):
        with database.reading() as session:
            rows = select(PROGRESS.c.iteration).where(PROGRESS.c.job_id == job).order_by(PROGRESS.c.id)
            kept = list(session.connection().execute(rows).scalars())
        assert len(kept) <= 10
        assert len(kept) == count or len(kept) >= 5
        if count:
            assert (kept[0], kept[-1]) == (0.0, count - 1.0)
            gaps = [after - before for before, after in pairwise(kept)]
            assert max(gaps, default=1.0) <= 16.0, "no hole: 90 points are halved at most four times"
    database.close()
