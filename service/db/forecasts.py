"""Stored forecasts of jobs, scored once their outcomes are known.

Scoring reads the jobs' rows and events, so it may run late or twice with the same result, and delays no cycle.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Row, and_, bindparam, func, insert, or_, select, update

from policies.lifecycle import JobState
from policies.model.ids import JobId
from policies.model.reasons import Reason
from service.db.pages import page
from service.db.rows import Values, chunks
from service.db.tables import EVENTS, FORECASTS, JOBS, columns
from service.domain.forecast_calibration import Outcome
from service.domain.forecast_scores import Milestone, Score, Scored, score

_START = Milestone.START.value
_STARTING = JobState.STARTING.value
_OF_FORECAST = columns(FORECASTS, "id job_id milestone made_at_s p10_s p50_s p90_s")
_OF_JOB = columns(JOBS, "state reason finished_at_s")

_BY_ITSELF = frozenset({JobState.SUCCEEDED, JobState.FAILED})
"""Ends of a job that a forecast is compared with. An end by walltime is known beforehand and counts as well."""


@dataclass(frozen=True, slots=True)
class NewForecast:
    """One forecast of a milestone: quantiles of an instant, seconds since the Unix epoch. ``drawn_*``: before calibration; None:
    as shown.
    """

    job_id: JobId
    milestone: Milestone
    made_at_s: float
    cycle: int
    policy: str
    model_version: str
    source: str
    samples: int
    gpus: int
    p10_s: float
    p50_s: float
    p90_s: float
    drawn_p10_s: float | None = None
    drawn_p50_s: float | None = None
    drawn_p90_s: float | None = None


class ForecastTimes(NamedTuple):
    """When a job was first and last forecast, how often, and the newest p50 of its start and its end; infinite without one."""

    first_s: float
    last_s: float
    times: int
    start_s: float = inf
    finish_s: float = inf


def store_forecasts(connection: Connection, forecasts: Sequence[NewForecast]) -> None:
    """Insert, in one statement. Each job must exist."""
    if forecasts:
        connection.execute(insert(FORECASTS), [asdict(each) for each in forecasts])


def forecast_times(connection: Connection, jobs: Collection[JobId]) -> Mapping[JobId, ForecastTimes]:
    """When these jobs were forecast; jobs without a forecast are left out."""
    found: dict[JobId, ForecastTimes] = {}
    at_s = FORECASTS.c.made_at_s
    times = func.count(at_s.distinct())
    for part in chunks(sorted(jobs)):
        statement = (
            select(FORECASTS.c.job_id, func.min(at_s), func.max(at_s), times)
            .where(FORECASTS.c.job_id.in_(part))
            .group_by(FORECASTS.c.job_id)
        )
        newest = newest_forecasts(connection, part)
        for job, first_s, last_s, count in connection.execute(statement):
            expected = {each: row.p50_s for each, row in newest[job].items()}
            start_s, finish_s = (expected.get(each, inf) for each in (Milestone.START, Milestone.FINISH))
            found[JobId(job)] = ForecastTimes(first_s, last_s, count, start_s, finish_s)
    return found


def settled_forecasts(connection: Connection, limit: int) -> Sequence[Row[Any]]:
    """At most ``limit`` unscored forecasts whose milestone has been reached, or never will be. O(unscored forecasts)."""
    forecasts, events = FORECASTS.c, EVENTS.c
    ended = JOBS.c.finished_at_s.is_not(None)
    began = (events.job_id == forecasts.job_id) & (events.target == _STARTING) & (events.at_s >= forecasts.made_at_s)
    started = and_(forecasts.milestone == _START, JOBS.c.attempts > 0, select(events.id).where(began).exists())
    statement = (
        select(*_OF_FORECAST, *_OF_JOB)
        .join_from(FORECASTS, JOBS, JOBS.c.id == forecasts.job_id)
        .where(forecasts.scored_at_s.is_(None), or_(ended, started))
        .limit(limit)
    )
    return connection.execute(statement).all()


def score_forecasts(connection: Connection, now_s: float, limit: int) -> int:
    """Score at most ``limit`` of the settled forecasts; returns how many.

    A start is scored against the job's first start after the forecast was made. The forecast of a cancelled job has no outcome
    to compare with: it is closed without a score.
    """
    rows = settled_forecasts(connection, limit)
    starts = _starts(connection, sorted({row.job_id for row in rows if row.milestone == _START}))
    if rows:
        scored = [_values(row, starts.get(row.job_id, ()), now_s) for row in rows]
        connection.execute(update(FORECASTS).where(FORECASTS.c.id == bindparam("at_id")), scored)
    return len(rows)


def _starts(connection: Connection, jobs: Sequence[int]) -> Mapping[int, Sequence[float]]:
    """Every time at which each of these jobs got its GPUs."""
    events = EVENTS.c
    found: dict[int, list[float]] = {}
    for part in chunks(jobs):
        statement = select(events.job_id, events.at_s).where(events.job_id.in_(part), events.target == _STARTING)
        for job, at_s in connection.execute(statement):
            found.setdefault(job, []).append(at_s)
    return found


def _values(row: Row[Any], starts: Iterable[float], now_s: float) -> Values:
    """The columns of a forecast whose milestone is settled."""
    actual_s: float | None
    if row.milestone == _START:
        actual_s = min((at_s for at_s in starts if at_s >= row.made_at_s), default=None)
    else:
        by_itself = JobState(row.state) in _BY_ITSELF or row.reason == Reason.WALLTIME.value
        actual_s = row.finished_at_s if by_itself else None
    values: Values = {"at_id": row.id, "scored_at_s": now_s, "actual_at_s": actual_s}
    found = score((row.p10_s, row.p50_s, row.p90_s), actual_s) if actual_s is not None else None
    return values | (found._asdict() if found is not None else dict.fromkeys(Score._fields))


def scored_forecasts(connection: Connection, since_s: float, newest: int) -> list[Scored]:
    """The ``newest`` scored forecasts that were made since an instant, newest first."""
    forecasts = FORECASTS.c
    statement = (
        select(FORECASTS)
        .where(forecasts.error_s.is_not(None), forecasts.made_at_s >= since_s)
        .order_by(forecasts.id.desc())
        .limit(newest)
    )
    return [
        Scored(
            Milestone(row.milestone),
            row.job_id,
            row.p50_s - row.made_at_s,
            row.gpus,
            Score(row.error_s, row.inside, row.pinball_s),
            row.p90_s - row.p10_s,
        )
        for row in connection.execute(statement)
    ]


def known_forecasts(connection: Connection, now_s: float, newest: int) -> list[Outcome]:
    """The ``newest`` forecasts with an outcome, and those that are open after their p90, with the time so far."""
    forecasts = FORECASTS.c
    came = forecasts.actual_at_s.is_not(None)
    overdue = and_(forecasts.scored_at_s.is_(None), forecasts.p90_s < now_s)
    statement = select(FORECASTS).where(or_(came, overdue)).order_by(forecasts.id.desc()).limit(newest)
    return [_outcome(row, now_s) for row in connection.execute(statement)]


def _outcome(row: Row[Any], now_s: float) -> Outcome:
    shown, drawn = (row.p10_s, row.p50_s, row.p90_s), (row.drawn_p10_s, row.drawn_p50_s, row.drawn_p90_s)
    quantiles = [of if of is not None else as_shown for of, as_shown in zip(drawn, shown, strict=True)]
    actual_s = row.actual_at_s if row.actual_at_s is not None else now_s
    ahead_s = [at_s - row.made_at_s for at_s in quantiles]
    return Outcome(Milestone(row.milestone), ahead_s, actual_s - row.made_at_s)


def forecasts_of(connection: Connection, job_id: int, after_id: int, limit: int) -> Sequence[Row[Any]]:
    """The forecasts of a job, oldest first."""
    return page(connection, select(FORECASTS).where(FORECASTS.c.job_id == job_id), [FORECASTS.c.id], after_id, limit)


_NEWEST: Final = select(FORECASTS).where(
    FORECASTS.c.id.in_(
        select(func.max(FORECASTS.c.id))
        .where(FORECASTS.c.job_id.in_(bindparam("ids", expanding=True)))
        .group_by(FORECASTS.c.job_id, FORECASTS.c.milestone)
    )
)
"""Built once: it is read with every list of jobs."""


def newest_forecasts(connection: Connection, job_ids: Collection[int]) -> Mapping[int, Mapping[Milestone, Row[Any]]]:
    """The newest forecast of each milestone of these jobs, if there is one."""
    if not job_ids:
        return {}
    found: dict[int, dict[Milestone, Row[Any]]] = {}
    for row in connection.execute(_NEWEST, {"ids": list(job_ids)}):
        found.setdefault(row.job_id, {})[Milestone(row.milestone)] = row
    return found
