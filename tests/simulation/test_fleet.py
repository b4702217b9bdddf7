"""Services on one database, on virtual time: killed, paused, cut off for long, and back again, in random order.

Each has its own executor, whose attempts outlive it and end by themselves when their lease has run out. Whatever happens, no
job runs twice at a time, no attempt twice at all, and in the end every job has succeeded.
"""

import random
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from policies.lifecycle import TERMINAL
from policies.model.cluster import Cluster, Server
from policies.model.ids import AttemptId, JobId, job_of
from policies.model.job import JobSpec
from policies.registry import make_policy
from service.config.settings import Settings
from service.db import services
from service.db.lease import LEADER_LEASE, LeaderLease
from service.db.servers import enroll
from service.db.services import Registered
from service.db.session import Database
from service.db.store import SqlStore
from service.engine.commands import Command, Launch, Stop
from service.engine.crash_points import CrashPoint, on_reached
from service.engine.cycle import EngineSettings
from service.engine.engine import Engine, Ports
from service.engine.events import EngineRequest, RequestKind
from service.engine.ports import AttemptStatus
from service.executors.fake import DURATION_LABEL, FakeExecutor
from service.server.agent import Agent
from service.server.fleet import DEAD_MARGIN_S, FleetExecutor
from service.server.leader_store import LeaderStore
from service.sim.predictors import NoPredictor
from tests.null_sink import NullSink

CLUSTER = Cluster("test", (Server("s0001", 2), Server("s0002", 2)))
LEADER_LEASE_S = 6.0
ATTEMPT_LEASE_S = 20.0
GRACE_S = 1.0


@dataclass
class Clock:
    """One instant for everybody: the machines', the database's unless that is set."""

    time_s: float = 1000.0
    database_set_by_s: float = 0.0

    def now_s(self) -> float:
        return self.time_s


class Machine:
    """What runs whether a service lives or not: attempts and their supervisors, with the lease that these look at."""

    def __init__(self, clock: Clock, launched: Counter[AttemptId]) -> None:
        self._clock = clock
        self._launched = launched
        self.executor = FakeExecutor(clock, stop_s=0.5, launch_s=0.2)
        self.lease_until_s = clock.time_s + ATTEMPT_LEASE_S

    def renew(self) -> None:
        self.lease_until_s = self._clock.time_s + ATTEMPT_LEASE_S

    def supervise(self) -> None:
        """Supervisors stop their attempts when nobody has renewed their lease."""
        if self._clock.time_s > self.lease_until_s:
            self.executor.send([Stop(attempt, graceful=False) for attempt in self.executor.observed()])

    def running(self) -> list[AttemptId]:
        """Attempts with processes now."""
        self.executor.poll()
        return [attempt for attempt, status in self.executor.observed().items() if status is not AttemptStatus.ENDED]

    # The executor port, with a count.

    def send(self, commands: Sequence[Command]) -> None:
        self._launched.update(
            command.attempt
            for command in commands
            if isinstance(command, Launch) and command.attempt not in self.executor.observed()
        )
        self.executor.send(commands)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.executor, name)


@dataclass
class Service:
    """One service: its machine, and what of it lives in a process."""

    name: str
    database: Database
    clock: Clock
    machine: Machine
    paused: bool = False
    alive: bool = False
    engine: Engine[Any] | None = None
    cycles: int = 0
    lead: LeaderLease = field(init=False)
    agent: Agent = field(init=False)

    def start(self) -> None:
        settings = EngineSettings(host=self.name, stop_grace_s=GRACE_S)
        self._register()
        elapsed = self.clock.now_s
        self.lead = LeaderLease(self.database, LEADER_LEASE, self.name, LEADER_LEASE_S, elapsed)
        self.agent = Agent(
            self.database, self.name, self.machine, self.machine.renew, settings, elapsed, self._register
        )
        self.alive, self.paused, self.engine = True, False, None

    def _register(self) -> None:
        services.register(self.database, Registered(self.name, self.name, "", "1", ATTEMPT_LEASE_S), claim=False)

    def kill(self) -> None:
        self.alive, self.engine = False, None

    def counts(self) -> bool:
        """Whether it counts as alive."""
        return self.agent.sound

    def turn(self) -> None:
        """What its timers do."""
        if not self.alive or self.paused:
            return
        self.agent.beat()
        if self.lead.token is not None:
            self.lead.renew()
        if self.engine is not None and self.lead.token is None:
            self.engine = None
        if self.engine is None and self.agent.sound and self.lead.take():
            self.engine = self._build()
            self.engine.reconcile()
        if self.engine is None:
            self.agent.attend()
        elif self.lead.holds():
            self.engine.cycle()
            self.cycles += 1
            if self.cycles % 3 == 0:
                self.engine.reconcile()

    def _build(self) -> Engine[Any]:
        token = self.lead.token
        assert token is not None
        fleet = FleetExecutor(
            self.machine, self.lead, self.database, self.name, self.clock, GRACE_S, elapsed_s=self.clock.now_s
        )
        store = LeaderStore(self.database, self.lead, token)
        settings = EngineSettings(host=self.name, stop_grace_s=GRACE_S, fencing_token=token)
        ports = Ports(store, fleet, self.clock, NoPredictor(), NullSink())
        return Engine(make_policy("fifo"), CLUSTER, ports, None, settings)


@dataclass
class Fleet:
    """All of them."""

    database: Database
    clock: Clock
    services: list[Service]
    launched: Counter[AttemptId]
    jobs: list[JobId] = field(default_factory=list)
    leaders_max: int = 1

    def submit(self, duration_s: float) -> JobId:
        spec = JobSpec("job", "ada", 1, command=("x",), labels={DURATION_LABEL: str(duration_s)}, max_retries=50)
        with self.database.writing() as session:
            (job,) = SqlStore(self.database).submit(session, [spec], self.clock.time_s)
        self.jobs.append(job)
        return job

    def cancel(self, job: JobId) -> None:
        with self.database.writing() as session:
            SqlStore(self.database).add_request(session, EngineRequest(0, RequestKind.CANCEL, self.clock.time_s, job))

    def states(self) -> dict[JobId, str]:
        return {job.id: str(job.state) for job in SqlStore(self.database).jobs(self.jobs)}

    def attempts(self, job: JobId) -> int:
        (record,) = SqlStore(self.database).jobs([job])
        return record.attempts

    def advance(self, duration_s: float) -> None:
        """Let time pass, in steps that supervisors notice."""
        until_s = self.clock.time_s + duration_s
        while self.clock.time_s < until_s:
            self.clock.time_s = min(until_s, self.clock.time_s + 0.5)
            for service in self.services:
                service.machine.supervise()
            self.check()

    def pass_time(self, duration_s: float) -> None:
        """The same, with everybody who lives at work."""
        until_s = self.clock.time_s + duration_s
        while self.clock.time_s < until_s:
            self.advance(1.0)
            for service in self.services:
                service.turn()
                self.check()

    def check(self) -> None:
        """No job runs twice at a time, no attempt was launched twice, at most one may decide."""
        running = Counter(job_of(attempt) for service in self.services for attempt in service.machine.running())
        assert not [job for job, count in running.items() if count > 1], running
        assert not [attempt for attempt, count in self.launched.items() if count > 1], self.launched
        leaders = [s.name for s in self.services if s.alive and s.engine is not None and s.lead.holds()]
        assert len(leaders) <= self.leaders_max, leaders

    def leader(self) -> Service:
        (leader,) = [service for service in self.services if service.engine is not None and service.lead.holds()]
        return leader


@pytest.fixture
def lasting_as_by_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Settings:
    """Makes the next fleet's leases and grace periods those of the settings."""
    defaults = Settings(data_dir=tmp_path)
    here = sys.modules[__name__]
    monkeypatch.setattr(here, "ATTEMPT_LEASE_S", defaults.lease_s)
    monkeypatch.setattr(here, "GRACE_S", defaults.stop_grace_s)
    return defaults


@pytest.fixture
def fleet(database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    clock = Clock()
    monkeypatch.setattr(Database, "now_s", lambda self, session: clock.time_s + clock.database_set_by_s)
    enroll(database, CLUSTER)
    launched: Counter[AttemptId] = Counter()
    members = [Service(name, database, clock, Machine(clock, launched)) for name in ("a", "b", "c")]
    for member in members:
        member.start()
    yield Fleet(database, clock, members, launched)
    on_reached(None)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_whoever_dies_stands_still_or_comes_back_nothing_runs_twice_and_nothing_is_lost(
    fleet: Fleet, seed: int
) -> None:
    draw = random.Random(seed)
    for _ in range(70):
        service = draw.choice(fleet.services)
        deed = draw.random()
        if deed < 0.2 and len(fleet.jobs) < 12:
            fleet.submit(draw.choice([0.5, 3.0, 15.0, 60.0]))
        elif deed < 0.3 and service.alive:
            service.kill()
        elif deed < 0.45 and service.alive:
            service.paused = not service.paused
        elif deed < 0.65 and not service.alive:
            service.start()
        elif deed < 0.7:
            fleet.advance(draw.choice([8.0, 30.0, 60.0]))
        else:
            service.turn()
        fleet.advance(draw.choice([0.0, 0.5, 1.0, 3.0]))
    for service in fleet.services:
        if not service.alive:
            service.start()
        service.paused = False
    fleet.pass_time(150.0)
    assert set(fleet.states().values()) <= {"succeeded"}, fleet.states()


def test_the_next_leads_when_the_lease_is_over(fleet: Fleet) -> None:
    fleet.pass_time(1.0)
    assert fleet.leader().name == "a"
    fleet.services[0].kill()
    fleet.pass_time(LEADER_LEASE_S - 1.0)
    assert all(service.engine is None for service in fleet.services)
    fleet.pass_time(2.0)
    assert fleet.leader().name == "b"


def test_an_attempt_is_given_up_only_when_its_supervisors_must_have_stopped_it(fleet: Fleet) -> None:
    """And no sooner: until then it is held, and its end still counts."""
    job = fleet.submit(1000.0)
    fleet.pass_time(3.0)
    first = fleet.services[0]
    first.kill()
    fleet.pass_time(LEADER_LEASE_S)
    # Counted by the next leader, from its first look.
    fleet.pass_time(ATTEMPT_LEASE_S + 2 * GRACE_S + DEAD_MARGIN_S - 1.0)
    assert (fleet.states()[job], fleet.attempts(job)) == ("running", 1)
    fleet.pass_time(4.0)
    assert (fleet.states()[job], fleet.attempts(job)) == ("running", 2)
    assert fleet.leader().machine.running() == [AttemptId(f"{job}.2")]
    first.start()
    assert not services.heartbeat(fleet.database, "a")
    fleet.pass_time(3.0)
    assert first.agent.sound
    assert fleet.attempts(job) == 2


def test_the_jobs_of_a_dead_machine_start_anew_after_the_default_lease_and_two_grace_periods(
    lasting_as_by_default: Settings, fleet: Fleet
) -> None:
    """The numbers of docs/explanation/crash-safety.md. Only the supervisors' side of the arithmetic is this test's own."""
    defaults = lasting_as_by_default
    assert (defaults.lease_s, defaults.stop_grace_s, DEAD_MARGIN_S) == (600.0, 30.0, 10.0)
    job = fleet.submit(10_000.0)
    fleet.pass_time(3.0)
    first = fleet.services[0]
    first.kill()
    last_stop_s = defaults.lease_s + 2 * defaults.stop_grace_s
    fleet.pass_time(last_stop_s)
    assert first.machine.running() == []
    assert (fleet.states()[job], fleet.attempts(job)) == ("running", 1)
    fleet.pass_time(DEAD_MARGIN_S + 10.0)
    assert (fleet.states()[job], fleet.attempts(job)) == ("running", 2)


def test_a_service_that_was_given_up_stops_what_it_still_runs_before_it_counts_again(fleet: Fleet) -> None:
    """Its supervisors failed to: nothing may rely on them alone."""
    job = fleet.submit(1000.0)
    fleet.pass_time(3.0)
    first = fleet.services[0]
    first.paused = True
    first.machine.lease_until_s = float("inf")
    fleet.pass_time(LEADER_LEASE_S + 1.0)
    fleet.clock.time_s += 100.0
    for service in fleet.services[1:]:
        service.agent.beat()
        service.turn()
        service.turn()
    first.paused = False
    first.turn()
    assert not first.counts()
    fleet.clock.time_s += 1.0
    assert first.machine.running() == []
    first.turn()
    assert first.counts()
    fleet.pass_time(5.0)
    assert fleet.attempts(job) == 2


@pytest.mark.parametrize("first_to_look", ["a", "b"])
def test_a_database_clock_that_is_set_forward_gives_nobody_up(fleet: Fleet, first_to_look: str) -> None:
    """The lead may change, because its lease is over by that clock. The attempts go on where they are."""
    job = fleet.submit(30.0)
    fleet.pass_time(3.0)
    assert fleet.leader().name == "a"
    fleet.services.sort(key=lambda service: service.name != first_to_look)
    # For a moment: what the first one writes is refused for its token.
    fleet.leaders_max = 2
    fleet.clock.database_set_by_s = 3600.0
    fleet.pass_time(40.0)
    assert (fleet.states()[job], fleet.attempts(job)) == ("succeeded", 1)
    assert all(service.counts() for service in fleet.services)


def test_a_database_clock_that_is_set_back_does_not_hold_up_the_jobs_of_a_dead_machine(fleet: Fleet) -> None:
    job = fleet.submit(1000.0)
    fleet.pass_time(3.0)
    fleet.services[0].kill()
    fleet.pass_time(LEADER_LEASE_S + 1.0)
    assert fleet.leader().name == "b"
    fleet.clock.database_set_by_s = -3600.0
    fleet.pass_time(ATTEMPT_LEASE_S + 2 * GRACE_S + DEAD_MARGIN_S + 3.0)
    assert (fleet.states()[job], fleet.attempts(job)) == ("running", 2)


def test_a_service_that_was_forgotten_while_it_slept_runs_jobs_again(fleet: Fleet) -> None:
    sleeper, *others = fleet.services
    sleeper.paused = True
    fleet.pass_time(LEADER_LEASE_S + 10.0)
    assert services.delete_silent(fleet.database, LEADER_LEASE_S) == 1
    sleeper.paused = False
    fleet.pass_time(2.0)
    assert services.heartbeat(fleet.database, "a")
    for service in others:
        service.kill()
    fleet.pass_time(LEADER_LEASE_S + 1.0)
    job = fleet.submit(2.0 * ATTEMPT_LEASE_S)
    fleet.pass_time(2.0 * ATTEMPT_LEASE_S + 5.0)
    assert (fleet.states()[job], fleet.attempts(job)) == ("succeeded", 1)


def test_a_cancellation_is_carried_out_by_whoever_holds_the_attempt(fleet: Fleet) -> None:
    job = fleet.submit(1000.0)
    fleet.pass_time(3.0)
    fleet.services[0].kill()
    fleet.pass_time(8.0)
    fleet.cancel(job)
    fleet.pass_time(3.0)
    assert fleet.states()[job] == "cancelling"
    fleet.services[0].start()
    fleet.pass_time(4.0)
    assert fleet.states()[job] == "cancelled"
    assert fleet.leader().name == "b"


@pytest.mark.parametrize("point", [CrashPoint.DECIDED, CrashPoint.COMMITTED])
def test_a_leader_that_stood_still_in_the_middle_of_a_pass_writes_and_commands_nothing(
    fleet: Fleet, point: CrashPoint
) -> None:
    """Before its transaction: it is fenced. After it, with a launch in hand: the launch is dropped, and made by its service
    when that has looked into the database again."""
    fleet.pass_time(2.0)
    first, second, _ = fleet.services
    stood, go_on = threading.Event(), threading.Event()

    def stand_still(reached: CrashPoint) -> None:
        if reached is point and threading.current_thread() is thread:
            stood.set()
            assert go_on.wait(60.0)

    job = fleet.submit(5.0)
    assert first.engine is not None
    thread = threading.Thread(target=first.engine.cycle)
    on_reached(stand_still)
    thread.start()
    assert stood.wait(60.0)
    fleet.clock.time_s += LEADER_LEASE_S + 1.0
    second.turn()
    second.turn()
    assert fleet.leader() is second
    go_on.set()
    thread.join(60.0)
    assert fleet.launched[AttemptId(f"{job}.1")] == (1 if point is CrashPoint.DECIDED else 0)
    assert not first.machine.running()
    fleet.pass_time(20.0)
    assert (fleet.states()[job], fleet.attempts(job)) == ("succeeded", 1)
    assert all(state in {str(end) for end in TERMINAL} for state in fleet.states().values())
