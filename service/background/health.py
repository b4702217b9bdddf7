"""Watches the health of the servers: collects signs of faults, and passes them to the scheduling loop as requests.

The loop's thread feeds it with progress and ends of attempts. A task of its own looks at what has been collected, all of which
is in memory: a new leader begins anew.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from sqlalchemy.exc import DBAPIError

from policies.lifecycle import AttemptState, JobState
from policies.model.ids import AttemptId, ServerIndex, job_of
from policies.model.reasons import Reason
from service.background.loop import SchedulerLoop
from service.config.settings import Settings
from service.db.session import Database
from service.db.store import SqlStore
from service.domain.health import FailurePattern, Hang, HangWatch, Program, Sign
from service.engine.engine import Engine
from service.engine.events import EngineRequest, JobEvent, Report, RequestKind
from service.engine.ports import Busy, CycleBatch, Sink
from service.engine.record import AttemptRecord, JobRecord
from service.executors.gpu_health import GpuWatch

logger = logging.getLogger(__name__)

HEALTH_PERIOD_S = 5.0
"""Period of the task."""

QUIET_S = 600.0
"""Least time between two signs of one kind of one server: a fault goes on, and one event tells of it."""


class Finding(NamedTuple):
    """A sign of a fault of a server. ``drains``: whether it may drain the server, if the settings say so.

    ``hanging``: the attempt that hangs, with ``Sign.HANG``.
    """

    server: ServerIndex
    sign: Sign
    reason: str
    drains: bool = True
    hanging: AttemptId | None = None

    @property
    def kind(self) -> tuple[ServerIndex, Sign, bool]:
        """Findings of one kind are noted once in :data:`QUIET_S`. One that may drain does not wait for one that may not."""
        return self.server, self.sign, self.drains


class HealthMonitor:
    """Finds signs and requests what follows from them. ``count`` gets the sign of each request.

    ``gpus``: faults of GPUs, and the server of each GPU; None where no GPU of this machine is in the cluster.
    """

    def __init__(
        self,
        settings: Settings,
        database: Database,
        now_s: Callable[[], float],
        count: Callable[[Sign], None],
        gpus: tuple[GpuWatch, Mapping[str, ServerIndex]] | None = None,
    ) -> None:
        self._settings = settings
        self._database = database
        self._store = SqlStore(database)
        self._now_s = now_s
        self._count = count
        self._gpus = gpus
        self._lock = threading.Lock()
        self._hangs: HangWatch[AttemptId] = HangWatch(settings.health_hang_factor, settings.health_hang_s_min)
        self._failures: FailurePattern[ServerIndex] = FailurePattern(
            settings.health_failures_max, settings.health_failures_window_s
        )
        self._ended_now: set[AttemptId] = set()
        self._found: list[Finding] = []
        self._noted_s: dict[tuple[ServerIndex, Sign, bool], float] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """A context in which the GPUs are watched."""
        if self._gpus is None:
            yield
            return
        watch, _ = self._gpus
        watch.start()
        try:
            yield
        finally:
            watch.close()

    # Called by the scheduling loop.

    def progressed(self, reports: Sequence[Report]) -> None:
        """Note committed reports of progress, after :meth:`cycle`: those of attempts that ended in it are left out."""
        if self._settings.health_hang_factor == 0.0:
            return
        with self._lock:
            for report in reports:
                if report.attempt is None or report.iteration is None:
                    continue
                if report.attempt not in self._ended_now:
                    self._hangs.progressed(report.attempt, report.iteration, report.total_iterations, report.at_s)

    def cycle(self, batch: CycleBatch) -> None:
        """Note the attempts that ended in a cycle."""
        with self._lock:
            self._ended_now = set()
            for write in batch.writes.values():
                for attempt in write.attempts:
                    if not attempt.open:
                        self._ended_now.add(attempt.id)
                        self._ended(write.job, attempt, batch.at_s)

    def _ended(self, job: JobRecord, attempt: AttemptRecord, at_s: float) -> None:
        self._hangs.ended([attempt.id])
        if attempt.state is AttemptState.COMPLETED and attempt.reason is Reason.COMPLETED:
            for server in attempt.placement.servers:
                self._failures.succeeded(server)
        elif attempt.state is AttemptState.FAILED and attempt.reason is not None:
            # An attempt that was lost went with its server or its service, which is known by other means.
            how = str(attempt.reason) if attempt.exit_code is None else f"exit code {attempt.exit_code}"
            self._failed(job, attempt.placement.servers, at_s, how)

    def _failed(self, job: JobRecord, servers: Sequence[ServerIndex], at_s: float, how: str) -> None:
        program = Program(job.spec.user, job.spec.name)
        for server in servers:
            reason = self._failures.failed(server, program, at_s, how)
            if reason is not None:
                logger.warning("job %s is the last one that failed on server %d", job.id, server)
                self._found.append(Finding(server, Sign.FAILURES, reason))

    # The task.

    def run(self, loop: SchedulerLoop) -> None:
        """Look for signs, and store a request for each."""
        now_s = self._now_s()
        with self._lock:
            hangs = self._hangs.hanging(now_s)
        try:
            if hangs:
                loop.read(lambda engine: self._note_hangs(engine, hangs, now_s))
        except Busy as error:
            logger.warning("%d hanging attempts are examined later: %s", len(hangs), error)
            with self._lock:
                self._hangs.repeat(hang.attempt for hang in hangs)
        due = self._due(now_s)
        if due and self._request(due, now_s):
            loop.nudge()

    def _due(self, now_s: float) -> list[Finding]:
        """The findings to note now. The newest one of each other kind is kept until it is due."""
        due: list[Finding] = []
        later: dict[tuple[ServerIndex, Sign, bool], Finding] = {}
        for each in dict.fromkeys([*self._take(), *self._faults_of_gpus()]):
            if now_s - self._noted_s.get(each.kind, -QUIET_S) >= QUIET_S:
                due.append(each)
            elif each.sign is not Sign.FAILURES:  # which are counted anew: programs that go on failing are found again
                later[each.kind] = each
        with self._lock:
            self._found += later.values()
        return due

    def _note_hangs(self, engine: Engine[Any], hangs: Sequence[Hang[AttemptId]], now_s: float) -> None:
        with self._lock:
            for hang in hangs:
                job = engine.world.jobs.get(job_of(hang.attempt))
                if job is None or job.attempt is None or job.attempt.id != hang.attempt:
                    self._hangs.ended([hang.attempt])
                elif job.state is JobState.RUNNING:
                    servers = job.attempt.placement.servers
                    logger.warning("attempt %s hangs: %s", hang.attempt, hang.reason)
                    self._found += [
                        Finding(server, Sign.HANG, hang.reason, len(servers) == 1, hang.attempt) for server in servers
                    ]
                    self._failed(job, servers, now_s, "hangs")

    def _faults_of_gpus(self) -> list[Finding]:
        if self._gpus is None:
            return []
        watch, servers = self._gpus
        return [
            Finding(servers[fault.uuid], fault.sign, fault.detail) for fault in watch.take() if fault.uuid in servers
        ]

    def _take(self) -> list[Finding]:
        """What was found, without hangs that are over."""
        with self._lock:
            found, self._found = self._found, []
            return [each for each in found if each.hanging is None or self._hangs.hangs(each.hanging)]

    def _request(self, found: Sequence[Finding], now_s: float) -> bool:
        """Store the requests. False if the database does not answer: the next run tries again."""
        try:
            with self._database.writing() as session:
                for each in found:
                    drain = each.drains and each.sign in self._settings.health_drain
                    self._store.add_request(
                        session,
                        EngineRequest(
                            0, RequestKind.SERVER_UNHEALTHY, now_s, server=each.server, note=each.reason, drain=drain
                        ),
                    )
        except DBAPIError as error:
            logger.error("%d signs of faulty servers are not stored yet: %s", len(found), error.orig)
            with self._lock:
                self._found += found
            return False
        for each in found:
            logger.warning("server %d is conspicuous (%s): %s", each.server, each.sign, each.reason)
            self._noted_s[each.kind] = now_s
            self._count(each.sign)
        return True


class HealthSink:
    """Feeds a monitor with each cycle, then passes on."""

    def __init__(self, inner: Sink, monitor: HealthMonitor) -> None:
        self._inner = inner
        self._monitor = monitor

    def transition(self, event: JobEvent, job: JobRecord) -> None:
        """Pass on."""
        self._inner.transition(event, job)

    def cycle(self, batch: CycleBatch) -> None:
        """Note the ends of the cycle, then pass on."""
        self._monitor.cycle(batch)
        self._inner.cycle(batch)
