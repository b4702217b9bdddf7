"""Jobs that ended long ago are forgotten where a limit is set: all of them, nothing else, and not what was learnt from them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Connection, func, select, update

from policies.model.estimate import EndedJob, Estimate, Prediction, Unit
from policies.model.ids import AttemptId, JobId
from policies.model.job import ArrayPlace
from service.background import prune as pruning
from service.background.prune import FILES_GRACE_S, Pruned, prune
from service.config.settings import Settings, SettingsError, load_settings
from service.db.check import check_connection
from service.db.history import ended_jobs
from service.db.progress import ProgressPoint, record_progress
from service.db.retention import delete_labels, referenced_jobs
from service.db.session import Database
from service.db.store import SqlStore
from service.db.tables import HISTORY, JOBS, METADATA, HistoryRow
from service.engine.events import EngineRequest, RequestKind
from service.engine.record import JobRecord
from tests.conformance.store_suite import SPEC, Driver, ended, touched

DAY_S = 86_400.0


def _settings(folder: Path, **more: object) -> Settings:
    return load_settings(
        {"data_dir": folder, "jobs_kept_s": 10 * DAY_S, "cycles_kept_s": 3600.0, "prune_rows_max": 60, **more}
    )


def _run(database: Database, count: int, at_s: float, driver: Driver) -> list[JobId]:
    """Submit jobs, predict them, report progress, and end them at an instant."""
    with database.writing() as session:
        ids = SqlStore(database).submit(session, [SPEC] * count, at_s)
    jobs = [job for job in driver.admit() if job.id in ids]
    for job in jobs:
        write = touched(job)
        write.prediction = Prediction(Estimate((1.0, 2.0), Unit.ITERATIONS, "past runs"), "f1", (1.0,))
        driver.commit(write, at_s=at_s)
    with database.writing() as session:
        record_progress(session, [ProgressPoint(AttemptId(f"{job.id}.1"), at_s, 2.0) for job in jobs])
    for job in jobs:
        driver.commit(_ended(job, at_s), at_s=at_s)
    return ids


def _ended(job: JobRecord, at_s: float) -> object:
    write = ended(job)
    job.finished_at_s = at_s
    assert isinstance(write.label, EndedJob)
    write.label = replace(write.label, ended_at_s=at_s)
    return write


def _counts(database: Database) -> dict[str, int]:
    with database.reading() as session:
        connection = session.connection()
        return {
            found.name: connection.execute(select(func.count()).select_from(found)).scalar_one()
            for found in METADATA.sorted_tables
        }


def _jobs(database: Database) -> list[int]:
    with database.reading() as session:
        return list(session.connection().execute(select(JOBS.c.id).order_by(JOBS.c.id)).scalars())


def _prune(database: Database, settings: Settings, now_s: float) -> Pruned:
    def no_files(jobs: Sequence[JobId]) -> None:
        pass

    return prune(database, settings, now_s, no_files)


@pytest.mark.slow
def test_the_database_stops_growing(any_database: Database, tmp_path: Path) -> None:
    """A day's jobs come and go for thirty days; what is there after 25 is what is there after 30."""
    settings = _settings(tmp_path, retrain_rows_max=200)
    driver = Driver(SqlStore(any_database))
    seen: dict[int, dict[str, int]] = {}
    for day in range(30):
        _run(any_database, 10, day * DAY_S, driver)
        _prune(any_database, settings, day * DAY_S + 3600.0)
        seen[day] = _counts(any_database)
        # Accounts are kept: one row for each day, user and project.
        assert seen[day].pop("usage") == day + 1
    assert seen[29] == seen[24]
    # Kept for ten days after their end, less than a day of which is not over; labels as far as a training looks.
    assert (seen[29]["jobs"], seen[29]["history"]) == (100, 200)
    with any_database.reading() as session:
        assert check_connection(session.connection()).faults == ()


def test_without_a_limit_jobs_stay_for_ever(any_database: Database, tmp_path: Path) -> None:
    _run(any_database, 3, 0.0, Driver(SqlStore(any_database)))
    settings = load_settings({"data_dir": tmp_path})
    for now_s in (1e8, 2e8):
        assert _prune(any_database, settings, now_s).jobs == 0
    assert _jobs(any_database) == [1, 2, 3]


def test_what_was_learnt_from_them_stays(any_database: Database, tmp_path: Path) -> None:
    _run(any_database, 3, 0.0, Driver(SqlStore(any_database)))
    before = list(ended_jobs(any_database))
    settings = _settings(tmp_path)
    _prune(any_database, settings, 30 * DAY_S)
    assert _prune(any_database, settings, 30 * DAY_S + FILES_GRACE_S + 1.0).jobs == 3
    counts = _counts(any_database)
    for name in ("jobs", "job_events", "attempts", "predictions", "progress", "facts"):
        assert counts[name] == 0, name
    after = list(ended_jobs(any_database))
    assert [replace(label, job=JobId(0)) for label in after] == [replace(label, job=JobId(0)) for label in before]
    assert all(label.job < 0 for label in after), "nobody's any more"
    (job, *_) = _run(any_database, 1, 31 * DAY_S, Driver(SqlStore(any_database), cycle=1000))
    assert job == 4, "no number is given out twice"


def test_files_go_a_day_before_their_job(any_database: Database, tmp_path: Path) -> None:
    """Another service deletes its part when it sees the mark, for which the row must be there."""
    _run(any_database, 2, 0.0, Driver(SqlStore(any_database)))
    settings = _settings(tmp_path)
    marked_s = 30 * DAY_S
    assert (_prune(any_database, settings, marked_s).jobs_with_files, _jobs(any_database)) == (2, [1, 2])
    assert _prune(any_database, settings, marked_s + FILES_GRACE_S - 1.0).jobs == 0
    assert _prune(any_database, settings, marked_s + FILES_GRACE_S + 1.0).jobs == 2


def test_a_job_that_somebody_needs_stays(any_database: Database, tmp_path: Path) -> None:
    """As a dependency, or because a request about it is still to be taken in; and one that has not ended, of course."""
    driver = Driver(SqlStore(any_database))
    needed, asked, plain = _run(any_database, 3, 0.0, driver)
    store = SqlStore(any_database)
    with any_database.writing() as session:
        (waiting,) = store.submit(session, [replace(SPEC, after=(needed,))], 0.0)
        store.add_request(session, EngineRequest(0, RequestKind.PRIORITY, 0.0, asked, priority=1))
    settings = _settings(tmp_path, prune_rows_max=1)
    _prune(any_database, settings, 30 * DAY_S)
    assert _prune(any_database, settings, 40 * DAY_S).jobs == 1
    assert _jobs(any_database) == [needed, asked, waiting]
    assert plain not in _jobs(any_database)


def test_a_job_that_is_needed_since_the_pruning_began_stays(
    any_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, store = Driver(SqlStore(any_database)), SqlStore(any_database)
    _, needed, needed_too, _ = _run(any_database, 4, 0.0, driver)
    settings = _settings(tmp_path, prune_rows_max=20)  # one job in each portion
    _prune(any_database, settings, 30 * DAY_S)
    waiting: list[JobId] = []

    def and_a_submission(connection: Connection, above: int = 0) -> set[JobId]:
        found = referenced_jobs(connection, above)
        if not above:
            with any_database.writing() as session:
                waiting.extend(store.submit(session, [replace(SPEC, after=(needed,), after_any=(needed_too,))], 0.0))
        return found

    monkeypatch.setattr(pruning, "referenced_jobs", and_a_submission)
    assert _prune(any_database, settings, 40 * DAY_S).jobs == 2
    assert _jobs(any_database) == [needed, needed_too, *waiting]


def test_the_first_element_of_an_array_stays_as_long_as_one_has_not_ended(
    any_database: Database, tmp_path: Path
) -> None:
    driver, store = Driver(SqlStore(any_database)), SqlStore(any_database)
    with any_database.writing() as session:
        ids = store.submit(session, [replace(SPEC, array=ArrayPlace(index, 3)) for index in range(3)], 0.0)
    first, second, last = driver.admit()
    for job in (first, second):
        driver.commit(_ended(job, 1.0), at_s=1.0)
    settings = _settings(tmp_path)
    _prune(any_database, settings, 30 * DAY_S)
    _prune(any_database, settings, 40 * DAY_S)
    assert _jobs(any_database) == [ids[0], ids[2]]
    driver.commit(_ended(last, 2.0), at_s=2.0)
    _prune(any_database, settings, 50 * DAY_S)
    _prune(any_database, settings, 60 * DAY_S)
    assert _jobs(any_database) == []


def test_the_spec_of_an_array_goes_with_the_last_label_that_needs_it(any_database: Database, tmp_path: Path) -> None:
    driver, store = Driver(SqlStore(any_database)), SqlStore(any_database)
    for _ in range(2):
        with any_database.writing() as session:
            store.submit(session, [replace(SPEC, array=ArrayPlace(index, 2)) for index in (3, 5)], 0.0)
    for job in driver.admit():
        driver.commit(_ended(job, 1.0), at_s=1.0)
    before = [label.spec for label in ended_jobs(any_database)]
    assert [spec.array for spec in before] == [ArrayPlace(index, 2, JobId(id)) for id in (1, 3) for index in (3, 5)]
    _prune(any_database, _settings(tmp_path, prune_rows_max=1), 30 * DAY_S)
    _prune(any_database, _settings(tmp_path, prune_rows_max=1), 40 * DAY_S)
    assert _jobs(any_database) == []
    assert [label.spec for label in ended_jobs(any_database)] == before
    assert _counts(any_database)["array_specs"] == 2
    with any_database.writing() as session:
        delete_labels(session.connection(), [1, 2, 3])
    assert [label.spec for label in ended_jobs(any_database)] == before[3:]
    assert _counts(any_database)["array_specs"] == 1
    with any_database.writing() as session:
        delete_labels(session.connection(), [4])
    assert _counts(any_database)["array_specs"] == 0


def test_labels_of_jobs_that_are_there_stay_however_many(any_database: Database, tmp_path: Path) -> None:
    driver = Driver(SqlStore(any_database))
    _run(any_database, 5, 0.0, driver)
    with any_database.writing() as session:
        session.connection().execute(update(HISTORY).values(ended_at_s=HistoryRow.id * 1.0))
    settings = _settings(tmp_path, retrain_rows_max=200)
    assert prune(any_database, settings, 5 * DAY_S).labels == 0
    assert _counts(any_database)["history"] == 5


def test_the_limit_of_the_setting(tmp_path: Path) -> None:
    assert load_settings({"data_dir": tmp_path}).jobs_kept_s == 0.0
    assert load_settings({"data_dir": tmp_path, "jobs_kept_s": 3650 * DAY_S}).jobs_kept_s == 3650 * DAY_S
    with pytest.raises(SettingsError, match="jobs_kept_s"):
        load_settings({"data_dir": tmp_path, "jobs_kept_s": 3650 * DAY_S + 1.0})
