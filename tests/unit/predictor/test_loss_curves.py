"""Loss curves: what earlier runs with similar curves say of a running job, and how much that weighs."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.model.estimate import (
    EndedJob,
    Estimate,
    LossCurve,
    Prediction,
    PredictionRequest,
    Reported,
    Unit,
    with_loss,
)
from policies.model.ids import JobId
from predictor.intervals import POINTS, Array
from predictor.loss_curves import RUNS_MIN, LossCurves
from predictor.serving import LivePredictor
from tests.unit.predictor.predictor_history import ended, request

_WIDE: Array = np.log(np.linspace(50.0, 2_000.0, POINTS))
"""A prediction that knows hardly anything."""


def _curve(total: float, pace: float, noise: float = 0.0, seed: int = 0) -> LossCurve:
    """A loss that falls as 1 / (1 + k / pace), reported after each iteration."""
    rng, curve = np.random.default_rng(seed), None
    for iteration in range(1, int(total) + 1):
        loss = 1.0 / (1.0 + iteration / pace) * math.exp(noise * rng.normal())
        curve = with_loss(curve, float(iteration), loss) or curve
    assert curve is not None
    return curve


def _until(curve: LossCurve, done: float) -> LossCurve:
    known = sum(iteration <= done for iteration in curve.iterations)
    return LossCurve(curve.iterations[:known], curve.losses[:known])


def _run(job: int, total: float, curve: LossCurve | None, **more: Any) -> EndedJob:
    return replace(ended(job, total, submitted_at_s=1_000.0 * job, **more), loss_curve=curve)


def _reported(curve: LossCurve, done: float, estimate: Estimate | None = None, **more: Any) -> Reported:
    asked = request(1_000, **more)
    estimate = estimate or Estimate((1.0,), Unit.ITERATIONS, "")
    return Reported(asked, estimate, done, 0.5 * done, None, None, 0.5, loss_curve=curve, curve_counts=True)


def _target_runs(count: int, seed: int = 0) -> list[tuple[float, LossCurve]]:
    """Runs that stop at a loss of 0.1: one that converges twice as slowly takes twice as long."""
    paces = 20.0 * _paces(count, seed)
    return [(9.0 * pace, _curve(9.0 * pace, pace, 0.02, number)) for number, pace in enumerate(paces)]


def _paces(count: int, seed: int) -> Array:
    return np.asarray(np.exp(0.7 * np.random.default_rng(seed).normal(size=count)))


def _taught(runs: list[tuple[float, LossCurve]], **more: Any) -> LossCurves:
    learner = LossCurves()
    for number, (total, curve) in enumerate(runs):
        learner.ended(_run(number, round(total), curve, **more), _WIDE, Unit.ITERATIONS)
    return learner


def _error(learner: LossCurves, total: float, curve: LossCurve, share: float) -> float:
    answer = learner.answer(_reported(_until(curve, share * total), share * total), _WIDE)
    assert answer is not None
    return abs(float(np.median(answer.log_points)) - math.log(total))


def test_a_curve_has_a_point_for_each_quarter_more() -> None:
    curve = None
    for iteration in range(1, 101):
        curve = with_loss(curve, float(iteration), 1.0 / iteration) or curve
    assert curve is not None
    assert curve.iterations == (1, 2, 3, 4, 5, 7, 9, 12, 15, 19, 24, 30, 38, 48, 60, 75, 94)
    assert curve.losses == tuple(1.0 / iteration for iteration in curve.iterations)


@pytest.mark.parametrize(
    ("iteration", "loss"), [(0.0, 1.0), (0.5, 1.0), (math.inf, 1.0), (math.nan, 1.0), (5.0, math.nan), (5.0, -math.inf)]
)
def test_odd_points_are_left_out(iteration: float, loss: float) -> None:
    assert with_loss(None, iteration, loss) is None
    assert with_loss(LossCurve((1.0,), (2.0,)), iteration, loss) is None


def test_runs_with_the_same_curve_tell_the_total() -> None:
    """Half of the runs learn fast and end after 100 iterations, the others after 1,000."""
    fast, slow = _curve(100.0, 10.0), _curve(1_000.0, 100.0)
    learner = _taught([(100.0, fast), (1_000.0, slow)] * 15)
    for total, curve in ((100.0, fast), (1_000.0, slow)):
        answer = learner.answer(_reported(_until(curve, 20.0), 20.0), _WIDE)
        assert answer is not None
        assert answer.weight > 0.9
        assert math.exp(float(np.median(answer.log_points))) == pytest.approx(total, rel=0.25)


def test_where_a_target_loss_ends_runs_the_error_is_halved() -> None:
    """Against the runs that were longer than the job so far, which know everything but the losses."""
    runs = _target_runs(60)
    learner, with_losses, without = LossCurves(), [], []
    for number, (total, curve) in enumerate(runs):
        if number >= 20:
            with_losses.append(_error(learner, total, curve, 0.25))
            longer = [other for other, _ in runs[max(0, number - 50) : number] if other > 0.25 * total]
            without.append(abs(math.log(np.median(longer) / total)))
        learner.ended(_run(number, round(total), curve), _WIDE, Unit.ITERATIONS)
    assert np.mean(with_losses) < 0.5 * np.mean(without)


def test_where_losses_say_nothing_they_weigh_little() -> None:
    """The same totals: with the curves that led to them, and with those of other runs."""
    runs = _target_runs(60)
    others = [_curve(round(total), 20.0 * pace) for (total, _), pace in zip(runs, _paces(60, seed=9), strict=True)]
    asked = _reported(_until(runs[0][1], 30.0), 30.0)
    useless = _taught([(total, curve) for (total, _), curve in zip(runs, others, strict=True)]).answer(asked, _WIDE)
    useful = _taught(runs).answer(asked, _WIDE)
    assert useless is not None
    assert useful is not None
    assert useless.weight < 0.2 < 0.9 < useful.weight


def test_before_any_comparison_the_answer_is_nine_tenths_of_the_first_prediction_and_a_tenth_of_the_runs() -> None:
    """The mean of quantiles: the median of a mixture would be the first prediction itself."""
    learner = _taught([(200.0, _curve(200.0, 20.0))] * RUNS_MIN)
    answer = learner.answer(_reported(_curve(20.0, 20.0), 20.0), np.full(POINTS, math.log(1_000.0)))
    assert answer is not None
    assert answer.log_points == pytest.approx(0.9 * math.log(1_000.0) + 0.1 * math.log(200.0))


def test_a_prediction_that_knows_the_total_is_not_given_up() -> None:
    """Totals differ by a factor of ten, but the command line says which one it is: from the first answer on it must count."""
    totals = 100.0 * 10.0 ** np.random.default_rng(3).random(12)
    learner, errors = LossCurves(), []
    for number, (total, pace) in enumerate(zip(totals, 20.0 * _paces(12, 4), strict=True)):
        curve, known = _curve(round(total), pace), math.log(total) + np.linspace(-0.05, 0.05, POINTS)
        answer = learner.answer(_reported(_until(curve, 20.0), 20.0), known)
        if answer is not None:
            errors.append(abs(float(np.median(answer.log_points)) - math.log(total)))
        learner.ended(_run(number, round(total), curve), known, Unit.ITERATIONS)
    assert len(errors) == len(totals) - RUNS_MIN
    assert max(errors) < 0.15


def test_every_answer_exceeds_what_is_done() -> None:
    runs = _target_runs(40)
    learner = _taught(runs)
    for done in (10.0, 60.0, 150.0):
        answer = learner.answer(_reported(_until(runs[3][1], done), done), _WIDE)
        assert answer is not None
        assert np.exp(answer.log_points).min() > done
        assert (np.diff(answer.log_points) >= 0.0).all()


def test_too_few_runs_that_were_longer_tell_nothing() -> None:
    runs = _target_runs(30)
    learner = _taught(runs)
    totals = sorted(total for total, _ in runs)
    for longer, told in ((RUNS_MIN - 1, False), (RUNS_MIN, True)):
        done = (totals[-longer] + totals[-longer - 1]) / 2.0
        answer = learner.answer(_reported(_until(runs[0][1], done), done), _WIDE)
        assert (answer is not None) is told


def test_runs_of_other_programs_and_profile_runs_tell_nothing() -> None:
    runs = _target_runs(30)
    asked = _reported(_until(runs[0][1], 10.0), 10.0)
    assert _taught(runs).answer(asked, _WIDE) is not None
    assert _taught(runs, name="bert").answer(asked, _WIDE) is None
    assert _taught(runs, labels={"sooner/profile": "5"}).answer(asked, _WIDE) is None


def test_a_prediction_in_seconds_is_compared_at_the_measured_speed() -> None:
    """The same prediction in iterations and in seconds, half a second each, gets the same weight."""
    iterations, seconds = LossCurves(), LossCurves()
    for number, (total, curve) in enumerate(_target_runs(30)):
        label = _run(number, round(total), curve)
        iterations.ended(label, _WIDE, Unit.ITERATIONS)
        seconds.ended(label, _WIDE + math.log(0.5), Unit.SERVICE_S)
    asked = _reported(_until(_target_runs(1)[0][1], 10.0), 10.0)
    one, other = iterations.answer(asked, _WIDE), seconds.answer(asked, _WIDE)
    assert one is not None
    assert other is not None
    assert one.log_points == pytest.approx(other.log_points)
    assert one.weight == pytest.approx(other.weight)


_ODD = st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from([0.0, 1e308, -1e308, 5e-324]))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_losses_break_an_answer(data: st.DataObject) -> None:
    """Losses of any size and sign, and totals below the curve's end."""
    learner, curve = LossCurves(), LossCurve((1.0,), (0.0,))
    for number in range(RUNS_MIN + 4):
        losses = data.draw(st.lists(_ODD, min_size=1, max_size=6))
        curve = LossCurve(tuple(1.5**each for each in range(len(losses))), tuple(losses))
        total = data.draw(st.sampled_from([1.0, 5.0, 100.0, 1e300, math.inf, math.nan]))
        learner.ended(_run(number, total, curve, service_s=1.0), _WIDE[: data.draw(st.integers(0, 2))], Unit.ITERATIONS)
    answer = learner.answer(_reported(curve, data.draw(st.sampled_from([0.0, 1.0, 4.0]))), _WIDE)
    if answer is not None:
        assert np.isfinite(answer.log_points).all()
        assert 0.0 <= answer.weight <= 1.0


# Through the predictor


def _predictor(runs: list[tuple[float, LossCurve]], **more: Any) -> LivePredictor:
    predictor = LivePredictor()
    _live(predictor, runs, 1, **more)
    return predictor


def _live(predictor: LivePredictor, runs: list[tuple[float, LossCurve]], first: int, **more: Any) -> list[Prediction]:
    """Each run is predicted and ends before the next one comes. Returns the predictions."""
    said = []
    for number, (total, curve) in enumerate(runs, start=first):
        label = _run(number, round(total), curve, **more)
        [answer] = predictor.predict(0.0, [PredictionRequest(label.job, label.spec, label.submitted_at_s)])
        if answer is not None:
            said.append(answer)
        predictor.ended(label)
    return said


def _asked(predictor: LivePredictor, **more: Any) -> tuple[PredictionRequest, Estimate]:
    asked = request(1_000, **more)
    [answer] = predictor.predict(0.0, [asked])
    assert answer is not None
    return asked, answer.estimate


def _median_left(estimate: Estimate, done: float) -> float:
    return float(np.median([point for point in estimate.points if point > done]))


@pytest.mark.parametrize("unit", [Unit.ITERATIONS, Unit.SERVICE_S])
def test_an_estimate_follows_the_losses(unit: Unit) -> None:
    runs = _target_runs(60)
    predictor = _predictor(runs)
    _, estimate = _asked(predictor)
    per_unit = 1.0
    if unit is Unit.SERVICE_S:
        # A job without a measured program keeps seconds: the iterations of its name are unknown until it reports.
        estimate, per_unit = replace(estimate, unit=unit), 0.5
    for total, curve in (runs[5], runs[7], runs[11]):
        done = 0.25 * total
        [told] = predictor.revise(0.0, [_reported(_until(curve, done), done, estimate)])
        assert told is not None
        assert told.estimate.unit is unit
        if unit is Unit.ITERATIONS:
            assert _median_left(told.estimate, done) == pytest.approx(total, rel=0.3)
        assert "loss curves of 50 past runs weigh" in told.estimate.source
        assert told.estimate.trusted
        assert min(told.estimate.points) >= per_unit * done * 0.99


def test_a_curve_that_tells_nothing_new_changes_nothing() -> None:
    runs = _target_runs(60)
    predictor = _predictor(runs)
    _, estimate = _asked(predictor)
    curve = _until(runs[5][1], 40.0)
    [told] = predictor.revise(0.0, [_reported(curve, 40.0, estimate)])
    assert told is not None
    later = [_reported(curve, done, told.estimate) for done in (40.0, 50.0, 150.0)]
    same, hardly, far = predictor.revise(0.0, later)
    assert (same, hardly) == (None, None)
    assert far is not None
    assert far.estimate.points != told.estimate.points
    assert predictor.revise(0.0, [replace(_reported(curve, 40.0, estimate), curve_counts=False)]) == [None]


def test_where_curves_tell_nothing_a_newer_prediction_stays() -> None:
    """It was made again when other runs ended; the first one, with the declaration, must not replace it."""
    predictor = LivePredictor()
    predictor.warm([ended(job, 1_000.0, submitted_at_s=1_000.0 * job) for job in range(1, 20)])
    asked, estimate = _asked(predictor, declared_iterations=3_000)
    newer = replace(estimate, points=tuple(1.1 * point for point in estimate.points))
    report = replace(_reported(_curve(40.0, 10.0), 40.0, newer), request=asked, least_iterations=3_000.0)
    assert predictor.revise(0.0, [report]) == [None]


def test_a_reported_total_is_mixed_with_what_the_losses_say() -> None:
    """Runs that report their largest number of epochs and stop early: the report weighs as little as it has held."""
    runs = _target_runs(60)
    predictor = LivePredictor()
    for number, (total, curve) in enumerate(runs, start=1):
        label = replace(_run(number, round(total), curve), reported_iterations=5_000.0)
        predictor.predict(0.0, [PredictionRequest(label.job, label.spec, label.submitted_at_s)])
        predictor.ended(label)
    _, estimate = _asked(predictor)
    total, curve = runs[5]
    done = 0.25 * total
    report = replace(_reported(_until(curve, done), done, estimate), total_iterations=5_000.0, least_iterations=5_000.0)
    [told] = predictor.revise(0.0, [report])
    assert told is not None
    assert "loss curves of 50 past runs" in told.estimate.source
    assert "it reports 5,000 iterations in all" in told.estimate.source
    assert _median_left(told.estimate, done) == pytest.approx(total, rel=0.35)


def test_a_job_that_exceeds_what_it_reported_is_ranked_by_attained_service_whatever_its_losses() -> None:
    runs = _target_runs(60)
    predictor = _predictor(runs)
    _, estimate = _asked(predictor)
    report = replace(_reported(_until(runs[5][1], 40.0), 40.0, estimate), total_iterations=20.0, least_iterations=20.0)
    [told] = predictor.revise(0.0, [report])
    assert told is not None
    assert not told.estimate.trusted
    later = replace(report, estimate=told.estimate, iterations=150.0, service_s=75.0, curve_counts=False)
    assert predictor.revise(0.0, [later]) == [None], "once for each point of the curve is enough"


def test_it_is_the_same_after_a_restart() -> None:
    """Weights and runs are learnt again from what is stored: labels and first predictions."""
    runs = _target_runs(40)
    lived = LivePredictor()
    labels = [_run(number, round(total), curve) for number, (total, curve) in enumerate(runs, start=1)]
    said: dict[JobId, Prediction] = {}
    for label in labels:
        [answer] = lived.predict(0.0, [PredictionRequest(label.job, label.spec, label.submitted_at_s)])
        if answer is not None:
            said[label.job] = answer
        lived.ended(label)
    asked, estimate = _asked(lived)
    [first] = lived.predict(0.0, [asked])
    assert first is not None
    again = LivePredictor()
    again.warm(labels, [asked], [*said.items(), (asked.job, first)])
    report = _reported(_until(runs[5][1], 40.0), 40.0, estimate)
    [told], [once_more] = lived.revise(0.0, [report]), again.revise(0.0, [report])
    assert told is not None
    assert once_more is not None
    assert once_more.estimate.points == told.estimate.points
    assert once_more.estimate.source == told.estimate.source
