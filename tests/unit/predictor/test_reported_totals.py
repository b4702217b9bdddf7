"""Totals that running jobs report: their weight, its loss when they are exceeded, and that no model runs."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.model.estimate import Estimate, Prediction, PredictionRequest, Reported, Unit
from policies.model.ids import JobId
from policies.model.job import JobSpec
from policies.rank import OverRun, remaining_work_rank
from predictor.intervals import POINTS
from predictor.serving import LivePredictor
from service.engine.record import JobRecord
from tests.unit.predictor.predictor_history import ended, request


def _known(runs: int = 30, user: str = "ada", **more: Any) -> LivePredictor:
    """A program of one user that took 1,000 iterations of half a second, again and again."""
    rng = np.random.default_rng(0)
    predictor = LivePredictor()
    predictor.warm(
        [
            ended(-job, float(1_000.0 * np.exp(0.3 * rng.normal())), submitted_at_s=1_000.0 * job, user=user, **more)
            for job in range(1, runs)
        ]
    )
    return predictor


def _said(predictor: LivePredictor, asked: PredictionRequest) -> Estimate:
    (answer,) = predictor.predict(0.0, [asked])
    assert answer is not None
    return answer.estimate


def _told(
    predictor: LivePredictor,
    asked: PredictionRequest,
    estimate: Estimate,
    total: float,
    done: float = 10.0,
    **more: Any,
) -> Prediction | None:
    least = more.pop("least", total)
    report = Reported(asked, estimate, done, 0.5 * done, total, least, more.pop("seconds_per_iteration", 0.5))
    (answer,) = predictor.revise(0.0, [report])
    return answer


def test_a_first_report_weighs_one_half() -> None:
    """16 of 32 points lie about what it reports, the others where history has them."""
    predictor, asked = _known(), request(1)
    before = _said(predictor, asked)
    told = _told(predictor, asked, before, 20_000.0)
    assert told is not None
    points = told.estimate.points
    assert len(points) == POINTS
    assert sum(point > 10_000.0 for point in points) == 16
    assert max(points) < 20_000.0 * math.exp(0.1 * 3)
    assert before.points[0] <= points[0]
    assert points[15] <= before.points[-1]
    assert np.log(points[:16]).mean() == pytest.approx(np.log(before.points).mean(), abs=0.05)
    assert told.estimate.source.startswith(before.source)
    assert "reports 20,000 iterations in all, which weighs 50%" in told.estimate.source
    assert told.estimate.trusted
    assert told.features, "what explains the prediction is kept with it"
    assert told.shadows == (), "others are scored by what they said at its submission"


def test_the_weight_is_what_earlier_reports_have_earned() -> None:
    predictor = _known()
    for job in range(200, 218):
        predictor.ended(replace(ended(job, 1_000.0, submitted_at_s=1e5), reported_iterations=1_000.0))
    asked = request(1)
    told = _told(predictor, asked, _said(predictor, asked), 20_000.0)
    assert told is not None
    assert "weighs 90%" in told.estimate.source
    assert sum(point > 10_000.0 for point in told.estimate.points) == 29


def test_one_false_report_costs_the_next_ones_their_weight() -> None:
    predictor = _known()
    predictor.ended(replace(ended(200, 1_000.0, submitted_at_s=1e5), reported_iterations=100.0))
    asked = request(1)
    before = _said(predictor, asked)
    assert _told(predictor, asked, before, 100.0, done=1.0) is None
    declares = request(2, declared_iterations=100.0)
    assert "not counted" in _said(predictor, declares).source, "a report is a declaration that comes late"


def test_who_outlives_its_claim_is_ranked_by_attained_service_from_then_on() -> None:
    predictor, asked = _known(), request(1)
    before = _said(predictor, asked)
    lie = _told(predictor, asked, before, 100.0)
    assert lie is not None
    assert min(lie.estimate.points) < 150.0
    assert _told(predictor, asked, lie.estimate, 100.0, done=125.0) is None, "within a quarter"
    caught = _told(predictor, asked, lie.estimate, 100.0, done=126.0)
    assert caught is not None
    assert caught.estimate.points == pytest.approx(before.points)
    assert not caught.estimate.trusted
    assert "the job exceeded the 100 iterations that it reported" in caught.estimate.source
    # It names another total, and another: the least of them is what counts.
    assert _told(predictor, asked, caught.estimate, 300.0, done=200.0, least=100.0) is None


def test_a_moving_target_is_caught_by_its_first_claim() -> None:
    """Always nearly done: 10% more than what it has done, whenever it reports."""
    predictor, asked = _known(), request(1)
    estimate, trusted = _said(predictor, asked), []
    for done in range(10, 1_000, 10):
        told = _told(predictor, asked, estimate, 1.1 * done, done=float(done), least=11.0)
        estimate = told.estimate if told is not None else estimate
        trusted.append(estimate.trusted)
    assert trusted[0]
    assert not any(trusted[1:])


def test_an_honest_word_said_twice_is_no_news() -> None:
    predictor, asked = _known(), request(1, declared_iterations=5_000.0)
    before = _said(predictor, asked)
    assert "declared 5,000 iterations weighs 50%" in before.source
    assert _told(predictor, asked, before, 5_000.0) is None, "it was weighed at its submission"
    told = _told(predictor, asked, before, 7_000.0, least=5_000.0)
    assert told is not None
    assert "declared" not in told.estimate.source, "the newer word stands for the older"
    assert _told(predictor, asked, told.estimate, 7_100.0, least=5_000.0) is None
    assert _told(predictor, asked, before, 7_100.0, least=5_000.0) is not None, "what was said last did not come to be"


def test_a_declaration_that_is_outlived_is_lost_without_any_report() -> None:
    predictor, asked = _known(), request(1, declared_iterations=100.0)
    before = _said(predictor, asked)
    caught = _told(predictor, asked, before, 100.0, done=130.0)
    assert caught is not None
    assert not caught.estimate.trusted
    assert min(caught.estimate.points) > 200.0
    silent = request(2)
    assert _told(predictor, silent, _said(predictor, silent), 100.0, done=130.0) is None, "it never counted"


def test_seconds_follow_from_iterations_at_the_measured_speed() -> None:
    predictor = LivePredictor()
    predictor.warm([ended(-job, None, submitted_at_s=1_000.0 * job, service_s=600.0 + job) for job in range(1, 30)])
    asked = request(1)
    before = _said(predictor, asked)
    assert before.unit is Unit.SERVICE_S
    assert _told(predictor, asked, before, 5_000.0, done=100.0, seconds_per_iteration=None) is None
    told = _told(predictor, asked, before, 5_000.0, done=100.0, seconds_per_iteration=0.5)
    assert told is not None
    # 100 iterations have taken 50 s, the 4,900 that are left take 2,450 s.
    assert np.median(told.estimate.points[16:]) == pytest.approx(2_500.0, rel=0.02)


def test_a_total_below_what_is_done_is_no_total() -> None:
    """Taken for "done by now" it would make a job that outlives its claim look finished for another quarter of it."""
    predictor, asked = _known(), request(1)
    assert _told(predictor, asked, _said(predictor, asked), 1_000.0, done=1_200.0) is None


def test_it_is_the_same_after_a_restart() -> None:
    predictor, asked = _known(), request(1)
    (first,) = predictor.predict(0.0, [asked])
    assert first is not None
    told = _told(predictor, asked, first.estimate, 20_000.0)
    assert told is not None
    again = LivePredictor()
    rng = np.random.default_rng(0)
    again.warm(
        [
            ended(-job, float(1_000.0 * np.exp(0.3 * rng.normal())), submitted_at_s=1_000.0 * job)
            for job in range(1, 30)
        ],
        [asked],
        [(asked.job, first)],
    )
    assert _told(again, asked, told.estimate, 20_000.0) is None, "the estimate is stored"
    once_more = _told(again, asked, first.estimate, 20_000.0)
    assert once_more is not None
    assert once_more.estimate.points == pytest.approx(told.estimate.points)
    assert once_more.estimate.source == told.estimate.source
    caught = _told(again, asked, told.estimate, 20_000.0, done=30_000.0)
    assert caught is not None
    assert not caught.estimate.trusted


@pytest.mark.parametrize("trustworthy", [True, False])
def test_a_liars_rank_is_not_better_than_that_of_the_silent(trustworthy: bool) -> None:
    """Over a job's life, from its first report on: once it has lied, its reports change no rank."""
    predictor = _known()
    predictor.ended(
        replace(ended(200, 1_000.0, submitted_at_s=1e5), reported_iterations=1_000.0 if trustworthy else 50.0)
    )
    liar, silent = request(1), request(2)
    lied, honest = _said(predictor, liar), _said(predictor, silent)
    for done in (1.0, 10.0, 49.0, 62.0, 63.0, 100.0, 400.0, 900.0):
        told = _told(predictor, liar, lied, 50.0, done=done)
        lied = told.estimate if told is not None else lied
        ranks = [_rank(estimate, done) for estimate in (lied, honest)]
        if not trustworthy:
            assert ranks[0] == ranks[1]
        elif done >= 63.0:
            assert not lied.trusted


def _rank(estimate: Estimate, done: float) -> float:
    job = JobRecord(JobId(1), JobSpec("resnet", "ada", 4), 0.0, estimate=estimate)
    job.iterations, job.service_s, job.measured_s_per_iteration = done, 0.5 * done, 0.5
    return remaining_work_rank(job, 0.0, 8, OverRun.DOUBLE).value


_ODD = st.one_of(st.floats(), st.sampled_from([0.0, -1.0, 1e300, math.inf, math.nan]))


@settings(max_examples=60, deadline=None)
@given(total=_ODD, done=_ODD, least=_ODD, speed=st.one_of(st.none(), _ODD), declared=st.one_of(st.none(), _ODD))
def test_odd_numbers_change_nothing_or_give_an_estimate_that_can_rank(
    total: float, done: float, least: float, speed: float | None, declared: float | None
) -> None:
    predictor = _known(12)
    asked = request(1, declared_iterations=declared)
    (said,) = predictor.predict(0.0, [asked])
    assert said is not None
    told = _told(predictor, asked, said.estimate, total, done, least=least, seconds_per_iteration=speed)
    if told is not None:
        points = told.estimate.points
        assert all(math.isfinite(point) and point >= 1.0 for point in points)
        assert list(points) == sorted(points)


def _unpredicted(predictor: LivePredictor) -> PredictionRequest:
    asked = request(1)
    assert predictor.predict(0.0, [asked]) == [None]
    return asked


def test_where_no_job_has_ended_the_total_that_the_job_says_is_shown_and_ranks_nothing() -> None:
    predictor = LivePredictor()
    asked = _unpredicted(predictor)
    unmeasured = Reported(asked, None, 10.0, 5.0, 800.0, 800.0)
    assert predictor.revise(0.0, [unmeasured]) == [None], "its unit is seconds"
    (told,) = predictor.revise(0.0, [replace(unmeasured, seconds_per_iteration=0.5)])
    assert told is not None
    estimate = told.estimate
    assert (estimate.unit, estimate.trusted, estimate.seconds_per_unit) == (Unit.SERVICE_S, False, 1.0)
    assert estimate.median == pytest.approx(400.0, rel=0.02)
    assert estimate.source == "the job says 800 iterations in all, not confirmed by any past run"
    assert _told(predictor, asked, estimate, 810.0) is None, "hardly another total"
    more = _told(predictor, asked, estimate, 1_600.0)
    assert more is not None
    assert more.estimate.median == pytest.approx(800.0, rel=0.02)
    assert _told(predictor, asked, more.estimate, 1_600.0, done=2_500.0) is None, "it has exceeded its total"

    restarted = LivePredictor()
    restarted.warm([], [asked], [(asked.job, told)])
    assert _told(restarted, asked, estimate, 810.0) is None
    assert _told(restarted, asked, estimate, 1_600.0) == more
    for each in (predictor, restarted):
        each.ended(ended(1, 1_600.0))
        status = each.status()
        assert status.buckets[Unit.SERVICE_S][0].jobs == 0, "what it said of itself is not scored"
        assert status.recent_log_error[Unit.SERVICE_S] == 0.0


def test_what_past_runs_say_since_is_not_replaced_by_what_the_job_says() -> None:
    predictor = LivePredictor()
    asked = _unpredicted(predictor)
    (said,) = predictor.revise(0.0, [Reported(asked, None, 10.0, 5.0, 800.0, 800.0, 0.5)])
    assert said is not None
    predictor.ended(ended(100, 1_000.0, submitted_at_s=1e6))
    again = _said(predictor, asked)
    assert again.trusted
    assert _told(predictor, asked, again, 20_000.0) is None


def test_a_report_leaves_an_estimate_trusted_that_has_become_so_since_the_first_prediction() -> None:
    predictor, asked = LivePredictor(), request(1, name="new", user="new")
    others = [ended(10 + job, None, name=f"other{job}", user=f"user{job}") for job in range(20)]
    predictor.ended(others[0])
    assert not _said(predictor, asked).trusted
    for each in others[1:]:
        predictor.ended(each)
    again = _said(predictor, asked)
    told = _told(predictor, asked, again, 20_000.0)
    assert told is not None
    assert again.trusted
    assert told.estimate.trusted


def test_a_report_counts_in_the_unit_of_the_estimate_when_that_has_changed_since_the_first_prediction() -> None:
    """The first prediction was in seconds. Since then a run has ended that reported iterations: 1,000 of half a second."""
    predictor = LivePredictor()
    predictor.warm(
        [ended(-job, None, submitted_at_s=1_000.0 * job, service_s=500.0, name="other") for job in range(30)]
    )
    asked = request(1, walltime_s=5_000.0)
    first = _said(predictor, asked)
    assert first.unit is Unit.SERVICE_S
    predictor.ended(ended(100, 1_000.0, submitted_at_s=1e6))
    again = _said(predictor, asked)
    assert again.unit is Unit.ITERATIONS
    told = _told(predictor, asked, again, 20_000.0)
    assert told is not None
    points = np.array(told.estimate.points)
    assert sorted(points)[24] == pytest.approx(20_000.0, rel=0.1)
    assert np.median(points[:16]) == pytest.approx(1_000.0, rel=0.1), "500 s of half a second each"
