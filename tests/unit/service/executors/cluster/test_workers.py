"""Tasks by key: each on one thread at a time, and none held up by one that hangs."""

import threading
from collections.abc import Iterator

import pytest

from service.executors.cluster import workers as module
from service.executors.cluster.workers import Workers
from tests.local_executor import DEADLINE_S, wait_for


@pytest.fixture
def workers() -> Iterator[Workers]:
    made = Workers("test", 3)
    yield made
    made.close()


def test_tasks_that_hang_hold_up_no_other(workers: Workers) -> None:
    gate, ran = threading.Event(), threading.Event()
    for key in ("a", "b"):
        workers.start(key, lambda: gate.wait(DEADLINE_S) and None)
    workers.start("c", lambda: ran.set())
    assert ran.wait(DEADLINE_S)
    gate.set()


def test_one_key_is_never_on_two_threads_and_a_call_during_its_run_is_not_lost(workers: Workers) -> None:
    running, most, calls = 0, 0, 0
    lock, entered, gate = threading.Lock(), threading.Event(), threading.Event()

    def task() -> None:
        nonlocal running, most, calls
        with lock:
            running += 1
            most, calls = max(most, running), calls + 1
        entered.set()
        gate.wait(DEADLINE_S)
        with lock:
            running -= 1

    workers.start("a", task)
    assert entered.wait(DEADLINE_S)
    for _ in range(5):
        workers.wake("a")
    gate.set()
    wait_for(lambda: calls == 2 and running == 0, "one more call for all five")
    assert most == 1


def test_a_task_is_called_again_after_its_pause_or_when_woken(workers: Workers) -> None:
    short, long = threading.Semaphore(0), threading.Semaphore(0)

    def soon() -> float:
        short.release()
        return 0.01

    def late() -> float:
        long.release()
        return 3600.0

    workers.start("late", late)
    workers.start("soon", soon)
    for _ in range(5):
        assert short.acquire(timeout=DEADLINE_S)
    assert long.acquire(timeout=DEADLINE_S)
    workers.wake("late")
    assert long.acquire(timeout=DEADLINE_S)
    assert not long.acquire(blocking=False)


def test_another_task_takes_the_place_of_one_that_runs(workers: Workers) -> None:
    entered, gate, ran = threading.Event(), threading.Event(), threading.Event()

    def first() -> float:
        entered.set()
        gate.wait(DEADLINE_S)
        return 0.0

    workers.start("a", first)
    assert entered.wait(DEADLINE_S)
    workers.start("a", ran.set)
    assert not ran.is_set()
    gate.set()
    assert ran.wait(DEADLINE_S)


def test_a_forgotten_task_is_not_called_again(workers: Workers) -> None:
    calls, entered, gate, after = [], threading.Event(), threading.Event(), threading.Event()

    def task() -> float:
        calls.append(1)
        entered.set()
        gate.wait(DEADLINE_S)
        return 0.0

    workers.start("a", task)
    assert entered.wait(DEADLINE_S)
    workers.wake("a")
    workers.forget("a")
    gate.set()
    workers.start("b", after.set)
    assert after.wait(DEADLINE_S)
    assert calls == [1]
    workers.wake("a")


def test_a_task_that_fails_is_called_again(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_AFTER_ERROR_S", 0.01)
    calls = threading.Semaphore(0)

    def fails() -> None:
        calls.release()
        raise RuntimeError("as a driver may")

    workers.start("a", fails)
    for _ in range(3):
        assert calls.acquire(timeout=DEADLINE_S)
