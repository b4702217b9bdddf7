"""The queue's capacity: counted seldom, never exceeded by what comes in here, and never refused by an old count."""

from typing import Any

import pytest

from service.api import capacity as module
from service.api.capacity import RECOUNT_S, QueueCapacity
from service.api.problems import Problem

CONNECTION: Any = None


class Counted:
    """What the database would count, and how often it was asked; and the clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.unfinished = 0
        self.asked = 0
        self.now_s = 100.0
        monkeypatch.setattr(module.reads, "unfinished_jobs", self._count)
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now_s)

    def _count(self, connection: object) -> int:
        self.asked += 1
        return self.unfinished


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


def test_many_submissions_are_one_count(counted: Counted) -> None:
    capacity = QueueCapacity()
    for _ in range(50):
        capacity.take(CONNECTION, 1, 100)
    assert counted.asked == 1
    counted.now_s += RECOUNT_S
    capacity.take(CONNECTION, 1, 100)
    assert counted.asked == 2


def test_the_limit_is_exact_for_what_comes_in_here(counted: Counted) -> None:
    capacity = QueueCapacity()
    for _ in range(3):
        capacity.take(CONNECTION, 1, 3)
        counted.unfinished += 1
    with pytest.raises(Problem, match="At most 3 unfinished jobs") as caught:
        capacity.take(CONNECTION, 1, 3)
    assert caught.value.headers == {"Retry-After": "60"}
    with pytest.raises(Problem):
        capacity.check(CONNECTION, 1, 3)


def test_nobody_is_refused_by_an_old_count(counted: Counted) -> None:
    counted.unfinished = 3
    capacity = QueueCapacity()
    with pytest.raises(Problem):
        capacity.take(CONNECTION, 1, 3)
    counted.unfinished = 2
    capacity.take(CONNECTION, 1, 3)


def test_looking_takes_no_room(counted: Counted) -> None:
    capacity = QueueCapacity()
    for _ in range(10):
        capacity.check(CONNECTION, 3, 3)
    capacity.take(CONNECTION, 3, 3)
    assert counted.asked == 1
