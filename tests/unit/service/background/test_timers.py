"""Periods stay periods when the machine's clock is set, and one-shot timers are not lost with it."""

import logging
import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from apscheduler.executors.debug import DebugExecutor
from apscheduler.schedulers.base import STATE_STOPPED, BaseScheduler
from sqlalchemy.exc import OperationalError

from service.background.timers import SteadyScheduler, patient

HOUR_S = 3600.0
EPOCH_S = 1_800_000_000.0


class Machine:
    """A wall clock that can be set. What APScheduler reads is replaced, for nobody may set the real one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall_s = EPOCH_S
        self.boot_s = 500.0
        machine = self

        class Shown(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
                return datetime.fromtimestamp(machine.wall_s, tz)

        for module in ("schedulers.base", "triggers.interval", "executors.base"):
            monkeypatch.setattr(f"apscheduler.{module}.datetime", Shown)

    def wait(self, seconds: float) -> None:
        self.wall_s += seconds
        self.boot_s += seconds


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


@pytest.fixture
def scheduler(machine: Machine) -> Iterator[SteadyScheduler]:
    """One without a thread of its own: the test makes its rounds."""
    made = SteadyScheduler(wall_s=lambda: machine.wall_s, steady_s=lambda: machine.boot_s)
    made._event = threading.Event()
    made.add_executor(DebugExecutor())
    BaseScheduler.start(made)
    yield made
    BaseScheduler.shutdown(made)


def _runs(machine: Machine, scheduler: SteadyScheduler, counted: list[float], seconds: int) -> int:
    """How often the counted job ran in so many seconds of real time."""
    before = len(counted)
    for _ in range(seconds):
        machine.wait(1.0)
        scheduler._process_jobs()
    return len(counted) - before


@pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S, 1e9])
def test_a_clock_jump_does_not_change_a_period(machine: Machine, scheduler: SteadyScheduler, jump_s: float) -> None:
    ran: list[float] = []
    scheduler.add_job(
        lambda: ran.append(machine.boot_s), "interval", seconds=5.0, coalesce=True, misfire_grace_time=None
    )
    assert _runs(machine, scheduler, ran, 20) == 4
    machine.wall_s += jump_s
    assert 4 <= _runs(machine, scheduler, ran, 20) <= 5


def test_a_timer_is_not_late_after_the_clock_was_set_back(machine: Machine, scheduler: SteadyScheduler) -> None:
    ran: list[float] = []
    due = datetime.fromtimestamp(machine.wall_s, UTC) + timedelta(seconds=10)
    scheduler.add_job(lambda: ran.append(machine.boot_s), "date", run_date=due, misfire_grace_time=None)
    machine.wall_s -= HOUR_S
    assert _runs(machine, scheduler, ran, 12) == 1


def test_a_suspended_thread_between_two_clock_reads_shifts_no_timer(machine: Machine) -> None:
    """For an hour, once, after the first of them was read."""
    stalls = [0.0, 0.0, HOUR_S, 0.0]

    def steady_s() -> float:
        now_s = machine.boot_s
        machine.wait(stalls.pop(0) if stalls else 0.0)
        return now_s

    scheduler = SteadyScheduler(wall_s=lambda: machine.wall_s, steady_s=steady_s)
    scheduler._event = threading.Event()
    scheduler.add_executor(DebugExecutor())
    BaseScheduler.start(scheduler)
    job = scheduler.add_job(lambda: None, "interval", seconds=5.0)
    due = job.next_run_time
    scheduler._follow_jump()
    assert (stalls, job.next_run_time) == ([], due)
    BaseScheduler.shutdown(scheduler)


def test_small_clock_corrections_shift_no_timer(machine: Machine, scheduler: SteadyScheduler) -> None:
    ran: list[float] = []
    scheduler.add_job(lambda: ran.append(machine.boot_s), "interval", seconds=10.0, misfire_grace_time=None)
    for _ in range(30):
        machine.wall_s += 0.01
        _runs(machine, scheduler, ran, 1)
    assert len(ran) == 3


def test_a_round_in_progress_at_shutdown_raises_nothing() -> None:
    """A thread that dies of an exception fails the test that leaves it behind."""
    scheduler = SteadyScheduler()
    ended = threading.Thread(target=scheduler.shutdown)

    class Ender(DebugExecutor):  # type: ignore[misc]
        def submit_job(self, job: Any, run_times: Any) -> None:
            ended.start()
            while scheduler.state != STATE_STOPPED:
                os.sched_yield()

    scheduler.add_executor(Ender())
    scheduler.add_job(lambda: None, "date", misfire_grace_time=None)
    scheduler.start()
    while ended.ident is None:
        os.sched_yield()
    ended.join(60.0)
    assert not ended.is_alive()


def test_work_that_waits_for_the_database_is_logged_once_until_it_works_again(caplog: pytest.LogCaptureFixture) -> None:
    away = True

    def look() -> None:
        if away:
            raise OperationalError("SELECT", None, OSError("away"))

    tried = patient(look)
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            tried()
        away = False
        tried()
        tried()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert not any(record.exc_info for record in caplog.records)
