"""Injects faults: servers that fail and are repaired, programs that crash, and planned drains.

Faults do not depend on the policy: failures and repairs of a server follow from (seed, server's name) alone, and the time to a
program's crash from (seed, job_id), so that all policies of a comparison see the same faults.

- Times between the repair of a server and its next failure are Weibull with mean ``mtbf_s``; with shape 1 exponential. The
  first counts from the first submission. Repairs take an exponential time with mean ``mttr_s``.
- A program crashes, if it runs then, at instants that follow each other by exponential times with mean ``crash_mtbf_s``,
  counted from the job's first start.
- A drained server finishes its running jobs and starts no new ones.

Faults may continue for ever. The simulation ends with the last job, or when nothing ran during many faults in a row and no other
event is left (:attr:`Faults.over`). A job that lost very many attempts in a row without saving any progress is cancelled.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from math import gamma, inf, log, pow

from policies.lifecycle import TERMINAL, Cause, JobState
from policies.model.ids import JobId, ServerIndex
from policies.model.reasons import Reason
from service.engine.events import EngineRequest, JobEvent, RequestKind
from service.engine.memory import MemoryStore
from service.engine.ports import CycleBatch, Sink
from service.engine.record import JobRecord
from service.sim.clock import Priority, SimClock
from service.sim.draws import uniform
from service.sim.executor import SimulatedExecutor
from service.sim.jobs import SimJob

FRUITLESS_ATTEMPTS_MAX = 300
"""Attempts that a job may lose in a row without saving any progress, because faults are more frequent than its checkpoints. A job
that saves some in every twentieth attempt is cancelled by mistake once in five million times.
"""
IDLE_FAULTS_MIN = 1000
IDLE_FAULTS_PER_SERVER = 20
"""After this many faults during which nothing ran, each server has been up often enough: the waiting jobs fit nowhere."""


@dataclass(frozen=True, slots=True)
class Window:
    """When a server is drained or down. Seconds of the workload's time; ``to_s`` = inf: for ever."""

    server: ServerIndex
    from_s: float
    to_s: float = inf


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """The faults to inject. Seconds; None: never. ``shape`` is that of the Weibull times between failures (1: exponential).

    ``outages`` are failures whose times are known, for instance from a log.
    """

    mtbf_s: float | None = None
    mttr_s: float = 3600.0
    shape: float = 1.0
    crash_mtbf_s: float | None = None
    drains: tuple[Window, ...] = ()
    outages: tuple[Window, ...] = ()

    @property
    def eventful(self) -> bool:
        """Whether there is any fault."""
        return self.mtbf_s is not None or self.crash_mtbf_s is not None or bool(self.drains or self.outages)


NO_FAULTS = FaultPlan()


@dataclass(slots=True)
class FaultCounts:
    """Counts of faults. ``lost_gpu_s``: GPU-seconds of progress that no checkpoint held when an attempt ended."""

    server_failures: int = 0
    attempts_lost: int = 0
    crashes: int = 0
    jobs_given_up: int = 0
    lost_gpu_s: float = 0.0

    def to_dict(self) -> dict[str, float]:
        """For tables."""
        return asdict(self)


def up_s(plan: FaultPlan, seed: int, server: str, number: int) -> float:
    """Seconds that a server works before its ``number``-th failure (from 1), by the plan's ``mtbf_s`` and ``shape``."""
    assert plan.mtbf_s is not None
    scale_s = plan.mtbf_s / gamma(1.0 + 1.0 / plan.shape)
    return scale_s * pow(_exponential(seed, server, f"failure {number}"), 1.0 / plan.shape)


def _exponential(seed: int, name: str, purpose: str) -> float:
    """A draw with mean 1."""
    return -log(uniform(seed, name, purpose))


class Faults:
    """Injects the faults of a plan into a simulated executor; a :class:`service.engine.ports.Sink` around another sink."""

    def __init__(
        self,
        plan: FaultPlan,
        seed: int,
        jobs: Sequence[SimJob],
        clock: SimClock,
        executor: SimulatedExecutor,
        store: MemoryStore,
        sink: Sink,
    ) -> None:
        self.counts = FaultCounts()
        self.given_up: dict[JobId, Reason] = {}
        """Jobs that lost too many attempts in a row, with the reason for the last loss."""
        self._plan = plan
        self._seed = seed
        self._names = {job.id: job.row.job_id for job in jobs}
        self._clock = clock
        self._executor = executor
        self._store = store
        self._sink = sink
        self._active: Callable[[], bool] = bool
        self._ended = self._planned = self._idle = 0
        self._idle_max = IDLE_FAULTS_MIN
        self._down: dict[ServerIndex, int] = {}
        self._drained: dict[ServerIndex, int] = {}
        self._started: dict[JobId, JobRecord] = {}
        self._saved_s: dict[JobId, float] = {}
        self._fruitless: dict[JobId, int] = {}

    def begin(self, servers: Sequence[str], active: Callable[[], bool]) -> None:
        """Schedule the first faults of the ``servers`` by name. ``active``: whether a job runs now or is still to come."""
        self._active = active
        self._idle_max = max(IDLE_FAULTS_MIN, IDLE_FAULTS_PER_SERVER * len(servers))
        for drain in self._plan.drains:
            self._schedule(drain, partial(self._drain, drain.server, 1), partial(self._drain, drain.server, -1))
        for outage in self._plan.outages:
            self._schedule(outage, partial(self._fail, outage.server), partial(self._repair, outage.server))
        if self._plan.mtbf_s is not None:
            for index, name in enumerate(servers):
                self._next_failure(ServerIndex(index), name, 1)

    @property
    def over(self) -> bool:
        """Whether no job will start or end any more, so that later faults do not matter."""
        return self._ended == len(self._names) or self._idle > self._idle_max

    # Sink.

    def transition(self, event: JobEvent, job: JobRecord) -> None:
        """Forward the event, and record starts, losses and ends."""
        self._sink.transition(event, job)
        if event.target in TERMINAL:
            self._ended += 1
            self._started.pop(job.id, None)
        elif event.target is JobState.STARTING and job.id not in self._started:
            self._started[job.id] = job
            if self._plan.crash_mtbf_s is not None:
                self._next_crash(job.id, self._plan.crash_mtbf_s, 1)
        elif event.cause is Cause.RETRYABLE_FAILURE:
            self._note_loss(event, job)

    def cycle(self, batch: CycleBatch) -> None:
        """Forward the batch."""
        self._sink.cycle(batch)

    def _note_loss(self, event: JobEvent, job: JobRecord) -> None:
        if event.reason is Reason.CRASHED:
            self.counts.crashes += 1
        else:
            self.counts.attempts_lost += 1
        if job.service_s > self._saved_s.get(job.id, 0.0):
            self._saved_s[job.id] = job.service_s
            self._fruitless[job.id] = 0
        self._fruitless[job.id] = self._fruitless.get(job.id, 0) + 1
        if self._fruitless[job.id] == FRUITLESS_ATTEMPTS_MAX:
            self.counts.jobs_given_up += 1
            self.given_up[job.id] = event.reason
            self._store.add_request(EngineRequest(0, RequestKind.CANCEL, self._clock.now_s(), job.id))

    # Servers.

    def _next_failure(self, server: ServerIndex, name: str, number: int) -> None:
        self._in(up_s(self._plan, self._seed, name, number), partial(self._fail_and_mend, server, name, number))

    def _fail_and_mend(self, server: ServerIndex, name: str, number: int) -> None:
        self._fail(server)
        down_s = self._plan.mttr_s * _exponential(self._seed, name, f"repair {number}")
        self._in(down_s, partial(self._mend_and_wait, server, name, number))

    def _mend_and_wait(self, server: ServerIndex, name: str, number: int) -> None:
        self._repair(server)
        self._next_failure(server, name, number + 1)

    def _fail(self, server: ServerIndex) -> None:
        """A server may be down for two reasons at once; it works again when neither is left."""
        self._down[server] = self._down.get(server, 0) + 1
        if self._down[server] == 1:
            self.counts.server_failures += 1
            self._executor.fail_server(server)

    def _repair(self, server: ServerIndex) -> None:
        self._down[server] -= 1
        if self._down[server] == 0:
            self._executor.repair_server(server)

    def _drain(self, server: ServerIndex, change: int) -> None:
        before = self._drained.get(server, 0)
        after = self._drained[server] = before + change
        if bool(before) != bool(after):
            kind = RequestKind.SERVER_DRAINED if after else RequestKind.SERVER_RESUMED
            self._store.add_request(EngineRequest(0, kind, self._clock.now_s(), server=server))

    # Programs.

    def _next_crash(self, job: JobId, mtbf_s: float, number: int) -> None:
        after_s = mtbf_s * _exponential(self._seed, self._names[job], f"crash {number}")
        self._in(after_s, partial(self._crash, job, mtbf_s, number))

    def _crash(self, job: JobId, mtbf_s: float, number: int) -> None:
        record = self._started.get(job)
        if record is not None:
            if record.attempt is not None:
                self._executor.crash(record.attempt.id)
            self._next_crash(job, mtbf_s, number + 1)

    # Time.

    def _schedule(self, window: Window, begin: Callable[[], None], end: Callable[[], None]) -> None:
        """Schedule both ends of a window, as far as they are in the future."""
        now_s = self._clock.now_s()
        if window.to_s > now_s:
            for at_s, action in ((max(window.from_s, now_s), begin), (window.to_s, end)):
                if at_s < inf:
                    self._planned += 1
                    self._clock.schedule(at_s, Priority.FAULT, partial(self._as_planned, action))

    def _as_planned(self, action: Callable[[], None]) -> None:
        self._planned -= 1
        action()

    def _in(self, seconds: float, action: Callable[[], None]) -> None:
        self._clock.schedule(self._clock.now_s() + seconds, Priority.FAULT, partial(self._by_chance, action))

    def _by_chance(self, action: Callable[[], None]) -> None:
        """Count the faults in a row during which nothing ran and no planned event was left."""
        self._idle = 0 if self._planned or self._active() else self._idle + 1
        action()
