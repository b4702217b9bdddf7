"""Waiting for the loop's cycles."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from service.background.loop import CycleConditions, LoopSettings, SchedulerLoop
from service.background.timers import SteadyScheduler
from service.engine.engine import CycleOutcome
from service.engine.ports import StoreUnavailable


class _Passes:
    """An engine whose cycles do nothing, or fail."""

    def __init__(self, broken: bool) -> None:
        self.broken = broken
        self.recovered = 0

    def cycle(self, sending: Any) -> Any:
        if self.broken:
            raise RuntimeError("broken")
        return CycleOutcome(1, committed=True, wake_at_s=None)

    def recover(self) -> None:
        self.recovered += 1


def _loop(engine: Any) -> SchedulerLoop:
    clock: Any = SimpleNamespace(now_s=lambda: 0.0)
    unused: Any = None
    return SchedulerLoop(engine, unused, clock, unused, LoopSettings(30.0, 1.0))


@pytest.mark.parametrize("broken", [False, True])
def test_a_waiter_is_woken_by_the_end_of_a_cycle(broken: bool) -> None:
    loop = _loop(_Passes(broken))
    seen = loop.wait_cycle(-1, 0.0)
    assert seen == 0
    assert loop.wait_cycle(seen, 0.0) == 0, "nothing passed, so time ran out"
    found: list[int] = []
    waiting = threading.Thread(target=lambda: found.append(loop.wait_cycle(seen, 600.0)), daemon=True)
    waiting.start()
    loop.tick()
    waiting.join(60.0)
    assert found == [1], "a cycle that fails is over too"
    assert loop.wait_cycle(seen, 600.0) == 1, "a cycle that is over is not waited for"


class _Backlog:
    """An engine with more to do after every cycle, which the test holds up."""

    def __init__(self) -> None:
        self.within, self.go_on = threading.Event(), threading.Event()
        self.cycles = 0

    def cycle(self, sending: Any) -> Any:
        self.cycles += 1
        self.within.set()
        self.go_on.wait(60.0)
        return CycleOutcome(self.cycles, committed=True, wake_at_s=0.0)

    def reconcile(self) -> None: ...

    def store_policy_state(self) -> None: ...


def test_a_loop_with_a_backlog_can_be_closed() -> None:
    """APScheduler's shutdown holds its locks while it waits for what runs, and a cycle needs them to set the next timer."""
    engine = _Backlog()
    any_engine: Any = engine
    clock: Any = SimpleNamespace(now_s=lambda: 0.0)
    executor: Any = SimpleNamespace(collect=lambda: False)
    scheduler = SteadyScheduler()
    loop = SchedulerLoop(any_engine, executor, clock, scheduler, LoopSettings(30.0, 1.0))
    loop.start()
    scheduler.start()

    def end() -> None:
        loop.close()
        scheduler.shutdown(wait=True)

    assert engine.within.wait(60.0)
    ending = threading.Thread(target=end, daemon=True)
    ending.start()
    loop.nudge()
    engine.go_on.set()
    ending.join(60.0)
    assert not ending.is_alive()
    cycles = engine.cycles
    loop.tick()
    assert engine.cycles == cycles, "no more"


@pytest.mark.parametrize("away", [False, True])
def test_a_closed_loop_has_stored_the_state_of_the_policy_once(away: bool, caplog: pytest.LogCaptureFixture) -> None:
    stored: list[bool] = []

    def store() -> None:
        stored.append(not away)
        if away:
            raise StoreUnavailable("the database is away")

    loop = _loop(SimpleNamespace(store_policy_state=store))
    loop.close()
    loop.close()
    assert stored == [not away]
    assert ("the database is away" in caplog.text) is away


class _Held:
    """An engine whose cycles begin when the test lets them, and the first of which ask to be called again at once."""

    def __init__(self, again: int = 0) -> None:
        self.begun, self.let = threading.Semaphore(0), threading.Semaphore(0)
        self.cycles, self.again = 0, again

    def cycle(self, sending: Any) -> Any:
        self.begun.release()
        assert self.let.acquire(timeout=60.0)
        self.cycles += 1
        return CycleOutcome(self.cycles, committed=True, wake_at_s=0.0 if self.cycles <= self.again else None)

    def reconcile(self) -> None: ...

    def recover(self) -> None: ...

    def store_policy_state(self) -> None: ...


class _Prompt(SteadyScheduler):
    """Its round comes at once, before whoever sets a timer has gone on."""

    def add_job(self, func: Any, trigger: Any = None, **options: Any) -> Any:
        job = super().add_job(func, trigger, **options)
        if trigger == "date":
            self._process_jobs()
        return job


@contextmanager
def _running(engine: Any) -> Iterator[SchedulerLoop]:
    """A loop on real timers, of which the periodic ones do not go off again."""
    clock: Any = SimpleNamespace(now_s=lambda: 0.0)
    executor: Any = SimpleNamespace(collect=lambda: False)
    scheduler = _Prompt()
    loop = SchedulerLoop(engine, executor, clock, scheduler, LoopSettings(3600.0, 3600.0))
    loop.start()
    scheduler.start()
    try:
        yield loop
    finally:
        loop.close()
        scheduler.shutdown(wait=True)


def test_a_nudge_during_a_cycle_causes_another_cycle() -> None:
    """APScheduler drops what is due under a name of which a run is under way: the request that came then would wait, and
    after it every other one."""
    engine = _Held()
    with _running(engine) as loop:
        assert engine.begun.acquire(timeout=60.0), "the periodic cycle"
        for _ in range(3):
            loop.nudge()
            engine.let.release()
            assert engine.begun.acquire(timeout=20.0), "the cycle that was asked for in the one before it"
        engine.let.release()
    assert engine.cycles == 4


def test_a_cycle_with_an_immediate_wake_time_is_followed_by_another() -> None:
    engine = _Held(again=20)
    with _running(engine):
        for _ in range(21):
            assert engine.begun.acquire(timeout=20.0)
            engine.let.release()


class _Slow:
    """An engine whose cycles change it, and then send commands until the test lets them go on."""

    def __init__(self) -> None:
        self.number = 0
        self.sends, self.let = threading.Semaphore(0), threading.Semaphore(0)
        self.failing = False
        self.is_kept: Callable[[], bool] = lambda: False
        self.kept: list[bool] = []
        """Whether others were kept out at each recovery."""

    def cycle(self, sending: Any) -> Any:
        self.number += 1
        with sending:
            self.sends.release()
            assert self.let.acquire(timeout=60.0)
            if self.failing:
                raise RuntimeError("the executor is broken")
        return CycleOutcome(self.number, committed=True, wake_at_s=None)

    def recover(self) -> None:
        self.kept.append(self.is_kept())


def test_the_engine_is_read_while_commands_are_sent_and_no_other_cycle_begins() -> None:
    engine = _Slow()
    loop = _loop(engine)
    ticks = [threading.Thread(target=loop.tick, daemon=True) for _ in range(2)]
    for tick in ticks:
        tick.start()
    for number in (1, 2):
        assert engine.sends.acquire(timeout=60.0)
        assert loop.read(lambda found: found.number) == loop.cycle_number == number
        engine.let.release()
    for tick in ticks:
        tick.join(60.0)
    assert (engine.number, loop.failures) == (2, 0)


def test_a_failure_to_send_is_recovered_from_while_nobody_reads() -> None:
    engine = _Slow()
    loop = _loop(engine)
    engine.failing = True
    engine.is_kept = loop._lock.locked
    engine.let.release()
    loop.tick()
    assert (engine.kept, loop.failures, loop._lock.locked()) == ([True], 1, False)


def test_nudges_before_a_cycle_are_combined_even_if_it_may_not_run() -> None:
    trusted = [False]
    clock: Any = SimpleNamespace(now_s=lambda: 0.0)
    due: list[Any] = []
    timers: Any = SimpleNamespace(add_job=lambda work, kind, **_: due.append(work))
    engine: Any = _Passes(broken=False)
    unused: Any = None
    loop = SchedulerLoop(
        engine, unused, clock, timers, LoopSettings(30.0, 1.0), conditions=CycleConditions(lambda: trusted[0])
    )
    for _ in range(50):
        loop.nudge()
    [work] = due
    due.clear()
    work()
    trusted[0] = True
    assert loop.last_cycle_at_s is None
    loop.nudge()
    due.pop()()
    assert loop.last_cycle_at_s is not None


@pytest.mark.parametrize("who", ["the requests", "the other services"])
def test_a_poll_without_a_database_fails_once_and_leaves_retries_to_the_periodic_cycle(who: str) -> None:
    def away() -> bool:
        raise StoreUnavailable("the database cannot be read")

    engine: Any = SimpleNamespace(
        cycle=lambda: CycleOutcome(0, committed=False, wake_at_s=None, failed="away"), reconcile=lambda: None
    )
    clock: Any = SimpleNamespace(now_s=lambda: 0.0)
    executor: Any = SimpleNamespace(collect=(lambda: False) if who == "the requests" else away)
    timers: dict[str, Any] = {}
    scheduler: Any = SimpleNamespace(add_job=lambda work, kind, id, **_: timers.update({id: work}))
    settings, conditions = LoopSettings(30.0, 1.0), CycleConditions(is_waiting=away)
    loop = SchedulerLoop(engine, executor, clock, scheduler, settings, conditions=conditions)
    loop.start()
    for _ in range(3):
        timers["poll"]()
    assert loop.wait_cycle(-1, 0.0) == 1
    timers["reschedule"]()
    assert loop.wait_cycle(-1, 0.0) == 2


@pytest.mark.parametrize(("pass_s", "rest_s"), [(0.1, 0.3), (20.0, 1.0), (0.0, 0.0)])
@pytest.mark.parametrize("who", ["nudge", "engine"])
def test_the_pause_after_a_cycle_is_three_times_as_long_as_the_cycle(who: str, pass_s: float, rest_s: float) -> None:
    """At most until the executor is asked again, which is every second here."""
    now_s = 1000.0
    due_s: list[float] = []

    class Engine:
        def cycle(self, sending: Any) -> Any:
            nonlocal now_s
            now_s += pass_s
            return CycleOutcome(1, committed=True, wake_at_s=now_s if who == "engine" else None)

    engine: Any = Engine()
    clock: Any = SimpleNamespace(now_s=lambda: now_s)
    timers: Any = SimpleNamespace(add_job=lambda *_, run_date, **__: due_s.append(run_date.timestamp()))
    loop = SchedulerLoop(engine, clock, clock, timers, LoopSettings(30.0, 1.0), wall_s=clock.now_s)
    loop.tick()
    if who == "nudge":
        loop.nudge()
    assert due_s == [pytest.approx(now_s + rest_s, abs=1e-4)]
    now_s += 25.0
    if who == "nudge":
        loop.tick()
        now_s += 25.0
        loop.nudge()
        assert due_s[1:] == [pytest.approx(now_s, abs=1e-4)], "the rest is over"


class _Flooded:
    """A loop whose first cycle, of 0.1 s, is asked for another one. Timers are only noted."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.cycles = 0
        self.due: list[tuple[Any, float]] = []
        engine: Any = self
        clock: Any = SimpleNamespace(now_s=lambda: self.now_s)
        timers: Any = SimpleNamespace(add_job=lambda work, *_, run_date, **__: self._note(work, run_date.timestamp()))
        self.loop = SchedulerLoop(engine, clock, clock, timers, LoopSettings(30.0, 1.0), wall_s=clock.now_s)

    def _note(self, work: Any, at_s: float) -> None:
        self.due.append((work, at_s))

    def cycle(self, sending: Any) -> Any:
        if self.cycles == 0:
            self.loop.nudge()
        self.cycles += 1
        self.now_s += 0.1
        return CycleOutcome(1, committed=True, wake_at_s=None)

    def store_policy_state(self) -> None: ...


def test_a_cycle_that_is_requested_during_another_one_waits_for_the_pause_after_it() -> None:
    flooded = _Flooded()
    flooded.loop.tick()
    [(work, at_s)] = flooded.due
    assert at_s == pytest.approx(1000.0, abs=1e-4), "at once: how long the cycle takes is not known yet"
    work()
    (work, at_s) = flooded.due[1]
    assert (flooded.cycles, at_s) == (1, pytest.approx(flooded.now_s + 0.3, abs=1e-4))
    flooded.loop.nudge()
    assert len(flooded.due) == 2, "the same cycle takes in both requests"
    flooded.now_s = at_s
    work()
    assert flooded.cycles == 2
    work()
    assert flooded.cycles == 2, "nothing was requested since"


def test_a_closed_loop_sets_no_timer_for_what_was_requested_during_its_last_cycle() -> None:
    """APScheduler's shutdown would wait for it for ever, with the lock that a timer needs."""
    flooded = _Flooded()
    flooded.loop.tick()
    [(work, _)] = flooded.due
    flooded.loop.close()
    work()
    assert (len(flooded.due), flooded.cycles) == (1, 1)
