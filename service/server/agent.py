"""Looks after the attempts of one service's own data folder, whoever leads.

A leader elsewhere never commands them: what it wants stands in the database, and this service carries it out. While this
service leads, the loop does that itself, and the agent only says that it lives. The attempts' own lease is renewed only
after the database has taken a sign of life, so that whoever finds this service silent for longer than that lease may
conclude that its attempts have been stopped.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence

from policies.lifecycle import AttemptState
from policies.model.ids import AttemptId
from service.db import attempt_reports, leases, services
from service.db.lead import boot_time_s
from service.db.reads import open_attempts
from service.db.session import Database
from service.db.store import LEADER_LEASE, SqlStore
from service.engine.actions import launch_of
from service.engine.commands import Command, Stop
from service.engine.cycle import EngineSettings
from service.engine.events import Report, ReportKind
from service.engine.facts import stop_of
from service.engine.ports import AttemptStatus, Executor

logger = logging.getLogger(__name__)

PROMPT_S = 5.0
"""What the database said is acted on within so long, or asked anew: this process may have been stopped in between."""

_BEFORE_ENDS = frozenset({ReportKind.STARTED, ReportKind.PROGRESS})


class Agent:
    """Methods may be called from several threads; they follow each other."""

    def __init__(
        self,
        database: Database,
        host: str,
        executor: Executor,
        renew_leases: Callable[[], None],
        settings: EngineSettings,
        elapsed_s: Callable[[], float] = boot_time_s,
    ) -> None:
        self._database = database
        self._store = SqlStore(database)
        self._host = host
        self._executor = executor
        self._renew_leases = renew_leases
        self._settings = settings
        self._elapsed_s = elapsed_s
        self._lock = threading.Lock()
        self._told: set[AttemptId] = set()
        self.sound = False
        """Whether the database counts this service as alive: only then may anything of it run."""

    def beat(self) -> None:
        """Say that this service lives, and keep its attempts alive; or, where it was given up, end them all first."""
        asked_at_s = self._elapsed_s()
        if services.sign_of_life(self._database, self._host):
            self.sound = True
            if self._elapsed_s() - asked_at_s < PROMPT_S:
                self._renew_leases()
            return
        if self.sound:
            logger.warning("this service was silent for too long and counts as gone; whatever it still runs is stopped")
        self.sound = False
        with self._lock:
            self._clear()

    def attend(self, leads: Callable[[], bool] = lambda: False) -> None:
        """While another service leads, or none: tell what the attempts do, and do what the database wants of them.

        Nothing where this one ``leads`` by now: whoever took the lead in a :meth:`pause` has the attempts to itself.
        """
        with self._lock:
            if not self.sound or leads():
                return
            asked_at_s = self._elapsed_s()
            ends = self._tell(self._executor.poll())
            observed = self._executor.observed()
            commands = self._wanted(observed, ends)
            if commands and self._elapsed_s() - asked_at_s < PROMPT_S:
                self._executor.send(commands)

    def pause(self) -> threading.Lock:
        """Held by whoever takes over the executor, so that nothing of :meth:`attend` is under way meanwhile."""
        return self._lock

    def _tell(self, reports: Sequence[Report]) -> Mapping[AttemptId, Report]:
        """Make reports durable; returns those of ends, which the executor repeats until the leader has committed them."""
        ends = {
            report.attempt: report
            for report in reports
            if report.attempt is not None and report.kind not in _BEFORE_ENDS
        }
        new = [report for report in reports if report.kind in _BEFORE_ENDS or report.attempt not in self._told]
        if new:
            with self._database.writing() as session:
                attempt_reports.tell(session, self._host, new)
            self._told.update(ends)
            self._executor.acknowledge([report for report in new if report.kind in _BEFORE_ENDS])
        return ends

    def _wanted(self, observed: Mapping[AttemptId, AttemptStatus], ends: Mapping[AttemptId, Report]) -> list[Command]:
        """What is to be done, as the loop's own reconciling would: stop what should not run, launch what got lost."""
        with self._database.reading() as session:
            wanted = open_attempts(session.connection(), self._host)
            token = leases.newest_token(session, LEADER_LEASE)
        settled = {attempt: report for attempt, report in ends.items() if attempt not in wanted}
        if settled:
            attempt_reports.drop(self._database, settled.keys())
            self._executor.acknowledge(list(settled.values()))
            self._told.difference_update(settled)
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
                # It ran, and its folder is gone: make sure, and have its end reported.
                commands.append(self._stop(attempt.id, token))
        return commands

    def _clear(self) -> None:
        """End everything, and be alive again when nothing runs any more."""
        self._tell(self._executor.poll())
        alive = [attempt for attempt, status in self._executor.observed().items() if status is not AttemptStatus.ENDED]
        if not alive:
            services.absolve(self._database, self._host)
            self.sound = True
            return
        with self._database.reading() as session:
            token = leases.newest_token(session, LEADER_LEASE)
        self._executor.send([self._stop(attempt, token) for attempt in alive])

    def _stop(self, attempt: AttemptId, token: int) -> Stop:
        return Stop(attempt, graceful=False, grace_s=self._settings.stop_grace_s, fencing_token=token)
