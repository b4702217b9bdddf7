"""The what-if runs of the service: the leader makes those that wait, oldest first, one at a time.

A run lives in the database. Whoever leads claims it, starts its process, and writes its progress and its end under that claim. A
run whose service ended is claimed again by the next leader; a run that was cancelled loses its claim, and its process is killed.
"""

import logging
import threading
import time
from collections.abc import Callable

from sqlalchemy.exc import DBAPIError

from policies.options import OptionError
from service.config.settings import Settings, SettingsError
from service.db import simulations as records
from service.db.lease import FencedOff, LeaderLease
from service.db.session import Database
from service.db.simulations import Claim
from service.history.cycles import CycleSnapshot
from service.simulations.process import Ended, Progress, SimulationProcess, simulating
from service.simulations.request import CURRENT, SimulationRequest, plan_of, request_of
from service.simulations.runs import Plan
from service.simulations.worker import Question

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
"""Period of the look for runs that wait, and of the checks and writes about the one under way."""

_POLL_S = 0.2
"""Longest time until the end of the service, or the loss of the lead, is noticed."""

AGAIN_S = 1.0
"""Pause between two attempts to record the end of a run when the database does not answer."""


class SimulationRunner:
    """Makes the runs while this service leads. ``snapshot_now``: the queue as it is, None if it is too long to copy."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        lead: LeaderLease,
        now_s: Callable[[], float],
        snapshot_now: Callable[[], CycleSnapshot | None],
    ) -> None:
        self._database = database
        self._settings = settings
        self._lead = lead
        self._now_s = now_s
        self._snapshot_now = snapshot_now
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self.pid: int | None = None
        """The process of the run under way."""

    def run_waiting(self) -> None:
        """The scheduled job: begin the oldest run that waits, unless one is under way."""
        if self._thread is not None and self._thread.is_alive():
            return
        token = self._lead.token
        if self._closing.is_set() or token is None or not self._lead.holds():
            return
        try:
            if not records.is_any_open(self._database):
                return
            claim = records.claim_simulation(self._database, token, self._now_s())
        except FencedOff:
            self._lead.lose()
            return
        except DBAPIError as error:
            logger.warning("no simulation can begin: %s", _line(error))
            return
        if claim is not None:
            self._thread = threading.Thread(target=self._make, args=(claim,), name="simulation", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Kill the process of the run under way, and let the run wait for the next leader. No run begins afterwards."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()

    # One run.

    def _make(self, claim: Claim) -> None:
        logger.info("simulation %s starts", claim.id)
        try:
            ended = self._simulate(claim)
        except Exception as error:
            logger.exception("simulation %s failed", claim.id)
            ended = Ended(None, f"{type(error).__name__}; the log of the service has the cause")
        if ended is None:
            self._give_up(claim)
            return
        if ended.unexpected:
            logger.error("simulation %s: %s\n%s", claim.id, ended.reason, ended.unexpected)
        logger.info("simulation %s: %s", claim.id, ended.reason or "succeeded")
        while not self._write_end(claim, ended) and not self._closing.wait(AGAIN_S):
            pass

    def _write_end(self, claim: Claim, ended: Ended) -> bool:
        """Store the end; False if the database does not answer. A run that is left open is made again by the next leader."""
        try:
            records.close_simulation(self._database, claim, self._now_s(), ended.report, ended.reason or None)
        except DBAPIError as error:
            logger.warning("the end of simulation %s could not be recorded: %s", claim.id, _line(error))
            return False
        return True

    def _give_up(self, claim: Claim) -> None:
        """The run was cancelled, belongs to another service, or waits again."""
        try:
            records.return_simulation(self._database, claim)
        except DBAPIError as error:
            logger.warning("simulation %s is left to the next leader: %s", claim.id, _line(error))

    def _simulate(self, claim: Claim) -> Ended | None:
        """How the run ended; None if it is not this service's any more."""
        request = request_of(claim.request)
        try:
            plans = self._plans(request)
        except (OptionError, SettingsError) as error:
            return Ended(None, str(error))
        recorded = None
        if request.from_now:
            recorded = self._snapshot_now()
            if recorded is None:
                most = self._settings.forecast_jobs_max
                return Ended(None, f"more than {most} jobs are unfinished (setting forecast_jobs_max)")
        with simulating(Question(request, plans, self._settings, recorded)) as process:
            self.pid = process.pid
            try:
                return self._watch(claim, process)
            finally:
                self.pid = None

    def _plans(self, request: SimulationRequest) -> list[Plan]:
        # From now on, the policy in force comes first in any case, with its present state.
        names = [name for name in request.policies if not (request.from_now and name == CURRENT)]
        return [plan_of(name, self._settings, request.predictor, request.preemption) for name in names]

    def _watch(self, claim: Claim, process: SimulationProcess) -> Ended | None:
        pace = _Pace()
        newest: Progress | None = None
        next_look_s = 0.0
        while not self._closing.is_set() and self._lead.holds():
            said = process.next(_POLL_S)
            if isinstance(said, Ended):
                if newest is not None:
                    self._note(claim, newest, 0.0)
                return said
            newest = said or newest
            if time.monotonic() >= next_look_s:
                next_look_s = time.monotonic() + LOOK_EVERY_S
                if not self._note(claim, newest, pace.left_s(newest)):
                    return None
        return None

    def _note(self, claim: Claim, newest: Progress | None, eta_s: float | None) -> bool:
        """Store the progress; False if the claim is void."""
        try:
            if newest is None:
                return records.is_held(self._database, claim)
            return records.note_progress(self._database, claim, newest.done, newest.total, eta_s)
        except DBAPIError as error:
            logger.warning("the progress of simulation %s could not be recorded: %s", claim.id, _line(error))
            return True


class _Pace:
    """The time that is left, from the pace since the first progress."""

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None

    def left_s(self, newest: Progress | None) -> float | None:
        """Seconds; None before there is a pace."""
        if newest is None:
            return None
        now_s = time.monotonic()
        if self._first is None:
            self._first = (now_s, newest.done)
            return None
        since_s, since = self._first
        if newest.done <= since:
            return None
        return round((now_s - since_s) / (newest.done - since) * (newest.total - newest.done), 1)


def _line(error: DBAPIError) -> str:
    return " ".join(str(error).split())
