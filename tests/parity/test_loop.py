"""The live loop and the simulated one, on the same virtual time, write the same story."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from policies.registry import make_policy
from service.background.loop import LoopSettings, SchedulerLoop
from service.db.session import Database
from service.engine.engine import Engine
from service.engine.events import JobEvent, Report
from service.engine.record import JobRecord
from service.executors.polled import PolledExecutor
from service.sim.experiment import Simulator
from tests.parity.test_stores import CLUSTER, _simulator, _Submitting

Line = tuple[float, int, str | None, str, str, str]


@dataclass
class _Story:
    """A sink that writes transitions down, and passes them on to the simulator's own."""

    inner: Any
    lines: list[Line] = field(default_factory=list)

    def transition(self, event: JobEvent, job: JobRecord) -> None:
        source = None if event.source is None else str(event.source)
        self.lines.append((event.at_s, event.job, source, str(event.target), str(event.cause), str(event.reason)))
        self.inner.transition(event, job)

    def cycle(self, batch: Any) -> None:
        self.inner.cycle(batch)


@dataclass
class _Timers:
    """Stands in for APScheduler: keeps the jobs, so that virtual time can run them."""

    dates: dict[str, tuple[float, Callable[[], None]]] = field(default_factory=dict)
    intervals: dict[str, tuple[float, Callable[[], None]]] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=count)

    def add_job(self, call: Callable[[], None], trigger: str, *, id: str = "", **options: Any) -> Any:
        name = id or f"unnamed {next(self.numbers)}"
        if trigger == "date":
            run_date: datetime = options["run_date"]
            self.dates[name] = (run_date.timestamp(), call)
        else:
            self.intervals[name] = (options["seconds"], call)
        return SimpleNamespace(remove=lambda: self.dates.pop(name, None))


class LiveSimulator(Simulator):
    """Drives the service's own loop, polled executor and database from the simulator's heap of events."""

    progress: list[Report]

    def use(self, database: Database, policy: str, period_s: float) -> None:
        self.store = _Submitting(database)  # type: ignore[assignment]
        self.progress = []
        polled = PolledExecutor(self.executor, self.progress.extend)
        ports = replace(self.engine._ports, store=self.store, executor=polled, sink=self.story)
        self.engine: Engine[Any] = Engine(make_policy(policy), CLUSTER, ports, self.engine._costs, self.engine.settings)
        self.timers = _Timers()
        settings = LoopSettings(period_s, 1.0)
        now_s = self.clock.now_s
        self.loop = SchedulerLoop(self.engine, polled, self.clock, self.timers, settings, wall_s=now_s)  # type: ignore[arg-type]
        self.loop.start()
        self.next_tick_s = self.clock.now_s() + period_s
        self.period_s = period_s

    def step(self) -> bool:
        """The next event, armed timer or tick; then whatever the live service would do about it."""
        instants = [at_s for at_s, _ in self.timers.dates.values()]
        if self.clock.next_at_s is not None:
            instants.append(self.clock.next_at_s)
        if not instants and not self.engine.world.jobs:
            return False
        at_s = max(min([*instants, self.next_tick_s]), self.clock.now_s())
        self.clock.advance(at_s)
        _, poll = self.timers.intervals["poll"]
        poll()
        if self.store.pending_requests(1):
            self.loop.nudge()
        for name, (due_s, call) in list(self.timers.dates.items()):
            if due_s <= at_s:
                del self.timers.dates[name]
                call()
        if self.next_tick_s <= at_s:
            self.next_tick_s += self.period_s
            self.loop.tick()
        return True


def _told(simulator: Any) -> list[Line]:
    simulator.story = _Story(simulator.engine._ports.sink)
    return simulator.story.lines


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["asrpt", "fifo", "las", "srsf"])
def test_the_live_loop_tells_the_same_story_as_the_simulator(database: Database, policy: str) -> None:
    simulated = _simulator(Simulator, policy)
    expected = _told(simulated)
    simulated.engine._ports = replace(simulated.engine._ports, sink=simulated.story)
    simulated.run()
    assert len(expected) > 60

    live = _simulator(LiveSimulator, policy)
    lines = _told(live)
    live.use(database, policy, period_s=5000.0)
    live.run()
    # Timers have microseconds, and a rank may be refreshed a millisecond later: the order of the story must agree.
    assert [line[1:] for line in lines] == [line[1:] for line in expected]
    assert [line[0] for line in lines] == pytest.approx([line[0] for line in expected], abs=0.05)
