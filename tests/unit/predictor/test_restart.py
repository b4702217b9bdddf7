"""A restart changes no answer: stored predictions are scored again, and weights and calibration are restored."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import insert

from policies.model.estimate import EndedJob, Prediction, PredictionRequest, Unit
from policies.model.ids import JobId
from predictor.intervals import PointResiduals
from predictor.serving import LivePredictor
from service.db.migrate import upgrade
from service.db.prediction_log import first_predictions
from service.db.rows import prediction_of, prediction_values
from service.db.session import Database, open_database
from service.db.store import SqlStore
from service.db.tables import PREDICTIONS
from tests.unit.predictor.predictor_history import recurring_history, request, small_model

FIRST = 240
"""Jobs that a predictor has seen before it predicts."""


def _later(count: int) -> list[EndedJob]:
    """Jobs after the first, some of which take far longer than ever: weights and calibration change."""
    jobs = recurring_history(FIRST + count, seed=1, reports=False)[FIRST:]
    odd = np.random.default_rng(2).random(count) < np.linspace(0.0, 0.7, count)
    return [
        replace(job, service_s=job.service_s * 50.0, ended_at_s=job.submitted_at_s + job.service_s * 50.0)
        if far
        else job
        for job, far in zip(jobs, odd, strict=True)
    ]


def _ask(job: EndedJob) -> PredictionRequest:
    return PredictionRequest(job.job, job.spec, job.submitted_at_s)


class _Life:
    """A predictor that lives through jobs as a service does, and what it has stored by some instant."""

    def __init__(self) -> None:
        self.predictor = LivePredictor()
        self.predictor.warm(_past())
        self.ended: list[EndedJob] = []
        self.said: dict[JobId, Prediction] = {}
        self.open: dict[JobId, EndedJob] = {}

    def until(self, at_s: float) -> None:
        for job in sorted(self.open.values(), key=lambda job: (job.ended_at_s, job.job)):
            if job.ended_at_s <= at_s:
                self.predictor.ended(job)
                self.ended.append(self.open.pop(job.job))

    def submit(self, job: EndedJob) -> None:
        self.until(job.submitted_at_s)
        (answer,) = self.predictor.predict(job.submitted_at_s, [_ask(job)])
        self.open[job.job] = job
        if answer is not None:
            self.said[job.job] = answer


def _past() -> list[EndedJob]:
    """What ended before the first submission of :func:`_later`."""
    jobs = recurring_history(FIRST, seed=1, reports=False)
    return [job for job in jobs if job.ended_at_s <= FIRST * 600.0]


def _lived(jobs: list[EndedJob], model_from: int) -> _Life:
    life = _Life()
    for number, job in enumerate(jobs):
        if number == model_from:
            life.predictor.use(small_model())
        life.submit(job)
    return life


def _questions() -> list[PredictionRequest]:
    programs = [request(90_000 + i, name=f"program{i % 10}", user=f"user{i % 5}", gpus=2 ** (i % 3)) for i in range(30)]
    return [*programs, request(91_000, name="stranger", user="stranger")]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    url = f"sqlite:///{tmp_path / 'sooner.db'}"
    upgrade(url)
    database = open_database(url)
    yield database
    database.close()


def _store(database: Database, jobs: list[EndedJob], said: dict[JobId, Prediction]) -> dict[JobId, JobId]:
    """Write predictions as the engine's store does; returns each job's number there."""
    with database.writing() as session:
        numbers = SqlStore(database).submit(session, [job.spec for job in jobs], 0.0)
        known = dict(zip([job.job for job in jobs], numbers, strict=True))
        rows = [prediction_values(known[job], 1, 0.0, prediction) for job, prediction in said.items()]
        session.connection().execute(insert(PREDICTIONS), rows)
        # An estimate that was updated later is not what was said first.
        again = next(iter(said))
        session.connection().execute(insert(PREDICTIONS), prediction_values(known[again], 2, 1.0, said[again]))
    return {number: job for job, number in known.items()}


def _sweeps(count: int) -> list[EndedJob]:
    """The same jobs, submitted by ten at once, each ten being of a program of their own: it is known only while they run."""
    return [
        replace(
            job,
            spec=replace(job.spec, name=f"sweep{number // 10}"),
            submitted_at_s=jobs_of_ten[0].submitted_at_s,
            ended_at_s=jobs_of_ten[0].submitted_at_s + job.service_s,
        )
        for number, (job, jobs_of_ten) in enumerate(_in_tens(_later(count)))
    ]


def _in_tens(jobs: list[EndedJob]) -> Iterator[tuple[EndedJob, list[EndedJob]]]:
    for number, job in enumerate(jobs):
        start = number // 10 * 10
        yield job, jobs[start : start + 10]


@pytest.mark.slow
@pytest.mark.parametrize("model_from", [0, 150])
@pytest.mark.parametrize("kind", [_later, _sweeps])
def test_answers_are_equal_before_and_after_a_restart(
    kind: Callable[[int], list[EndedJob]], model_from: int, database: Database
) -> None:
    jobs = kind(420)
    life = _lived(jobs, model_from)
    assert life.open, "some jobs are unfinished"
    weights = [bucket.weights for bucket in life.predictor.status().buckets[Unit.SERVICE_S]]
    assert any(each != weights[0] for each in weights), "the weights have moved"

    number_of = _store(database, jobs, life.said)
    said = [(number_of[number], prediction) for number, prediction in first_predictions(database, 10_000)]
    assert dict(said) == life.said
    again = LivePredictor()
    again.use(small_model())
    again.warm([*_past(), *life.ended], map(_ask, life.open.values()), said)

    assert again.status() == life.predictor.status()
    assert again.predict(0.0, _questions()) == life.predictor.predict(0.0, _questions())
    # What was open is scored by both alike, and the next answers are still equal.
    for job in sorted(life.open.values(), key=lambda job: (job.ended_at_s, job.job)):
        again.ended(job)
    life.until(float("inf"))
    assert again.predict(1.0, _questions()) == life.predictor.predict(1.0, _questions())
    assert again.status() == life.predictor.status()


def test_without_what_was_said_a_restart_would_forget(database: Database) -> None:
    life = _lived(_later(120), 0)
    again = LivePredictor(small_model())
    again.warm([*_past(), *life.ended], map(_ask, life.open.values()))
    assert again.status().buckets[Unit.SERVICE_S] != life.predictor.status().buckets[Unit.SERVICE_S]


def test_unfinished_jobs_are_read_however_old_they_are(database: Database) -> None:
    life = _lived(_later(30), 0)
    jobs = _later(30)
    number_of = _store(database, jobs, life.said)
    first = min(number_of)
    found = [number for number, _ in first_predictions(database, 3, [first])]
    assert found == [first, *sorted(number_of)[-3:]]
    assert [number for number, _ in first_predictions(database, 3)] == sorted(number_of)[-3:]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1_000), st.integers(150, 400))
def test_what_a_window_answers_does_not_depend_on_when_it_was_asked_before(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    curious, quiet = PointResiduals(), PointResiduals()
    for bucket, residual in zip(rng.integers(2, size=count).tolist(), rng.normal(size=count).tolist(), strict=True):
        for each in (curious, quiet):
            each.observe(bucket, residual)
        curious.quantiles(bucket)
    for bucket in range(4):
        first, second = curious.quantiles(bucket), quiet.quantiles(bucket)
        assert first is not None
        assert second is not None
        assert (first == second).all()


def test_a_stored_prediction_comes_back_as_it_was() -> None:
    (answer,) = _lived(_later(1), 0).said.values()
    row = json.loads(json.dumps(prediction_values(JobId(1), 1, 0.0, answer)))
    assert prediction_of(row) == answer
