"""Estimates are made again while jobs wait and run, when others of their program have ended. Both stores keep them."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from policies.lifecycle import JobState
from policies.model.estimate import Prediction, PredictionRequest, ShadowPrediction
from policies.model.ids import JobId
from service.db.prediction_log import first_predictions
from service.db.session import Database
from service.engine import engine
from service.engine.ports import CycleBatch, StoreUnavailable
from tests.parity.test_engine_story import in_both
from tests.parity.test_reported_totals import progress
from tests.scenarios.dsl import Story, cluster, policy


def _learns(story: Story, name: str, seconds: float) -> None:
    """With the next end the predictor knows more of this job."""
    story.told.points[story.ids[name]] = (seconds,)
    story.told.outdated.append(story.ids[name])


def _points(story: Story, name: str) -> tuple[float, ...]:
    estimate = story.record(name).estimate
    assert estimate is not None
    return estimate.points


def test_what_an_end_tells_about_a_waiting_job_changes_the_order(story: Story) -> None:
    story.job("first", runs_s=100, predicted=100.0)
    story.job("a", runs_s=1_000, predicted=1_000.0, at_s=10.0)
    story.job("b", runs_s=5_000, predicted=300.0, at_s=11.0).until(20)
    _learns(story, "b", 5_000.0)
    story.until(100).finishes("first").until(110)
    assert _points(story, "b") == (5_000.0,)
    assert story.state("a") is JobState.RUNNING, "it is the shorter one now"
    story.restart().until(120)
    assert _points(story, "b") == (5_000.0,)
    story.to_the_end()


def test_a_job_without_an_estimate_gets_one(story: Story) -> None:
    story.job("first", runs_s=100, predicted=None, priority=9)
    story.job("a", runs_s=50, predicted=None, at_s=10.0).until(20)
    _learns(story, "a", 60.0)
    story.until(110)
    assert _points(story, "a") == (60.0,)
    story.to_the_end()


def test_what_a_program_reported_of_itself_says_more(story: Story) -> None:
    story.job("short", runs_s=10, predicted=10.0).job("a", runs_s=500, predicted=100.0, at_s=1.0).until(30)
    story.told.revised[story.ids["a"]] = (500.0,)
    progress(story, "a", 20.0, 500.0).until(31)
    _learns(story, "a", 50.0)
    story.job("next", runs_s=5, predicted=5.0, at_s=40.0, priority=9).until(60)
    story.finishes("next").until(62)
    assert _points(story, "a") == (500.0,)


def test_a_program_that_outlived_its_declaration_says_more(story: Story) -> None:
    story.job("short", runs_s=10, predicted=10.0).job(
        "a", runs_s=500, predicted=100.0, at_s=1.0, declared_iterations=60
    )
    story.until(80)
    story.told.revised[story.ids["a"]] = (900.0,)
    progress(story, "a", 61.0, None).until(81)
    _learns(story, "a", 50.0)
    story.job("next", runs_s=5, predicted=5.0, at_s=90.0, priority=9).until(110).finishes("next").until(115)
    assert _points(story, "a") == (900.0,)


def test_what_an_end_told_outlives_a_failed_commit(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    story.job("first", runs_s=100, predicted=100.0).job("a", runs_s=500, predicted=400.0, at_s=10.0).until(20)
    _learns(story, "a", 500.0)
    commit, failures = story.store.commit, []

    def fails_once(batch: CycleBatch) -> frozenset[JobId]:
        told = any(write.prediction is not None for write in batch.writes.values())
        if told and not failures:
            failures.append(batch.cycle)
            raise StoreUnavailable("away")
        return commit(batch)

    monkeypatch.setattr(story.store, "commit", fails_once)
    story.until(110)
    assert failures, "the commit of the new estimate failed"
    assert _points(story, "a") == (500.0,)


def test_a_predictor_that_breaks_leaves_the_estimates(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    story.job("first", runs_s=100, predicted=100.0).job("a", runs_s=50, predicted=400.0, at_s=10.0).until(20)
    _learns(story, "a", 50.0)
    monkeypatch.setattr(story.told, "predict", lambda now_s, requests: 1 / 0)
    story.until(110)
    assert story.engine.counters["prediction_failures"] == 1
    assert _points(story, "a") == (400.0,)
    story.to_the_end()


def test_a_crowd_is_asked_about_in_parts(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "REFRESHED_PER_CYCLE_MAX", 2)
    names = [f"j{number}" for number in range(5)]
    story.job("first", runs_s=100, predicted=1.0)
    for name in names:
        story.job(name, runs_s=10, predicted=1_000.0, at_s=10.0)
    story.until(20)
    for name in names:
        _learns(story, name, 10.0)
    asked: list[int] = []
    predict = story.told.predict

    def counted(now_s: float, requests: Sequence[PredictionRequest]) -> Sequence[Prediction | None]:
        asked.append(len(requests))
        return predict(now_s, requests)

    monkeypatch.setattr(story.told, "predict", counted)
    story.until(100)
    assert asked == [2, 2, 1], "the next cycles come at once"
    assert all(_points(story, name) == (10.0,) for name in names)


def test_the_first_prediction_is_stored_with_what_other_models_said(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = cluster("1x1", policy("asrpt"))
    in_both(story, database)
    predict, shadows = story.told.predict, (ShadowPrediction("other", (7.0,)),)

    def shadowed(now_s: float, requests: Sequence[PredictionRequest]) -> Sequence[Prediction | None]:
        return [answer and replace(answer, shadows=shadows) for answer in predict(now_s, requests)]

    monkeypatch.setattr(story.told, "predict", shadowed)
    story.job("first", runs_s=100, predicted=None, priority=9)
    story.job("a", runs_s=50, predicted=None, at_s=10.0).job("b", runs_s=50, predicted=400.0, at_s=10.0).until(20)
    for name in ("a", "b"):
        _learns(story, name, 50.0)
    story.until(300)
    said = {job: (found.estimate.points, tuple(found.shadows)) for job, found in first_predictions(database, 10)}
    assert said == {story.ids["a"]: ((50.0,), shadows), story.ids["b"]: ((400.0,), shadows)}
    assert _points(story, "b") == (50.0,)


def test_the_first_prediction_stays_the_one_that_is_scored(database: Database) -> None:
    story = cluster("1x1", policy("asrpt"))
    in_both(story, database)
    story.job("first", runs_s=100, predicted=100.0).job("a", runs_s=50, predicted=400.0, at_s=10.0).until(20)
    _learns(story, "a", 50.0)
    story.until(130)
    said = {job: prediction.estimate.points for job, prediction in first_predictions(database, 10)}
    assert said[story.ids["a"]] == (400.0,)
    assert _points(story, "a") == (50.0,)
