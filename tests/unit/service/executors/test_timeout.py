"""An executor that hangs, fails, or answers late stops nobody, and nothing is lost or invented by it."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from policies.lifecycle import JobState
from policies.model.cluster import Cluster, Server
from policies.model.ids import AttemptId
from service.background import loop as loop_module
from service.background.loop import LoopSettings, SchedulerLoop
from service.engine.commands import Command, Launch, Stop
from service.engine.events import Report, ReportKind
from service.engine.ports import AttemptStatus, Busy, ExecutorUnavailable
from service.executors.timeout import TimeLimitedExecutor
from tests.local_executor import wait_for
from tests.scenarios.dsl import Story, cluster, policy

STOP = Stop(AttemptId("1.1"), graceful=False, grace_s=1.0)
ONE = Cluster("one", (Server("s1", 4),))
END = Report(ReportKind.EXITED, 5.0, AttemptId("1.1"), exit_code=0)


class Stuck:
    """An executor that hangs in whatever is called while it is closed."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.sent: list[Command] = []
        self.acknowledged: list[Report] = []
        self.clusters: list[Cluster] = []
        self.calls = 0

    def _enter(self) -> None:
        self.calls += 1
        assert self.open.wait(30.0)

    def send(self, commands: Sequence[Command]) -> None:
        self._enter()
        self.sent += commands

    def poll(self) -> Sequence[Report]:
        self._enter()
        return [END]

    def acknowledge(self, reports: Sequence[Report]) -> None:
        self._enter()
        self.acknowledged += reports

    def observed(self) -> Mapping[AttemptId, AttemptStatus]:
        self._enter()
        return {AttemptId("1.1"): AttemptStatus.RUNNING}

    def use_cluster(self, cluster: Cluster) -> None:
        self._enter()
        self.clusters.append(cluster)


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    made = Stuck()
    yield made
    made.open.set()


def test_while_it_answers_everything_is_passed_on(stuck: Stuck) -> None:
    bounded = TimeLimitedExecutor(stuck, 10.0)
    bounded.send([STOP])
    bounded.acknowledge([END])
    bounded.use_cluster(ONE)
    assert stuck.clusters == [ONE]
    assert (stuck.sent, stuck.acknowledged) == ([STOP], [END])
    assert list(bounded.poll()) == [END]
    assert bounded.observed() == {"1.1": "running"}
    assert bounded.timeouts == 0


@pytest.mark.parametrize(
    "call",
    [lambda it: it.send([STOP]), lambda it: it.poll(), lambda it: it.acknowledge([END]), lambda it: _observe(it)],
    ids=["send", "poll", "acknowledge", "observed"],
)
def test_a_call_that_hangs_is_left_and_no_other_is_made_until_it_has_ended(
    stuck: Stuck, call: Callable[[TimeLimitedExecutor], Any]
) -> None:
    bounded = TimeLimitedExecutor(stuck, 0.05)
    stuck.open.clear()
    call(bounded)
    assert bounded.timeouts == 1
    assert list(bounded.poll()) == []
    bounded.send([STOP])
    with pytest.raises(ExecutorUnavailable, match="still hangs"):
        bounded.observed()
    assert (stuck.calls, bounded.timeouts) == (1, 1)
    stuck.open.set()
    wait_for(lambda: list(bounded.poll()) == [END], "it answers again")


def _observe(bounded: TimeLimitedExecutor) -> None:
    with pytest.raises(ExecutorUnavailable, match="has not answered"):
        bounded.observed()


def test_what_it_raises_is_raised_here(stuck: Stuck) -> None:
    def broken() -> Sequence[Report]:
        raise OSError("no such disk")

    stuck.poll = broken  # type: ignore[method-assign]
    bounded = TimeLimitedExecutor(stuck, 10.0)
    with pytest.raises(OSError, match="no such disk"):
        bounded.poll()
    bounded.send([STOP])
    assert stuck.sent == [STOP]


class Sleepy:
    """A story's wire that neither hears nor speaks while it hangs, as :class:`TimeLimitedExecutor` then plays it."""

    def __init__(self, story: Story) -> None:
        self.inner = story.wire
        self.hangs = False

    def send(self, commands: Sequence[Command]) -> None:
        if not self.hangs:
            self.inner.send(commands)

    def poll(self) -> Sequence[Report]:
        return [] if self.hangs else self.inner.poll()

    def acknowledge(self, reports: Sequence[Report]) -> None:
        if not self.hangs:
            self.inner.acknowledge(reports)

    def observed(self) -> Mapping[AttemptId, AttemptStatus]:
        if self.hangs:
            raise ExecutorUnavailable("hangs")
        return self.inner.observed()

    def use_cluster(self, cluster: Cluster) -> None:
        if not self.hangs:
            self.inner.use_cluster(cluster)


def test_jobs_come_through_an_executor_that_hangs_for_an_hour() -> None:
    """One that ran before it, one whose launch got lost in it, one that was cancelled in it; nobody runs twice."""
    story = cluster("1x4", policy("fifo"))
    sleepy = Sleepy(story)
    for name, runs_s, at_s in (("before", 100.0, 0.0), ("cancelled", 9e9, 0.0), ("during", 10.0, 50.0)):
        story.job(name, gpus=1, runs_s=runs_s, at_s=at_s)
    story.until(10)
    story.wire = sleepy  # type: ignore[assignment]
    story.engine = story._engine()
    sleepy.hangs = True
    story.cancel("cancelled").until(3600)
    assert story.state("during") is JobState.STARTING
    with pytest.raises(ExecutorUnavailable):
        story.engine.reconcile()
    assert story.state("before") is JobState.RUNNING
    sleepy.hangs = False
    story.cycle()
    story.engine.reconcile()
    story.until(3700)
    assert [story.state(name) for name in story.ids] == ["succeeded", "cancelled", "succeeded"]
    launched = [str(command.attempt) for command in sleepy.inner.sent if isinstance(command, Launch)]
    assert sorted(launched) == ["1.1", "2.1", "3.1"]


def test_a_read_during_a_hanging_cycle_raises_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "READ_WAIT_S", 0.05)
    clock: Any = SimpleNamespace(now_s=lambda: 0.0)
    unused: Any = None
    loop = SchedulerLoop(unused, unused, clock, unused, LoopSettings(30.0, 1.0))
    with loop._lock, pytest.raises(Busy, match="running for more than"):
        loop.read(lambda engine: engine)
    assert loop.read(lambda engine: 7) == 7
