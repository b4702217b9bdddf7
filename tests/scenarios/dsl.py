"""Scenarios that read like a specification: a cluster, jobs, a policy, and what starts, stops and waits, and why.

Everything runs on the real engine with the memory store, the simulated executor and simulated time::

    story = cluster("1x4", policy("fifo"))
    story.job("first", gpus=4, runs_s=100)
    story.job("second", gpus=1, runs_s=10)
    story.until(0).starts("first").waits("second", Reason.RESOURCES)
    story.until(100).finishes("first").starts("second")

A check looks at what happened since the last ``until`` and must name all of it, in order.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from policies.base import Policy
from policies.lifecycle import Cause, JobState
from policies.model.cluster import Cluster, Gangs, Server
from policies.model.estimate import Attained, EndedJob, Estimate, Prediction, PredictionRequest, Reported, Unit
from policies.model.ids import AttemptId, JobId, ServerIndex, attempt_id
from policies.model.job import IterationTimes, JobSpec, PreemptionSignal
from policies.model.placement import Slowdown, SpanSeconds
from policies.model.reasons import Reason
from policies.model.server_reservation import ServerReservation
from policies.registry import make_policy
from policies.throughput import times_of
from service.engine.commands import Command, Launch, Stop
from service.engine.cycle import EngineSettings
from service.engine.engine import CycleOutcome, Engine, Ports
from service.engine.events import EngineRequest, JobEvent, Report, RequestKind
from service.engine.limits import QUEUE, LimitOwner, Scope
from service.engine.ports import AttemptStatus, Clock, CycleBatch, Store
from service.engine.record import JobRecord
from service.engine.world import Costs
from service.sim.clock import Priority, SimClock
from service.sim.executor import ExecutorCosts, SimulatedExecutor
from service.sim.network import network_of
from service.sim.work import JobTruth
from tests.durable_store import DurableStore
from tests.scenarios.checks import assert_sane

CYCLES_MAX = 50_000
"""More than any scenario needs to its end: one that needs more goes round in circles."""


def policy(name: str, **options: object) -> Policy[Any]:
    """A policy by name with options as on the command line."""
    return make_policy(name, {key: str(value).lower() for key, value in options.items()})


def servers(shape: str) -> tuple[Server, ...]:
    """``"2x4"``: two servers of four GPUs; ``"1x4:A100 2x8"``: one of A100 and two of the default type."""
    made: list[Server] = []
    for part in shape.split():
        size, _, gpu_type = part.partition(":")
        count, gpus = (int(number) for number in size.split("x"))
        made += [Server(f"s{len(made) + n}", gpus, gpu_type or "V100") for n in range(count)]
    return tuple(made)


def _owner(user: str | None, project: str | None) -> LimitOwner:
    if user is not None:
        return LimitOwner(Scope.USER, user)
    return QUEUE if project is None else LimitOwner(Scope.PROJECT, project)


class Told:
    """A predictor that says what the scenario told it: points in seconds of service, or nothing."""

    def __init__(self) -> None:
        self.points: dict[JobId, tuple[float, ...] | None] = {}
        self.slowdowns: dict[JobId, Slowdown] = {}
        self.slowdowns_measured: dict[JobId, Slowdown] = {}
        """What it says once the job's speed was measured at a span for the first time."""
        self.spans: list[tuple[JobId, SpanSeconds]] = []
        self.learnt: list[EndedJob] = []
        self.revised: dict[JobId, tuple[float, ...]] = {}
        self.reported: list[Reported] = []
        """What it was told of running jobs."""
        self.outdated: list[JobId] = []
        """The jobs that it wants to be asked about again once the next job has ended."""

    def watch(self, attained: Callable[[JobId, float], Attained | None]) -> None:
        self.attained = attained

    def revise(self, now_s: float, reported: Sequence[Reported]) -> Sequence[Prediction | None]:
        """What a scenario has put down for the job, once."""
        answers = []
        self.reported += reported
        for each in reported:
            if each.seconds_by_span is not None:
                self.spans.append((each.request.job, each.seconds_by_span))
                slowdown = self.slowdowns_measured.get(each.request.job)
                answers.append(slowdown and Prediction(replace(each.estimate, slowdown=slowdown)))
                continue
            points = self.revised.pop(each.request.job, None)
            answers.append(None if points is None else Prediction(replace(each.estimate, points=points)))
        return answers

    def predict(self, now_s: float, requests: Sequence[PredictionRequest]) -> Sequence[Prediction | None]:
        answers: list[Prediction | None] = []
        for request in requests:
            points = self.points[request.job]
            slowdown = self.slowdowns.get(request.job)
            estimate = None
            if points is not None:
                estimate = Estimate(points, Unit.SERVICE_S, "told", seconds_per_unit=1.0, slowdown=slowdown)
            answers.append(None if estimate is None else Prediction(estimate))
        return answers

    def ended(self, label: EndedJob) -> Sequence[JobId]:
        self.learnt.append(label)
        outdated, self.outdated = self.outdated, []
        return outdated


class Wire:
    """Between the engine and the executor: keeps the commands, and lets a scenario say things of its own."""

    def __init__(self, inner: SimulatedExecutor, cluster: Cluster) -> None:
        self.inner = inner
        self.servers = len(cluster.servers)
        """Those that the executor was given."""
        self.sent: list[Command] = []
        self.said: list[Report] = []
        self.zombies: dict[AttemptId, AttemptStatus] = {}
        """Attempts that run although nobody wants them to."""
        self.cut = False
        """While cut, commands get lost on the way."""

    def send(self, commands: Sequence[Command]) -> None:
        self.sent += commands
        launches = [command for command in commands if isinstance(command, Launch)]
        assert all(server < self.servers for launch in launches for server in launch.placement.servers)
        if not self.cut:
            self.inner.send(commands)

    def poll(self) -> Sequence[Report]:
        return [*self.inner.poll(), *self.said]

    def acknowledge(self, reports: Sequence[Report]) -> None:
        self.said = [report for report in self.said if report not in reports]
        self.inner.acknowledge(reports)

    def observed(self) -> Mapping[AttemptId, AttemptStatus]:
        return {**self.inner.observed(), **self.zombies}

    def use_cluster(self, cluster: Cluster) -> None:
        assert len(cluster.servers) >= self.servers, "servers are only ever appended"
        self.servers = len(cluster.servers)
        self.inner.use_cluster(cluster)


@dataclass
class Log:
    """Sink: every transition, and which of them a scenario has not looked at yet."""

    events: list[JobEvent] = field(default_factory=list)
    seen: int = 0

    def transition(self, event: JobEvent, job: JobRecord) -> None:
        self.events.append(event)

    def cycle(self, batch: CycleBatch) -> None:
        pass


class Story:
    """See the module. Times are seconds; jobs are known by name."""

    def __init__(
        self,
        shape: str,
        chosen: Policy[Any],
        *,
        costs: ExecutorCosts | None = None,
        settings: EngineSettings | None = None,
        store: Store | None = None,
        names: Sequence[Server] | None = None,
        network: str = "reserved",
        gangs: Gangs = Gangs.ANY,
    ) -> None:
        self.cluster = Cluster("scenario", tuple(names) if names is not None else servers(shape), gangs=gangs)
        self.clock = SimClock()
        self.service_clock: Clock = self.clock
        self.memory = DurableStore()
        self.store = store or self.memory
        self.truths: dict[JobId, JobTruth] = {}
        self.costs = costs or ExecutorCosts(restart_s=0.0)
        self.executor = SimulatedExecutor(
            self.clock, self.cluster, self.truths, self.costs, network_of(network, self.cluster)
        )
        self.wire = Wire(self.executor, self.cluster)
        self.told = Told()
        self.log = Log()
        self.settings = settings or EngineSettings()
        self.policy = chosen
        self.ids: dict[str, JobId] = {}
        self._known: dict[JobId, JobRecord] = {}
        self._wake_at_s: float | None = None
        self.engine = self._engine()

    def _engine(self) -> Engine[Any]:
        ports = Ports(self.store, self.wire, self.service_clock, self.told, self.log)
        costs = Costs(self.costs.checkpoint_s, self.costs.restart_s)
        return Engine(self.policy, self.cluster, ports, costs, self.settings)

    # What happens.

    def job(
        self,
        name: str,
        *,
        gpus: int = 1,
        runs_s: float = 10.0,
        at_s: float = 0.0,
        predicted: float | tuple[float, ...] | str | None = "truth",
        times: IterationTimes | None = None,
        iterations: float | None = None,
        slowdown: Slowdown | None = None,
        **spec: Any,
    ) -> Self:
        """Submit a job at ``at_s``. ``predicted``: seconds, points, None for no estimate; by default the truth.
        ``slowdown``: true and predicted.
        """
        job_id = self.ids[name] = JobId(len(self.ids) + 1)
        if predicted == "truth":
            predicted = runs_s
        self.told.points[job_id] = (
            (float(predicted),) if isinstance(predicted, int | float) else predicted  # type: ignore[assignment]
        )
        for key in ("after", "after_any"):
            spec[key] = tuple(self.ids[other] for other in spec.get(key, ()))
        spec.setdefault("preemption", PreemptionSignal())
        spec.setdefault("user", "u")
        full = JobSpec(name=name, gpus=gpus, **spec)
        if slowdown is not None:
            self.told.slowdowns[job_id] = slowdown
        truth = times if slowdown is None else times_of(full, self.cluster, slowdown)
        self.truths[job_id] = JobTruth(runs_s, iterations, truth)
        at_s = max(at_s, self.clock.now_s())

        def arrive() -> None:
            record = JobRecord(
                job_id, full, at_s, priority=full.priority, held=full.hold, anchor_s=at_s, iteration_times=times
            )
            self.memory.submit(record)

        self.clock.schedule(at_s, Priority.ARRIVAL, arrive)
        return self

    def _fact(self, kind: RequestKind, name: str | None = None, **more: Any) -> Self:
        job = self.ids[name] if name is not None else None
        self.memory.add_request(EngineRequest(0, kind, self.clock.now_s(), job, **more))
        return self

    def cancel(self, name: str) -> Self:
        return self._fact(RequestKind.CANCEL, name)

    def hold(self, name: str, *, preempt: bool = False) -> Self:
        return self._fact(RequestKind.HOLD, name, preempt=preempt)

    def release(self, name: str) -> Self:
        return self._fact(RequestKind.RELEASE, name)

    def prioritise(self, name: str, priority: int) -> Self:
        return self._fact(RequestKind.PRIORITY, name, priority=priority)

    def drain(self, server: int) -> Self:
        return self._fact(RequestKind.SERVER_DRAINED, server=ServerIndex(server))

    def resume(self, server: int) -> Self:
        return self._fact(RequestKind.SERVER_RESUMED, server=ServerIndex(server))

    def quota(self, gpus: int | None, *, user: str | None = None, project: str | None = None) -> Self:
        """The owner's jobs may hold so many GPUs at a time; None: any number."""
        return self._fact(RequestKind.QUOTA_SET, owner=_owner(user, project), gpus_running_max=gpus)

    def pause(self, why: str = "", *, user: str | None = None, project: str | None = None) -> Self:
        return self._fact(RequestKind.QUEUE_PAUSED, owner=_owner(user, project), note=why)

    def unpause(self, *, user: str | None = None, project: str | None = None) -> Self:
        return self._fact(RequestKind.QUEUE_RESUMED, owner=_owner(user, project))

    def reserve(self, *servers: int, from_s: float, until_s: float, preempt: bool = True, **owner: str) -> Self:
        """Set servers aside for a time, for a user or project, or for nobody."""
        where = tuple(ServerIndex(server) for server in servers)
        window = ServerReservation(0, where, from_s, until_s, preempt=preempt, **owner)
        return self._fact(RequestKind.RESERVATION_MADE, window=window)

    def unreserve(self, number: int) -> Self:
        return self._fact(RequestKind.RESERVATION_CANCELLED, reservation=number)

    def add_server(self, gpus: int, gpu_type: str = "V100") -> Self:
        return self._fact(
            RequestKind.SERVER_ADDED, server_spec=Server(f"n{len(self.engine.world.servers)}", gpus, gpu_type)
        )

    def crash(self, name: str) -> Self:
        self.executor.crash(self.attempt(name))
        return self

    def says(self, report: Report) -> Self:
        """The executor makes this report as well, until it is acknowledged."""
        self.wire.said.append(report)
        return self

    def restart(self) -> Self:
        """The service dies and starts again: a new engine on what the store has kept, servers that were added included."""
        # The store remembers how many there are; the engine that died may not have got so far.
        known = self.engine.world.cluster.servers[: max(len(self.cluster.servers), len(self.memory.load().servers))]
        self.cluster = replace(self.cluster, servers=known)
        self.engine = self._engine()
        self.engine.reconcile()
        return self

    def away_until(self, at_s: float) -> Self:
        """The service is away up to ``at_s``, and then starts again. What runs goes on meanwhile."""
        while (instant_s := self.clock.next_at_s) is not None and instant_s <= at_s:
            self.clock.advance(instant_s)
        self.clock.advance(at_s)
        return self.restart()

    def until(self, at_s: float) -> Self:
        """Let time pass up to and including ``at_s``, one pass at every instant at which something happens."""
        self.log.seen = len(self.log.events)
        while (instant_s := self._next_instant_s()) is not None and instant_s <= at_s:
            self.clock.advance(instant_s)
            self.cycle()
        self.clock.advance(at_s)
        self.cycle()
        for _ in range(100):  # what a decision caused may cause another one at the same instant
            if (wake_s := self._next_instant_s()) is None or wake_s > at_s:
                return self
            self.clock.advance(at_s)
            self.cycle()
        raise AssertionError(f"no rest at {at_s} s")

    def to_the_end(self) -> Self:
        """Until nothing is left to happen."""
        self.log.seen = len(self.log.events)
        self.cycle()
        for _ in range(CYCLES_MAX):
            instant_s = self._next_instant_s()
            if instant_s is None:
                return self
            self.clock.advance(instant_s)
            self.cycle()
        raise AssertionError(f"no end by {self.clock.now_s()} s")

    def cycle(self) -> CycleOutcome:
        """One pass, after which the world must be sane."""
        outcome = self.engine.cycle()
        self._wake_at_s = self.clock.now_s() if outcome.failed else outcome.wake_at_s
        assert not self.engine.violations, self.engine.violations
        if outcome.failed:
            return outcome  # the world may be what was not committed, until the store answers again
        assert_sane(self.engine.world)
        self._known.update(self.engine.world.jobs)
        return outcome

    @property
    def records(self) -> dict[str, JobRecord]:
        """By name, the jobs that have been in the world, as they were when they were last there."""
        return {name: self._known[job] for name, job in self.ids.items() if job in self._known}

    def _next_instant_s(self) -> float | None:
        times = [self.clock.next_at_s]
        if self._wake_at_s is not None and self.engine.world.jobs:
            times.append(max(self._wake_at_s, self.clock.now_s()))
        return min((at_s for at_s in times if at_s is not None), default=None)

    # What is expected.

    def attempt(self, name: str) -> AttemptId:
        return attempt_id(self.ids[name], self._known[self.ids[name]].attempts)

    def state(self, name: str) -> JobState:
        """The committed state."""
        return self.memory.jobs([self.ids[name]])[0].state

    def record(self, name: str) -> JobRecord:
        """The job as committed."""
        return self.memory.jobs([self.ids[name]])[0]

    def _entered(self, target: JobState, cause: Cause | None = None) -> list[str]:
        names = {job: name for name, job in self.ids.items()}
        return [
            names[event.job]
            for event in self.log.events[self.log.seen :]
            if event.target is target and cause in (None, event.cause)
        ]

    def starts(self, *names: str) -> Self:
        started = self._entered(JobState.STARTING)
        assert started == list(names), started
        return self

    def preempts(self, *names: str) -> Self:
        preempted = self._entered(JobState.PREEMPTING)
        assert preempted == list(names), preempted
        return self

    def finishes(self, *names: str) -> Self:
        finished = self._entered(JobState.SUCCEEDED)
        assert finished == list(names), finished
        return self

    def fails(self, name: str, reason: Reason) -> Self:
        assert self._entered(JobState.FAILED) == [name]
        assert self.record(name).reason is reason
        return self

    def cancels(self, *names: str) -> Self:
        assert self._entered(JobState.CANCELLED) == list(names)
        return self

    def requeues(self, name: str, cause: Cause) -> Self:
        assert self._entered(JobState.QUEUED, cause) == [name]
        return self

    def waits(self, name: str, reason: Reason) -> Self:
        job = self.record(name)
        assert (job.state, job.reason) == (JobState.QUEUED, reason)
        explained = self.engine.explain(job.id)
        assert explained.reason is reason
        assert explained.sentence
        return self

    def runs(self, *names: str) -> Self:
        """Exactly these run."""
        running = [name for name in self.ids if self.state(name) is JobState.RUNNING]
        assert running == sorted(names, key=lambda name: self.ids[name])
        return self

    def on(self, name: str, *where: int) -> Self:
        """The servers that the job holds GPUs on."""
        placement = self.record(name).placement
        assert placement is not None
        assert placement.servers == where
        return self

    def commands(self, kind: type[Launch] | type[Stop]) -> list[str]:
        """The attempts that commands of this kind were sent for."""
        return [str(command.attempt) for command in self.wire.sent if isinstance(command, kind)]


def cluster(shape: str, chosen: Policy[Any], **more: Any) -> Story:
    """A scenario on a cluster of this shape under this policy."""
    return Story(shape, chosen, **more)
