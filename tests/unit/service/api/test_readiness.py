"""The readiness probe: it waits neither for a slow reading nor for ever, and shows no old one."""

import asyncio
import threading

import pytest
from sqlalchemy.exc import OperationalError

from service.api.problems import Problem
from service.api.readiness import KEPT_S, Readiness
from service.wire.cluster import ReadinessDocument


class Source:
    """Readings that can be held up, or fail."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.cycle = 1
        self.fails = False
        self.begun = 0
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.readiness = Readiness(self.read, wait_s=60.0, monotonic_s=lambda: self.now_s)

    def read(self) -> ReadinessDocument:
        self.begun += 1
        assert self.goes_on.wait(60.0)
        if self.fails:
            raise OperationalError("SELECT", None, Exception("gone"))
        return ReadinessDocument(
            ready=True,
            role="leader",
            migrated=True,
            loop_healthy=True,
            cycle=self.cycle,
            cycle_at=None,
            containment=None,
        )

    def held_up(self) -> None:
        """From now on readings take longer than a probe waits."""
        self.goes_on.clear()
        self.readiness._wait_s = 0.01

    def cycle_seen(self) -> int:
        return asyncio.run(self.readiness.now())["cycle"]


@pytest.fixture
def source() -> Source:
    return Source()


def test_each_probe_makes_a_new_reading(source: Source) -> None:
    assert source.cycle_seen() == 1
    source.cycle = 2
    assert source.cycle_seen() == 2


def test_a_probe_gets_the_newest_reading_while_another_one_takes_long(source: Source) -> None:
    source.readiness.refresh()
    source.held_up()
    source.cycle, source.now_s = 2, KEPT_S
    assert [source.cycle_seen() for _ in range(3)] == [1, 1, 1]
    source.now_s += 1.0
    with pytest.raises(Problem) as refused:
        source.cycle_seen()
    assert refused.value.status_code == 503
    source.goes_on.set()


def test_readings_that_take_long_do_not_pile_up(source: Source) -> None:
    source.readiness.refresh()
    source.held_up()
    for _ in range(20):
        source.cycle_seen()
    assert source.begun == 2
    source.goes_on.set()


def test_a_failed_reading_is_raised_and_ends_the_older_one(source: Source) -> None:
    source.readiness.refresh()
    source.fails = True
    with pytest.raises(OperationalError):
        source.cycle_seen()
    source.fails = False
    source.held_up()
    with pytest.raises(Problem):
        source.cycle_seen()
    source.goes_on.set()
