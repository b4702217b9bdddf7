"""The action and the target of a request in the audit log, and the record of a refused request."""

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
    "reservation_id": "reservation",
    "webhook_id": "webhook",
    "simulation_id": "simulation",
}
"""Words for the parameters of paths, where they differ from the parameter's name."""


def action_of(request: Request) -> str:
    """Method and route, without the values in the path."""
    return f"{request.method} {_route(request)}"


def target_of(request: Request) -> str:
    """What the path names, such as ``job 12``; the path itself if it names nothing."""
    parameters = dict(request.path_params)
    if "scope" in parameters:
        return f"quota {parameters['scope']} {parameters['name']}"
    named = [f"{_WORDS.get(name, name)} {_plain(value)}" for name, value in parameters.items()]
    return ", ".join(named) or str(request.scope["path"])


def record_refusal(request: Request, database: Database, now_s: float) -> None:
    """Record a refused request. If that fails, the service's own log has the error."""
    origin = origin_of(request)
    assert origin is not None
    entry = Entry(action_of(request), target_of(request), Outcome.REFUSED, FORBIDDEN_STATUS)
    try:
        with database.writing() as session:
            record(session.connection(), origin, entry, now_s)
    except DBAPIError:
        logger.exception(
            "a refused change could not be recorded in the audit log: %s by %s", entry.action, origin.identity.user
        )


def _route(request: Request) -> str:
    return str(getattr(request.scope.get("route"), "path_format", request.scope["path"]))


def _plain(value: Any) -> str:
    """A number in its usual form, whatever the client's spelling of it."""
    text = str(value)
    try:
        return str(int(text))
    except ValueError:
        return text
