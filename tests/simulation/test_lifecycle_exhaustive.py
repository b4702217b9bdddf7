"""Every state that one job can reach, breadth first, against an executor and a network that do their worst.

A move is one thing that happens, then one pass of the real engine on a fresh start from the store, so every move is also a
crash after the commit: commands are in flight, may be overtaken or get lost, reports come late, twice and out of order,
users cancel, hold and release, and the policy preempts, all at any instant.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from policies.lifecycle import ATTEMPT_OPEN, HOLDS_GPUS, TERMINAL, JobState
from policies.model.cluster import Cluster, Server
from policies.model.decision import Action, Change, Decision, Preempt, Start
from policies.model.ids import AttemptId, JobId, ServerIndex
from policies.model.job import JobSpec
from policies.model.placement import ServerShare, place
from policies.model.reasons import Explanation, Reason
from policies.model.view import ClusterView
from service.engine.commands import Command, Launch
from service.engine.cycle import EngineSettings
from service.engine.engine import Engine, Ports
from service.engine.events import EngineRequest, Report, ReportKind, RequestKind
from service.engine.ports import AttemptStatus
from service.engine.record import JobRecord
from service.sim.clock import SimClock
from service.sim.predictors import NoPredictor
from tests.durable_store import DurableStore
from tests.null_sink import NullSink
from tests.scenarios.checks import assert_sane

JOB = JobId(1)
CLUSTER = Cluster("one", (Server("s", 1),))
HERE = place([ServerShare(ServerIndex(0), 1)])
ATTEMPTS_MAX = 2
IN_FLIGHT_MAX = 2
"""Beyond it the oldest command gets lost."""


@dataclass(frozen=True)
class Process:
    """One attempt as it truly is: running, fenced before it ran, or ended so."""

    attempt: AttemptId
    running: bool
    signalled: bool = False
    end: Report | None = None


@dataclass(frozen=True)
class Machine:
    """The executor's truth, the commands under way to it, and every report it ever made."""

    processes: tuple[Process, ...] = ()
    in_flight: tuple[Command, ...] = ()
    reports: tuple[Report, ...] = ()

    def deliver(self, command: Command) -> "Machine":
        """The command arrives."""
        known = {process.attempt: process for process in self.processes}
        process = known.get(command.attempt)
        reports = self.reports
        if isinstance(command, Launch) and process is None:
            process = Process(command.attempt, running=True)
            reports = _with(reports, Report(ReportKind.STARTED, 0.0, command.attempt))
        elif not isinstance(command, Launch):
            if process is None:
                end = Report(ReportKind.LAUNCH_FAILED, 0.0, command.attempt, stop_signalled=True)
                process, reports = Process(command.attempt, False, True, end), _with(reports, end)
            elif process.running:
                process = replace(process, signalled=True)
        if process is not None:
            known[command.attempt] = process
        return Machine(tuple(known[attempt] for attempt in sorted(known)), _without(self, command), reports)

    def lose(self, command: Command) -> "Machine":
        """The command never arrives."""
        return replace(self, in_flight=_without(self, command))

    def end(self, process: Process, kind: ReportKind, exit_code: int | None) -> "Machine":
        """The process ends."""
        signalled = process.signalled and exit_code != 0
        report = Report(kind, 0.0, process.attempt, exit_code=exit_code, stop_signalled=signalled)
        ended = replace(process, running=False, end=report)
        processes = tuple(ended if other is process else other for other in self.processes)
        return Machine(processes, self.in_flight, _with(self.reports, report))


def _with(reports: tuple[Report, ...], report: Report) -> tuple[Report, ...]:
    return reports if report in reports else (*reports, report)


def _without(machine: Machine, command: Command) -> tuple[Command, ...]:
    return tuple(other for other in machine.in_flight if other is not command)


@dataclass
class Scripted:
    """A policy that does what it is told, and an executor that says what it is told."""

    action: Action | None = None
    report: Report | None = None
    machine: Machine = field(default_factory=Machine)
    name: str = "scripted"

    def initial_state(self, view: ClusterView) -> "Scripted":
        return self

    def rebuild(self, view: ClusterView, dump: dict[str, Any] | None = None) -> "Scripted":
        return self

    def dump(self) -> dict[str, Any]:
        return {}

    def decide(self, view: ClusterView, changes: Sequence[Change], state: "Scripted") -> Decision:
        action, self.action = self.action, None
        return Decision([action] if action is not None else [])

    def explain(self, view: ClusterView, state: "Scripted", job: JobId) -> Explanation:
        return Explanation(Reason.NEW, 1, 1, 1)

    def send(self, commands: Sequence[Command]) -> None:
        in_flight = list(self.machine.in_flight)
        in_flight += [command for command in commands if command not in in_flight]
        self.machine = replace(self.machine, in_flight=tuple(in_flight[-IN_FLIGHT_MAX:]))

    def poll(self) -> Sequence[Report]:
        return [self.report] if self.report is not None else []

    def acknowledge(self, reports: Sequence[Report]) -> None:
        self.report = None

    def observed(self) -> Mapping[AttemptId, AttemptStatus]:
        return {
            process.attempt: AttemptStatus.RUNNING if process.running else AttemptStatus.ENDED
            for process in self.machine.processes
        }

    def use_cluster(self, cluster: Cluster) -> None:
        assert cluster == CLUSTER


@dataclass(frozen=True)
class Node:
    """One state of the whole: the committed job and the machine."""

    job: JobRecord
    machine: Machine

    def key(self) -> tuple[object, ...]:
        job, attempt = self.job, self.job.attempt
        return (
            (job.state, job.held, job.attempts, job.retries, job.yields, job.stop_cause),
            None if attempt is None else (attempt.number, attempt.state),
            tuple((p.attempt, p.running, p.signalled, _sort(p.end)) for p in self.machine.processes),
            tuple(sorted((type(c).__name__, c.attempt, getattr(c, "graceful", None)) for c in self.machine.in_flight)),
            frozenset(_sort(report) for report in self.machine.reports),
        )


def _sort(report: Report | None) -> tuple[object, ...]:
    return () if report is None else (report.kind, report.attempt, report.exit_code, report.stop_signalled)


@dataclass(frozen=True)
class Move:
    """What happens next."""

    name: str
    machine: Machine
    report: Report | None = None
    request: EngineRequest | None = None
    action: Action | None = None
    reconcile: bool = False


def moves(node: Node) -> Iterator[Move]:
    """Everything that can happen in this state."""
    job, machine = node.job, node.machine
    for command in machine.in_flight:
        yield Move(f"{command} arrives", machine.deliver(command))
        yield Move(f"{command} gets lost", machine.lose(command))
    for process in machine.processes:
        if process.running:
            for code in (0, 1, 75):
                yield Move(f"{process.attempt} exits {code}", machine.end(process, ReportKind.EXITED, code))
            yield Move(f"{process.attempt} is lost", machine.end(process, ReportKind.LOST, None))
    for report in machine.reports:
        yield Move(f"{report} comes", machine, report=report)
    yield Move("cancel", machine, request=EngineRequest(0, RequestKind.CANCEL, 0.0, JOB))
    if not job.finished:
        kind = RequestKind.RELEASE if job.held else RequestKind.HOLD
        yield Move(str(kind), machine, request=EngineRequest(0, kind, 0.0, JOB, preempt=not job.held))
    if job.waiting and job.attempts < ATTEMPTS_MAX:
        yield Move("start", machine, action=Start(JOB, HERE))
    if job.state in (JobState.STARTING, JobState.RUNNING):
        yield Move("preempt", machine, action=Preempt(JOB))
    if any(process.running for process in machine.processes) or job.attempt is not None:
        yield Move("reconcile", machine, reconcile=True)


def step(node: Node, move: Move) -> Node:
    """Let it happen: one pass of an engine that has just started from the store."""
    store = DurableStore()
    store._committed[JOB] = node.job.copy()
    if move.request is not None:
        store.add_request(move.request)
    script = Scripted(action=move.action, report=move.report, machine=move.machine)
    ports = Ports(store, script, SimClock(), NoPredictor(), NullSink())
    engine = Engine(script, CLUSTER, ports, settings=EngineSettings(yields_max=1))
    if move.reconcile:
        engine.reconcile()
    outcome = engine.cycle()
    assert not outcome.failed
    assert not engine.violations
    assert_sane(engine.world)
    return Node(store.jobs([JOB])[0], script.machine)


def check(before: Node, move: Move, after: Node) -> None:
    """The promises that hold of every single step."""
    if before.job.state in TERMINAL:
        assert after.job.state is before.job.state, "terminal is terminal"
    assert (after.job.attempt is not None) == (after.job.state in HOLDS_GPUS)
    if after.job.attempt is not None:
        assert after.job.attempt.state in ATTEMPT_OPEN
    assert after.job.attempts <= before.job.attempts + 1
    assert sum(process.running for process in after.machine.processes) <= 1, "two copies run at once"
    if after.job.state is JobState.QUEUED or after.job.finished:
        open_commands = [command for command in after.machine.in_flight if isinstance(command, Launch)]
        fenced = {process.attempt for process in after.machine.processes}
        assert all(command.attempt in fenced for command in open_commands), "a launch may still start a job that waits"


def explore() -> tuple[dict[tuple[object, ...], Node], dict[tuple[object, ...], set[tuple[object, ...]]]]:
    """All reachable states, and who leads to whom."""
    start = Node(JobRecord(JOB, JobSpec("j", "u", 1, max_retries=1), 0.0), Machine())
    seen = {start.key(): start}
    leads_to: dict[tuple[object, ...], set[tuple[object, ...]]] = {}
    border = deque([start])
    while border:
        node = border.popleft()
        key = node.key()
        for move in moves(node):
            try:
                after = step(node, move)
                check(node, move, after)
            except Exception as error:
                raise AssertionError(f"{move.name}\nin {node}\n{type(error).__name__}: {error}") from error
            leads_to.setdefault(after.key(), set()).add(key)
            if after.key() not in seen:
                seen[after.key()] = after
                border.append(after)
    return seen, leads_to


@pytest.mark.slow
def test_every_reachable_state_keeps_the_promises() -> None:
    seen, leads_to = explore()
    assert {node.job.state for node in seen.values()} == set(JobState)
    assert len(seen) > 300
    ends = [key for key, node in seen.items() if node.job.finished and not _loose(node)]
    border, hopeful = deque(ends), set(ends)
    while border:
        for key in leads_to.get(border.popleft(), ()):
            if key not in hopeful:
                hopeful.add(key)
                border.append(key)
    assert hopeful == set(seen), "from every state the job can still end with nothing left running"


def _loose(node: Node) -> bool:
    return any(process.running for process in node.machine.processes)
