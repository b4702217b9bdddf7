"""Reading many jobs: what their documents share is read once, what is broken is named, and no garbage is looked for."""

import gc
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import pytest
from sqlalchemy import event, update

from policies.lifecycle import JobState
from policies.model.estimate import Estimate, LossCurve, Prediction, Unit
from policies.model.ids import JobId, ServerIndex
from policies.model.job import IterationTimes, JobSpec
from policies.model.placement import ServerShare, Slowdown, SpanSeconds, place
from policies.model.reasons import Reason
from service.db import codec, rows, specs
from service.db.codec import CodecError
from service.db.history import ImportedJob, ended_jobs, import_history, last_label
from service.db.lease import LEADER_LEASE, LeaderLease
from service.db.session import Database
from service.db.store import SqlStore
from service.db.tables import JOBS
from service.engine.record import JobRecord
from service.server.leader_store import LeaderStore
from tests.conformance.store_suite import SPEC, Driver, ended


def admit(database: Database, driver: Driver, given: Sequence[JobSpec]) -> None:
    """The jobs are submitted and taken in by a cycle."""
    with database.writing() as session:
        SqlStore(database).submit(session, given, 5.0)
    driver.admit()


def admitted(database: Database, given: Sequence[JobSpec]) -> Driver:
    """The first cycle of a store took these jobs in."""
    driver = Driver(SqlStore(database))
    admit(database, driver, given)
    return driver


def test_documents_of_the_same_text_are_read_once(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    other = replace(SPEC, name="other")
    store = admitted(database, [SPEC, other, SPEC, other, SPEC]).store
    read: list[type] = []
    decode = codec.decode

    def noted(kind: type, document: object) -> object:
        read.append(kind)
        return decode(kind, document)

    monkeypatch.setattr(specs, "decode", noted)
    jobs = store.load().jobs
    assert [job.spec for job in jobs] == [SPEC, other, SPEC, other, SPEC]
    assert len([kind for kind in read if kind is type(SPEC)]) == 2
    assert jobs[0].spec is jobs[4].spec


def test_any_number_of_jobs_is_loaded_by_the_same_statements_and_by_a_leader_without_garbage_collection(
    database: Database,
) -> None:
    driver = admitted(database, [SPEC] * 3)
    store = LeaderStore(database, LeaderLease(database, LEADER_LEASE, "a", 10.0), 1)
    said: list[bool] = []

    @event.listens_for(database.engine, "before_cursor_execute")
    def heard(*_: object) -> None:
        said.append(gc.isenabled())

    store.load()
    few = len(said)
    admit(database, driver, [replace(SPEC, name=f"job {number}") for number in range(300)])
    said.clear()
    assert len(store.load().jobs) == 303
    assert len(said) == few
    assert not any(said)
    assert gc.isenabled()


def test_a_document_that_nobody_can_read_is_said_to_be_whose(database: Database) -> None:
    store = admitted(database, [SPEC, SPEC]).store
    with database.writing() as session:
        session.connection().execute(update(JOBS).where(JOBS.c.id == 2).values(spec={"v": 1, "name": 7}))
    with pytest.raises(CodecError, match=r"^job 2\.JobSpec"):
        store.load()
    assert gc.isenabled(), "also after an error"
    assert [job.id for job in store.jobs([JobId(1)])] == [1]


def test_the_past_of_a_start_ends_with_the_label_that_was_last_then(database: Database) -> None:
    assert last_label(database) == 0
    driver = admitted(database, [SPEC, SPEC])
    first, second = driver.store.load().jobs
    driver.commit(ended(first))
    last = last_label(database)
    driver.commit(ended(second))
    with database.writing() as session:
        import_history(session, "elsewhere", [ImportedJob("x", next(ended_jobs(database)))])
    assert [label.job for label in ended_jobs(database, last=last)] == [first.id]
    assert [label.job for label in ended_jobs(database, newest=1, last=last)] == [first.id]
    assert len(list(ended_jobs(database))) == 3


def test_the_speeds_and_losses_of_an_ended_job_and_a_predicted_slowdown_come_back(database: Database) -> None:
    driver = admitted(database, [SPEC, SPEC])
    first, second = driver.store.load().jobs
    spans = SpanSeconds("V100", server=0.5, rack=0.75)
    curve = LossCurve((1.0, 2.0), (0.5, 0.25))
    for job, measured, losses in ((first, spans, curve), (second, None, None)):
        write = ended(job)
        assert write.label is not None
        write.label = replace(write.label, seconds_by_span=measured, loss_curve=losses)
        driver.commit(write)
    assert [label.seconds_by_span for label in ended_jobs(database)] == [spans, None]
    assert [label.loss_curve for label in ended_jobs(database)] == [curve, None]
    prediction = Prediction(Estimate((3.0,), Unit.ITERATIONS, "test", slowdown=Slowdown(1.5, 2.0)))
    row = rows.prediction_values(first.id, 1, 2.0, prediction)
    assert rows.prediction_of(row).estimate == prediction.estimate  # type: ignore[arg-type]


_POINTS = [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    "items",
    [
        [],
        [{"model_version": "a", "points": _POINTS}, {"model_version": "b", "points": [4.0, 5.0, 6.0]}],
        [{"model_version": "a", "points": _POINTS}, {"model_version": "a", "points": _POINTS}],
        [{"model_version": "a", "points": _POINTS}, {"model_version": "b", "points": [1.0]}],
        [{"model_version": "a", "points": [1, 2.0]}],
        [{"model_version": "a", "points": []}],
    ],
)
def test_shadows_read_as_an_array_equal_those_read_one_by_one(items: list[Any]) -> None:
    document = {"v": 1, "items": items}
    read = rows._shadows(document)
    assert list(read) == codec.decode_shadows(document)
    assert codec.encode_shadows(tuple(read)) == codec.encode_shadows(codec.decode_shadows(document))


@pytest.mark.parametrize(
    "document",
    [
        None,
        {"v": 2, "items": [{"model_version": "a", "points": _POINTS}]},
        {"v": 1, "items": {"model_version": "a"}},
        {"v": 1, "items": [{"model_version": 1, "points": _POINTS}]},
        {"v": 1, "items": [{"model_version": "a", "points": [True, 1.0]}]},
        {"v": 1, "items": [{"model_version": "a", "points": [float("nan")]}]},
        {"v": 1, "items": [{"model_version": "a", "points": _POINTS, "more": 1}]},
        {"v": 1, "items": [{"model_version": "a"}]},
        {"v": 1, "items": [1]},
    ],
)
def test_shadows_that_nobody_wrote_are_refused(document: Any) -> None:
    with pytest.raises(CodecError):
        rows._shadows(document)


_OTHER_VALUES: dict[str, Any] = {
    "state": JobState.CANCELLING,
    "reason": Reason.PRIORITY,
    "reservation": place([ServerShare(ServerIndex(0), 1)]),
    "estimate": Estimate((3.0,), Unit.SERVICE_S, "test"),
    "iteration_times": IterationTimes(1.0, 2.0, 3.0),
    "seconds_by_span": SpanSeconds("V100", server=0.5),
    "loss_curve": LossCurve((1.0, 2.0), (0.5, 0.25)),
    "stop_cause": Reason.WALLTIME,
}


def other_value(name: str, default: Any) -> Any:
    """A value of a record's field that is not the default, and of its type."""
    if name in _OTHER_VALUES:
        return _OTHER_VALUES[name]
    return True if default is False else (default or 0) + 3


def test_whatever_differs_from_a_new_job_is_loaded(database: Database) -> None:
    """Each stored field of a record differs in a job of its own; between them are jobs that are as they were submitted."""
    names = [field.name for field in fields(JobRecord) if field.name in JOBS.c]
    names = [name for name in names if name not in ("id", "spec", "submitted_at_s", "array_index")]
    store = admitted(database, [SPEC] * (2 * len(names))).store
    jobs = store.load().jobs
    for job, name in zip(jobs[::2], names, strict=True):
        setattr(job, name, other_value(name, getattr(job, name)))
        with database.writing() as session:
            session.connection().execute(update(JOBS).where(JOBS.c.id == job.id).values(rows.job_values(job)))
    loaded = store.load().jobs
    assert loaded == jobs
    assert loaded == store.jobs([job.id for job in jobs])
    assert [type(getattr(job, name)) for job in loaded for name in names] == [
        type(getattr(job, name)) for job in store.jobs([job.id for job in jobs]) for name in names
    ]
