"""The executor port of a leader that is not alone: its own attempts, and those of services on other data folders.

It commands its own alone. Of the others it hears through the database, and they hear of it in the same way. An attempt
whose service is silent stays as it is, because lost is not dead, until that service's supervisors must have stopped it and
the database has recorded that this was relied on.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence

from sqlalchemy.exc import DBAPIError

from policies.lifecycle import AttemptState
from policies.model.ids import AttemptId
from policies.model.reasons import Reason
from service.db import attempt_reports, services
from service.db.lead import Lead
from service.db.reads import open_attempts
from service.db.session import Database
from service.db.store import SqlStore
from service.engine.commands import Command
from service.engine.events import Report, ReportKind
from service.engine.ports import AttemptStatus, Clock, Executor, ExecutorUnavailable, StoreUnavailable
from service.engine.record import JobRecord

logger = logging.getLogger(__name__)

DEAD_MARGIN_S = 10.0
"""Beyond lease and grace, before a silent service's attempts count as ended: supervisors look now and then, and kill last."""

SILENCE_CHECK_S = 1.0
"""How often it is looked whether a service has been silent for too long."""

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
        lead: Lead,
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
        self._told: dict[tuple[AttemptId, ReportKind], Report] = {}
        self._lost: dict[AttemptId, Report] = {}
        self._own_are_told = True
        self._looked_at_s: float | None = None
        self.refused_commands = 0
        """Commands that were not carried out because the lead was over."""

    def send(self, commands: Sequence[Command]) -> None:
        """Command this service's own attempts, as long as the lead can be trusted."""
        if not self._lead.holds():
            self.refused_commands += len(commands)
            logger.warning("%d commands are left to the next leader", len(commands))
            return
        mine = [command for command in commands if command.attempt not in self._elsewhere]
        if mine:
            self._own.send(mine)

    def poll(self) -> Sequence[Report]:
        """The own executor's reports, those that were told through the database, and the losses of silent services.

        Raises StoreUnavailable.
        """
        reports = list(self._own.poll())
        try:
            if self._elsewhere or self._own_are_told:
                reports += self._hear()
            if self._elsewhere:
                self._look_for_silence()
                reports += self._lost.values()
        except DBAPIError as error:
            raise StoreUnavailable(f"other services cannot be heard: {error.orig}") from error
        return reports

    def acknowledge(self, reports: Sequence[Report]) -> None:
        """Committed: the own executor and the database may forget them."""
        self._own.acknowledge([report for report in reports if report.attempt not in self._elsewhere])
        heard = [report for report in reports if report.attempt and (report.attempt, report.kind) in self._told]
        attempt_reports.forget(self._database, heard)
        for report in reports:
            if report.attempt is None:
                continue
            self._told.pop((report.attempt, report.kind), None)
            if report.kind not in (ReportKind.STARTED, ReportKind.PROGRESS):
                self._elsewhere.pop(report.attempt, None)
                self._lost.pop(report.attempt, None)

    def observed(self) -> Mapping[AttemptId, AttemptStatus]:
        """The own executor's attempts, and the others' as the database has them."""
        elsewhere = {
            attempt: _STATUS[job.attempt.state] for attempt, job in self._elsewhere.items() if job.attempt is not None
        }
        return {**elsewhere, **self._own.observed()}

    def _find_elsewhere(self) -> dict[AttemptId, JobRecord]:
        """Open attempts of other services. There will be no new ones: whoever leads starts jobs at home."""
        with self._database.reading() as session:
            found = open_attempts(session.connection())
        jobs = SqlStore(self._database).jobs([job for job, _ in found.values()])
        return {job.attempt.id: job for job in jobs if job.attempt is not None and job.attempt.host != self._host}

    def _hear(self) -> list[Report]:
        try:
            own = self._own.observed()
        except ExecutorUnavailable:
            return []  # what is ours cannot be told from what is gone; the reports stay where they are
        told = attempt_reports.told(self._database)
        known = [report for report in told if report.attempt in self._elsewhere or report.attempt in own]
        if len(known) < len(told):
            # Of attempts that were closed meanwhile: nobody waits for them.
            attempt_reports.forget(self._database, [report for report in told if report not in known])
        # What this service told before it led is here once, and nothing is added to it.
        self._own_are_told = bool(told) and self._own_are_told
        self._told.update({(report.attempt, report.kind): report for report in known if report.attempt is not None})
        return known

    def _look_for_silence(self) -> None:
        now_s = self._elapsed_s()
        if self._looked_at_s is not None and now_s - self._looked_at_s < SILENCE_CHECK_S:
            return
        self._looked_at_s = now_s
        token = self._lead.token
        left = {attempt: job for attempt, job in self._elsewhere.items() if attempt not in self._lost}
        hosts = {job.attempt.host for job in left.values() if job.attempt is not None}
        for host, (silent_s, lease_s) in services.silences(self._database, hosts).items():
            theirs = {
                attempt: job for attempt, job in left.items() if job.attempt is not None and job.attempt.host == host
            }
            limit_s = lease_s + 2.0 * max(self._grace_s(job) for job in theirs.values()) + DEAD_MARGIN_S
            if silent_s < limit_s or token is None:
                continue
            if services.condemn(self._database, host, limit_s, self._lead.name, token):
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
