"""Every error of the API is one shape: problem details (RFC 9457), media type ``application/problem+json``.

``type`` is a relative reference to a page of this service (``/docs/problems/<slug>``), so it never names a host. ``errors`` has
one entry for each fault: a JSON pointer (RFC 6901) into the body, or the name of a parameter of the query, the path or a header.
Of the values that a client sent only numbers out of range are repeated: others may be secrets.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import iter_route_contexts
from sqlalchemy.exc import OperationalError
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.routing import Match

from service.api.faults import is_tag, keys_at, message_of
from service.engine.ports import Busy

logger = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "/docs/problems/"

FAULTS_MAX = 100
"""Faults listed in one answer, so that it stays small for any body."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """The common parts of all problems of one type."""

    slug: str
    status: int
    title: str
    advice: str


class ProblemType(Enum):
    """The types of problems; ``advice`` says what the caller can do."""

    MALFORMED_JSON = _Kind("malformed-json", 400, "The body is not JSON", "Send one JSON document, encoded as UTF-8.")
    BAD_REQUEST = _Kind("bad-request", 400, "The request cannot be understood", "See the detail.")
    UNAUTHORIZED = _Kind(
        "unauthorized",
        401,
        "A valid token is required",
        "Send 'Authorization: Bearer TOKEN' with an API key, or with the token in the file 'token' of the service's data folder.",
    )
    FORBIDDEN = _Kind(
        "forbidden", 403, "The caller lacks the permission", "Ask an operator, or an admin for a key with another role."
    )
    ORIGIN_NOT_ALLOWED = _Kind(
        "origin-not-allowed", 403, "The origin is not in allowed_origins", "Add the origin to 'allowed_origins'."
    )
    NOT_FOUND = _Kind("not-found", 404, "There is no such resource", "Check the id and the path.")
    METHOD_NOT_ALLOWED = _Kind(
        "method-not-allowed",
        405,
        "The resource does not support this method",
        "The header 'Allow' lists the supported methods.",
    )
    JOB_FINISHED = _Kind("job-finished", 409, "The job has ended", "An ended job cannot change; submit a new job.")
    CONFLICT = _Kind("conflict", 409, "The request conflicts with the current state", "See the detail.")
    REQUEST_IN_PROGRESS = _Kind(
        "request-in-progress",
        409,
        "A request with this Idempotency-Key is still running",
        "Repeat the request a moment later; the response is that of the first request.",
    )
    PRECONDITION_FAILED = _Kind(
        "precondition-failed",
        412,
        "The resource has changed",
        "Read the resource again, and repeat the request with the new ETag.",
    )
    BODY_TOO_LARGE = _Kind(
        "body-too-large", 413, "The body is too large", "Send a smaller body, or raise body_bytes_max."
    )
    UNSUPPORTED_MEDIA_TYPE = _Kind(
        "unsupported-media-type", 415, "The body is not application/json", "Send 'Content-Type: application/json'."
    )
    WRONG_HOST = _Kind(
        "wrong-host",
        421,
        "The host name is not in allowed_hosts",
        "Add the name to 'allowed_hosts', or use a name that is in it.",
    )
    INVALID_BODY = _Kind(
        "invalid-body", 422, "The body is invalid", "Correct the fields that 'errors' points to; nothing was changed."
    )
    INVALID_PARAMETER = _Kind(
        "invalid-parameter",
        422,
        "A parameter is invalid",
        "Correct the parameters that 'errors' names; nothing was changed.",
    )
    NEVER_FITS = _Kind(
        "never-fits",
        422,
        "The job can never run on this cluster",
        "Request fewer GPUs or another GPU type, or add servers first.",
    )
    IDEMPOTENCY_KEY_REUSED = _Kind(
        "idempotency-key-reused",
        422,
        "The Idempotency-Key belongs to another request",
        "Use a new key for a new request: a key belongs to one method, path and body.",
    )
    QUEUE_FULL = _Kind(
        "queue-full", 429, "Too many jobs are queued", "Wait until some jobs have ended, or raise the limit."
    )
    TOO_MANY_REQUESTS = _Kind(
        "too-many-requests", 429, "Too many requests", "Wait for the seconds in the header 'Retry-After'."
    )
    INTERNAL = _Kind(
        "internal", 500, "The service failed", "The service's log contains the cause. Report it as a defect."
    )
    NO_LEADER = _Kind(
        "no-leader",
        503,
        "No service leads at the moment",
        "Repeat the request a moment later: another service takes over within ten seconds. `sooner services` lists them.",
    )
    UNAVAILABLE = _Kind(
        "unavailable", 503, "The service is temporarily unavailable", "Repeat the request a moment later."
    )

    @property
    def uri(self) -> str:
        """The relative reference that stands in ``type``."""
        return TYPE_PREFIX + self.value.slug

    @property
    def status(self) -> int:
        """HTTP status."""
        return self.value.status


@dataclass(frozen=True, slots=True)
class Fault:
    """One invalid value: ``pointer`` into the body ("" = the whole of it), or ``parameter`` outside the body."""

    detail: str
    pointer: str | None = None
    parameter: str | None = None

    @property
    def sentence(self) -> str:
        """The fault with its place: ``gpus: must be at least 1 (got 0)``."""
        place = self.parameter if self.pointer is None else self.pointer.removeprefix("/").replace("/", ".")
        return f"{place}: {self.detail}" if place else self.detail

    def document(self) -> dict[str, str]:
        """The entry of ``errors``."""
        where = {"pointer": self.pointer} if self.pointer is not None else {"parameter": self.parameter or ""}
        return {**where, "detail": self.detail}


class Problem(HTTPException):
    """An error answer. May be raised anywhere below a route."""

    def __init__(
        self,
        kind: ProblemType,
        detail: str = "",
        faults: Sequence[Fault] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(kind.status, detail or _summary(kind, faults), dict(headers or {}))
        self.kind = kind
        self.faults = faults


def _summary(kind: ProblemType, faults: Sequence[Fault]) -> str:
    """The first fault and the number of the others; without any, the kind's advice."""
    if not faults:
        return kind.value.advice
    others = len(faults) - 1
    return faults[0].sentence + (f"; and {others} more fault{'s' if others > 1 else ''}" if others else "")


def invalid_parameter(parameter: str, detail: str) -> Problem:
    """422 for one parameter of the query, the path or a header."""
    return Problem(ProblemType.INVALID_PARAMETER, faults=[Fault(detail, parameter=parameter)])


def no_leader(detail: str = "") -> Problem:
    """503 for a request that needs the leader while there is none."""
    return Problem(ProblemType.NO_LEADER, detail, headers={"Retry-After": "2"})


def unavailable() -> Problem:
    """503 while the database does not answer. Nothing was changed."""
    return Problem(ProblemType.UNAVAILABLE, headers={"Retry-After": "1"})


def json_pointer(parts: Iterable[str | int]) -> str:
    """The JSON pointer of a path of keys and positions, escaped by RFC 6901; the empty path is the whole document."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


def response(problem: Problem, instance: str) -> JSONResponse:
    """The answer for a problem with the request of the path ``instance``."""
    kind, faults, detail = problem.kind, problem.faults, problem.detail
    if len(faults) > FAULTS_MAX:
        detail = f"{detail} The first {FAULTS_MAX} of {len(faults)} faults are listed."
    body = {
        "type": kind.uri,
        "title": kind.value.title,
        "status": kind.status,
        "detail": detail,
        "instance": instance,
        "errors": [fault.document() for fault in faults[:FAULTS_MAX]],
    }
    return JSONResponse(body, kind.status, problem.headers, MEDIA_TYPE)


def fault_of(error: Mapping[str, Any], body_type: Any) -> Fault:
    """One pydantic error as a fault. ``body_type`` is the type of the whole body."""
    source, *path = error["loc"]
    if source != "body":
        return Fault(message_of(error), parameter=".".join(str(part) for part in path))
    known = keys_at(body_type, path[:-1]) if error["type"] == "extra_forbidden" else ()
    return Fault(message_of(error, known), pointer=json_pointer(part for part in path if not is_tag(part)))


def _on_validation(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    field = getattr(request.scope.get("route"), "body_field", None)
    faults = [fault_of(entry, field.field_info.annotation if field is not None else None) for entry in error.errors()]
    body = any(fault.pointer is not None for fault in faults)
    kind = ProblemType.INVALID_BODY if body else ProblemType.INVALID_PARAMETER
    return response(Problem(kind, faults=faults), request.scope["path"])


_BY_STATUS = {
    HTTPStatus.NOT_FOUND: ProblemType.NOT_FOUND,
    HTTPStatus.METHOD_NOT_ALLOWED: ProblemType.METHOD_NOT_ALLOWED,
}


def _on_http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, StarletteHTTPException)
    if isinstance(error, Problem):
        return response(error, request.scope["path"])
    fallback = ProblemType.BAD_REQUEST if error.status_code < HTTPStatus.INTERNAL_SERVER_ERROR else ProblemType.INTERNAL
    kind = _BY_STATUS.get(HTTPStatus(error.status_code), fallback)
    headers = {"Allow": _allowed(request)} if kind is ProblemType.METHOD_NOT_ALLOWED else error.headers
    # With the path, because a client may have been given an address with a wrong prefix.
    detail = f"There is no {request.url.path} here." if kind is ProblemType.NOT_FOUND else ""
    return response(Problem(kind, detail, headers=headers), request.scope["path"])


def _allowed(request: Request) -> str:
    """The methods of a path. The error has those of one route alone, and each method is a route of its own."""
    methods = {
        method
        for route in iter_route_contexts(request.app.routes)
        if route.methods and route.matches(request.scope)[0] is not Match.NONE
        for method in route.methods
    }
    return ", ".join(sorted(methods | {"HEAD"} if "GET" in methods else methods))


def _on_unavailable(request: Request, error: Exception) -> JSONResponse:
    # Busy, full or unreachable: nothing was committed, so the caller may repeat the request.
    logger.error("%s", f"database unavailable: {error.orig}" if isinstance(error, OperationalError) else error)
    return response(unavailable(), request.scope["path"])


def install(app: FastAPI) -> None:
    """Answer every error of the application with a problem."""
    app.add_exception_handler(RequestValidationError, _on_validation)
    app.add_exception_handler(StarletteHTTPException, _on_http)
    app.add_exception_handler(OperationalError, _on_unavailable)
    app.add_exception_handler(Busy, _on_unavailable)
