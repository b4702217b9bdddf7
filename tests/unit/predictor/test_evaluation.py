"""Metrics, intervals and the gate against numbers computed by hand."""

import json
import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.baselines import NAMES as BASELINE_NAMES
from predictor.evaluation import (
    by_history,
    by_user,
    concordance,
    coverage,
    first_of_bursts,
    kendall_tau,
    measure,
    pinball,
)
from predictor.intervals import (
    CONFORMAL_WINDOW,
    LEVELS,
    POINTS,
    ConformalCalibrator,
    PointResiduals,
    mixture,
    quantile_of,
)
from predictor.rows import Submission
from predictor.training import judge


def test_quantiles_lie_between_equal_mass_points() -> None:
    points = np.array([[1.0, 2.0, 3.0, 4.0]])
    # Levels of the points are 1/8, 3/8, 5/8, 7/8; the middle lies half-way, beyond the ends it is flat.
    assert quantile_of(points, np.array([0.0, 0.125, 0.5, 0.875, 1.0])).tolist() == [[1.0, 1.0, 2.5, 4.0, 4.0]]


def test_pinball_of_one_point_by_hand() -> None:
    # Label above the point by 1: loss = level; the seven levels' mean is 0.5. Below by 1: loss = 1 - level, mean 0.5.
    assert pinball(np.array([1.0]), np.array([[0.0]])) == pytest.approx(0.5)
    assert pinball(np.array([-1.0]), np.array([[0.0]])) == pytest.approx(0.5)
    # Two points 0 and 1, label 0: quantiles at the levels are 0, 0, 0, .5, 1, 1, 1 -> losses (1 - level) q.
    expected = (0.5 * 0.5 + 0.25 + 0.1 + 0.05) / 7
    assert pinball(np.array([0.0]), np.array([[0.0, 1.0]])) == pytest.approx(expected)


def test_coverage_by_hand() -> None:
    points = np.tile(np.arange(10.0), (4, 1))
    # The 80% interval lies between the points' levels .05 + .1 k: from 0.5 to 8.5.
    assert coverage(np.array([0.4, 0.5, 8.5, 8.6]), points) == pytest.approx(0.5)


def test_concordance_counts_pairs_near_in_time() -> None:
    assert concordance(np.array([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 2.0])) == pytest.approx(2 / 3)
    assert concordance(np.array([1.0, 2.0]), np.array([5.0, 5.0])) == pytest.approx(0.5)
    assert math.isnan(concordance(np.array([1.0, 1.0]), np.array([1.0, 2.0])))
    labels = np.zeros(52)
    labels[0], labels[51] = 1.0, 2.0
    predicted = np.zeros(52)
    predicted[0], predicted[51] = 3.0, 1.0
    # The pair (0, 51) is 51 jobs apart and not counted; the 50 pairs of each end with the middle agree.
    assert concordance(labels, predicted) == pytest.approx(1.0)


def test_tau_is_undefined_where_nothing_can_be_ranked() -> None:
    assert kendall_tau(np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 3.0])) == pytest.approx(1.0)
    assert math.isnan(kendall_tau(np.array([1.0, 1.0]), np.array([1.0, 2.0])))
    assert math.isnan(kendall_tau(np.array([1.0]), np.array([1.0])))


def test_all_metrics_of_two_jobs_by_hand() -> None:
    labels = np.log(np.array([100.0, 1_000.0]))
    points = np.log(np.array([[150.0], [200.0]]))
    metrics = measure(labels, points)
    assert metrics.mae == pytest.approx((50 + 800) / 2)
    assert metrics.median_ape == pytest.approx((0.5 + 0.8) / 2)
    assert metrics.within_2x == pytest.approx(0.5)
    assert metrics.under_4x == pytest.approx(0.5)
    assert metrics.kendall_tau == pytest.approx(1.0)
    errors = math.log(1.5) ** 2 + math.log(5.0) ** 2
    assert metrics.r2_log == pytest.approx(1.0 - errors / (math.log(10.0) ** 2 / 2))


def test_metrics_of_constant_labels_and_of_nothing_are_null_not_errors() -> None:
    constant = measure(np.zeros(5), np.zeros((5, 4))).to_json()
    assert constant["mae"] == 0.0
    assert constant["r2_log"] is None
    assert constant["concordance"] is None
    parts = by_history(np.array([1.0]), np.array([[1.0]]), [0])
    assert parts["cold"]["jobs"] == 1
    assert parts["seen"]["jobs"] == 0
    assert parts["seen"]["mae"] is None


def test_the_mean_over_users_by_hand() -> None:
    """Ada's four jobs are exact, Bob's one is ten times the guess and outside its interval."""
    labels = np.log(np.array([100.0, 100.0, 100.0, 1_000.0, 100.0]))
    predicted = np.full(5, math.log(100.0))
    means = by_user(["ada", "ada", "ada", "bob", "ada"], labels, predicted[:, None], predicted)
    assert means["users"] == 2
    assert means["mae"] == pytest.approx((0 + 900) / 2)
    assert means["median_ape"] == pytest.approx((0 + 0.9) / 2)
    assert means["within_2x"] == means["coverage_80"] == means["under_4x"] == pytest.approx(0.5)
    assert means["pinball_log"] == pytest.approx(math.log(10.0) / 2 / 2)


def test_a_burst_of_one_program_is_one_row() -> None:
    def job(at_s: float, name: str = "p", gpus: int = 1, user: str = "u") -> Submission:
        return Submission(0, user, "", name, gpus, at_s)

    jobs = [job(0.0), job(299.0), job(299.0, gpus=2), job(299.5, name="q"), job(300.0), job(301.0)]
    assert first_of_bursts(jobs).tolist() == [True, False, True, True, True, False]
    nobody = job(0.0, name="", user="")
    assert first_of_bursts([nobody, nobody]).all(), "nobody's jobs are no program"


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(-3.0, 9.0), st.floats(-3.0, 9.0)), min_size=1, max_size=20))
def test_the_mean_over_users_is_that_of_each_users_own_metrics(rows: list[tuple[str, float, float]]) -> None:
    users = [user for user, _, _ in rows]
    labels, predicted = (np.array([row[i] for row in rows]) for i in (1, 2))
    points = predicted[:, None] + np.linspace(-1.0, 1.0, 5)
    of = np.array(users)
    own = [measure(labels[of == user], points[of == user]) for user in sorted(set(users))]
    for key, value in by_user(users, labels, points, predicted).items():
        expected = len(own) if key == "users" else np.mean([getattr(each, key) for each in own])
        assert value == pytest.approx(expected)


def test_point_residuals_speak_per_bucket_and_pool_while_there_are_few() -> None:
    residuals = PointResiduals()
    for _ in range(49):
        residuals.observe(0, 1.0)
    assert residuals.quantiles(0) is None
    residuals.observe(3, 1.0)
    pooled = residuals.quantiles(0)
    assert pooled is not None
    assert pooled.tolist() == [1.0] * POINTS
    for i in range(101):
        residuals.observe(3, float(i))
    own = residuals.quantiles(3)
    assert own is not None
    values = [1.0, *map(float, range(101))]
    assert own == pytest.approx(np.quantile(values, LEVELS), abs=2.0)
    assert own[0] < 5.0
    assert own[-1] > 95.0


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), shift=st.floats(-2.0, 2.0), scale=st.floats(0.2, 3.0))
def test_calibration_makes_a_wrong_distribution_cover(seed: int, shift: float, scale: float) -> None:
    """A model that is biased and too narrow or too wide covers 80% after calibration on exchangeable residuals."""
    rng = np.random.default_rng(seed)
    raw = np.sort(shift + scale * np.linspace(-1.5, 1.5, POINTS))
    calibrator = ConformalCalibrator()
    for label in rng.normal(size=CONFORMAL_WINDOW):
        calibrator.observe(2, label, raw)
    points = calibrator.calibrate(2, raw)
    assert (np.diff(points) >= 0.0).all()
    fresh = rng.normal(size=2_000)
    assert 0.72 <= coverage(fresh, np.tile(points, (2_000, 1))) <= 0.88


def test_calibration_is_silent_before_fifty_and_survives_a_dump() -> None:
    rng = np.random.default_rng(0)
    raw = np.linspace(0.0, 1.0, POINTS)
    calibrator = ConformalCalibrator()
    for _ in range(49):
        calibrator.observe(1, 5.0, raw)
    assert calibrator.calibrate(1, raw) == pytest.approx(raw)
    for label in rng.normal(size=80):
        calibrator.observe(1, label, raw)
    again = ConformalCalibrator.load(calibrator.dump())
    assert again.calibrate(1, raw).tolist() == calibrator.calibrate(1, raw).tolist()
    for broken, message in (
        ({"residuals": [[]], "fresh": [0]}, "buckets"),
        ({"residuals": [[[math.nan] * POINTS], [], [], []], "fresh": [0, 0, 0, 0]}, "finite"),
        ({"residuals": [[[0.0]], [], [], []], "fresh": [0, 0, 0, 0]}, "32"),
        ({"residuals": [[], [], [], []], "fresh": [1, 0, 0, 0]}, "fresh: must be from 0 to 0 (got 1)"),
        ({"residuals": [[], [], [], []], "fresh": [-1, 0, 0, 0]}, "fresh: must be from 0 to 0 (got -1)"),
        ({"residuals": [[], [], [], []]}, "fresh"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            ConformalCalibrator.load(broken)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**16), before=st.integers(0, 1_500), after=st.integers(0, 60))
def test_a_calibrator_that_was_stored_answers_like_one_that_never_stopped(seed: int, before: int, after: int) -> None:
    """At once and after whatever comes next: how many residuals wait to be counted is part of what is stored."""
    rng = np.random.default_rng(seed)
    raw = np.linspace(-1.0, 1.0, POINTS)
    running = ConformalCalibrator()

    def feed(*calibrators: ConformalCalibrator) -> None:
        bucket, label = int(rng.choice(4, p=(0.02, 0.18, 0.3, 0.5))), float(rng.standard_t(2))
        for each in calibrators:
            each.observe(bucket, label, raw)

    for _ in range(before):
        feed(running)
    stored = ConformalCalibrator.load(json.loads(json.dumps(running.dump())))
    for _ in range(after):
        for bucket in range(4):
            assert stored.calibrate(bucket, raw).tolist() == running.calibrate(bucket, raw).tolist()
        feed(stored, running)
    assert stored.dump() == running.dump()


def test_a_mixture_holds_each_part_by_its_mass() -> None:
    mixed = mixture(np.zeros(POINTS), np.ones(POINTS), 0.25)
    assert mixed.tolist() == [0.0] * 24 + [1.0] * 8
    assert mixture(np.zeros(POINTS), np.ones(POINTS), 0.0).tolist() == [0.0] * POINTS


def _scores(
    pinball_log: float, coverage_80: float = 0.8, under_4x: float = 0.1, concordance: float | None = 0.7
) -> dict:
    return {"pinball_log": pinball_log, "coverage_80": coverage_80, "under_4x": under_4x, "concordance": concordance}


@pytest.mark.parametrize(
    ("model", "failed"),
    [
        (_scores(0.097), None),
        (_scores(0.098), "pinball"),
        (_scores(0.09, concordance=0.694), "concordance"),
        (_scores(0.09, concordance=0.696), None),
        (_scores(0.0, concordance=None), "concordance"),
        (_scores(0.09, under_4x=0.121), "under-4x"),
        (_scores(0.09, coverage_80=0.89), "coverage"),
        (_scores(0.09, coverage_80=0.74), "coverage"),
    ],
)
def test_the_gate_names_what_a_model_failed(model: dict, failed: str | None) -> None:
    metrics = {name: _scores(0.2) for name in BASELINE_NAMES}
    metrics["recurrence_ewma"] = _scores(0.1)
    verdict = judge({**metrics, "forest": model}, "forest")
    assert verdict.best_baseline == "recurrence_ewma"
    assert verdict.passed == (failed is None)
    assert len(verdict.reasons) == (failed is not None)
    if failed is not None:
        assert failed in verdict.reasons[0]
