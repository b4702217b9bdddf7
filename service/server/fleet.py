"""The leader's executor: its own attempts, and those of services on other data folders.

It commands only its own attempts. The others' reports and commands go through the database. An attempt of a silent service keeps
its state until the supervisors of that service must have stopped it, and the database has recorded that the leader relies on it.
How long a service has been silent is counted from the leader's first look at its newest heartbeat.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence

from sqlalchemy.exc import DBAPIError

from policies.lifecycle import AttemptState
from policies.model.cluster import Cluster
from policies.model.ids import AttemptId
from policies.model.reasons import Reason
from service.db import attempt_reports, services
from service.db.lease import LeaderLease
from service.db.reads import open_attempts
from service.db.session import Database
from service.db.store import SqlStore
from service.engine.commands import Command
from service.engine.events import Report, ReportKind
from service.engine.ports import AttemptStatus, Clock, Executor, ExecutorUnavailable, StoreUnavailable
from service.engine.record import JobRecord

logger = logging.getLogger(__name__)

DEAD_MARGIN_S = 10.0
"""Added to lease and grace period before the attempts of a silent service count as ended: supervisors check periodically."""

SILENCE_CHECK_S = 1.0
"""Period of the check whether a service has been silent for too long."""

_STATUS = {
    AttemptState.LAUNCHING: AttemptStatus.PENDING,
    AttemptState.RUNNING: AttemptStatus.RUNNING,
    AttemptState.STOPPING: AttemptStatus.STOPPING,
}


class FleetExecutor:
    """Implements :class:`service.engine.ports.Executor`. ``own`` runs the attempts of this service, ``host``.

    ``stop_grace_s``: as the engine's setting, for jobs that chose none.
    """

    def __init__(
        self,
        own: Executor,
        lead: LeaderLease,
        database: Database,
        host: str,
        clock: Clock,
        stop_grace_s: float,
        elapsed_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._own = own
        self._lead = lead
        self._database = database
        self._host = host
        self._clock = clock
        self._stop_grace_s = stop_grace_s
        self._elapsed_s = elapsed_s
        self._elsewhere = self._find_elsewhere()
        self._reported: dict[tuple[AttemptId, ReportKind], Report] = {}
        self._lost: dict[AttemptId, Report] = {}
        self._own_reports_stored = True
        self._looked_at_s: float | None = None
        self._heard: dict[str, tuple[float, float]] = {}
        """The newest heartbeat of each service, and when it was first seen here (``elapsed_s``)."""
        self.refused_commands = 0
        """Commands that were dropped because the lead was over."""

    def send(self, commands: Sequence[Command]) -> None:
        """Command this service's own attempts, unless the lead is lost."""
        if not self._lead.holds():
            self.refused_commands += len(commands)
            logger.warning("%d commands left to the next leader", len(commands))
            return
        mine = [command for command in commands if command.attempt not in self._elsewhere]
        if mine:
            self._own.send(mine)

    def poll(self) -> Sequence[Report]:
        """The reports of the own executor, those in the database, and the losses of silent services.

        Raises StoreUnavailable.
        """
        reports = list(self._own.poll())
        try:
            if self._elsewhere or self._own_reports_stored:
                reports += self._stored_reports()
            if self._elsewhere:
                self._look_for_silence()
                reports += self._lost.values()
        except DBAPIError as error:
            raise StoreUnavailable(f"the reports of other services cannot be read: {error.orig}") from error
        return reports

    def acknowledge(self, reports: Sequence[Report]) -> None:
        """Let the own executor and the database forget committed reports."""
        self._own.acknowledge([report for report in reports if report.attempt not in self._elsewhere])
        heard = [report for report in reports if report.attempt and (report.attempt, report.kind) in self._reported]
        attempt_reports.delete_committed(self._database, heard)
        for report in reports:
            if report.attempt is None:
                continue
            self._reported.pop((report.attempt, report.kind), None)
            if report.kind not in (ReportKind.STARTED, ReportKind.PROGRESS):
                self._elsewhere.pop(report.attempt, None)
                self._lost.pop(report.attempt, None)

    def observed(self) -> Mapping[AttemptId, AttemptStatus]:
        """The attempts of the own executor, and those of other services as the database has them."""
        elsewhere = {
            attempt: _STATUS[job.attempt.state] for attempt, job in self._elsewhere.items() if job.attempt is not None
        }
        return {**elsewhere, **self._own.observed()}

    def use_cluster(self, cluster: Cluster) -> None:
        """Pass on."""
        self._own.use_cluster(cluster)

    def _find_elsewhere(self) -> dict[AttemptId, JobRecord]:
        """Open attempts of other services. No new ones follow: a leader starts jobs on its own executor."""
        with self._database.reading() as session:
            found = open_attempts(session.connection())
        jobs = SqlStore(self._database).jobs([job for job, _ in found.values()])
        return {job.attempt.id: job for job in jobs if job.attempt is not None and job.attempt.host != self._host}

    def _stored_reports(self) -> list[Report]:
        try:
            own = self._own.observed()
        except ExecutorUnavailable:
            return []  # own attempts cannot be distinguished from closed ones; the reports stay in the database
        stored = attempt_reports.pending_reports(self._database)
        known = [report for report in stored if report.attempt in self._elsewhere or report.attempt in own]
        if len(known) < len(stored):
            # Reports of attempts that have been closed since.
            attempt_reports.delete_committed(self._database, [report for report in stored if report not in known])
        # Reports that this service stored before it led: there will be no more of them.
        self._own_reports_stored = bool(stored) and self._own_reports_stored
        self._reported.update({(report.attempt, report.kind): report for report in known if report.attempt is not None})
        return known

    def _look_for_silence(self) -> None:
        now_s = self._elapsed_s()
        if self._looked_at_s is not None and now_s - self._looked_at_s < SILENCE_CHECK_S:
            return
        self._looked_at_s = now_s
        token = self._lead.token
        left = {attempt: job for attempt, job in self._elsewhere.items() if attempt not in self._lost}
        hosts = {job.attempt.host for job in left.values() if job.attempt is not None}
        for host, (seen_at_s, lease_s) in services.heartbeats_of(self._database, hosts).items():
            # Counted by this clock: that of the database may be set, and then nobody has been silent for so long.
            if host not in self._heard or self._heard[host][0] != seen_at_s:
                self._heard[host] = seen_at_s, now_s
            silent_s = now_s - self._heard[host][1]
            theirs = {
                attempt: job for attempt, job in left.items() if job.attempt is not None and job.attempt.host == host
            }
            limit_s = lease_s + 2.0 * max(self._grace_s(job) for job in theirs.values()) + DEAD_MARGIN_S
            if silent_s < limit_s or token is None:
                continue
            if services.condemn(self._database, host, seen_at_s, self._lead.name, token):
                logger.warning(
                    "service %s has been silent for %.0f s: its %d attempts have ended", host, silent_s, len(theirs)
                )
                self._lost.update({attempt: self._loss(attempt, job, silent_s) for attempt, job in theirs.items()})

    def _grace_s(self, job: JobRecord) -> float:
        return job.spec.preemption.grace_s if job.spec.preemption is not None else self._stop_grace_s

    def _loss(self, attempt: AttemptId, job: JobRecord, silent_s: float) -> Report:
        assert job.attempt is not None
        return Report(
            ReportKind.LOST,
            self._clock.now_s(),
            attempt,
            server=job.attempt.placement.servers[0],
            reason=Reason.NODE_LOST,
            detail=f"the service that ran it was not seen for {silent_s:.0f} s",
        )
