"""What the log of changes says of a request: its action, its target, and that the caller was refused."""

import logging
from typing import Any, Final

from sqlalchemy.exc import DBAPIError
from starlette.requests import Request

from service.api.access import origin_of
from service.db.audit import Entry, Outcome, record
from service.db.session import Database

logger = logging.getLogger(__name__)

FORBIDDEN_STATUS: Final = 403

_WORDS: Final = {
    "job_id": "job",
    "array_id": "array",
    "name": "server",
    "model_id": "model",
    "key_id": "key",
    "webhook_id": "webhook",
}
"""What a parameter of a path is the name of, where it does not say so itself."""


def action_of(request: Request) -> str:
    """Method and route: what was asked, without the values that were asked for."""
    return f"{request.method} {_route(request)}"


def target_of(request: Request) -> str:
    """What the path names, in words: ``job 12``; the path itself where it names nothing."""
    named = [f"{_WORDS.get(name, name)} {_plain(value)}" for name, value in request.path_params.items()]
    return ", ".join(named) or request.url.path


def record_refusal(request: Request, database: Database, now_s: float) -> None:
    """Append that the caller may not do what he asked for. What cannot be written is told in the service's own log."""
    origin = origin_of(request)
    assert origin is not None
    entry = Entry(action_of(request), target_of(request), Outcome.REFUSED, FORBIDDEN_STATUS)
    try:
        with database.writing() as session:
            record(session.connection(), origin, entry, now_s)
    except DBAPIError:
        logger.exception("not in the log of changes: %s was refused to %s", entry.action, origin.identity.user)


def _route(request: Request) -> str:
    return str(getattr(request.scope.get("route"), "path", request.url.path))


def _plain(value: Any) -> str:
    """A number as it is usually written, however the client wrote it."""
    text = str(value)
    try:
        return str(int(text))
    except ValueError:
        return text
