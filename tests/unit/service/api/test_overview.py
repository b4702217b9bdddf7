"""Readings of the overview are shared: how long one is given, and what happens while another is made."""

import threading
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from service.api.deps import LoopStatus
from service.api.overview import KEPT_RATIO, KEPT_S, Overviews, Reading, _names
from tests.local_executor import wait_for


class Source:
    """Readings that take time, can be held up, or fail."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.takes_s = 0.001
        self.waits_s = 0.0
        self.cpu_s = 0.0
        self.cycle = 7
        self.fails = False
        self.begun = 0
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.overviews = Overviews(self.read, lambda: self.now_s, lambda: self.cpu_s)

    def read(self) -> Reading:
        self.begun += 1
        assert self.goes_on.wait(60.0)
        self.now_s += self.takes_s + self.waits_s
        self.cpu_s += self.takes_s
        if self.fails:
            raise OperationalError("SELECT", None, Exception("gone"))
        rest: dict[str, Any] = dict.fromkeys(Reading._fields)
        return Reading(**rest | {"at_s": self.now_s, "loop": LoopStatus(self.cycle, self.now_s, True)})

    def at_s(self) -> float:
        return self.overviews.now(self.cycle).at_s


def test_a_reading_is_given_for_a_second() -> None:
    source = Source()
    first = source.at_s()
    source.now_s = first + KEPT_S - 0.01
    assert source.at_s() == first
    source.now_s = first + KEPT_S + 0.01
    assert source.at_s() > first
    assert source.begun == 2


def test_a_cycle_makes_a_new_reading_but_not_more_often_than_readings_may_cost() -> None:
    source = Source()
    first = source.at_s()
    source.cycle += 1
    source.now_s = first + (KEPT_RATIO - 1.0) * source.takes_s
    assert source.at_s() == first
    source.now_s = first + (KEPT_RATIO + 1.0) * source.takes_s
    assert source.at_s() > first


def test_a_reading_that_waited_for_a_long_cycle_is_given_no_longer() -> None:
    """It took 3 s, of which it computed for a millisecond: the next cycle makes a new one, not that of a minute later."""
    source = Source()
    source.waits_s = 3.0
    first = source.at_s()
    source.cycle += 1
    source.now_s = first + (KEPT_RATIO + 1.0) * source.takes_s
    assert source.at_s() > first


def test_while_one_thread_reads_the_others_get_the_last_reading() -> None:
    source = Source()
    first = source.at_s()
    source.now_s += KEPT_S + 1.0
    source.goes_on.clear()
    thread = threading.Thread(target=source.at_s)
    thread.start()
    wait_for(lambda: source.begun == 2, "the second reading has begun")
    assert source.at_s() == first
    source.goes_on.set()
    thread.join()
    assert source.at_s() > first
    assert source.begun == 2


def test_the_first_reading_is_waited_for_and_made_once() -> None:
    source = Source()
    source.goes_on.clear()
    found: list[float] = []
    threads = [threading.Thread(target=lambda: found.append(source.at_s())) for _ in range(4)]
    for thread in threads:
        thread.start()
    wait_for(lambda: source.begun == 1, "the first reading has begun")
    source.goes_on.set()
    for thread in threads:
        thread.join()
    assert (len(found), len(set(found)), source.begun) == (4, 1, 1)


def test_after_a_failure_no_old_reading_is_given() -> None:
    """Not even while another thread reads."""
    source = Source()
    first = source.at_s()
    source.now_s += KEPT_S + 1.0
    source.fails = True
    for _ in range(2):
        with pytest.raises(OperationalError):
            source.at_s()
    source.fails = False
    source.goes_on.clear()
    found: list[float] = []
    threads = [threading.Thread(target=lambda: found.append(source.at_s())) for _ in range(2)]
    threads[0].start()
    wait_for(lambda: source.begun == 4, "the reading has begun")
    threads[1].start()
    source.goes_on.set()
    for thread in threads:
        thread.join()
    assert found == [source.now_s] * 2
    assert source.now_s > first


def test_long_lists_of_names_are_cut() -> None:
    assert _names(list("abcde")) == "a, b, c, d, e"
    assert _names(list("abcdefg")) == "a, b, c, d, e and 2 more"
