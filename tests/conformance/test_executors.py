"""Every executor against the contract: real processes, pretended ones, and simulated ones."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from policies.model.ids import AttemptId, JobId, ServerIndex, job_of
from policies.model.job import JobSpec
from policies.model.placement import ServerShare, place
from service.db.lease import LEADER_LEASE, LeaderLease
from service.db.session import Database
from service.engine.commands import Launch
from service.engine.events import Report, ReportKind
from service.executors import folder as names
from service.executors.fake import DURATION_LABEL, EXIT_CODE_LABEL, FakeExecutor, Faults
from service.executors.timeout import TimeLimitedExecutor
from service.server.fleet import FleetExecutor
from service.sim.clock import SimClock
from service.sim.executor import ExecutorCosts, SimulatedExecutor
from service.sim.work import JobTruth
from tests.conformance.executor_suite import ENDS, ExecutorContract, Watcher
from tests.conformance.live_executor_suite import (
    AttemptFilesContract,
    AttemptLeasesContract,
    AttemptLogsContract,
    LiveExecutorContract,
    ProgressInputContract,
)
from tests.local_executor import CLUSTER, House, launch, python, wait_for

_FOR_EVER_S = 1e9
_SOON_S = 5.0


def fake_launch(attempt: AttemptId, duration_s: float, **labels: str) -> Launch:
    """A launch of a job on one GPU that runs so long."""
    labels[DURATION_LABEL] = str(duration_s)
    spec = JobSpec("test", "tester", 1, command=("x",), labels=labels, declared_iterations=1000)
    placement = place([ServerShare(ServerIndex(0), 1)])
    return Launch(attempt, job_of(attempt), int(attempt.partition(".")[2]), spec, placement, ((0,),), 0)


class LocalBench:
    """Real processes; time is real."""

    cluster = CLUSTER

    def __init__(self, house: House) -> None:
        self.house = house
        self.executor = house.executor

    def launch(self, attempt: AttemptId, *, ends: bool) -> Launch:
        code = "import os, signal; signal.signal(signal.SIGUSR1, lambda *_: os._exit(75))\n"
        return launch(python(code + ("" if ends else "while True: signal.sigtimedwait([], 0.05)")), job=job_of(attempt))

    def until(self, condition: Callable[[], bool]) -> None:
        wait_for(condition, "the condition")

    def launch_printing(self, attempt: AttemptId, text: str, *, ends: bool) -> Launch:
        code = f"print({text!r}, flush=True)\n" + ("" if ends else "import signal; signal.pause()")
        return launch(python(code), job=job_of(attempt), number=int(attempt.partition(".")[2]))

    def token(self, attempt: AttemptId) -> str:
        marker = b"SOONER_PROGRESS_TOKEN="
        for process in self.house.processes():
            environ = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
            tokens = {entry.removeprefix(marker) for entry in environ if entry.startswith(marker)}
            if tokens:
                return tokens.pop().decode()
        raise AssertionError(f"attempt {attempt} has no process with a token")

    def settle(self) -> None:
        # Whatever a command causes goes through a supervisor; when those that still begin are done, so is the effect.
        wait_for(
            lambda: self.executor.poll() is not None and "pending" not in self.executor.observed().values(),
            "all launches to have begun or failed",
        )


class LeasedBench(LocalBench):
    """Real processes with a short lease that polling does not renew."""

    lease_s = 1.2

    def __init__(self, house: House) -> None:
        house.new_executor(lease_s=self.lease_s, renews_alone=False)
        super().__init__(house)
        self.executor.renew_leases()

    def miss_renewals(self) -> None:
        wait_for((self.house.folder() / names.EXIT).exists, "the end by lease")

    def renew_for_longer_than_the_lease(self) -> None:
        until_s = time.monotonic() + 1.5 * self.lease_s

        def renewed() -> bool:
            self.executor.renew_leases()
            return time.monotonic() > until_s

        wait_for(renewed, "a lease and a half")


class FakeClock:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.time_s = 1000.0

    def now_s(self) -> float:
        return self.time_s


class FakeBench:
    """Pretended processes; time is moved."""

    cluster = CLUSTER

    def __init__(self, faults: Faults | None = None) -> None:
        self.clock = FakeClock()
        self.executor = FakeExecutor(self.clock, launch_s=1.0, stop_s=2.0, faults=faults)

    def launch(self, attempt: AttemptId, *, ends: bool) -> Launch:
        return fake_launch(attempt, _SOON_S if ends else _FOR_EVER_S)

    def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(1000):
            if condition():
                return
            self.clock.time_s += 0.5
        raise AssertionError("the condition never held")

    def settle(self) -> None:
        self.clock.time_s += 10.0


class SimulatedBench:
    """Simulated attempts; time is the simulation's heap."""

    def __init__(self) -> None:
        self.clock = SimClock()
        self.truths: dict[JobId, JobTruth] = {}
        costs = ExecutorCosts(checkpoint_s=1.0, launch_latency_s=1.0, stop_latency_s=2.0)
        self.executor = SimulatedExecutor(self.clock, CLUSTER, self.truths, costs)

    def launch(self, attempt: AttemptId, *, ends: bool) -> Launch:
        self.truths.setdefault(job_of(attempt), JobTruth(_SOON_S if ends else _FOR_EVER_S, 1000.0))
        return fake_launch(attempt, _SOON_S)

    def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(1000):
            if condition():
                return
            self.advance(0.5)
        raise AssertionError("the condition never held")

    def settle(self) -> None:
        self.advance(10.0)

    def advance(self, seconds: float) -> None:
        """Move the clock past every event on the way."""
        until_s = self.clock.now_s() + seconds
        while self.clock.next_at_s is not None and self.clock.next_at_s <= until_s:
            self.clock.advance(self.clock.next_at_s)
        self.clock.advance(until_s)


class TestLocalExecutor(
    ExecutorContract, LiveExecutorContract, AttemptLogsContract, AttemptFilesContract, ProgressInputContract
):
    swarm_seeds = 2
    swarm_steps = 20

    @pytest.fixture
    def bench(self, tmp_path: Path) -> Iterator[LocalBench]:
        house = House(tmp_path / "data")
        yield LocalBench(house)
        house.close()


class TestLocalLeases(AttemptLeasesContract):
    @pytest.fixture
    def bench(self, tmp_path: Path) -> Iterator[LeasedBench]:
        house = House(tmp_path / "data")
        yield LeasedBench(house)
        house.close()

    @pytest.fixture
    def watcher(self, bench: LeasedBench) -> Watcher:
        return Watcher(bench)


class TestFakeExecutor(ExecutorContract, LiveExecutorContract):
    @pytest.fixture
    def bench(self) -> FakeBench:
        return FakeBench()


class TestTimeLimitedExecutor(ExecutorContract):
    @pytest.fixture
    def bench(self) -> FakeBench:
        bench = FakeBench()
        bench.executor = TimeLimitedExecutor(bench.executor, 30.0)  # type: ignore[assignment]
        return bench


class TestFleetExecutor(ExecutorContract):
    """As a leader sees its own attempts; those of others are in ``tests/simulation/test_fleet.py``."""

    @pytest.fixture
    def bench(self, database: Database) -> FakeBench:
        bench = FakeBench()
        lead = LeaderLease(database, LEADER_LEASE, "here", 3600.0)
        assert lead.take()
        fleet = FleetExecutor(bench.executor, lead, database, "here", bench.clock, 1.0)
        bench.executor = fleet  # type: ignore[assignment]
        return bench


class TestSimulatedExecutor(ExecutorContract):
    @pytest.fixture
    def bench(self) -> SimulatedBench:
        return SimulatedBench()


class TestFaultyFakeExecutor:
    """The fake's faults spoil when and how often it speaks, never what is true in the end."""

    @pytest.mark.parametrize("seed", range(10))
    def test_every_end_is_told_some_day(self, seed: int) -> None:
        bench = FakeBench(Faults(lost=0.4, doubled=0.3, late=0.2, late_s=3.0, seed=seed))
        attempts = [AttemptId(f"{job}.1") for job in range(1, 6)]
        bench.executor.send([bench.launch(attempt, ends=True) for attempt in attempts])
        watcher = Watcher(bench)
        for attempt in attempts:
            assert watcher.until_ended(attempt).exit_code == 0

    def test_equal_seeds_tell_the_same_and_others_do_not(self) -> None:
        def story(seed: int) -> list[Report]:
            bench = FakeBench(Faults(lost=0.3, doubled=0.3, late=0.3, seed=seed))
            bench.executor.send([bench.launch(AttemptId(f"{job}.1"), ends=True) for job in range(1, 6)])
            told: list[Report] = []
            for _ in range(30):
                bench.clock.time_s += 0.5
                told += bench.executor.poll()
            return told

        assert story(1) == story(1)
        assert story(1) != story(2)
        kinds = [report.kind for report in story(1)]
        assert len(kinds) > len(set(kinds)), "some were told twice"


class TestFakeJobs:
    """How long a pretended job runs, and what it reports."""

    def run(self, order: Launch, until_s: float) -> list[Report]:
        clock = FakeClock()
        executor = FakeExecutor(clock, duration_s=30.0, iteration_s=0.5)
        executor.send([order])
        ends: list[Report] = []
        while not ends and clock.time_s < 1000.0 + until_s:
            clock.time_s += 0.5
            ends = [report for report in executor.poll() if report.kind in ENDS]
        return ends

    def test_declared_iterations_times_their_length(self) -> None:
        spec = JobSpec("j", "u", 1, declared_iterations=100)
        order = Launch(AttemptId("1.1"), JobId(1), 1, spec, place([ServerShare(ServerIndex(0), 1)]), ((0,),), 0)
        assert [(end.at_s, end.exit_code, end.iteration) for end in self.run(order, 100.0)] == [(1050.0, 0, 100.0)]

    def test_a_resumed_job_runs_for_what_is_left(self) -> None:
        spec = JobSpec("j", "u", 1, declared_iterations=100)
        order = Launch(AttemptId("1.2"), JobId(1), 2, spec, place([ServerShare(ServerIndex(0), 1)]), ((0,),), 60)
        assert [(end.at_s, end.iteration) for end in self.run(order, 100.0)] == [(1020.0, 100.0)]

    def test_a_label_says_how_long_and_how_it_ends(self) -> None:
        spec = JobSpec("j", "u", 1, labels={DURATION_LABEL: "7.5", EXIT_CODE_LABEL: "3"})
        order = Launch(AttemptId("1.1"), JobId(1), 1, spec, place([ServerShare(ServerIndex(0), 1)]), ((0,),), 0)
        assert [(end.at_s, end.exit_code, end.iteration) for end in self.run(order, 100.0)] == [(1007.5, 3, None)]

    def test_progress_and_checkpoints_grow_with_time(self) -> None:
        clock = FakeClock()
        executor = FakeExecutor(clock, iteration_s=0.5)
        spec = JobSpec("j", "u", 1, declared_iterations=100)
        executor.send(
            [Launch(AttemptId("1.1"), JobId(1), 1, spec, place([ServerShare(ServerIndex(0), 1)]), ((0,),), 0)]
        )
        clock.time_s += 10.0
        (progress,) = [report for report in executor.poll() if report.kind is ReportKind.PROGRESS]
        assert (progress.iteration, progress.checkpoint_iteration, progress.total_iterations) == (20.0, 20.0, 100.0)
