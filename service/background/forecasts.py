"""Forecasts of every job without anybody asking: made now and then for the whole queue, kept, and scored when they are settled.

A job is told of soon after it came, and again whenever the time it has been told of has doubled: a handful of rows however
long it stays. One forecast is for all jobs, so the cost does not grow with how many of them are due.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from policies.model.ids import JobId
from service.db.forecasts import (
    ForecastTimes,
    NewForecast,
    forecast_times,
    score_forecasts,
    settled_forecasts,
    store_forecasts,
)
from service.db.session import Database
from service.domain.forecast_scores import Milestone
from service.forecast.forecast import Forecast, JobForecast, NoForecast

TOLD_AGAIN_S = 60.0
"""A job is told of again after this long at the earliest."""

TELLINGS_MAX = 20
"""Forecasts kept of one job: with doubling distances they reach further than any job lives."""

SCORED_AT_ONCE_MAX = 1000
"""Forecasts scored in one transaction, so that it never holds the write lock for long."""

logger = logging.getLogger(__name__)


class Source(Protocol):
    """What is needed of the forecaster."""

    def current(self) -> Forecast:
        """The newest forecast, which it hands to :meth:`ForecastKeeper.keep` if it had to make it. Raises NoForecast."""


class ForecastKeeper:
    """Keeps and scores forecasts. Methods may be called from any thread, and never inside a writing transaction."""

    def __init__(self, database: Database, now_s: Callable[[], float], cpu_ratio: float, jobs_max: int) -> None:
        self._database = database
        self._now_s = now_s
        self._cpu_ratio = cpu_ratio
        self._jobs_max = jobs_max
        self._lock = threading.Lock()
        self._known: dict[JobId, ForecastTimes] = {}
        self._untold: set[JobId] = set()
        """Jobs of which the database knows no forecast: it need not be asked again."""
        self._not_before_s = 0.0
        self._said = ""

    def keep(self, cycle: int, forecast: Forecast) -> None:
        """Store what a forecast says of the jobs that are due. A forecast that cannot be stored is still told."""
        with self._lock:
            try:
                self._store(cycle, forecast)
            except Exception:
                logger.exception("forecasts were not stored")

    def run(self, source: Source, unfinished: Callable[[], Iterable[JobId]]) -> None:
        """The scheduled job: score what is settled; make a forecast if a job is due and the share of CPU allows it."""
        self._score()
        if time.monotonic() < self._not_before_s:
            return
        jobs = list(unfinished())
        if len(jobs) > self._jobs_max:
            self._say(f"more than {self._jobs_max} jobs are unfinished (forecast_jobs_max)")
            return
        if not self._any_due(jobs):
            return
        began_s = time.monotonic()
        try:
            source.current()
            self._say("")
        except NoForecast as error:
            self._say(str(error))
        ended_s = time.monotonic()
        self._not_before_s = ended_s + (ended_s - began_s) * (1.0 / self._cpu_ratio - 1.0)

    def _say(self, reason: str) -> None:
        """Once, not every time."""
        if reason and reason != self._said:
            logger.warning("no forecasts are kept: %s", reason)
        self._said = reason

    def _score(self) -> None:
        with self._database.reading() as session:
            # Most of the time nothing is, and then nobody needs to wait for the write lock.
            if not settled_forecasts(session.connection(), 1):
                return
        while True:
            with self._database.writing() as session:
                scored = score_forecasts(session.connection(), self._now_s(), SCORED_AT_ONCE_MAX)
            if scored < SCORED_AT_ONCE_MAX:
                return

    def _any_due(self, jobs: list[JobId]) -> bool:
        now_s = self._now_s()
        with self._lock:
            self._learn(jobs)
            return any(self._due(job, now_s) for job in jobs)

    def _due(self, job: JobId, now_s: float) -> bool:
        known = self._known.get(job)
        if known is None:
            return True
        return known.times < TELLINGS_MAX and now_s - known.last_s >= max(TOLD_AGAIN_S, known.last_s - known.first_s)

    def _learn(self, jobs: Iterable[JobId]) -> None:
        """Forget jobs that have ended; ask the database about those that are new here (all of them after a restart)."""
        present = set(jobs)
        self._known = {job: telling for job, telling in self._known.items() if job in present}
        self._untold &= present
        unknown = present - self._known.keys() - self._untold
        if unknown:
            with self._database.reading() as session:
                self._known |= forecast_times(session.connection(), unknown)
            self._untold |= unknown - self._known.keys()

    def _store(self, cycle: int, forecast: Forecast) -> None:
        now_s = forecast.now_s
        self._learn(forecast.jobs)
        due = [each for job, each in forecast.jobs.items() if self._due(job, now_s)]
        rows = [told for each in due for told in _told(cycle, forecast, each)]
        if rows:
            with self._database.writing() as session:
                store_forecasts(session.connection(), rows)
        # Also those of whom nothing could be told (a held job): or they would call for a forecast every time.
        for each in due:
            known = self._known.get(each.job, ForecastTimes(now_s, now_s, 0))
            self._known[each.job] = ForecastTimes(known.first_s, now_s, known.times + 1)
            self._untold.discard(each.job)


def _told(cycle: int, forecast: Forecast, job: JobForecast) -> Iterator[NewForecast]:
    for milestone, spread in ((Milestone.START, job.start), (Milestone.FINISH, job.finish)):
        if spread is not None:
            yield NewForecast(
                job_id=job.job,
                milestone=milestone,
                made_at_s=forecast.now_s,
                cycle=cycle,
                policy=forecast.policy,
                model_version=job.model_version,
                source=job.source,
                samples=job.samples,
                gpus=job.gpus,
                p10_s=spread.p10_s,
                p50_s=spread.p50_s,
                p90_s=spread.p90_s,
            )
