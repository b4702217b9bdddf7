"""The agent: runs the attempts of this service's data folder while another service leads.

The leader writes what it wants into the database, and the agent carries it out. While this service leads, the loop does that
itself, and the agent only sends heartbeats. The lease of the attempts is renewed only after the database has stored a heartbeat:
a service that has been silent for longer than the lease has no running attempts.
"""

import logging
import threading
from collections.abc import Callable, Mapping

from policies.lifecycle import AttemptState
from policies.model.ids import AttemptId
from service.db import attempt_reports, lease, services
from service.db.lease import LEADER_LEASE, boot_time_s
from service.db.reads import open_attempts
from service.db.session import Database
from service.db.store import SqlStore
from service.engine.actions import launch_of
from service.engine.commands import Command, Stop
from service.engine.cycle import EngineSettings
from service.engine.events import Report, ReportKind
from service.engine.ports import AttemptStatus, Executor
from service.engine.requests import stop_of

logger = logging.getLogger(__name__)

PROMPT_S = 5.0
"""Time in which an answer of the database may be acted on. The process may have been suspended in between."""

_BEFORE_ENDS = frozenset({ReportKind.STARTED, ReportKind.PROGRESS})


class Agent:
    """Methods may be called from several threads and run one at a time.

    ``executor`` None: this service has no attempts of its own. Those of a cluster belong to whichever service leads.
    ``register``: registers this service anew. A leader deletes one that was silent for very long, and it may wake up.
    """

    def __init__(
        self,
        database: Database,
        host: str,
        executor: Executor | None,
        renew_leases: Callable[[], None],
        settings: EngineSettings,
        elapsed_s: Callable[[], float] = boot_time_s,
        register: Callable[[], object] = lambda: None,
    ) -> None:
        self._database = database
        self._store = SqlStore(database)
        self._host = host
        self._executor = executor
        self._renew_leases = renew_leases
        self._settings = settings
        self._elapsed_s = elapsed_s
        self._register = register
        self._lock = threading.Lock()
        self._reported: set[AttemptId] = set()
        self.sound = False
        """Whether the database counts this service as alive. If not, none of its attempts may run."""

    def beat(self) -> None:
        """Send a heartbeat and renew the lease of the attempts. If the service was given up, stop all attempts first."""
        asked_at_s = self._elapsed_s()
        if services.heartbeat(self._database, self._host):
            self.sound = True
            if self._elapsed_s() - asked_at_s < PROMPT_S:
                self._renew_leases()
            return
        if self.sound:
            logger.warning("this service was silent for too long and was declared lost; its attempts are stopped")
        self.sound = False
        with self._lock:
            if self._executor is not None:
                self._clear(self._executor)
            else:
                self._reinstate()

    def attend(self, leads: Callable[[], bool] = lambda: False) -> None:
        """While this service does not lead: report what the attempts do, and carry out what the database wants.

        Does nothing if this service ``leads`` by now: it has taken the lead in a :meth:`pause`.
        """
        with self._lock:
            executor = self._executor
            if executor is None or not self.sound or leads():
                return
            asked_at_s = self._elapsed_s()
            ends = self._report(executor)
            observed = executor.observed()
            commands = self._wanted(executor, observed, ends)
            if commands and self._elapsed_s() - asked_at_s < PROMPT_S:
                executor.send(commands)

    def pause(self) -> threading.Lock:
        """A lock; while it is held, :meth:`attend` does not run."""
        return self._lock

    def _report(self, executor: Executor) -> Mapping[AttemptId, Report]:
        """Store new reports; returns those of ends, which the executor repeats until the leader has committed them."""
        reports = executor.poll()
        ends = {
            report.attempt: report
            for report in reports
            if report.attempt is not None and report.kind not in _BEFORE_ENDS
        }
        new = [report for report in reports if report.kind in _BEFORE_ENDS or report.attempt not in self._reported]
        if new:
            with self._database.writing() as session:
                attempt_reports.store_reports(session, self._host, new)
            self._reported.update(ends)
            executor.acknowledge([report for report in new if report.kind in _BEFORE_ENDS])
        return ends

    def _wanted(
        self, executor: Executor, observed: Mapping[AttemptId, AttemptStatus], ends: Mapping[AttemptId, Report]
    ) -> list[Command]:
        """The commands that reconciling needs: stop what should not run, launch what got lost."""
        with self._database.reading() as session:
            wanted = open_attempts(session.connection(), self._host)
            token = lease.newest_token(session, LEADER_LEASE)
        settled = {attempt: report for attempt, report in ends.items() if attempt not in wanted}
        if settled:
            attempt_reports.delete_of_attempts(self._database, settled.keys())
            executor.acknowledge(list(settled.values()))
            self._reported.difference_update(settled)
        zombies = [
            attempt
            for attempt, status in observed.items()
            if attempt not in wanted and status is not AttemptStatus.ENDED
        ]
        commands: list[Command] = [self._stop(attempt, token) for attempt in zombies]
        due = [
            job
            for attempt, (job, state) in wanted.items()
            if attempt not in observed
            or (state is AttemptState.STOPPING and observed[attempt] is not AttemptStatus.ENDED)
        ]
        for job in self._store.jobs(due) if due else ():
            attempt = job.attempt
            if attempt is None or attempt.host != self._host:
                continue
            if attempt.state is AttemptState.STOPPING:
                commands.append(stop_of(job, self._settings.stop_grace_s, token))
            elif attempt.state is AttemptState.LAUNCHING:
                commands.append(launch_of(job, token))
            else:
                # It ran, and its folder is gone: a stop makes sure of that and has its end reported.
                commands.append(self._stop(attempt.id, token))
        return commands

    def _clear(self, executor: Executor) -> None:
        """Stop all attempts. When nothing runs any more, the service is alive again."""
        self._report(executor)
        alive = [attempt for attempt, status in executor.observed().items() if status is not AttemptStatus.ENDED]
        if not alive:
            self._reinstate()
            return
        with self._database.reading() as session:
            token = lease.newest_token(session, LEADER_LEASE)
        executor.send([self._stop(attempt, token) for attempt in alive])

    def _reinstate(self) -> None:
        if not services.reinstate(self._database, self._host):
            self._register()
        self.sound = True

    def _stop(self, attempt: AttemptId, token: int) -> Stop:
        return Stop(attempt, graceful=False, grace_s=self._settings.stop_grace_s, fencing_token=token)
