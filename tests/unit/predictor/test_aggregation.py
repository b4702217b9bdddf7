"""The aggregation of experts: weights by hand, bounds by brute force, and what the state depends on."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.aggregation import (
    BURST_S,
    DELAY_MAX,
    DELAY_SLOW,
    FORGETTING,
    FROM_LEARNT,
    LEARNT,
    PRIOR_BASE,
    Aggregation,
    Bursts,
    Censored,
)
from predictor.conformal import LIMIT, STEP, SpreadCalibration
from predictor.intervals import LEVELS, MIDDLE, NORMAL_QUANTILES, Array, at_levels, interpolation

EXPERTS = ("first", "second", "third")


def _quantiles(middles: list[float], spread: float = 0.5) -> Array:
    """Normal quantiles (experts, 25) around middles; NaN for an expert that sleeps."""
    return np.array(middles)[:, None] + spread * NORMAL_QUANTILES


def _learn(aggregation: Aggregation, quantiles: Array, label: float, bucket: int = 0, share: float = 1.0) -> None:
    served = at_levels(aggregation.combine(bucket, quantiles[None])[0], LEARNT)
    aggregation.observe(bucket, label, at_levels(quantiles, LEARNT), served, share)


def _loss(label: float, quantiles: Array) -> Array:
    error = label - at_levels(quantiles, LEARNT)
    return np.asarray(np.maximum(LEARNT * error, (LEARNT - 1.0) * error))


def test_before_any_label_the_first_expert_has_its_prior_and_the_others_share_the_rest() -> None:
    weights = Aggregation(EXPERTS).weights(2)
    assert weights[:, 0] == pytest.approx([PRIOR_BASE, (1 - PRIOR_BASE) / 2, (1 - PRIOR_BASE) / 2])
    assert Aggregation(("only",)).weights(0).tolist() == [[1.0] * len(LEARNT)]


@pytest.mark.parametrize(("delay", "rate_max"), [(None, 0.25), (0, 1.0), (7, 0.5), (100, 0.25)])
def test_one_label_moves_the_weights_as_computed_by_hand(delay: int | None, rate_max: float) -> None:
    """Two experts at 0 and 1 without spread, the label at 1: what is served is 0 below the low one's share, and 1 above."""
    aggregation = Aggregation(("low", "high"))
    if delay is not None:
        aggregation.delayed(delay)
    quantiles = np.stack([np.zeros(len(LEVELS)), np.ones(len(LEVELS))])
    _learn(aggregation, quantiles, 1.0)
    served = 1.0 * (LEARNT > PRIOR_BASE)
    # r = g (q - q_k) with g = -level: above its share the low expert loses the level, below it the high one gains the level.
    regret = np.stack([-LEARNT * served, LEARNT * (1.0 - served)])
    kernel = np.exp(-0.5 * (_probit(LEARNT)[:, None] - _probit(LEARNT)) ** 2)
    kernel /= kernel.sum(axis=0)
    smooth, square = regret @ kernel, regret**2 @ kernel
    rate = np.minimum(rate_max, np.sqrt(math.log(3) / square))
    log_weights = np.log([[PRIOR_BASE], [1.0 - PRIOR_BASE]]) + 2.0 * (rate * smooth - rate**2 * square)
    expected = np.exp(log_weights) / np.exp(log_weights).sum(axis=0)
    assert aggregation.weights(0) == pytest.approx(expected)
    assert (aggregation.weights(0)[1] > 1.0 - PRIOR_BASE).all()


def _probit(levels: Array) -> Array:
    return np.interp(levels, LEVELS, NORMAL_QUANTILES)


def _unfinished(quantiles: Array, attained: float, bucket: int = 0, share: float = 1.0, later: float = 0.0) -> Censored:
    served = at_levels(Aggregation(EXPERTS).combine(bucket, quantiles[None])[0], LEARNT)
    return Censored(bucket, attained, served, at_levels(quantiles, LEARNT), share, later)


def test_an_unfinished_job_counts_as_nothing_at_first_and_as_its_label_once_it_has_exceeded_what_was_served() -> None:
    quantiles, ended, waiting = _quantiles([0.0, 1.0, -1.0]), Aggregation(EXPERTS), Aggregation(EXPERTS)
    before = waiting.weights(0)
    waiting.expect([_unfinished(quantiles, -9.0)])
    assert (waiting.weights(0) == before).all()
    _learn(ended, quantiles, 9.0)
    waiting.expect([_unfinished(quantiles, 9.0)])
    assert waiting.weights(0) == pytest.approx(ended.weights(0))
    assert waiting.weights(0)[1].min() > before[1].max(), "the one that said longest"
    assert waiting.combine(0, quantiles[None], by_labels=True)[0] == pytest.approx(
        Aggregation(EXPERTS).combine(0, quantiles[None])[0]
    )
    waiting.expect([])
    assert (waiting.weights(0) == before).all()


@pytest.mark.parametrize("level", [0.05, 0.25, 0.5, 0.9])
def test_an_unfinished_job_counts_as_the_mean_of_the_totals_that_are_left(level: float) -> None:
    """By brute force: labels drawn from what is served for the job, above what it has attained."""
    quantiles = _quantiles([0.3, 1.0, -0.8])
    at_learnt = at_levels(quantiles, LEARNT)
    job = _unfinished(quantiles, attained=float(np.interp(level, LEARNT, _unfinished(quantiles, 0.0).served)))
    fine = np.linspace(level, 1.0, 200_001)[1:]
    labels = np.interp(fine, LEARNT, job.served, right=job.served[-1] + 1.0)
    gradients = (labels[:, None] < job.served).mean(axis=0) - LEARNT
    aggregation = Aggregation(EXPERTS)
    aggregation.expect([job])
    regrets = gradients * (job.served - at_learnt)
    assert aggregation._expected[0][0] == pytest.approx(np.stack([regrets, regrets]), abs=1e-3)
    aggregation.expect([job._replace(later=10.0), job._replace(later=10.0)])
    slow, fast = (2.0 * math.exp(-10.0 * each) for each in FORGETTING)
    assert aggregation._expected[0][0] == pytest.approx(np.stack([slow * regrets, fast * regrets]), abs=1e-3)


def test_unfinished_jobs_of_a_burst_count_after_those_that_have_ended() -> None:
    bursts = Bursts()
    bursts.ended("ada", 10.0, 15.0)
    asked = [("ada", 20.0), ("bob", 20.0), ("ada", 30.0), ("ada", 10.0 + BURST_S)]
    weights = [weight for weight, _ in bursts.censored(asked)]
    assert weights == pytest.approx([2**-0.5, 1.0, 3**-0.5, 1.0])
    assert bursts.ended("ada", 40.0, 45.0).share == pytest.approx(2**-0.5), "nothing has changed"
    assert bursts.censored([]) == []


def test_what_has_ended_of_the_jobs_that_were_submitted_later() -> None:
    """Two after the first, with weights of 1 and of the root of a half; none after the second."""
    bursts = Bursts()
    for submitted_at_s in (BURST_S + 5.0, 5.0, BURST_S + 7.0):
        bursts.ended("ada", submitted_at_s, 2.0 * BURST_S)
    later = [sum_ for _, sum_ in bursts.censored([("bob", 6.0), ("bob", BURST_S + 7.0)])]
    assert later == pytest.approx([1.0 + 2**-0.5, 0.0])


def test_calibration_widens_the_half_that_unfinished_jobs_have_left() -> None:
    calibration, quantiles = SpreadCalibration(), _quantiles([0.0, 0.0, 0.0])
    calibration.expect([_unfinished(quantiles, 9.0, bucket=1, share=0.5)])
    below, above = calibration.factors(1)
    assert (below, above) == pytest.approx((math.exp(-0.1 * STEP), math.exp(0.9 * STEP))), (
        "a job of a burst counts as any other"
    )
    assert calibration.factors(0).tolist() == [1.0, 1.0]
    assert calibration.dump() == SpreadCalibration().dump(), "what is stored is of labels alone"
    calibration.expect([_unfinished(quantiles, -9.0, bucket=1)])
    assert calibration.factors(1) == pytest.approx([1.0, 1.0])
    calibration.expect(())
    assert calibration.factors(1).tolist() == [1.0, 1.0]


def test_the_expert_that_is_right_gets_the_weight_and_a_change_is_followed() -> None:
    aggregation, rng = Aggregation(EXPERTS), np.random.default_rng(0)
    for right in (1, 2):
        for _ in range(150):
            _learn(aggregation, _quantiles([0.0, 2.0, -2.0]), 2.0 * (1, -1)[right - 1] + 0.3 * rng.normal())
        # In the outermost tail on its side the mixture needs little of it to say nearly the same.
        assert aggregation.weights(0)[right, LEARNT.tolist().index(0.5)] > 0.9
        combined = aggregation.combine(0, _quantiles([0.0, 2.0, -2.0])[None])[0]
        expected = _quantiles([2.0 * (1, -1)[right - 1]])[0]
        assert at_levels(combined, LEARNT[1:-1]) == pytest.approx(at_levels(expected, LEARNT[1:-1]), abs=0.3)


def test_two_experts_that_disagree_leave_a_median_that_one_of_them_believes_and_an_interval_over_both() -> None:
    """A minute or an hour, and hardly anything between: the mean of the quantiles would be eight minutes, give or take one."""
    minute, hour = math.log(60.0), math.log(3_600.0)
    combined = Aggregation(("minute", "hour")).combine(0, _quantiles([minute, hour], spread=0.1)[None])[0]
    assert abs(combined[MIDDLE] - hour) < 0.3, "it has 70% of the weight"
    low, high = at_levels(combined, np.array([0.1, 0.9]))
    assert low < minute + 0.1
    assert high > hour


def test_the_average_of_two_experts_lies_between_them_and_is_as_sharp_as_each() -> None:
    minute, hour = math.log(60.0), math.log(3_600.0)
    pair = _quantiles([minute, hour], spread=0.1)
    asleep = np.stack([np.full(len(LEVELS), math.nan), pair[1]])
    averaged = [Aggregation(("minute", "hour")).average(0, each[None])[0] for each in (pair, asleep)]
    between = PRIOR_BASE * minute + (1.0 - PRIOR_BASE) * hour
    assert averaged[0] == pytest.approx(_quantiles([between], spread=0.1)[0])
    assert averaged[1] == pytest.approx(pair[1])


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000))
def test_what_is_served_at_the_learnt_levels_are_the_quantiles_of_the_mixture(seed: int) -> None:
    """By brute force: the mean of the distribution functions, inverted on a fine grid. Right within the spacing of the levels."""
    rng = np.random.default_rng(seed)
    quantiles = rng.normal(size=(3, 1)) + rng.uniform(0.2, 1.5, size=(3, 1)) * NORMAL_QUANTILES
    aggregation = Aggregation(EXPERTS)
    grid = np.linspace(quantiles.min(), quantiles.max(), 4_001)
    below = np.stack([np.interp(grid, each, LEVELS, left=0.0) for each in quantiles])
    mixed = aggregation.weights(1)[:, 0] @ below
    found = np.interp(at_levels(aggregation.combine(1, quantiles[None])[0], LEARNT), grid, mixed)
    assert (np.abs(found - LEARNT) <= np.interp(LEARNT, LEVELS, np.gradient(LEVELS))).all()


def test_one_expert_alone_is_served_as_it_is_and_a_batch_as_its_jobs_one_by_one() -> None:
    rng = np.random.default_rng(2)
    jobs = np.sort(rng.normal(size=(40, 3, len(LEVELS))).round(1), axis=-1)
    jobs[:20, 1:] = np.nan
    aggregation = Aggregation(EXPERTS)
    combined = aggregation.combine(0, jobs)
    assert combined[:20] == pytest.approx(jobs[:20, 0])
    assert [aggregation.combine(0, job[None])[0].tolist() for job in jobs] == combined.tolist()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000))
def test_the_loss_is_close_to_that_of_the_best_expert_in_hindsight(seed: int) -> None:
    """For any centre and spread of three experts; the bound of the docstring with constants."""
    rng = np.random.default_rng(seed)
    middles, spreads = rng.normal(scale=1.5, size=3), rng.uniform(0.2, 1.5, size=3)
    quantiles = middles[:, None] + spreads[:, None] * NORMAL_QUANTILES
    aggregation = Aggregation(EXPERTS)
    served_loss, losses, rows = 0.0, np.zeros(3), 300
    for label in rng.normal(size=rows):
        served_loss += float(_loss(label, aggregation.combine(0, quantiles[None])[0]).mean())
        losses += _loss(label, quantiles).mean(axis=1)
        _learn(aggregation, quantiles, float(label))
    assert served_loss / rows <= losses.min() / rows + 0.04


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.floats(-30.0, 30.0) | st.none(), min_size=3, max_size=3), min_size=1, max_size=12))
def test_quantiles_ascend_and_lie_within_those_of_the_experts_awake(jobs: list[list[float | None]]) -> None:
    aggregation = Aggregation(EXPERTS)
    for middles in jobs:
        if all(middle is None for middle in middles):
            continue
        quantiles = _quantiles([math.nan if middle is None else middle for middle in middles])
        combined = aggregation.combine(1, quantiles[None])[0]
        assert (np.diff(combined) >= 0.0).all()
        assert (combined >= np.nanmin(quantiles, axis=0) - 1e-9).all()
        assert (combined <= np.nanmax(quantiles, axis=0) + 1e-9).all()
        _learn(aggregation, quantiles, 1.0, bucket=1)
        assert aggregation.weights(1).sum(axis=0) == pytest.approx(1.0)


def test_an_expert_that_sleeps_neither_gains_nor_loses() -> None:
    aggregation = Aggregation(EXPERTS)
    for _ in range(20):
        _learn(aggregation, _quantiles([0.0, math.nan, 0.1]), 0.0)
    one = aggregation.dump()
    assert np.array(one["regrets"])[:, :, 1].tolist() == np.zeros((4, 2, 9)).tolist()
    assert np.abs(np.array(one["regrets"])[0, :, 0]).max() > 0.0


def test_known_programs_learn_from_each_other_fully_and_from_new_ones_in_part() -> None:
    aggregation = Aggregation(EXPERTS)
    before = aggregation.weights(3)[1, 4]
    for _ in range(30):
        _learn(aggregation, _quantiles([0.0, 2.0, -2.0]), 2.0, bucket=1)
    own, other, cold = (float(aggregation.weights(bucket)[1, 4]) for bucket in (1, 3, 0))
    assert own == pytest.approx(other)
    assert before < cold < own


def test_a_hundred_alike_jobs_weigh_less_than_a_hundred_others() -> None:
    bursts = Bursts()
    shares = [bursts.ended("ada", float(second), 10.0).share for second in range(4)]
    assert shares == pytest.approx([1.0, 2**-0.5, 3**-0.5, 0.5])
    assert bursts.ended("bob", 5.0, 10.0).share == 1.0
    assert bursts.ended("ada", BURST_S, 2.0 * BURST_S).share == 1.0, "an hour later it is another burst"


def test_the_delay_of_a_label_is_the_number_of_jobs_that_ended_since_its_submission() -> None:
    bursts = Bursts()
    jobs = ((0.0, 10.0), (5.0, 11.0), (10.0, 12.0), (1.0, 13.0))
    assert [bursts.ended("ada", *times_s).delay for times_s in jobs] == [0, 1, 1, 3]
    for _ in range(2 * DELAY_MAX):
        assert bursts.ended("ada", 0.0, 14.0).delay <= DELAY_MAX
    assert bursts.ended("ada", 0.0, 14.0).delay == DELAY_MAX
    assert bursts.ended("ada", 14.0, 15.0).delay == 0


def test_the_mean_delay_follows_the_newest_labels() -> None:
    aggregation = Aggregation(EXPERTS)
    assert aggregation.delay == DELAY_SLOW
    means = []
    for delay in (8, 2, 2, *[50] * 1_000):
        aggregation.delayed(delay)
        _learn(aggregation, _quantiles([0.0, 1.0, 2.0]), 0.7)
        means.append(aggregation.delay)
    assert means[:3] == pytest.approx([8.0, 5.0, 4.0])
    assert means[-1] == pytest.approx(50.0, abs=0.01)
    assert Aggregation(EXPERTS, aggregation).delay == aggregation.delay


def test_the_weights_that_are_stored_are_equal_in_all_later_answers() -> None:
    aggregation, rng = Aggregation(EXPERTS), np.random.default_rng(1)
    for _ in range(40):
        aggregation.delayed(int(rng.integers(20)))
        _learn(aggregation, _quantiles(rng.normal(size=3).tolist()), float(rng.normal()), bucket=int(rng.integers(4)))
    again = Aggregation.load(json.loads(json.dumps(aggregation.dump())))
    for each in (aggregation, again):
        _learn(each, _quantiles([0.0, 1.0, 2.0]), 0.7)
    assert again.dump() == aggregation.dump()
    assert (again.weights(2) == aggregation.weights(2)).all()


def test_levels_between_the_learnt_ones_get_weights_between_theirs() -> None:
    weights = np.array([[*np.linspace(0.0, 1.0, len(LEARNT))]])
    spread = (weights @ FROM_LEARNT)[0]
    assert spread[MIDDLE] == pytest.approx(0.5)
    assert (np.diff(spread) >= 0.0).all()
    assert spread[[0, -1]].tolist() == [0.0, 1.0]
    assert at_levels(NORMAL_QUANTILES, LEARNT) == pytest.approx(_probit(LEARNT))
    assert interpolation(LEVELS, LEVELS) == pytest.approx(np.eye(len(LEVELS)))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.3, 2.5))
def test_the_calibrated_interval_holds_whatever_the_spread(seed: int, spread: float) -> None:
    rng = np.random.default_rng(seed)
    calibration, quantiles = SpreadCalibration(), spread * NORMAL_QUANTILES
    combined = at_levels(quantiles, LEARNT)
    inside = [calibration.observe(2, float(label), combined) for label in rng.normal(size=12_000)]
    assert 0.73 <= np.mean(inside[-1_500:]) <= 0.87
    calibrated = calibration.calibrate(2, quantiles)
    assert calibrated[MIDDLE] == quantiles[MIDDLE]
    assert (np.diff(calibrated) >= 0.0).all()
    assert (calibration.calibrate(0, quantiles) == quantiles).all(), "each history bucket has factors of its own"


def test_one_miss_widens_a_half_as_nine_hits_narrow_it() -> None:
    calibration, combined = SpreadCalibration(), at_levels(NORMAL_QUANTILES, LEARNT)
    assert not calibration.observe(0, 5.0, combined)
    assert np.log(calibration.factors(0)) == pytest.approx([-0.1 * STEP, 0.9 * STEP])
    for _ in range(9):
        assert calibration.observe(0, 0.0, combined)
    assert np.log(calibration.factors(0)) == pytest.approx([-1.0 * STEP, 0.0], abs=1e-12)
    for _ in range(10_000):
        calibration.observe(0, 1e9, combined)
    assert np.log(calibration.factors(0)).tolist() == [-LIMIT, LIMIT]
    assert SpreadCalibration.load(calibration.dump()).factors(0).tolist() == calibration.factors(0).tolist()
