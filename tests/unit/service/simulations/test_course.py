"""When all runs will have ended, and which one begins next: arithmetic with a clock of its own."""

import pytest

from service.simulations.course import Course, Kind, rough_cost


class Clock:
    """Time that is set."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


A, B = Kind("a", 1.0), Kind("b", 4.0)


def test_nothing_is_said_before_anything_is_known() -> None:
    clock = Clock()
    course = Course([A, B], 2, clock)
    course.began(0)
    clock.now_s += 50.0
    course.moved(0, 0.04)
    assert (course.remaining_s(), course.elapsed_s) == (None, 50.0)


def test_runs_of_one_kind_one_after_the_other() -> None:
    clock = Clock()
    course = Course([A] * 4, 1, clock)
    course.began(0)
    clock.now_s += 10.0
    course.ended(0)
    assert course.remaining_s() == pytest.approx(30.0)
    course.began(1)
    clock.now_s += 5.0
    course.moved(1, 0.5)
    assert course.remaining_s() == pytest.approx(25.0)
    clock.now_s += 3.0
    course.failed(1)
    # How long the failed one took says nothing.
    assert course.remaining_s() == pytest.approx(20.0)
    assert (course.over, course.made) == (2, 1)


def test_kinds_count_by_their_cost_until_one_of_them_has_ended() -> None:
    clock = Clock()
    course = Course([A, B, B], 1, clock)
    course.began(0)
    clock.now_s += 2.0
    course.ended(0)
    assert course.remaining_s() == pytest.approx(8.0 + 8.0)
    course.began(1)
    clock.now_s += 3.0
    course.ended(1)
    assert course.remaining_s() == pytest.approx(3.0), "now its kind has told"


def test_several_workers_end_with_the_last_of_them() -> None:
    clock = Clock()
    course = Course([A] * 5 + [B], 2, clock)
    course.taken_over(0, 10.0)
    # 40 s of the one beside four of 10 s.
    assert course.remaining_s() == pytest.approx(40.0)
    course.began(1)
    course.began(2)
    clock.now_s += 9.0
    course.moved(1, 0.9)
    course.moved(2, 0.9)
    # The long one begins in a second; the other two of 10 s fit beside it.
    assert course.remaining_s() == pytest.approx(41.0)
    assert course.running == {1: 0.9, 2: 0.9}


def test_a_run_under_way_tells_by_its_share() -> None:
    clock = Clock()
    course = Course([A, A], 1, clock)
    course.began(0)
    clock.now_s += 6.0
    course.moved(0, 0.2)
    assert course.remaining_s() == pytest.approx(24.0 + 30.0)


def test_the_longest_run_is_the_next() -> None:
    clock = Clock()
    course = Course([A, A, B, B], 1, clock)
    assert course.longest([0, 1, 2, 3]) == 2, "by the rough cost; the first of equals"
    course.taken_over(2, 1.0)
    course.taken_over(0, 5.0)
    assert course.longest([1, 3]) == 1, "what was seen counts more"


def test_nothing_is_left_of_runs_that_are_all_over() -> None:
    clock = Clock()
    course = Course([A], 1, clock)
    course.taken_over(0, 10.0)
    assert course.remaining_s() == 0.0


def test_what_preempts_or_trains_takes_longer() -> None:
    never = rough_cost("asrpt", {"preemption": "never"}, "oracle")
    assert rough_cost("sjf", {}, "oracle") == never
    assert never < rough_cost("asrpt", {}, "oracle") < rough_cost("sjf", {}, "trained")
    assert rough_cost("somebody's", {}, "none") == rough_cost("las", {}, "none")
