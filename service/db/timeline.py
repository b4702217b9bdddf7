"""Attempts of the whole cluster: those that overlap a period, those that changed after an earlier answer, and the open ones.

A period is read in the order of (start, id) in two parts: the few attempts that were under way at its begin, and those that were
opened in it, by an index. Changes are found by the logs, whose numbers become visible in ascending order: a time would miss what
was committed later than the time that it has (see :mod:`service.db.event_log`).
"""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, groupby
from typing import Any, Literal, NamedTuple, get_args

from sqlalchemy import ColumnElement, Connection, Select, Text, bindparam, case, cast, func, or_, select, tuple_

from policies.lifecycle import HOLDS_GPUS, JobState
from policies.model.cluster import Server
from policies.model.server_reservation import ServerReservation
from service.db.codec import decode
from service.db.event_log import newest_job_event
from service.db.rows import chunks
from service.db.tables import ATTEMPTS, EVENTS, FORECASTS, JOBS, RESERVATIONS, SERVERS, columns
from service.domain.forecast_scores import Milestone

EVENTS_MAX = 100_000
"""Changes of jobs after which everything is read again: more than a page shows, and read in a tenth of a second."""

REMEMBERED_LETTERS = 1000
"""Placements on a dozen servers. Those on thousands are rare, and tens of thousands of them would fill the memory."""

_FINISH = Milestone.FINISH.value
_HOLDING = sorted(state.value for state in HOLDS_GPUS)

_SHOWN = (
    *columns(ATTEMPTS, "opened_at_s id job_id state reason stop_requested_at_s ended_at_s"),
    *columns(JOBS, "name user project"),
    cast(ATTEMPTS.c.placement, Text),
    func.coalesce(cast(ATTEMPTS.c.got_gpu_ids, Text), cast(ATTEMPTS.c.gpu_ids, Text)),
)


class StoredAttempt(NamedTuple):
    """An attempt with what names its job. ``placement`` and ``gpu_ids`` are texts for :func:`runs`."""

    opened_at_s: float
    id: str
    job_id: int
    state: str
    reason: str | None
    stop_requested_at_s: float | None
    ended_at_s: float | None
    name: str
    user: str
    project: str
    placement: str
    gpu_ids: str


class Mark(NamedTuple):
    """What an answer holds: the changes of jobs and the forecasts up to these numbers."""

    event: int
    forecast: int


class Run(NamedTuple):
    """``gpus`` adjacent GPUs of the server at this position, from ``first_gpu`` on."""

    server: int
    first_gpu: int
    gpus: int


class Position(NamedTuple):
    """An attempt's place in the order of a period: the first columns of :class:`StoredAttempt`."""

    opened_at_s: float
    id: str


ServerState = Literal["up", "drained", "down"]

_STATES: Mapping[str, ServerState] = {state: state for state in get_args(ServerState)}


@dataclass(frozen=True, slots=True)
class StoredServer:
    """A server, present or past, and whether it takes new work."""

    server: Server
    state: ServerState


def mark(connection: Connection) -> Mark:
    """What this snapshot holds."""
    forecast = connection.execute(_NEWEST_FORECAST).scalar() or 0
    return Mark(newest_job_event(connection), int(forecast))


def overlapping(
    connection: Connection, since_s: float, until_s: float | None, past: Position | None, limit: int
) -> list[StoredAttempt]:
    """At most ``limit`` attempts that overlap (since, until), in the order of their start, after ``past``.

    ``until_s`` None: no end. O(attempts that ended after ``since_s``), of which only the index is read, + O(limit).
    """
    found: list[StoredAttempt] = []
    if past is None or past.opened_at_s < since_s:
        found = _under_way(connection, since_s, past)[:limit]
        past = None
    if len(found) < limit:
        opened, place = ATTEMPTS.c.opened_at_s, tuple_(ATTEMPTS.c.opened_at_s, ATTEMPTS.c.id)
        later = [opened >= since_s] if past is None else [opened >= past.opened_at_s, place > past]
        later += [] if until_s is None else [opened < until_s]
        in_order = _of(*later).order_by(opened, ATTEMPTS.c.id).limit(limit - len(found))
        found += map(StoredAttempt._make, connection.execute(in_order))
    return found


def _under_way(connection: Connection, since_s: float, past: Position | None) -> list[StoredAttempt]:
    """The attempts that were open at ``since_s``: no more than there are GPUs."""
    opened, ended = ATTEMPTS.c.opened_at_s, ATTEMPTS.c.ended_at_s
    # Only the end may choose the index: a database without statistics would take that of the start, and read all the past.
    before = func.coalesce(opened, opened) < since_s
    parts = (connection.execute(_of(still_open, before)) for still_open in (ended > since_s, ended.is_(None)))
    found = sorted(map(StoredAttempt._make, chain.from_iterable(parts)))
    return found if past is None else [each for each in found if each[:2] > past]


def holding(connection: Connection) -> list[StoredAttempt]:
    """The open attempts, in the order of their start."""
    return sorted(map(StoredAttempt._make, connection.execute(_of(ATTEMPTS.c.ended_at_s.is_(None)))))


def changed(
    connection: Connection, since: Mark, now: Mark, until_s: float | None, limit: int
) -> list[StoredAttempt] | None:
    """The attempts that were opened, began, were asked to stop or ended after ``since``, and the open ones forecast after it.
    ``now``: what this snapshot holds.

    None if everything must be read instead: more than ``limit`` have changed, or the database does not hold that mark (it is a
    restored one).
    """
    if since.event > now.event or since.forecast > now.forecast or now.event - since.event > EVENTS_MAX:
        return None
    # The event of an end does not name its attempt, and has the time at which the service learned of it: it concerns the attempt
    # that was open then. All later attempts of the job count too.
    from_s = {row.job_id: row.at_s for row in connection.execute(_CHANGED_JOBS, {"since": since.event})}
    concerned = set(from_s)
    if now.forecast > since.forecast:
        concerned.update(connection.execute(_FORECAST_JOBS, {"since": since.forecast}).scalars())
    found: list[StoredAttempt] = []
    for part in chunks(sorted(concerned)):
        stored = map(StoredAttempt._make, connection.execute(_OF_JOBS, {"jobs": part}))
        for job, attempts in groupby(sorted(stored, key=_job_and_start), key=lambda each: each.job_id):
            in_order = list(attempts)
            follows_s = [*(each.opened_at_s for each in in_order[1:]), math.inf]
            for each, next_s in zip(in_order, follows_s, strict=True):
                is_new = each.ended_at_s is None or (job in from_s and next_s >= from_s[job])
                if is_new and (until_s is None or each.opened_at_s < until_s):
                    found.append(each)
    return sorted(found) if len(found) <= limit else None


def _job_and_start(attempt: StoredAttempt) -> tuple[int, float, str]:
    return attempt.job_id, attempt.opened_at_s, attempt.id


def _of(*conditions: ColumnElement[bool]) -> Select[Any]:
    return select(*_SHOWN).join(JOBS, JOBS.c.id == ATTEMPTS.c.job_id).where(*conditions)


_NEWEST_FORECAST = select(func.max(FORECASTS.c.id))

# Not the columns themselves: an index has those of a job together already, and SQLite would read all of the log for that.
_EVENT_JOB, _FORECAST_JOB = (func.coalesce(log.c.job_id, log.c.job_id).label("job_id") for log in (EVENTS, FORECASTS))

_CHANGED_JOBS = (
    select(_EVENT_JOB, func.min(EVENTS.c.at_s).label("at_s"))
    .where(
        EVENTS.c.id > bindparam("since"),
        or_(EVENTS.c.source.in_(_HOLDING), EVENTS.c.target == JobState.STARTING.value),
    )
    .group_by(_EVENT_JOB)
)

_FORECAST_JOBS = (
    select(_FORECAST_JOB).where(FORECASTS.c.id > bindparam("since"), FORECASTS.c.milestone == _FINISH).distinct()
)

_OF_JOBS = _of(ATTEMPTS.c.job_id.in_(bindparam("jobs", expanding=True)))


def runs(placement: str, gpu_ids: str) -> tuple[Run, ...]:
    """The GPUs of an attempt from the text of its two columns. Attempts on the same GPUs have equal texts."""
    few = len(placement) + len(gpu_ids) <= REMEMBERED_LETTERS
    return _remembered_runs(placement, gpu_ids) if few else _runs(placement, gpu_ids)


def _runs(placement: str, gpu_ids: str) -> tuple[Run, ...]:
    found = []
    # The codec would check values that nothing here uses, at ten times the cost.
    for (server, *_), indices in zip(json.loads(placement)["shares"], json.loads(gpu_ids), strict=True):
        for _, adjacent in groupby(enumerate(sorted(indices)), lambda place: place[1] - place[0]):
            run = [index for _, index in adjacent]
            found.append(Run(server, run[0], len(run)))
    return tuple(found)


_remembered_runs = lru_cache(maxsize=1 << 15)(_runs)


def predicted_ends(connection: Connection, jobs: Collection[int]) -> Mapping[int, tuple[float, float, float]]:
    """The 10%, 50% and 90% points of the newest forecast of the end of each of these jobs that has one."""
    found: dict[int, tuple[float, float, float]] = {}
    for part in chunks(sorted(jobs)):
        rows = connection.execute(_PREDICTED_ENDS, {"jobs": part})
        found.update((job, (p10_s, p50_s, p90_s)) for job, p10_s, p50_s, p90_s in rows)
    return found


_PREDICTED_ENDS = select(*columns(FORECASTS, "job_id p10_s p50_s p90_s")).where(
    FORECASTS.c.id.in_(
        select(func.max(FORECASTS.c.id))
        .where(FORECASTS.c.job_id.in_(bindparam("jobs", expanding=True)), FORECASTS.c.milestone == _FINISH)
        .group_by(FORECASTS.c.job_id)
    )
)

_SERVER_STATE = case(
    (SERVERS.c.down, "down"), (or_(SERVERS.c.drained, SERVERS.c.engine_drained), "drained"), else_="up"
)

# One text of all: to make rows of ten thousand takes a hundred times as long, and they change seldom.
_SERVERS = select(
    func.aggregate_strings(
        cast(SERVERS.c.position, Text).concat(" ").concat(_SERVER_STATE).concat(" ").concat(cast(SERVERS.c.spec, Text)),
        "\n",
    )
)


def stored_servers(connection: Connection) -> Sequence[StoredServer]:
    """All servers, by position."""
    return _servers(connection.execute(_SERVERS).scalar() or "")


@lru_cache(maxsize=2)
def _servers(text: str) -> Sequence[StoredServer]:
    lines = [line.split(" ", 2) for line in text.split("\n")] if text else []
    lines.sort(key=lambda line: int(line[0]))
    return [StoredServer(_server(spec), _STATES[state]) for _, state, spec in lines]


@lru_cache(maxsize=1 << 14)
def _server(spec: str) -> Server:
    """To decode a specification takes a hundred times as long as to read it."""
    return decode(Server, json.loads(spec))


def reservations_in(connection: Connection, since_s: float, until_s: float) -> Sequence[ServerReservation]:
    """The reservations that overlap a period and were not cancelled, by their start."""
    times = RESERVATIONS.c
    statement = select(times.window).where(
        times.cancelled_at_s.is_(None), times.ends_at_s > since_s, times.starts_at_s <= until_s
    )
    rows = connection.execute(statement.order_by(times.starts_at_s, times.id)).scalars()
    return [decode(ServerReservation, window) for window in rows]
