"""Which attempts held which GPUs in a period, what has changed since, and which do now."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

from fastapi import Query, Request, Response
from pydantic import Field
from sqlalchemy import Connection

from service.api.access import Caller
from service.api.deps import Deps
from service.api.documents import EARLIEST_S, LATEST_S, instant, seconds_of
from service.api.paging import CURSOR_LENGTH_MAX, INSTANT, SERIAL, TEXT, PageRequest, cursor
from service.api.peers import Peers
from service.api.permissions import LIST_JOBS
from service.api.problems import Fault, Problem, ProblemType, invalid_parameter
from service.api.routers.common import Routes, large
from service.api.timeline_documents import (
    RESOLUTION_S_MIN,
    attempts_document,
    current,
    gpus_document,
    held_gpus,
    open_jobs,
    reservation_documents,
    server_documents,
    shown,
)
from service.db import timeline
from service.db.reads import staged_specs
from service.db.timeline import Mark, Position, StoredAttempt, StoredServer
from service.wire.base import DIGITS_ALONE, TEXT_MAX
from service.wire.timeline import GpusDocument, TimelineDocument

routes = Routes("cluster")

BARS_MAX = 20_000
"""Bars of one answer: about two megabytes, read and written in a tenth of a second."""

SERVERS_ASKED_MAX = 500
"""Servers that one request may name."""

PERIOD_S = 86_400.0
"""The period of a request that names none ends now."""

RESOLUTION_S_MAX = 366 * 86_400.0

MARK_PATTERN = r"^[0-9]{1,18}-[0-9]{1,18}$"

ServersAsked = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=TEXT_MAX)]] | None,
    Query(max_length=SERVERS_ASKED_MAX, description="Only these servers; repeatable."),
]

_TIME = {"format": "date-time"}
_BOUNDS = Field(ge=EARLIEST_S, le=LATEST_S, allow_inf_nan=False)
_POSITION = (Annotated[float, _BOUNDS], Annotated[float | None, _BOUNDS], SERIAL, SERIAL, INSTANT, TEXT)


class _Asked(NamedTuple):
    """The period, and where the page begins. ``until_s`` None: without an end. ``mark``: of the first page."""

    since_s: float
    until_s: float | None
    mark: Mark | None
    past: Position | None


class _Found(NamedTuple):
    rows: Sequence[StoredAttempt]
    mark: Mark
    increment: bool


@routes.read("/timeline", LIST_JOBS, "Show which attempts held which GPUs", response_model=TimelineDocument)
def show_timeline(
    request: Request,
    caller: Caller,
    dependencies: Deps,
    since: Annotated[
        str | None,
        Query(max_length=TEXT_MAX, json_schema_extra=_TIME, description="Default: a day before the end of the period."),
    ] = None,
    until: Annotated[
        str | None,
        Query(
            max_length=TEXT_MAX,
            json_schema_extra=_TIME,
            description="Default: now, and nothing is left out for being newer. Leave it out with `changed_since`.",
        ),
    ] = None,
    resolution_s: Annotated[
        float,
        Query(
            ge=0.0,
            le=RESOLUTION_S_MAX,
            description="Shorter attempts are merged with their neighbours on the same GPUs. 0: none. Increments merge nothing.",
        ),
    ] = 0.0,
    server: ServersAsked = None,
    changed_since: Annotated[
        str | None,
        Query(pattern=MARK_PATTERN, description="`mark` of an earlier answer: only attempts that changed after it."),
    ] = None,
    limit: Annotated[
        int, Query(ge=1, le=BARS_MAX, description="Most bars of a page, which has one attempt at least."), DIGITS_ALONE
    ] = BARS_MAX,
    after: Annotated[
        str | None, Query(max_length=CURSOR_LENGTH_MAX, description="`next` of the previous page.")
    ] = None,
) -> Response:
    """Attempts by their start, with their bars: adjacent GPUs of one server. Attempts of jobs that the caller may not see are
    anonymous. An answer to `changed_since` has all servers and reservations, and no further pages.
    """
    now_s = dependencies.now_s()
    page = PageRequest(limit, after)
    scope = f"timeline {since} {until} {resolution_s} {server}"
    asked = _asked(page, scope, since, until, now_s)
    peers: Peers = request.app.state.peers
    # Before the snapshot: the first use may write.
    pseudonym = peers.pseudonyms() if caller.projects is not None else str
    end_s = now_s if asked.until_s is None else asked.until_s
    with dependencies.reading() as connection:
        servers = timeline.stored_servers(connection)
        places = _places(servers, server)
        reservations = timeline.reservations_in(connection, min(asked.since_s, now_s), max(end_s, now_s))
        found = _found(connection, asked, changed_since, limit)
        resolution_s = 0.0 if found.increment or resolution_s < RESOLUTION_S_MIN else resolution_s
        drawn = shown(found.rows, places, resolution_s, math.inf if found.increment else limit)
        ends = timeline.predicted_ends(connection, open_jobs(drawn.rows, caller))
    last = found.rows[drawn.taken - 1] if drawn.taken < len(found.rows) or len(found.rows) > limit else None
    key = (asked.since_s, asked.until_s, *found.mark)
    document = TimelineDocument(
        at=instant(now_s),
        since=instant(asked.since_s),
        until=instant(end_s),
        mark=f"{found.mark.event}-{found.mark.forecast}",
        increment=found.increment,
        servers=server_documents(servers, places, current(reservations, now_s)),
        reservations=reservation_documents(reservations, places),
        attempts=attempts_document(drawn.rows, ends, caller, pseudonym),
        bars=drawn.bars,
        left_out=drawn.left_out,
        merged=drawn.merged,
        next=None if last is None else cursor(scope, (*key, last.opened_at_s, last.id)),
    )
    return large(document)


@routes.read("/gpus", LIST_JOBS, "Show which attempt holds which GPU", response_model=GpusDocument)
def show_gpus(caller: Caller, dependencies: Deps, server: ServersAsked = None) -> Response:
    """Every GPU of every server, with the pipeline stage that it computes. GPUs of jobs that the caller may not see are held by
    an unnamed attempt.
    """
    now_s = dependencies.now_s()
    with dependencies.reading() as connection:
        servers = timeline.stored_servers(connection)
        places = _places(servers, server)
        attempts = timeline.holding(connection)
        specs = staged_specs(connection, open_jobs(attempts, caller))
        reserved = current(timeline.reservations_in(connection, now_s, now_s), now_s)
    document = gpus_document(servers, places, reserved, held_gpus(attempts, specs, caller, places), now_s)
    return large(document)


def _asked(page: PageRequest, scope: str, since: str | None, until: str | None, now_s: float) -> _Asked:
    """Raises Problem (422) for times that make no period, and for a foreign cursor."""
    position = page.position(scope, *_POSITION)
    if position is not None:
        since_s, until_s, event, forecast, opened_at_s, attempt = position
        return _Asked(since_s, until_s, Mark(event, forecast), Position(opened_at_s, attempt))
    times = {"since": since, "until": until}
    read = {name: None if text is None else seconds_of(text) for name, text in times.items()}
    faults = [
        Fault("must be a time in ISO 8601 with a zone", parameter=name)
        for name, text in times.items()
        if text is not None and read[name] is None
    ]
    if faults:
        raise Problem(ProblemType.INVALID_PARAMETER, faults=faults)
    since_s, until_s = read["since"], read["until"]
    end_s = now_s if until_s is None else until_s
    if since_s is None:
        since_s = max(EARLIEST_S, end_s - PERIOD_S)
    if since_s >= end_s:
        raise invalid_parameter("since", "must be before 'until', which is now unless given")
    return _Asked(since_s, until_s, None, None)


def _places(servers: Sequence[StoredServer], names: Sequence[str] | None) -> Mapping[int, int]:
    """The place in the answer of each server that it shows, by position."""
    if names is None:
        return {index: index for index in range(len(servers))}
    positions = {each.server.name: index for index, each in enumerate(servers)}
    faults = [
        Fault(f"must be the name of a server (got {name!r})", parameter="server")
        for name in dict.fromkeys(names)
        if name not in positions
    ]
    if faults:
        raise Problem(ProblemType.INVALID_PARAMETER, faults=faults)
    wanted = sorted({positions[name] for name in names})
    return {index: place for place, index in enumerate(wanted)}


def _found(connection: Connection, asked: _Asked, changed_since: str | None, limit: int) -> _Found:
    """What changed, or else one attempt more than a page can have."""
    now = asked.mark or timeline.mark(connection)
    if changed_since is not None and asked.past is None:
        event, forecast = map(int, changed_since.split("-"))
        rows = timeline.changed(connection, Mark(event, forecast), now, asked.until_s, limit)
        if rows is not None:
            return _Found(rows, now, True)
    rows = timeline.overlapping(connection, asked.since_s, asked.until_s, asked.past, limit + 1)
    return _Found(rows, now, False)
