"""Metrics, intervals and the gate against numbers computed by hand."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.aggregation import AGGREGATION, WITHOUT_MODELS
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
from predictor.experts import BASIC
from predictor.intervals import (
    LEVELS,
    NORMAL_QUANTILES,
    POINTS,
    Array,
    PointResiduals,
    estimate_points,
    mixture,
    quantile_of,
)
from predictor.rows import Submission
from predictor.training import judge


def _flat(point: float) -> Array:
    """The distribution of one prediction that is a single point."""
    return np.full((1, len(LEVELS)), point)


def test_quantiles_lie_between_equal_mass_points() -> None:
    points = np.array([[1.0, 2.0, 3.0, 4.0]])
    # Levels of the points are 1/8, 3/8, 5/8, 7/8; the middle lies half-way, beyond the ends it is flat.
    assert quantile_of(points, np.array([0.0, 0.125, 0.5, 0.875, 1.0])).tolist() == [[1.0, 1.0, 2.5, 4.0, 4.0]]


def test_pinball_of_one_point_by_hand() -> None:
    # Label above the point by 1: loss = level; the seven levels' mean is 0.5. Below by 1: loss = 1 - level, mean 0.5.
    assert pinball(np.array([1.0]), _flat(0.0)) == pytest.approx(0.5)
    assert pinball(np.array([-1.0]), _flat(0.0)) == pytest.approx(0.5)
    # 0 up to the middle and 1 beyond, label 0: losses (1 - level) at .75, .9 and .95, none below.
    step = np.where(LEVELS > 0.5, 1.0, 0.0)
    assert pinball(np.array([0.0]), step[None, :]) == pytest.approx((0.25 + 0.1 + 0.05) / 7)


def test_coverage_by_hand() -> None:
    # Each quantile is ten times its level: the 80% interval is from 1 to 9.
    assert coverage(np.array([0.9, 1.1, 8.9, 9.1]), np.tile(10.0 * LEVELS, (4, 1))) == pytest.approx(0.5)


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
    points = np.concatenate([_flat(math.log(150.0)), _flat(math.log(200.0))])
    metrics = measure(labels, points)
    assert metrics.mae == pytest.approx((50 + 800) / 2)
    assert metrics.median_ape == pytest.approx((0.5 + 0.8) / 2)
    assert metrics.within_2x == pytest.approx(0.5)
    assert metrics.under_4x == pytest.approx(0.5)
    assert metrics.kendall_tau == pytest.approx(1.0)
    errors = math.log(1.5) ** 2 + math.log(5.0) ** 2
    assert metrics.r2_log == pytest.approx(1.0 - errors / (math.log(10.0) ** 2 / 2))


def test_metrics_of_constant_labels_and_of_nothing_are_null_not_errors() -> None:
    constant = measure(np.zeros(5), np.zeros((5, len(LEVELS)))).to_json()
    assert constant["mae"] == 0.0
    assert constant["r2_log"] is None
    assert constant["concordance"] is None
    parts = by_history(np.array([1.0]), _flat(1.0), [0])
    assert parts["cold"]["jobs"] == 1
    assert parts["seen"]["jobs"] == 0
    assert parts["seen"]["mae"] is None


def test_the_mean_over_users_by_hand() -> None:
    """Ada's four jobs are exact, Bob's one is ten times the guess and outside its interval."""
    labels = np.log(np.array([100.0, 100.0, 100.0, 1_000.0, 100.0]))
    predicted = np.full(5, math.log(100.0))
    means = by_user(["ada", "ada", "ada", "bob", "ada"], labels, np.tile(predicted[:, None], len(LEVELS)))
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
    points = predicted[:, None] + np.linspace(-1.0, 1.0, len(LEVELS))
    of = np.array(users)
    own = [measure(labels[of == user], points[of == user]) for user in sorted(set(users))]
    for key, value in by_user(users, labels, points).items():
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
    assert pooled.tolist() == [1.0] * len(LEVELS)
    for i in range(101):
        residuals.observe(3, float(i))
    own = residuals.quantiles(3)
    assert own is not None
    values = [1.0, *map(float, range(101))]
    assert own == pytest.approx(np.quantile(values, LEVELS), abs=2.0)
    assert own[0] < 5.0
    assert own[-1] > 95.0


def test_the_points_of_an_estimate_have_the_mean_of_the_distribution() -> None:
    """Of a log-normal total, whose tail beyond the outermost points holds a good part of the mean."""
    spread = 1.5
    points = np.exp(estimate_points(spread * NORMAL_QUANTILES))
    assert (np.diff(points) > 0.0).all()
    # The quantiles end at 0.005 and 0.995, which cuts off a twentieth of the mean of so wide a distribution.
    assert points.mean() == pytest.approx(math.exp(spread**2 / 2.0), rel=0.08)
    assert np.exp(spread * NORMAL_QUANTILES[-1]) > points[-1] > np.exp(spread * NORMAL_QUANTILES[-4])
    assert np.median(points) == pytest.approx(1.0, abs=0.02)
    assert np.exp(estimate_points(np.full(len(LEVELS), 3.0))) == pytest.approx(math.exp(3.0))


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
        (_scores(0.101), None),
        (_scores(0.102), "pinball"),
        (_scores(0.09, concordance=0.694), "concordance"),
        (_scores(0.09, concordance=0.696), None),
        (_scores(0.0, concordance=None), "nothing to rank"),
        (_scores(0.09, under_4x=0.121), "under-4x"),
        (_scores(0.09, coverage_80=0.96), "coverage"),
        (_scores(0.09, coverage_80=0.74), "coverage"),
    ],
)
def test_the_gate_names_what_a_model_failed(model: dict, failed: str | None) -> None:
    # What counts is what would be served without models, not an expert that is known to be better in hindsight.
    metrics = {name: _scores(0.05, concordance=0.9) for name in BASIC}
    verdict = judge({**metrics, WITHOUT_MODELS: _scores(0.1), AGGREGATION: model})
    assert verdict.passed == (failed is None)
    assert len(verdict.reasons) == (failed is not None)
    if failed is not None:
        assert failed in verdict.reasons[0]


def test_intervals_may_be_as_far_off_as_those_without_models() -> None:
    without = _scores(0.1, coverage_80=0.7)
    passed = [
        judge({WITHOUT_MODELS: without, AGGREGATION: _scores(0.1, coverage_80=share)}).passed for share in (0.69, 0.71)
    ]
    assert passed == [False, True]
