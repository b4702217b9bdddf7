"""Work under a time limit: in time, too late, raising, and refusing to end."""

import threading
import time

import pytest

from service.shadow.shadow import OutOfTime
from service.shadow.time_limit import Limited

LONG_S = 60.0
"""Longer than any of this may take."""


def _ended(name: str) -> bool:
    return not any(thread.name == name and thread.is_alive() for thread in threading.enumerate())


def _until_ended() -> None:
    deadline_s = time.monotonic() + LONG_S
    while not _ended("limited"):
        assert time.monotonic() < deadline_s, "the abandoned thread runs on"
        time.sleep(0.001)


def test_what_ends_in_time_gives_its_result_or_its_exception() -> None:
    run = Limited()
    assert run(lambda: 42, LONG_S) == 42
    assert run(lambda: None, LONG_S) is None
    with pytest.raises(ZeroDivisionError):
        run(lambda: 1 / 0, LONG_S)
    assert run(lambda: 43, LONG_S) == 43


def test_what_would_end_the_process_ends_the_work_alone() -> None:
    def leave() -> None:
        raise SystemExit(3)

    with pytest.raises(RuntimeError, match="SystemExit"):
        Limited()(leave, LONG_S)


def test_an_endless_loop_is_left_behind_and_ended() -> None:
    """Also one that catches every Exception."""

    def spin() -> None:
        while True:
            try:
                sum(range(100))
            except Exception:
                continue

    run = Limited()
    with pytest.raises(OutOfTime, match=r"longer than 0.01 s"):
        run(spin, 0.01)
    _until_ended()
    assert run(lambda: 44, LONG_S) == 44


def test_nothing_else_is_begun_while_it_hangs() -> None:
    """A wait in C is not reached by an interruption."""
    gate, begun = threading.Event(), []
    run = Limited()
    with pytest.raises(OutOfTime):
        run(gate.wait, 0.01)
    with pytest.raises(OutOfTime, match="earlier work"):
        run(lambda: begun.append(1), LONG_S)
    gate.set()
    _until_ended()
    assert begun == []
    assert run(lambda: 45, LONG_S) == 45
