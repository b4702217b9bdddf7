"""Periodic forecasts for the whole queue: make them, store them, and score them when their milestones are reached.

A forecast of a job is stored soon after its submission, again whenever the time since its first forecast has doubled, and earlier
where the expected time of the last one has passed. So the number of rows grows with the logarithm of the job's lifetime. One
forecast covers all jobs, so its cost does not depend on the number of jobs that are due.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from math import inf
from typing import Protocol

from policies.model.ids import JobId
from policies.model.reasons import Reason
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
from service.forecast.forecaster import Standing

FORECAST_DISTANCE_S_MIN = 60.0
"""Minimum time between two stored forecasts of a job."""

OVERDUE_GROWTH = 0.25
"""Minimum time between two stored forecasts of an overdue job, over the time that the stored ones span."""

FORECASTS_MAX = 40
"""Most stored forecasts of one job. If every one is overdue they span five days, otherwise more than any job's lifetime."""

SCORED_AT_ONCE_MAX = 1000
"""Most forecasts scored in one transaction, so that it holds the write lock only for a short time."""

logger = logging.getLogger(__name__)


class Source(Protocol):
    """The part of the forecaster that the keeper uses."""

    def current(self) -> Forecast:
        """The newest forecast. A newly made one is first passed to :meth:`ForecastKeeper.keep`. Raises NoForecast."""


class ForecastKeeper:
    """Stores and scores forecasts. Any thread may call the methods, but not within a writing transaction.

    ``time_ratio``: largest share of the time in which it has forecasts made.
    """

    def __init__(self, database: Database, now_s: Callable[[], float], time_ratio: float, jobs_max: int) -> None:
        self._database = database
        self._now_s = now_s
        self._time_ratio = time_ratio
        self._jobs_max = jobs_max
        self._lock = threading.Lock()
        self._known: dict[JobId, ForecastTimes] = {}
        self._without_forecast: set[JobId] = set()
        """Jobs without a forecast in the database, so that it is not queried for them again."""
        self._unfinished: Mapping[JobId, Standing] = {}
        """As they were in the last run."""
        self._silent: dict[JobId, Reason | None] = {}
        """Jobs whose last forecast has neither start nor end (held ones), with their reason then."""
        self._not_before_s = 0.0
        self._logged_reason = ""

    def keep(self, cycle: int, forecast: Forecast) -> None:
        """Store the forecast of each due job. Errors are logged, so that the forecast can still be shown."""
        with self._lock:
            try:
                self._store(cycle, forecast)
            except Exception:
                logger.exception("forecasts could not be stored")

    def run(self, source: Source, unfinished: Callable[[], Mapping[JobId, Standing]]) -> None:
        """The scheduled job: score settled forecasts; make a forecast if a job is due and the ratio allows it."""
        self._score()
        if time.monotonic() < self._not_before_s:
            return
        jobs = unfinished()
        if len(jobs) > self._jobs_max:
            self._log_once(f"more than {self._jobs_max} jobs are unfinished (forecast_jobs_max)")
            return
        if not self._any_due(jobs):
            return
        began_s = time.monotonic()
        try:
            source.current()
            self._log_once("")
        except NoForecast as error:
            self._log_once(str(error))
        ended_s = time.monotonic()
        self._not_before_s = ended_s + (ended_s - began_s) * (1.0 / self._time_ratio - 1.0)

    def _log_once(self, reason: str) -> None:
        """Log a reason once, not at each run."""
        if reason and reason != self._logged_reason:
            logger.warning("no forecasts are recorded: %s", reason)
        self._logged_reason = reason

    def _score(self) -> None:
        with self._database.reading() as session:
            # Usually no forecast is settled, and then the write lock is not needed.
            if not settled_forecasts(session.connection(), 1):
                return
        while True:
            with self._database.writing() as session:
                scored = score_forecasts(session.connection(), self._now_s(), SCORED_AT_ONCE_MAX)
            if scored < SCORED_AT_ONCE_MAX:
                return

    def _any_due(self, jobs: Mapping[JobId, Standing]) -> bool:
        now_s = self._now_s()
        with self._lock:
            self._unfinished = jobs
            self._learn(jobs.keys())
            return any(self._due(job, now_s) for job in jobs)

    def _due(self, job: JobId, now_s: float) -> bool:
        found = self._unfinished.get(job)
        if job in self._silent and (found is None or found.reason is self._silent[job]):
            return False  # else held jobs would be due at each run
        return self._stale(job, now_s)

    def _stale(self, job: JobId, now_s: float) -> bool:
        """Whether the last stored forecast of the job is so old that another one is to be stored."""
        known = self._known.get(job)
        if known is None:
            return True
        found = self._unfinished.get(job)
        waiting = found is not None and found.waiting
        growth = 1.0
        if job in self._silent:
            growth = 0.0
        elif now_s >= min(known.finish_s, known.start_s if waiting else inf):
            growth = OVERDUE_GROWTH
        distance_s = max(FORECAST_DISTANCE_S_MIN, growth * (known.last_s - known.first_s))
        return known.times < FORECASTS_MAX and now_s - known.last_s >= distance_s

    def _learn(self, jobs: Collection[JobId]) -> None:
        """Drop jobs that have ended, and load the forecast times of new jobs (after a restart: of all jobs)."""
        present = set(jobs)
        self._known = {job: times for job, times in self._known.items() if job in present}
        self._silent = {job: reason for job, reason in self._silent.items() if job in present}
        self._without_forecast &= present
        unknown = present - self._known.keys() - self._without_forecast
        if unknown:
            with self._database.reading() as session:
                self._known |= forecast_times(session.connection(), unknown)
            self._without_forecast |= unknown - self._known.keys()

    def _store(self, cycle: int, forecast: Forecast) -> None:
        now_s = forecast.now_s
        self._learn(forecast.jobs.keys())
        told = [each for each in forecast.jobs.values() if each.start is not None or each.finish is not None]
        due = [each for each in told if self._stale(each.job, now_s)]
        rows = [row for each in due for row in _rows(cycle, forecast, each)]
        if rows:
            with self._database.writing() as session:
                store_forecasts(session.connection(), rows)
        silent = forecast.jobs.keys() - {each.job for each in told}
        self._silent = {job: found.reason if (found := self._unfinished.get(job)) else None for job in silent}
        for each in due:
            self._without_forecast.discard(each.job)
            known = self._known.get(each.job, ForecastTimes(now_s, now_s, 0))
            self._known[each.job] = ForecastTimes(
                known.first_s,
                now_s,
                known.times + 1,
                start_s=each.start.p50_s if each.start is not None else known.start_s,
                finish_s=each.finish.p50_s if each.finish is not None else known.finish_s,
            )


def _rows(cycle: int, forecast: Forecast, job: JobForecast) -> Iterator[NewForecast]:
    for milestone, spread, drawn in (
        (Milestone.START, job.start, job.drawn_start),
        (Milestone.FINISH, job.finish, job.drawn_finish),
    ):
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
                drawn_p10_s=drawn.p10_s if drawn is not None else None,
                drawn_p50_s=drawn.p50_s if drawn is not None else None,
                drawn_p90_s=drawn.p90_s if drawn is not None else None,
            )
