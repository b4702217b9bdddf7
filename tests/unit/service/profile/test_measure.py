"""Seconds per iteration from reports that come late, rarely, or with pauses between them."""

import random

import pytest

from service.profile.measure import POINTS_MAX, Point, measured


def reports(
    seconds: float, count: int, every_s: float, *, late_s: float = 0.0, waits: float | None = None, seed: int = 0
) -> list[Point]:
    """What a service that looks every ``every_s`` seconds sees of a program, each report up to ``late_s`` late."""
    rng, found = random.Random(seed), []
    for number in range(1, count + 1):
        at_s = number * every_s
        iteration = float(int(at_s / seconds))
        done_s = iteration * seconds + rng.uniform(0.0, late_s)
        found.append(Point(1e9 + done_s, iteration, None if waits is None else iteration * waits))
    return found


def test_an_exact_curve_gives_its_slope_and_no_spread() -> None:
    found = measured([Point(100.0 + 0.5 * number, float(number), 0.125 * number) for number in range(10)], 0)
    assert found is not None
    assert (found.seconds, found.low_s, found.high_s, found.input_s) == (0.5, 0.5, 0.5, 0.125)
    assert (found.iterations, found.window_s) == (9.0, 4.5)


@pytest.mark.parametrize("seconds", [0.013, 0.2, 1.7])
def test_reports_that_are_up_to_a_quarter_of_a_second_late_are_within_three_percent(seconds: float) -> None:
    for seed in range(20):
        found = measured(reports(seconds, 6, 5.0, late_s=0.25, waits=seconds / 4, seed=seed), 0)
        assert found is not None
        assert found.seconds == pytest.approx(seconds, rel=0.03)
        assert found.input_s == pytest.approx(seconds / 4)


def test_warm_up_is_left_out_and_a_pause_at_an_end_is_none() -> None:
    slow = [Point(float(20 * number), float(number)) for number in range(5)]
    quick = [Point(80.0 + number, 4.0 + number) for number in range(1, 20)]
    found = measured([*slow, *quick], 5)
    assert found is not None and (found.seconds, found.iterations) == (1.0, 18.0)
    assert measured(slow, 5) is None
    pausing = measured([*quick, Point(500.0, 24.0)], 0)
    assert pausing is not None and pausing.seconds == pytest.approx(1.0, rel=0.01)


def test_two_reports_are_needed_and_many_are_thinned() -> None:
    assert measured([], 0) is None
    assert measured([Point(1.0, 3.0), Point(9.0, 3.0)], 0) is None, "no iteration was done between them"
    two = measured([Point(1.0, 3.0), Point(2.0, 7.0)], 0)
    assert two is not None and (two.seconds, two.low_s, two.high_s) == (0.25, 0.25, 0.25)
    many = measured([Point(2.0 * number, float(number)) for number in range(20 * POINTS_MAX)], 10)
    assert many is not None and (many.seconds, many.iterations) == (2.0, 20.0 * POINTS_MAX - 11.0)


def test_input_is_known_only_if_every_report_has_it_and_is_never_more_than_all() -> None:
    some = [Point(float(number), float(number), 0.5 * number if number else None) for number in range(5)]
    found = measured(some, 0)
    assert found is not None and found.input_s is None
    wrong = measured([Point(float(number), float(number), 9.0 * number) for number in range(5)], 0)
    assert wrong is not None and wrong.input_s == wrong.seconds == 1.0
    falling = measured([Point(float(number), float(number), -1.0 * number) for number in range(5)], 0)
    assert falling is not None and falling.input_s == 0.0
