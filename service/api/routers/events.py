"""Changes of jobs and servers, and cycles, as a stream of server-sent events."""

import re
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Depends, Header, Query, Request
from fastapi.responses import StreamingResponse

from policies.model.ids import ID_MAX
from policies.model.reasons import Reason
from service.api.access import Caller
from service.api.admission import ticket_of
from service.api.authenticate import Authenticator
from service.api.browser import session_cookie
from service.api.deps import Deps
from service.api.documents import document
from service.api.feed import Feed
from service.api.permissions import LIST_JOBS
from service.api.problems import Problem, ProblemType, invalid_parameter
from service.api.routers.cluster import server_event
from service.api.routers.common import Routes, no_such_job
from service.api.routers.cycles import cycle_summary
from service.api.sse import MEDIA_TYPE, Streams, changes, stream
from service.db.access import owner_of
from service.db.event_log import Entry
from service.domain.access import Role
from service.wire.jobs import StreamedEvent

routes = Routes("events")


async def _as_stream(request: Request) -> None:
    ticket_of(request.scope).become_stream()


_JOB_TOPIC = re.compile(r"job:([1-9][0-9]{0,9})")

_POSITION = re.compile(r"([0-9]{1,18})(?:\+[0-9]{1,9}(?:\.[0-9]{1,9})*)?")
"""The number of an event. Release 0.1 appended the distances to larger numbers that the client had received as well; such a
client receives those events again."""


@routes.read(
    "/events",
    LIST_JOBS,
    "Stream events",
    *(403, 404, 429),
    dependencies=[Depends(_as_stream)],
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "Events of the topic from now on, or from `Last-Event-ID` on; comments while nothing happens.",
            "content": {MEDIA_TYPE: {"schema": {"type": "string"}}},
        },
    },
)
def follow(
    dependencies: Deps,
    caller: Caller,
    request: Request,
    topic: Annotated[
        str,
        Query(max_length=32, description="`jobs`, `job:NUMBER`, `servers`, `changes`, or `cycle` (for operators)."),
    ] = "jobs",
    last_event_id: Annotated[
        str | None, Header(max_length=4096, description="The `id` of the last event that was received.")
    ] = None,
) -> StreamingResponse:
    """Server-sent events: `job` (a change of a job's state), `server` (a change of a server, with its reason), `cycle` (the
    counts of a cycle) or `changes` (whether anything of `jobs` or of `servers` has changed for anyone; one a second at most). The
    stream ends after 15 minutes, when access rights change, and when the service stops. A client that reconnects to any service
    with `Last-Event-ID` misses no event, but of `changes`, which has no ids: what it reads after the first line is up to date.
    """
    streams: Streams = request.app.state.streams
    authenticator: Authenticator = request.app.state.authenticator
    ended = authenticator.watch(session_cookie(request.headers))
    since = _position(last_event_id)

    def stopping() -> bool:
        return dependencies.process.is_stopping() or ended()

    if topic == "changes":
        found = changes({"jobs": streams.job_events, "servers": streams.server_events}, stopping)
    else:
        feed, event, show = _topic(dependencies, caller, streams, topic)
        found = stream(feed, since, event, show, stopping)
    return StreamingResponse(
        found,
        media_type=MEDIA_TYPE,
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


def _position(text: str | None) -> int | None:
    if text is None:
        return None
    found = _POSITION.fullmatch(text)
    if found is None:
        raise invalid_parameter("last-event-id", "must be the id of an event")
    return int(found[1])


def _topic(
    dependencies: Deps, caller: Caller, streams: Streams, topic: str
) -> tuple[Feed, str, Callable[[Entry], Any | None]]:
    """The feed of a topic, the name of its events, and what this caller may see of each."""
    if topic == "cycle":
        if not caller.role.covers(Role.OPERATOR):
            raise Problem(ProblemType.FORBIDDEN, f"The topic 'cycle' needs the role {Role.OPERATOR.value}.")
        return streams.cycles, "cycle", lambda entry: cycle_summary(entry[1])
    if topic == "servers":
        return streams.server_events, "server", lambda entry: server_event(entry[1])
    found = _JOB_TOPIC.fullmatch(topic)
    if found is None and topic != "jobs":
        raise invalid_parameter("topic", "must be 'jobs', 'job:NUMBER', 'servers', 'changes' or 'cycle'")
    only = int(found[1]) if found is not None else None
    if only is not None:
        _require(dependencies, caller, only)

    def show(entry: Entry) -> Any | None:
        row = entry[1]
        if (only is not None and row.job_id != only) or not caller.sees(row.project, row.user):
            return None
        return document(StreamedEvent, row, reason_sentence=Reason(row.reason).sentence)

    return streams.job_events, "job", show


def _require(dependencies: Deps, caller: Caller, job: int) -> None:
    """404 for a job that is not there, or not for this caller."""
    with dependencies.reading() as connection:
        owner = owner_of(connection, job) if job <= ID_MAX else None
    if owner is None or not caller.sees(owner.project, owner.user):
        raise no_such_job(job)
