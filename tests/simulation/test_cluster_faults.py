"""Launches and stops over a cluster whose calls, servers, engine and services fail at random, on virtual time.

Whatever happens: no attempt runs twice, none runs when its end is reported, every end is reported, and no GPU stays taken.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from policies.model.ids import AttemptId, JobId, ServerIndex, attempt_id, job_of
from policies.model.job import JobSpec
from policies.model.placement import ServerShare, place
from service.engine.commands import Command, Launch, Stop
from service.engine.crash_points import CrashPoint, on_reached
from service.engine.events import Report, ReportKind
from service.engine.ports import AttemptStatus, ExecutorUnavailable
from service.executors.cluster import executor as module
from tests.conformance.executor_suite import ENDS
from tests.simulation.cluster_world import GPUS, GRACE_S, LEASE_S, NODES, STEP_S, Crash, Service, World

JOBS = 6
STEPS = 500
QUIET_STEPS = int((LEASE_S + 2 * GRACE_S + 200.0) / STEP_S)


class Scheduler:
    """What the engine of this service does with an executor: starts, stops, reports and reconciliation."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.tokens = 0
        self.open: dict[JobId, Launch] = {}
        self.states: dict[AttemptId, AttemptStatus] = {}
        self.ended: dict[AttemptId, Report] = {}
        self.numbers: dict[JobId, int] = {}
        self.leader = self.lead()

    def lead(self) -> Service:
        """A service begins to lead."""
        self.tokens += 1
        service = Service(self.world, self.tokens)
        self.world.services.append(service)
        return service

    def step(self, *, starts: bool) -> None:
        """One cycle."""
        luck = self.world.luck
        if not self.leader.alive or (starts and luck.random() < 0.01):
            self.leader = self.lead()
        try:
            self._cycle(starts)
        except Crash:
            self.leader.alive = False

    def _cycle(self, starts: bool) -> None:
        executor = self.leader.executor
        executor.renew_leases()
        reports = list(executor.poll())
        for report in reports:
            if report.attempt is not None:
                self._apply(report.attempt, report)
        executor.acknowledge(reports)
        commands: list[Command] = []
        if starts:
            commands += self._decide()
        try:
            commands += self._lost_commands(executor.observed())
        except ExecutorUnavailable:
            pass
        executor.send(commands)

    def _apply(self, attempt: AttemptId, report: Report) -> None:
        current = self.open.get(job_of(attempt))
        if report.kind in ENDS:
            assert not self.world.running(attempt), f"{attempt} runs when its end is reported: {report}"
        if current is None or current.attempt != attempt:
            if report.kind in ENDS:
                assert attempt in self.ended, f"the end of {attempt}, which was never open"
            return
        if report.kind is ReportKind.STARTED:
            if self.states[attempt] is AttemptStatus.PENDING:
                self.states[attempt] = AttemptStatus.RUNNING
        elif report.kind in ENDS:
            assert attempt not in self.ended
            self.ended[attempt] = report
            del self.open[current.job], self.states[attempt]

    def _decide(self) -> list[Command]:
        luck = self.world.luck
        job = JobId(luck.randint(1, JOBS))
        held = self.open.get(job)
        if held is None and luck.random() < 0.3:
            launch = self._launch(job)
            self.open[job], self.states[launch.attempt] = launch, AttemptStatus.PENDING
            return [launch] if luck.random() < 0.8 else []
        if held is not None and luck.random() < 0.05:
            self.states[held.attempt] = AttemptStatus.STOPPING
            return [self._stop(held.attempt, graceful=luck.random() < 0.5)] if luck.random() < 0.8 else []
        return []

    def _lost_commands(self, observed: object) -> list[Command]:
        assert isinstance(observed, dict)
        commands: list[Command] = []
        for launch in self.open.values():
            state = self.states[launch.attempt]
            if state is AttemptStatus.STOPPING:
                commands.append(self._stop(launch.attempt))
            elif launch.attempt not in observed:
                commands.append(self._again(launch) if state is AttemptStatus.PENDING else self._stop(launch.attempt))
        commands += [
            self._stop(attempt)
            for attempt, status in observed.items()
            if attempt not in self.states and status is not AttemptStatus.ENDED
        ]
        return commands

    def _launch(self, job: JobId) -> Launch:
        luck = self.world.luck
        number = self.numbers[job] = self.numbers.get(job, 0) + 1
        servers = sorted(luck.sample(range(len(NODES)), luck.choice([1, 1, 2, 3])))
        gpus = luck.choice([1, 2, GPUS])
        spec = JobSpec("test", "tester", gpus * len(servers), command=("x",))
        placement = place([ServerShare(ServerIndex(server), gpus) for server in servers])
        ids = tuple(tuple(range(gpus)) for _ in servers)
        return Launch(attempt_id(job, number), job, number, spec, placement, ids, 0, self.leader.token)

    def _again(self, launch: Launch) -> Launch:
        return Launch(
            launch.attempt,
            launch.job,
            launch.number,
            launch.spec,
            launch.placement,
            launch.gpu_ids,
            0,
            self.leader.token,
        )

    def _stop(self, attempt: AttemptId, *, graceful: bool = False) -> Stop:
        return Stop(attempt, graceful, "SIGUSR1" if graceful else None, GRACE_S, self.leader.token)


@pytest.fixture
def world_module(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The executor's threads are the simulation's; what is written need not survive a power cut."""
    monkeypatch.setattr(module, "Workers", module.Workers)
    monkeypatch.setattr(os, "fsync", lambda _: None)
    yield
    on_reached(None)


@pytest.mark.parametrize("seed", range(12))
def test_no_attempt_runs_twice_and_every_end_is_reported(tmp_path: Path, world_module: None, seed: int) -> None:
    world = World(tmp_path, seed)
    scheduler = Scheduler(world)

    def maybe_die(_: CrashPoint) -> None:
        if world.luck.random() < world.deaths:
            raise Crash

    on_reached(maybe_die)
    for _ in range(STEPS):
        world.step()
        world.trouble()
        scheduler.step(starts=True)
    world.calm()
    for job, launch in scheduler.open.items():
        scheduler.states[launch.attempt] = AttemptStatus.STOPPING
        assert scheduler.open[job] is launch
    for _ in range(QUIET_STEPS):
        world.step()
        scheduler.step(starts=False)
        if not (scheduler.open or world.engine.held_anywhere() or _observed(scheduler) or _live(tmp_path)):
            break
    assert not scheduler.open, f"no end of {scheduler.states}"
    assert not world.engine.held_anywhere()
    assert not _observed(scheduler)
    assert not _live(tmp_path)
    assert len(scheduler.ended) > 20
    kinds = {report.kind for report in scheduler.ended.values()}
    assert ReportKind.EXITED in kinds


def _observed(scheduler: Scheduler) -> object:
    try:
        return scheduler.leader.executor.observed()
    except ExecutorUnavailable:
        return "unknown"


def _live(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "live").iterdir())
