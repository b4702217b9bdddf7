"""Ranks by hand, by brute force over stopping points, and their laws."""

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.rank import GRACE_RATIO, OverRun, distribution_units, gittins_units, remaining_units

POINTS = st.lists(st.integers(1, 60), min_size=1, max_size=8).map(sorted)


def brute_force(points: list[int], done: Fraction) -> Fraction:
    """Least (work spent until stopping) / (jobs finished by then), over every place to stop at, in halves."""
    alive = [point for point in points if point > done]
    best = None
    for half in range(1, 2 * max(points) + 2):
        stop = Fraction(half, 2)
        finished = sum(1 for point in alive if point <= stop)
        if stop > done and finished:
            spent = sum((min(Fraction(point), stop) - done for point in alive), Fraction(0))
            best = spent / finished if best is None else min(best, spent / finished)
    assert best is not None
    return best


@settings(max_examples=300, deadline=None)
@given(POINTS, st.integers(0, 119))
def test_it_is_the_least_cost_per_finished_job_over_all_stopping_points(points: list[int], halves: int) -> None:
    done = Fraction(min(halves, 2 * points[-1] - 1), 2)
    assert gittins_units(tuple(float(p) for p in points), float(done)) == pytest.approx(
        float(brute_force(points, done))
    )


def test_by_hand() -> None:
    # Stop at 1: (1 + 3) / 3 = 4/3 a job; stop at 10: (3 + 10) / 4. Past 1, one job of 10 is left: 9.
    assert gittins_units((1.0, 1.0, 1.0, 10.0), 0.0) == pytest.approx(4 / 3)
    assert gittins_units((1.0, 1.0, 1.0, 10.0), 1.0) == 9.0
    # Stopping at 2 costs the first of ten that take as long (2 + 30 / 10) / 1 = 5 a job. Alone it waits for the end: 452 / 16.
    skewed = (2.0, *[30.0] * 15)
    assert gittins_units(skewed, 0.0) == pytest.approx((2 + 15 * 30) / 16)
    assert gittins_units(skewed, 0.0, 10) == pytest.approx(2 + 15 * 2 / 10)
    # (2 + 2) / 1 = 4 beats nothing here: (2 + 3) / 2 = 2.5.
    assert gittins_units((2.0, 3.0), 0.0) == 2.5


@given(st.floats(1.0, 1e6), st.floats(0.0, 0.999))
@settings(max_examples=100, deadline=None)
def test_one_point_is_what_is_left(point: float, share: float) -> None:
    assert gittins_units((point,), point * share) == pytest.approx(point * (1 - share))


@pytest.mark.parametrize(
    ("done", "double", "attained"),
    [
        # estimate 100: what is left before it, and under each rule past it
        (0.0, 100.0, 100.0),
        (60.0, 40.0, 40.0),
        (100.0, 0.0, 0.0),
        (101.0, 99.0, 101.0),
        (150.0, 50.0, 150.0),
        (199.5, 1.0, 199.5),
        (200.0, 200.0, 200.0),
        (399.0, 1.0, 399.0),
        (400.0, 400.0, 400.0),
        (1000.0, 600.0, 1000.0),
    ],
)
def test_over_run_by_hand(done: float, double: float, attained: float) -> None:
    assert remaining_units([100.0], done, OverRun.DOUBLE)[0] == double
    assert remaining_units([100.0], done, OverRun.ATTAINED)[0] == attained


@settings(max_examples=300, deadline=None)
@given(st.floats(1e-3, 1e9), st.floats(0.0, 1e12), st.sampled_from(OverRun))
def test_remaining_is_never_negative_and_past_the_estimate_never_nothing(
    point: float, done: float, rule: OverRun
) -> None:
    units, refresh = remaining_units([point], done, rule)
    assert units >= 0.0
    if done > point * 1.001:
        assert units >= min(1.0, done)
    if refresh is not None:
        assert refresh > done
        assert math.log2(refresh / point) == pytest.approx(round(math.log2(refresh / point)), abs=1e-6)


@settings(max_examples=300, deadline=None)
@given(POINTS, st.floats(0.0, 200.0))
def test_a_distributions_rank_is_finite_positive_and_refreshed_later(points: list[int], done: float) -> None:
    floats = tuple(float(p) for p in points)
    units, slope, refresh = distribution_units(floats, done, OverRun.DOUBLE)
    assert math.isfinite(units)
    assert units >= 0.0
    assert refresh is not None
    assert refresh > done, "a refresh that is due at once would be asked for again and again"
    assert slope in (0, -1)


@settings(max_examples=200, deadline=None)
@given(POINTS, st.floats(0.0, 150.0))
def test_between_two_refreshes_the_rank_stands_still(points: list[int], done: float) -> None:
    """A rebuilt index must rank a job as one that was built at the last refresh."""
    floats = tuple(float(p) for p in points)
    units, slope, refresh = distribution_units(floats, done, OverRun.DOUBLE)
    assert refresh is not None
    later = done + (refresh - done) * 0.9
    if slope == 0:
        assert distribution_units(floats, later, OverRun.DOUBLE)[0] == pytest.approx(units)
    else:
        assert distribution_units(floats, later, OverRun.DOUBLE)[0] == pytest.approx(max(1.0, units - (later - done)))


def test_a_job_that_passes_a_point_keeps_its_rank_for_a_quarter_more() -> None:
    points = (100.0, 1000.0)
    before = distribution_units(points, 99.9, OverRun.DOUBLE)[0]
    for done in (100.0, 110.0, 124.9):
        assert distribution_units(points, done, OverRun.DOUBLE) == (before, 0, 100.0 * GRACE_RATIO)
    assert distribution_units(points, 126.0, OverRun.DOUBLE)[0] > 5 * before
