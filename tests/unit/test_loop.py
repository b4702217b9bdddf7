"""Waiting for the loop's passes."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from service.engine.engine import CycleOutcome
from service.tasks.loop import LoopSettings, SchedulerLoop
from service.tasks.timers import SteadyScheduler


class _Passes:
    """An engine whose passes do nothing, or fail."""

    def __init__(self, broken: bool) -> None:
        self.broken = broken
        self.recovered = 0

    def cycle(self) -> Any:
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
def test_whoever_waits_for_a_pass_is_woken_by_it(broken: bool) -> None:
    loop = _loop(_Passes(broken))
    seen = loop.wait_pass(-1, 0.0)
    assert seen == 0
    assert loop.wait_pass(seen, 0.0) == 0, "nothing passed, so time ran out"
    found: list[int] = []
    waiting = threading.Thread(target=lambda: found.append(loop.wait_pass(seen, 600.0)), daemon=True)
    waiting.start()
    loop.tick()
    waiting.join(60.0)
    assert found == [1], "a pass that fails is over too"
    assert loop.wait_pass(seen, 600.0) == 1, "a pass that is over is not waited for"


class _Backlog:
    """An engine with more to do after every pass, which the test holds up."""

    def __init__(self) -> None:
        self.within, self.go_on = threading.Event(), threading.Event()
        self.passes = 0

    def cycle(self) -> Any:
        self.passes += 1
        self.within.set()
        self.go_on.wait(60.0)
        return CycleOutcome(self.passes, committed=True, wake_at_s=0.0)

    def reconcile(self) -> None: ...


def test_a_service_with_a_backlog_ends() -> None:
    """APScheduler's shutdown holds its locks while it waits for what runs, and a pass needs them to set the next timer."""
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
    passes = engine.passes
    loop.tick()
    assert engine.passes == passes, "no more"
