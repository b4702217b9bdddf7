"""What forecasts take from the past: the rhythm of submissions, the failures, and the calibration by the record of forecasts."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from sqlalchemy import Connection

from policies.lifecycle import TERMINAL
from policies.model.estimate import Estimate
from policies.model.ids import ServerIndex
from policies.model.job import JobSpec
from service.db.failures import first_cycle_s, listed_servers, ran_attempts, server_changes
from service.db.forecasts import known_forecasts
from service.db.recorded_jobs import first_submission_s, jobs_from, newest_jobs
from service.db.session import Database
from service.domain.forecast_calibration import OUTCOMES_MAX, Calibration
from service.domain.forecast_scores import Milestone
from service.engine.record import JobRecord
from service.forecast.arrivals import DAY_S, NO_RHYTHM, PastArrival, Rhythm
from service.forecast.failures import NO_FAILURES, Failures, failures_of
from service.forecast.forecast import Forecast, JobForecast, Spread
from service.forecast.outages import fatal, outages_of, past_attempts

WINDOW_S = 28 * 86_400.0
"""The past whose submissions a future repeats, and whose rates of failures it has."""

ARRIVALS_MAX = 2_000
"""Newest submissions of that past."""

BUSY_DAYS = 4
"""Where they all came within a day, each of so many earlier days gives an equal part, those that followed the same instant. It is
more than one future takes."""

ATTEMPTS_MAX = 2_000
"""Newest attempts of that past."""

KEPT_S = 300.0
"""Time after which submissions and failures are read again."""


class Past(Protocol):
    """Implemented by :class:`RecordedPast`."""

    def rhythm(self, now_s: float) -> Rhythm:
        """The submissions before ``now_s``."""

    def failures(self, now_s: float) -> Failures:
        """The rates of failures before ``now_s``."""

    def calibration(self, now_s: float) -> Calibration:
        """By the forecasts whose outcome is known at ``now_s``."""


@dataclass(slots=True)
class RecordedPast:
    """Implements :class:`Past` by the service's database. Not within a writing transaction."""

    database: Database
    _read_at_s: float = -KEPT_S
    _rhythm: Rhythm = NO_RHYTHM
    _failures: Failures = NO_FAILURES

    def rhythm(self, now_s: float) -> Rhythm:
        """As it was at most KEPT_S ago."""
        self._read_if_old(now_s)
        return self._rhythm

    def failures(self, now_s: float) -> Failures:
        """As they were at most KEPT_S ago."""
        self._read_if_old(now_s)
        return self._failures

    def calibration(self, now_s: float) -> Calibration:
        """Read each time, so that it does not depend on when the service was started."""
        with self.database.reading() as session:
            return Calibration(known_forecasts(session.connection(), now_s, OUTCOMES_MAX))

    def _read_if_old(self, now_s: float) -> None:
        if time.monotonic() - self._read_at_s < KEPT_S:
            return
        with self.database.reading() as session:
            connection = session.connection()
            self._rhythm = _rhythm(connection, now_s)
            self._failures = _failures(connection, now_s)
        self._read_at_s = time.monotonic()


def _rhythm(connection: Connection, now_s: float) -> Rhythm:
    found = newest_jobs(connection, now_s - WINDOW_S, ARRIVALS_MAX)
    since_s = found[0][0].submitted_at_s if found else now_s
    if len(found) == ARRIVALS_MAX and now_s - since_s < DAY_S:
        first_s = first_submission_s(connection)
        days = 0 if first_s is None else min(BUSY_DAYS, int((now_s - first_s) // DAY_S))
        if days:
            # A second more, so that rounding leaves no day out.
            starts_s = [now_s - day * DAY_S - 1.0 for day in range(days, 0, -1)]
            parts = [jobs_from(connection, at_s, ARRIVALS_MAX // BUSY_DAYS) for at_s in starts_s]
            # On quiet days parts overlap.
            found = list({each[0].id: each for part in parts for each in part}.values())
            found.sort(key=lambda each: (each[0].submitted_at_s, each[0].id))
            return rhythm_of(found, now_s, starts_s[0])
    return rhythm_of(found, now_s)


def _failures(connection: Connection, now_s: float) -> Failures:
    since_s = first_cycle_s(connection, now_s - WINDOW_S)
    if since_s is None or now_s - since_s < DAY_S:
        return NO_FAILURES
    changes = [(ServerIndex(position), at_s, kind) for position, at_s, kind in server_changes(connection, since_s)]
    outages, up_s = outages_of(changes, listed_servers(connection), since_s, now_s)
    attempts = ran_attempts(connection, since_s, ATTEMPTS_MAX)
    return failures_of(fatal(outages, attempts), up_s, past_attempts(attempts, outages, now_s))


def rhythm_of(jobs: Sequence[tuple[JobRecord, Estimate | None]], now_s: float, since_s: float | None = None) -> Rhythm:
    """The rhythm of these jobs, in ascending time of submission, each with its first prediction. Jobs that ended without having
    run are left out. ``since_s``: when the record begins; None: with the first job.
    """
    specs: dict[int, JobSpec] = {}
    found = [
        _past_arrival(record, estimate, _plain(record.spec, specs), now_s)
        for record, estimate in jobs
        if record.state not in TERMINAL or record.service_s > 0.0
    ]
    if not found:
        return NO_RHYTHM
    return Rhythm(found[0].submitted_at_s if since_s is None else since_s, found)


def _plain(spec: JobSpec, known: dict[int, JobSpec]) -> JobSpec:
    """The spec without what a simulation does not need; jobs that share a spec share this one."""
    found = known.get(id(spec))
    if found is None:
        found = known[id(spec)] = replace(
            spec, command=(), env={}, secret_env=(), labels={}, after=(), after_any=(), array=None, hold=False
        )
    return found


def _past_arrival(job: JobRecord, estimate: Estimate | None, spec: JobSpec, now_s: float) -> PastArrival:
    ended = job.state in TERMINAL
    iterations = job.iterations if ended and job.reports_iterations and job.iterations > 0.0 else None
    duration_s: float | None = job.service_s if ended else None
    if iterations is not None and job.iteration_times is not None:
        duration_s = iterations * job.iteration_times.min_s
    done = 0.0 if ended or estimate is None else job.done(estimate.unit, now_s)
    return PastArrival(job.submitted_at_s, spec, job.iteration_times, estimate, duration_s, iterations, done)


def calibrated(found: Forecast, calibration: Calibration) -> Forecast:
    """The forecast with calibrated quantiles; those of the futures are kept beside them."""
    return replace(found, jobs={job: _calibrated(each, calibration, found.now_s) for job, each in found.jobs.items()})


def _calibrated(job: JobForecast, calibration: Calibration, now_s: float) -> JobForecast:
    start = _moved(job.start, Milestone.START, calibration, now_s)
    finish = _moved(job.finish, Milestone.FINISH, calibration, now_s)
    if start is not None and finish is not None:
        # Both are moved apart from each other. The job runs between them, in every future at least so long.
        earliest = (at_s + job.least_run_s for at_s in _times(start))
        finish = Spread(*(max(pair) for pair in zip(earliest, _times(finish), strict=True)))
    return replace(job, start=start, finish=finish, drawn_start=job.start, drawn_finish=job.finish)


def _moved(spread: Spread | None, milestone: Milestone, calibration: Calibration, now_s: float) -> Spread | None:
    if spread is None:
        return None
    moved = calibration.apply(milestone, [at_s - now_s for at_s in _times(spread)])
    return Spread(*(now_s + ahead_s for ahead_s in moved))


def _times(spread: Spread) -> tuple[float, float, float]:
    return spread.p10_s, spread.p50_s, spread.p90_s
