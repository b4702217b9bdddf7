"""APScheduler with timers that survive a machine's clock that is set.

APScheduler keeps due times of the wall clock. Set back by an hour, nothing would run for that hour, not even the renewal of
leases; set forward by a year, it would count every missed period of a quarter of a second. Here the difference between the wall
clock and the clock since boot is looked at before every round, and when it has jumped, due times jump with it.
"""

import logging
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from apscheduler.jobstores.base import JobLookupError
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.schedulers.base import STATE_STOPPED
from apscheduler.triggers.interval import IntervalTrigger

from service.runtime.processes import boot_time_s

logger = logging.getLogger(__name__)

JUMP_S = 1.0
"""A difference that grew by less since the last round is the machine's clock being disciplined, not set."""

LOOK_EVERY_S = 1.0
"""The longest time between two rounds, and so until a jump is noticed."""


class SteadyScheduler(BackgroundScheduler):  # type: ignore[misc]
    """A background scheduler whose periods are real seconds. ``wall_s`` and ``steady_s`` are given by tests alone."""

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
            # ``shutdown`` says that it has stopped before it waits for the round under way, which then finds no timer any more.
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
            # This thread stood still between the two, which is no jump of either.

    def _follow_jump(self) -> None:
        difference_s = self._difference()
        jump_s = difference_s - self._difference_s
        self._difference_s = difference_s
        if abs(jump_s) <= JUMP_S:
            return
        logger.warning("the machine's clock was set by %+.0f s; all timers follow", jump_s)
        now = datetime.fromtimestamp(self._wall_s(), self.timezone)
        for job in self.get_jobs():
            if job.next_run_time is None:
                continue
            # A pass too early finds nothing to do and asks again; a period is as far away as it was, and at most one long.
            due = now
            if isinstance(job.trigger, IntervalTrigger):
                due = min(max(job.next_run_time + timedelta(seconds=jump_s), now), now + job.trigger.interval)
            job.modify(next_run_time=due)
