"""The door: host, origin, token, media type and size of every request, before any route sees it.

A POST runs commands, so the rule is "closed unless opened": a route that is added later is behind the token without
anybody having to think of it. Pure ASGI, so nothing buffers a body and streams stay streams.
"""

import hmac
import logging
import re
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.access import LOCAL
from service.api.access import remember
from service.api.problems import TYPE_PREFIX, Problem, ProblemType, response
from service.settings import Settings

logger = logging.getLogger(__name__)

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
"""What a probe without a token may ask."""

_OWN_TOKEN = re.compile(r"/v1/attempts/[^/]+/progress")
"""Opened by the token of the attempt, which is good for nothing else."""

_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}
"""On every answer, unless a route has set its own."""

_METHODS_WITH_BODY = frozenset({"POST", "PUT", "PATCH", "DELETE"})


def bearer(headers: Headers) -> str | None:
    """The token of ``Authorization: Bearer``; None unless there is exactly one such header."""
    values = headers.getlist("authorization")
    if len(values) != 1:
        return None
    scheme, _, token = values[0].partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.strip() else None


class Door:
    """ASGI middleware; see the module."""

    def __init__(self, app: ASGIApp, settings: Settings, token: str) -> None:
        self._app = app
        self._token = token.encode()
        self._hosts = frozenset(host.lower() for host in settings.allowed_hosts)
        self._origins = frozenset(origin.lower().rstrip("/") for origin in settings.allowed_origins)
        self._body_bytes_max = settings.body_bytes_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request in, or answer it here."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = _Answer(send)
        try:
            self._check(scope)
            await self._app(scope, _Limited(receive, self._body_bytes_max), answer)
        except Problem as problem:
            refusal = response(problem.kind, scope["path"], problem.detail, problem.faults, problem.headers)
            await refusal(scope, receive, answer)
        except Exception:
            # Last resort: the cause belongs into our log, never into the answer.
            logger.exception("unhandled error in %s %s", scope["method"], scope["path"])
            if answer.started:
                raise
            await response(ProblemType.INTERNAL, scope["path"])(scope, receive, answer)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        host = _host(headers)
        if not _host_allowed(host, self._hosts):
            raise Problem(ProblemType.WRONG_HOST)
        origins = headers.getlist("origin")
        if not all(self._origin_allowed(origin, host) for origin in origins):
            raise Problem(ProblemType.ORIGIN_NOT_ALLOWED)
        if not _open(scope["path"]):
            token = bearer(headers)
            if token is None or not hmac.compare_digest(token.encode("utf-8", "surrogateescape"), self._token):
                raise Problem(ProblemType.UNAUTHORIZED, headers={"WWW-Authenticate": 'Bearer realm="sooner"'})
            remember(scope, LOCAL)
        if scope["method"] in _METHODS_WITH_BODY:
            self._check_body(headers)

    def _origin_allowed(self, origin: str, host: str) -> bool:
        if origin.lower() in self._origins:
            return True
        # A page that this service itself served: its host has just been checked.
        scheme, separator, authority = origin.lower().partition("://")
        return scheme in ("http", "https") and bool(separator) and authority == host

    def _check_body(self, headers: Headers) -> None:
        length = headers.get("content-length")
        if length is not None and (not length.isdecimal() or int(length[:20]) > self._body_bytes_max):
            raise too_large(self._body_bytes_max)
        has_body = "transfer-encoding" in headers or length not in (None, "0")
        if has_body and not _is_json(headers.getlist("content-type")):
            raise Problem(ProblemType.UNSUPPORTED_MEDIA_TYPE)


class _Answer:
    """``send`` with the security headers, and the memory of whether the answer has begun."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
        await self._send(message)


class _Limited:
    """``receive`` that counts: a body without a declared length ends at the limit too."""

    def __init__(self, receive: Receive, body_bytes_max: int) -> None:
        self._receive = receive
        self._left = body_bytes_max
        self._max = body_bytes_max

    async def __call__(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._left -= len(message.get("body", b""))
            if self._left < 0:
                raise too_large(self._max)
        return message


def too_large(limit_bytes: int) -> Problem:
    """413, with the limit and the setting's name."""
    return Problem(
        ProblemType.BODY_TOO_LARGE,
        f"At most {limit_bytes} bytes (setting body_bytes_max).",
        headers={"Connection": "close"},
    )


def _open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith(TYPE_PREFIX) or _OWN_TOKEN.fullmatch(path) is not None


def _host(headers: Headers) -> str:
    values = headers.getlist("host")
    return values[0].lower() if len(values) == 1 else ""


def _host_allowed(host: str, allowed: frozenset[str]) -> bool:
    # An entry without a port allows every port: which one the service got is the operator's business.
    name = re.sub(r":\d+$", "", host)
    return bool(host) and (host in allowed or name in allowed)


def _is_json(content_types: Sequence[str]) -> bool:
    if len(content_types) != 1:
        return False
    media_type, *parameters = (part.strip().lower() for part in content_types[0].split(";"))
    charsets = [
        value.strip('"') for name, _, value in (entry.partition("=") for entry in parameters) if name == "charset"
    ]
    return media_type == "application/json" and all(charset in ("utf-8", "utf8", "us-ascii") for charset in charsets)
