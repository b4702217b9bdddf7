"""Scores of forecasts by hand, and their coverage where the truth is known to come from the forecast's own distribution."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.model.cluster import Cluster, Server
from policies.model.ids import JobId
from policies.model.job import PreemptionSignal
from policies.registry import make_policy
from service.domain.forecast_scores import Accuracy, Milestone, Score, Scored, accuracy, score
from service.forecast.forecast import ForecastOptions, forecast
from tests.unit.service.forecast.test_forecast import NOW_S, job, running, snapshot


@pytest.mark.parametrize(
    ("actual_s", "told"),
    [
        # Losses of (100, 200, 400): 0.1 and 0.5 and 0.9 of what is above, 0.9 and 0.5 and 0.1 of what is below.
        (200.0, Score(0.0, True, (10.0 + 0.0 + 20.0) / 3)),
        (100.0, Score(100.0, True, (0.0 + 50.0 + 30.0) / 3)),
        (400.0, Score(-200.0, True, (30.0 + 100.0 + 0.0) / 3)),
        (50.0, Score(150.0, False, (45.0 + 75.0 + 35.0) / 3)),
        (500.0, Score(-300.0, False, (40.0 + 150.0 + 90.0) / 3)),
    ],
)
def test_a_score_computed_by_hand(actual_s: float, told: Score) -> None:
    found = score((100.0, 200.0, 400.0), actual_s)
    assert (found.error_s, found.inside) == (told.error_s, told.inside)
    assert found.pinball_s == pytest.approx(told.pinball_s)


@given(st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3), st.floats(-1e6, 1e6))
@settings(max_examples=100, deadline=None)
def test_the_loss_is_nonnegative_and_zero_only_for_exact_quantiles(points: list[float], actual_s: float) -> None:
    low, middle, high = sorted(points)
    found = score((low, middle, high), actual_s)
    assert found.pinball_s >= 0.0
    assert score((actual_s,) * 3, actual_s) == Score(0.0, True, 0.0)


def test_true_quantiles_have_the_least_mean_loss() -> None:
    truth = np.random.default_rng(3).lognormal(5.0, 1.0, 4000)
    right = tuple(np.quantile(truth, (0.1, 0.5, 0.9)).tolist())

    def loss(quantiles: tuple[float, ...]) -> float:
        return float(np.mean([score(quantiles, actual).pinball_s for actual in truth.tolist()]))

    low, middle, high = right
    for worse in ((low * 0.5, middle, high * 1.5), (middle, middle, middle), (low * 1.3, middle * 1.3, high * 1.3)):
        assert loss(right) < loss(worse)


def _scored(error_s: float, horizon_s: float, gpus: int, *, number: int = 1, inside: bool = True) -> Scored:
    return Scored(Milestone.FINISH, number, horizon_s, gpus, Score(error_s, inside, abs(error_s) / 2), 10.0 * gpus)


def test_accuracy_by_horizon_and_gang_computed_by_hand() -> None:
    found = accuracy(
        [
            _scored(-30.0, 59.0, 1),
            _scored(10.0, 60.0, 1, inside=False),
            _scored(20.0, 599.0, 4, number=2),
            _scored(-400.0, 100_000.0, 8, number=3),
            replace(_scored(5.0, 0.0, 2), milestone=Milestone.START),
        ]
    )
    finish = found[Milestone.FINISH]
    assert finish.all is not None
    assert (finish.all.forecasts, finish.all.jobs, finish.all.coverage_80) == (4, 3, 0.75)
    assert finish.all.median_error_s == -10.0
    assert finish.all.median_absolute_error_s == 25.0
    assert finish.all.mean_pinball_s == (15.0 + 5.0 + 10.0 + 200.0) / 4
    assert finish.all.mean_width_s == (10.0 + 10.0 + 40.0 + 80.0) / 4
    assert [(each.low, each.high, each.forecasts) for each in finish.by_horizon] == [
        (None, 60.0, 1),
        (60.0, 600.0, 2),
        (86_400.0, None, 1),
    ]
    assert [(each.low, each.high, each.forecasts) for each in finish.by_gpus] == [
        (1.0, 2.0, 2),
        (3.0, 5.0, 1),
        (5.0, 9.0, 1),
    ]
    assert finish.by_horizon[1].median_relative_error == pytest.approx((10 / 60 + 20 / 599) / 2)
    start = found[Milestone.START]
    assert start.all is not None
    assert start.all.median_relative_error is None
    assert accuracy([]) == {milestone: Accuracy(None, [], []) for milestone in Milestone}


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=30))
@settings(max_examples=60, deadline=None)
def test_every_forecast_is_in_one_class_of_each_kind(sizes: list[int]) -> None:
    found = accuracy([_scored(1.0, float(size * 37), size) for size in sizes])[Milestone.FINISH]
    for classes in (found.by_horizon, found.by_gpus):
        assert sum(each.forecasts for each in classes) == len(sizes)


@pytest.mark.parametrize(("policy", "gpus"), [("fifo", 1), pytest.param("asrpt", 4, marks=pytest.mark.slow)])
def test_intervals_of_the_true_distribution_cover_80_percent(policy: str, gpus: int) -> None:
    """Thirty queues of eight jobs: forecast each, then let the truth be one more draw of every job's own distribution.

    Jobs of a queue share their fate, so the share inside varies more than 240 coins would: 0.7 to 0.9 is four standard
    errors of thirty independent queues.
    """
    inside: dict[Milestone, list[bool]] = {milestone: [] for milestone in Milestone}
    chosen = make_policy(policy)
    for queue in range(30):
        draw = np.random.default_rng((queue, 17))

        def points(draw: np.random.Generator = draw) -> tuple[float, ...]:
            return tuple(sorted(draw.lognormal(6.0, 0.6, 40).tolist()))

        jobs: list[Any] = [running(job(1, points(), gpus=gpus, preemption=PreemptionSignal()), 30.0)]
        jobs += [job(number, points(), preemption=PreemptionSignal()) for number in range(2, 9)]
        cluster = Cluster("c", (Server("a", gpus),))
        world = snapshot(*jobs, cluster=cluster)
        told = forecast(world, chosen, options=ForecastOptions(20, seed=queue, shared_error=0.0))
        (truth,) = [forecast(world, chosen, options=ForecastOptions(1, seed=1000 + queue, shared_error=0.0))]
        for number, each in told.jobs.items():
            then = truth.jobs[JobId(number)]
            for milestone, spread, came in (
                (Milestone.START, each.start, then.start),
                (Milestone.FINISH, each.finish, then.finish),
            ):
                if spread is not None and came is not None and spread.p90_s > NOW_S:
                    found = score((spread.p10_s, spread.p50_s, spread.p90_s), came.p50_s)
                    inside[milestone].append(found.inside)
    for milestone, each in inside.items():
        assert 0.7 <= sum(each) / len(each) <= 0.9, (milestone, sum(each) / len(each), len(each))
    assert len(list(itertools.chain(*inside.values()))) > 300
