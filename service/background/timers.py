"""APScheduler with timers that follow jumps of the machine's clock.

APScheduler stores due times of the wall clock. If the clock is set back by an hour, no timer would fire for that hour, not even
the renewal of leases. If it is set forward by a year, APScheduler would count each missed period of 0.25 s. So this scheduler
compares the wall clock with the clock since boot before each round, and shifts the due times when the difference has jumped.
"""

import logging
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import wraps
from typing import Any

from apscheduler.jobstores.base import JobLookupError
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.schedulers.base import STATE_STOPPED
from apscheduler.triggers.interval import IntervalTrigger
from sqlalchemy.exc import DBAPIError

from service.engine.ports import Busy, ExecutorUnavailable, StoreUnavailable
from service.runtime.processes import boot_time_s

logger = logging.getLogger(__name__)

JUMP_S = 1.0
"""Changes of the difference up to this are corrections of the machine's clock (NTP), not jumps."""

LOOK_EVERY_S = 1.0
"""Longest time between two rounds, and so until a jump is detected."""


def patient(work: Callable[[], None]) -> Callable[[], None]:
    """``work``, tried again at its next turn if the database, the executor or the scheduling loop does not answer.

    That is logged once, and once more when it works again: an outage of hours must not fill the log.
    """
    name = work.__name__.strip("_")
    fails = False

    @wraps(work)
    def tried() -> None:
        nonlocal fails
        try:
            work()
        except (DBAPIError, StoreUnavailable, ExecutorUnavailable, Busy) as error:
            if not fails:
                logger.warning("%s fails, and is tried again: %s", name, " ".join(str(error).split()))
            fails = True
            return
        if fails:
            logger.info("%s works again", name)
        fails = False

    return tried


class SteadyScheduler(BackgroundScheduler):  # type: ignore[misc]
    """A background scheduler whose periods are real seconds. Only tests pass ``wall_s`` and ``steady_s``."""

    def __init__(
        self, *, wall_s: Callable[[], float] = time.time, steady_s: Callable[[], float] = boot_time_s, **options: Any
    ) -> None:
        super().__init__(timezone="UTC", **options)
        self._wall_s = wall_s
        self._steady_s = steady_s
        self._difference_s = self._difference()

    def _process_jobs(self) -> float | None:
        try:
            with self._jobstores_lock:
                self._follow_jump()
            wait_s: float | None = super()._process_jobs()
        except JobLookupError:
            # ``shutdown`` sets the state before it waits for the round in progress, which then finds no timers.
            if self.state != STATE_STOPPED:
                raise
            wait_s = None
        return LOOK_EVERY_S if wait_s is None else min(wait_s, LOOK_EVERY_S)

    def _difference(self) -> float:
        while True:
            before_s = self._steady_s()
            difference_s = self._wall_s() - before_s
            if self._steady_s() - before_s < JUMP_S:
                return difference_s
            # This thread was suspended between the two reads, so read again.

    def _follow_jump(self) -> None:
        difference_s = self._difference()
        jump_s = difference_s - self._difference_s
        self._difference_s = difference_s
        if abs(jump_s) <= JUMP_S:
            return
        logger.warning("the machine's clock was set by %+.0f s; all timers were shifted", jump_s)
        now = datetime.fromtimestamp(self._wall_s(), self.timezone)
        for job in self.get_jobs():
            if job.next_run_time is None:
                continue
            # One-shot timers fire now: an early cycle finds nothing to do and sets its timer again. The next run of a periodic
            # timer stays as far away as it was, at most one period.
            due = now
            if isinstance(job.trigger, IntervalTrigger):
                due = min(max(job.next_run_time + timedelta(seconds=jump_s), now), now + job.trigger.interval)
            job.modify(next_run_time=due)
