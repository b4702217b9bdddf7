"""Leader election: one service leads and schedules; the others stand by, run their own attempts, and take over.

The lead is a lease in the database that every service checks on a timer. Nothing here blocks.
"""

import logging
import threading
from collections.abc import Callable

from apscheduler.schedulers.background import BackgroundScheduler
from sqlalchemy.exc import DBAPIError

from service.background.timers import patient
from service.config.cluster_file import ClusterFileError
from service.config.settings import Settings
from service.db.lease import LeaderLease
from service.db.servers import ServerInUse
from service.runtime.garbage import let_go, made_to_stay
from service.server.agent import Agent
from service.server.leading import ONCE, Leading

logger = logging.getLogger(__name__)

BEAT_S_MAX = 10.0
"""Longest pause between two heartbeats, whatever the lease of the attempts."""


class Leadership:
    """Takes the lead when it is free, and stops leading when it is lost."""

    def __init__(self, lead: LeaderLease, agent: Agent, settings: Settings, build: Callable[[], Leading]) -> None:
        self._lead = lead
        self._agent = agent
        self._settings = settings
        self._build = build
        self._turn = threading.Lock()
        self._closed = False
        self.leading: Leading | None = None
        """None while this service does not lead."""

    def begin(self) -> bool:
        """Send a heartbeat, and lead at once if no other service does. Raises what prevents it, such as ServerInUse."""
        self._agent.beat()
        return self._try_to_lead()

    def schedule(self, scheduler: BackgroundScheduler) -> None:
        """Renew or take the lead, send heartbeats and run the attempts, each periodically."""
        duration_s = self._settings.leader_lease_s
        periods_s = {
            self._renew: duration_s / 3,
            self._turn_over: duration_s / 6,
            self._agent.beat: min(BEAT_S_MAX, self._settings.lease_s / 6),
            self._attend: self._settings.poll_period_s,
        }
        for work, period_s in periods_s.items():
            scheduler.add_job(patient(work), "interval", seconds=period_s, id=work.__name__.strip("_"), **ONCE)

    def close(self) -> None:
        """Stop leading, and let another service lead at once."""
        with self._turn:
            self._closed = True
            self._stop_leading()
            self._give_back()

    # Scheduled work.

    def _renew(self) -> None:
        if self._lead.token is not None:
            self._lead.renew()

    def _turn_over(self) -> None:
        try:
            self._try_to_lead()
        except (ServerInUse, ClusterFileError) as error:
            logger.error("this service cannot lead: %s", error)

    def _attend(self) -> None:
        if not self._leads():
            self._agent.attend(self._leads)

    def _leads(self) -> bool:
        return self.leading is not None

    def _try_to_lead(self) -> bool:
        with self._turn:
            if self._closed:
                return False
            if self.leading is not None:
                if self._lead.still_leads():
                    return True
                logger.error("another service has become the leader; this service is on standby")
                self._stop_leading()
                let_go()
            if not self._agent.sound or not self._lead.take():
                return False
            try:
                self._begin_leading()
            except BaseException:
                self._stop_leading()
                self._give_back()
                let_go()
                raise
            return True

    def _begin_leading(self) -> None:
        # Pause the agent. When it continues, it finds that this service is the leader.
        with self._agent.pause(), made_to_stay():
            leading = self._build()
            self.leading = leading
        leading.start()
        logger.info("this service is now the leader")

    def _give_back(self) -> None:
        try:
            self._lead.release()
        except DBAPIError as error:
            # The lease expires without a release. Do not hide the error that led here.
            logger.warning("the leader lease could not be released: %s", " ".join(str(error).split()))

    def _stop_leading(self) -> None:
        leading, self.leading = self.leading, None
        if leading is not None:
            leading.close()
