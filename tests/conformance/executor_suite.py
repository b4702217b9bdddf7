"""The contract of every executor: an attempt runs at most once, its end is told until acknowledged, a stop is final.

To conform, subclass :class:`ExecutorContract` and give it a ``bench`` fixture.
"""

import random
from collections.abc import Callable
from typing import Protocol

import pytest

from policies.model.ids import AttemptId, job_of
from service.engine.commands import Launch, Stop
from service.engine.events import Report, ReportKind
from service.engine.ports import AttemptStatus, Executor

ENDS = frozenset({ReportKind.EXITED, ReportKind.LAUNCH_FAILED, ReportKind.LOST})
OF_SERVERS = frozenset(kind for kind in ReportKind if kind.value.startswith("server_"))
FIRST, SECOND = AttemptId("1.1"), AttemptId("2.1")


class Bench(Protocol):
    """An executor with a way to let time pass."""

    executor: Executor

    def launch(self, attempt: AttemptId, *, ends: bool) -> Launch:
        """A job on one GPU that reports a checkpoint and obeys a warning; it ends soon with 0, or only when it is stopped."""

    def until(self, condition: Callable[[], bool]) -> None:
        """Let time pass until the condition holds; fails if it never does."""

    def settle(self) -> None:
        """Let time pass until whatever was sent would have had its effect."""


class Watcher:
    """Polls an executor as an engine does, and keeps what it said."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.executor = bench.executor
        self.started: list[AttemptId] = []
        self.ends: dict[AttemptId, Report] = {}

    def look(self) -> list[Report]:
        """Poll, and acknowledge everything but ends."""
        reports = list(self.executor.poll())
        assert [r.at_s for r in reports] == sorted(r.at_s for r in reports), "oldest first"
        for report in reports:
            if report.attempt is None:
                assert report.kind in OF_SERVERS
            elif report.kind is ReportKind.STARTED:
                self.started.append(report.attempt)
            elif report.kind in ENDS:
                self.ends[report.attempt] = report
        self.executor.acknowledge([report for report in reports if report.kind not in ENDS])
        return reports

    def until_started(self, attempt: AttemptId) -> None:
        """Wait for the report of its start."""
        self.bench.until(lambda: self.look() is not None and attempt in self.started)

    def until_ended(self, attempt: AttemptId) -> Report:
        """Wait for the report of its end."""
        self.bench.until(lambda: self.look() is not None and attempt in self.ends)
        return self.ends[attempt]

    def acknowledge_end(self, attempt: AttemptId) -> None:
        """Tell the executor that the end is committed."""
        self.executor.acknowledge([self.ends[attempt]])


class ExecutorContract:
    """What the engine relies on."""

    swarm_seeds = 20
    swarm_steps = 25

    @pytest.fixture
    def watcher(self, bench: Bench) -> Watcher:
        """A watcher on the bench."""
        return Watcher(bench)

    def test_a_launch_starts_runs_and_ends(self, bench: Bench, watcher: Watcher) -> None:
        bench.executor.send([bench.launch(FIRST, ends=True)])
        assert FIRST in bench.executor.observed()
        end = watcher.until_ended(FIRST)
        assert (end.kind, end.exit_code, watcher.started) == (ReportKind.EXITED, 0, [FIRST])
        assert bench.executor.observed()[FIRST] is AttemptStatus.ENDED

    def test_a_launch_sent_again_at_any_time_changes_nothing(self, bench: Bench, watcher: Watcher) -> None:
        launch = bench.launch(FIRST, ends=True)
        bench.executor.send([launch, launch])
        watcher.until_started(FIRST)
        bench.executor.send([launch])
        end = watcher.until_ended(FIRST)
        bench.executor.send([launch])
        bench.settle()
        watcher.look()
        assert watcher.ends[FIRST] == end
        watcher.acknowledge_end(FIRST)
        bench.executor.send([launch])
        bench.settle()
        watcher.look()
        assert watcher.started == [FIRST]
        assert bench.executor.observed().get(FIRST) in (None, AttemptStatus.ENDED)

    def test_a_start_is_told_until_acknowledged(self, bench: Bench) -> None:
        bench.executor.send([bench.launch(FIRST, ends=False)])

        def started() -> bool:
            return any(report.kind is ReportKind.STARTED for report in bench.executor.poll())

        bench.until(started)
        assert started()
        bench.executor.acknowledge(bench.executor.poll())
        assert not started()
        assert bench.executor.observed()[FIRST] is AttemptStatus.RUNNING

    def test_an_end_is_told_until_acknowledged_and_then_forgotten(self, bench: Bench, watcher: Watcher) -> None:
        bench.executor.send([bench.launch(FIRST, ends=True)])
        end = watcher.until_ended(FIRST)
        for _ in range(3):
            bench.settle()
            assert end in bench.executor.poll()
        watcher.acknowledge_end(FIRST)
        watcher.acknowledge_end(FIRST)
        bench.settle()
        assert [r for r in bench.executor.poll() if r.attempt == FIRST] == []
        assert FIRST not in bench.executor.observed()

    def test_a_stop_ends_a_running_attempt(self, bench: Bench, watcher: Watcher) -> None:
        bench.executor.send([bench.launch(FIRST, ends=False)])
        watcher.until_started(FIRST)
        stop = Stop(FIRST, graceful=False, grace_s=5.0)
        bench.executor.send([stop, stop])
        end = watcher.until_ended(FIRST)
        assert (end.kind, end.stop_signalled) == (ReportKind.EXITED, True)
        assert end.exit_code not in (0, 75)
        bench.executor.send([stop])
        bench.settle()
        watcher.look()
        assert watcher.ends[FIRST] == end

    def test_a_graceful_stop_lets_it_checkpoint(self, bench: Bench, watcher: Watcher) -> None:
        bench.executor.send([bench.launch(FIRST, ends=False)])
        watcher.until_started(FIRST)
        bench.executor.send([Stop(FIRST, graceful=True, warning_signal="SIGUSR1", grace_s=30.0)])
        assert bench.executor.observed()[FIRST] in (AttemptStatus.STOPPING, AttemptStatus.ENDED)
        end = watcher.until_ended(FIRST)
        assert (end.exit_code, end.stop_signalled) == (75, True)

    @pytest.mark.parametrize("launch_comes", ["at once", "after the end is told", "after it is acknowledged"])
    def test_a_stop_that_comes_first_wins_for_ever(self, bench: Bench, watcher: Watcher, launch_comes: str) -> None:
        launch = bench.launch(FIRST, ends=True)
        bench.executor.send([Stop(FIRST, graceful=False)])
        if launch_comes == "at once":
            bench.executor.send([launch])
        end = watcher.until_ended(FIRST)
        assert end.stop_signalled
        assert end.exit_code is None
        if launch_comes == "after it is acknowledged":
            watcher.acknowledge_end(FIRST)
        bench.executor.send([launch])
        bench.settle()
        watcher.look()
        assert watcher.started == []
        assert bench.executor.observed().get(FIRST) in (None, AttemptStatus.ENDED)

    def test_attempts_do_not_touch_each_other(self, bench: Bench, watcher: Watcher) -> None:
        bench.executor.send([bench.launch(FIRST, ends=False), bench.launch(SECOND, ends=True)])
        watcher.until_ended(SECOND)
        watcher.until_started(FIRST)
        bench.executor.send([Stop(SECOND, graceful=False)])
        watcher.acknowledge_end(SECOND)
        bench.settle()
        watcher.look()
        assert FIRST not in watcher.ends
        assert bench.executor.observed()[FIRST] is AttemptStatus.RUNNING

    def test_acknowledging_what_is_unknown_does_nothing(self, bench: Bench) -> None:
        bench.executor.acknowledge([Report(kind, 0.0, AttemptId("77.1")) for kind in ReportKind])
        bench.executor.acknowledge([])
        assert bench.executor.observed() == {}
        assert list(bench.executor.poll()) == []

    def test_any_order_of_commands_runs_each_attempt_at_most_once(self, bench: Bench, watcher: Watcher) -> None:
        for seed in range(self.swarm_seeds):
            self.swarm(bench, watcher, seed)

    def swarm(self, bench: Bench, watcher: Watcher, seed: int) -> None:
        """Random commands, repeated and out of order, for three attempts of its own; then every one is brought to an end."""
        luck = random.Random(seed)
        attempts = [AttemptId(f"{100 + 10 * seed + n}.1") for n in range(3)]
        stopped_first: set[AttemptId] = set()
        launched: set[AttemptId] = set()
        acknowledged: set[AttemptId] = set()
        for _ in range(self.swarm_steps):
            attempt = luck.choice(attempts)
            step = luck.choice(["launch", "launch", "stop", "look", "look", "acknowledge"])
            if step == "launch":
                bench.executor.send([bench.launch(attempt, ends=job_of(attempt) % 2 == 0)])
                launched.add(attempt)
            elif step == "stop":
                bench.executor.send(
                    [Stop(attempt, graceful=luck.random() < 0.5, warning_signal="SIGUSR1", grace_s=5.0)]
                )
                if attempt not in launched:
                    stopped_first.add(attempt)
            elif step == "look":
                watcher.look()
            elif attempt in watcher.ends:
                watcher.acknowledge_end(attempt)
                acknowledged.add(attempt)
        asked = launched | stopped_first
        bench.executor.send([Stop(attempt, graceful=False, grace_s=5.0) for attempt in sorted(asked)])
        for attempt in sorted(asked):
            watcher.until_ended(attempt)
            watcher.acknowledge_end(attempt)
        repro = f"seed {seed}: {watcher.started}"
        assert not stopped_first & set(watcher.started), repro
        assert len(set(watcher.started)) == len(watcher.started), repro
        assert not asked & set(bench.executor.observed()), repro
