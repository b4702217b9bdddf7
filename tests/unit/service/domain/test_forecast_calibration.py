"""Calibrated quantiles by hand, and their coverage where forecasts are too narrow, late, or drift."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.forecast_calibration import SOON_S, Calibration, Outcome
from service.domain.forecast_scores import Milestone

AHEAD = (100.0, 200.0, 400.0)
START, FINISH = Milestone


def test_without_a_past_the_quantiles_stay() -> None:
    assert Calibration().apply(START, AHEAD) == pytest.approx(AHEAD)


def test_a_constant_error_is_taken_away() -> None:
    """All were 3 times as late, counting the minute that is added; their ends were as forecast."""
    late = [Outcome(START, AHEAD, 3.0 * (200.0 + SOON_S) - SOON_S)] * 1000
    found = Calibration(late + [Outcome(FINISH, AHEAD, 200.0)] * 1000)
    assert found.apply(START, AHEAD) == pytest.approx((720.0, 720.0, 720.0), rel=1e-6)
    assert found.apply(FINISH, AHEAD)[1] == pytest.approx(200.0, rel=1e-6)


@pytest.mark.parametrize("other", [(1e5, 2e5, 4e5), (0.0, 200.0, 1e7)], ids=["horizon", "width"])
def test_forecasts_of_another_horizon_or_width_count_little(other: tuple[float, ...]) -> None:
    found = Calibration([Outcome(START, other, 10.0 * other[1])] * 300)
    assert found.apply(START, AHEAD) == pytest.approx(Calibration().apply(START, AHEAD))
    assert found.apply(START, other)[1] > 5.0 * other[1]


def test_narrow_and_wide_forecasts_of_one_horizon_are_moved_apart() -> None:
    """The narrow ones were 3 times as late and the wide ones as forecast."""
    narrow, wide = (190.0, 200.0, 210.0), (5.0, 200.0, 8000.0)
    late = [Outcome(START, narrow, 3.0 * (200.0 + SOON_S) - SOON_S)] * 300
    found = Calibration(late + [Outcome(START, wide, each) for each in wide for _ in range(100)])
    assert found.apply(START, narrow)[1] == pytest.approx(720.0, rel=0.1)
    assert found.apply(START, wide)[1] == pytest.approx(200.0, rel=0.1)


def test_a_few_outcomes_do_not_decide_alone() -> None:
    found = Calibration([Outcome(START, AHEAD, 1e6)] * 2)
    assert found.apply(START, AHEAD)[1] < 2.0 * AHEAD[1]
    assert Calibration([Outcome(START, AHEAD, 1e6)] * 200).apply(START, AHEAD)[1] > 1e5


@pytest.mark.parametrize(("shift", "spread"), [(0.0, 3.0), (1.0, 2.0), (-0.5, 0.3)])
def test_intervals_hold_80_percent_whatever_the_error(shift: float, spread: float) -> None:
    """Each outcome counts once it is known; horizons from a minute to days. The forecast's own interval is one sigma wide."""
    draw = np.random.default_rng(1)
    outcomes: list[Outcome] = []
    inside = []
    for number in range(1500):
        middle = math.exp(draw.uniform(math.log(60.0), math.log(4e5))) + SOON_S
        ahead = tuple(middle * math.exp(sign * 1.28) - SOON_S for sign in (-1.0, 0.0, 1.0))
        actual = max(0.0, middle * math.exp(shift + spread * draw.standard_normal()) - SOON_S)
        if number >= 300 and number % 5 == 0:
            low, _, high = Calibration(outcomes).apply(FINISH, ahead)
            inside.append(low <= actual <= high)
        outcomes.append(Outcome(FINISH, ahead, actual))
    assert 0.75 <= np.mean(inside) <= 0.87


times = st.floats(0.0, 1e9)


@given(st.lists(st.tuples(times, times, times, times), max_size=20), st.tuples(times, times, times))
@settings(max_examples=100, deadline=None)
def test_moved_quantiles_ascend_and_are_not_in_the_past(
    past: list[tuple[float, float, float, float]], ahead: tuple[float, float, float]
) -> None:
    outcomes = [Outcome(FINISH, sorted(row[:3]), row[3]) for row in past]
    found = Calibration(outcomes).apply(FINISH, sorted(ahead))
    assert all(0.0 <= low <= high < math.inf for low, high in itertools.pairwise(found))
    assert Calibration(outcomes[::-1]).apply(FINISH, sorted(ahead)) == pytest.approx(found)
