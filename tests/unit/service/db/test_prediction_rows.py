"""Elements of an array share the numbers of one prediction: stored once, read as if each had its own, deleted with the last."""

from dataclasses import replace

import pytest
from sqlalchemy import delete, func, insert, select

from policies.model.estimate import Estimate, Prediction, ShadowPrediction, Unit
from policies.model.ids import JobId
from policies.model.job import ArrayPlace
from service.db.check import check_connection
from service.db.prediction_log import first_predictions, newest_prediction, scored_predictions
from service.db.recorded_jobs import recorded_jobs
from service.db.retention import delete_jobs
from service.db.session import Database
from service.db.store import SqlStore
from service.db.tables import PREDICTIONS, SHARED_PREDICTIONS
from tests.conformance.store_suite import SPEC, Driver, ended, touched

ESTIMATE = Estimate((1.5, 2.5, 4.0), Unit.SERVICE_S, "past runs", "m1", 1.0)
SHARED = Prediction(ESTIMATE, "f1", (1.0, 2.0), (ShadowPrediction("ladder", (1.0, 3.0)),))
OWN = replace(SHARED, estimate=replace(ESTIMATE, points=(7.0, 8.0)), features=(3.0,))


@pytest.fixture
def elements(any_database: Database) -> list[JobId]:
    """Three elements and a single job, admitted; the elements have one prediction in common. All have run and ended."""
    store = SqlStore(any_database)
    driver = Driver(store)
    with any_database.writing() as session:
        specs = [*(replace(SPEC, array=ArrayPlace(index, 3)) for index in range(3)), SPEC]
        ids = store.submit(session, specs, 0.0)
    jobs = driver.admit()
    writes = [touched(job) for job in jobs]
    for write, prediction in zip(writes, (SHARED, SHARED, SHARED, OWN), strict=True):
        write.prediction = prediction
    driver.commit(*writes)
    for job in jobs:
        job.service_s = 5.0
        driver.commit(ended(job))
    return ids


def _count(database: Database) -> int:
    return int(database.value(select(func.count()).select_from(SHARED_PREDICTIONS)))


def test_the_numbers_are_stored_once_and_every_reader_finds_them(any_database: Database, elements: list[JobId]) -> None:
    assert _count(any_database) == 1
    stored = any_database.rows(select(PREDICTIONS.c.points).order_by(PREDICTIONS.c.id))
    assert [row.points for row in stored] == [[], [], [], [7.0, 8.0]]
    first = dict(first_predictions(any_database, 10))
    assert [first[job] for job in elements] == [SHARED, SHARED, SHARED, OWN]
    assert first[elements[0]] is first[elements[2]]
    assert [recorded.predicted for recorded in recorded_jobs(any_database, None, None)] == [ESTIMATE] * 3 + [
        OWN.estimate
    ]
    scored = scored_predictions(any_database, 10)
    assert [(row.job_id, row.points) for row in reversed(scored)] == [
        *((job, [1.5, 2.5, 4.0]) for job in elements[:3]),
        (elements[3], [7.0, 8.0]),
    ]
    assert scored[1].shadows["items"][0]["points"] == [1.0, 3.0]
    with any_database.reading() as session:
        for job, features in zip(elements, ([1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [3.0]), strict=True):
            row = newest_prediction(session.connection(), job)
            assert row is not None
            assert row.features == features


def test_jobs_are_counted_not_their_predictions(any_database: Database, elements: list[JobId]) -> None:
    """Each report may change an estimate: the newest job has more predictions than jobs are asked for."""
    with any_database.writing() as session:
        connection = session.connection()
        newest = dict(
            connection.execute(select(PREDICTIONS).where(PREDICTIONS.c.job_id == elements[3])).mappings().one()
        )
        del newest["id"]
        connection.execute(insert(PREDICTIONS), [newest] * 5)
    for count in (1, 2, 3):
        assert [row.job_id for row in scored_predictions(any_database, count)] == elements[: 3 - count : -1]
    assert {row.scored_at_s for row in scored_predictions(any_database, 1)} == {newest["scored_at_s"]}


def test_the_numbers_go_with_the_last_prediction_that_shares_them(
    any_database: Database, elements: list[JobId]
) -> None:
    with any_database.writing() as session:
        delete_jobs(session.connection(), elements[:2])
    assert _count(any_database) == 1
    with any_database.writing() as session:
        delete_jobs(session.connection(), elements[2:])
    assert _count(any_database) == 0


def test_lost_numbers_are_a_fault_that_names_the_prediction(any_database: Database, elements: list[JobId]) -> None:
    with any_database.writing() as session:
        assert not [fault for fault in check_connection(session.connection()).faults if "prediction" in fault]
        session.connection().execute(delete(SHARED_PREDICTIONS))
    with any_database.reading() as session:
        faults = [fault for fault in check_connection(session.connection()).faults if "prediction" in fault]
    assert faults == [f"prediction {number} has lost the numbers that it shares" for number in (1, 2, 3)]
