"""The request guard: host, origin, token, rate, media type and size of every request, before any route sees it.

A POST runs commands, so a new route needs a token unless it is listed here as open. Pure ASGI: it buffers no
stream, and of bodies only progress reports.
"""

import logging
import math
import re
from collections.abc import Sequence
from contextlib import closing

from sqlalchemy.exc import OperationalError
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.access import REQUEST_ID_HEADER, address_of, is_forwarded, origin_of, remember, request_id
from service.api.admission import Bound, Caller, Ticket, caller_name, keep_ticket
from service.api.audited import FORBIDDEN_STATUS, record_refusal
from service.api.authenticate import Authenticator
from service.api.browser import check_csrf, session_cookie, sign_in_path, wants_page
from service.api.deps import ApiDependencies
from service.api.docs_page import DOCS_PATH
from service.api.peers import CLIENT_HEADER, Peers, is_from_peer
from service.api.problems import Problem, ProblemType, response, unavailable
from service.api.quick import QuickRoutes, quickly_answered
from service.api.rates import Buckets
from service.api.site import SITE_PATH
from service.config.environment import reached_host
from service.config.settings import Settings
from service.domain.access import Identity
from service.domain.api_key import key_id
from service.domain.proof import PROOF_PATH

logger = logging.getLogger(__name__)

PROBES = frozenset({"/healthz", "/readyz", PROOF_PATH})
"""Answered whatever else is under way."""

FORM_PATHS = frozenset({"/sign-in", "/sign-out"})
"""Take a form of a page instead of JSON."""

OPEN_PATHS = PROBES | FORM_PATHS | {DOCS_PATH, SITE_PATH.rstrip("/")}
"""Open without a token, as is all below :data:`SITE_PATH`, the pages of problem types among it."""

STATIC_PREFIX = "/static/"
"""Scripts and styles of the pages: open without a token."""

_OWN_TOKEN = re.compile(r"/v1/attempts/[^/]+/progress")
"""Opened by the token of the attempt, which opens nothing else."""

_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}
"""Headers of every answer, unless a route sets its own."""

REFUSALS_PER_S = 0.1
REFUSALS_BURST = 100
"""Refused changes of one key that are recorded in the audit log: enough to see an attack."""

REFUSED_BODIES = 8
"""How much of a body that is too large is read and dropped before the refusal, in sizes of the largest one."""

_FORM = "application/x-www-form-urlencoded"
_METHODS_WITH_BODY = frozenset({"POST", "PUT", "PATCH", "DELETE"})


def bearer(headers: Headers) -> str | None:
    """The token of ``Authorization: Bearer``; None unless there is exactly one such header."""
    values = headers.getlist("authorization")
    if len(values) != 1:
        return None
    scheme, _, token = values[0].partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.strip() else None


class RequestGuard:
    """ASGI middleware; see the module."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        # Attempts on this machine report their progress to the service's own address.
        self._hosts = frozenset(host.lower() for host in (*settings.allowed_hosts, reached_host(settings.host)))
        self._origins = frozenset(origin.lower().rstrip("/") for origin in settings.allowed_origins)
        self._body_bytes_max = settings.body_bytes_max
        self._refusals = Buckets(REFUSALS_PER_S, REFUSALS_BURST)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = request_id(scope)
        answer = _Answer(send, given)
        try:
            peer = await self._peer(scope)
            await self._check(scope, receive, is_peer=peer is not None)
            caller: Caller = ("address", address_of(scope))
            if peer is not None:
                remember(scope, peer, given, Headers(scope=scope).get(CLIENT_HEADER))
                caller = caller_name(peer)
            elif not _open(scope["path"]):
                identity = await self._identity(scope)
                remember(scope, identity, given)
                caller = caller_name(identity)
            await self._admitted(scope, receive, answer, caller, is_peer=peer is not None)
        except Problem as problem:
            await _refusal(problem, scope)(scope, receive, answer)
        except OperationalError as error:
            logger.error("database unavailable: %s", error.orig)
            if answer.started:
                raise
            await response(unavailable(), scope["path"])(scope, receive, answer)
        except Exception:
            # The cause goes into the log, never into the answer.
            logger.exception("unhandled error in %s %s", scope["method"], scope["path"])
            if answer.started:
                raise
            await response(Problem(ProblemType.INTERNAL), scope["path"])(scope, receive, answer)

    async def _admitted(
        self, scope: Scope, receive: Receive, answer: "_Answer", caller: Caller, *, is_peer: bool
    ) -> None:
        """Pass the request on within the limits of its caller. Raises Problem (429)."""
        if scope["path"] in PROBES:
            await self._app(scope, receive, answer)
            return
        with closing(_ticket(scope, caller)) as ticket:
            ticket.take(Bound.REQUESTS)
            declared = int(Headers(scope=scope).get("content-length", 0))
            ticket.take(Bound.BODY_BYTES, declared)
            keep_ticket(scope, ticket)
            limited: Receive = _SizeLimited(receive, self._body_bytes_max, declared, ticket)
            if _OWN_TOKEN.fullmatch(scope["path"]):
                # Without a valid token too: a slow body must not hold a turn of all attempts at the address.
                limited = await _after_body(limited)
            routes: QuickRoutes = scope["app"].state.quick_routes
            if (quick := routes.of(scope)) is not None:
                await ticket.wait_for_turn(is_forwarded=is_peer, quick=scope["method"])
                found, limited = await quickly_answered(*quick, scope, limited)
                if found is not None:
                    await found(scope, limited, answer)
                    return
                ticket.end_turns()
            await ticket.wait_for_turn(is_forwarded=is_peer)
            await self._app(scope, limited, answer)
            await self._log_refusal(scope, answer.status)

    async def _peer(self, scope: Scope) -> Identity | None:
        """The caller of a request that another service of this database forwards; None for other requests."""
        if not is_from_peer(scope):
            return None
        peers: Peers = scope["app"].state.peers
        return await run_in_threadpool(peers.caller, scope)

    async def _check(self, scope: Scope, receive: Receive, *, is_peer: bool) -> None:
        headers = Headers(scope=scope)
        host = _host(headers)
        if "\0" in scope["path"] or b"%00" in scope["query_string"]:
            # No name contains NUL, and PostgreSQL rejects it in queries.
            raise Problem(ProblemType.BAD_REQUEST, "The path or query contains a NUL character.")
        # A web page cannot sign, and other services may use a host name that no client uses.
        if not is_peer and not _host_allowed(host, self._hosts):
            raise Problem(ProblemType.WRONG_HOST)
        origins = headers.getlist("origin")
        if not all(self._origin_allowed(origin, host) for origin in origins):
            raise Problem(ProblemType.ORIGIN_NOT_ALLOWED)
        if scope["method"] in _METHODS_WITH_BODY:
            await self._check_body(headers, receive, _FORM if scope["path"] in FORM_PATHS else None)

    async def _identity(self, scope: Scope) -> Identity:
        """The caller. Raises 401 without a valid token, and 429 above the rate limit."""
        headers = Headers(scope=scope)
        session = session_cookie(headers)
        if session is None:
            caller = await caller_with(scope, bearer(headers))
        else:
            check_csrf(scope["method"], headers, session)
            caller = await _of_session(scope, session)
        check_rate(scope, caller)
        return caller

    async def _log_refusal(self, scope: Scope, status: int) -> None:
        """Record a refused change in the audit log, with a rate limit for each key."""
        request = Request(scope)
        origin = origin_of(request)
        # Another service that refused a forwarded request has recorded it.
        mine = "route" in scope and not is_forwarded(request) and scope["method"] in _METHODS_WITH_BODY
        if status != FORBIDDEN_STATUS or origin is None or not mine:
            return
        if not self._refusals.take(origin.identity.key_id or ""):
            dependencies: ApiDependencies = scope["app"].state.dependencies
            await run_in_threadpool(record_refusal, request, dependencies.database, dependencies.now_s())

    def _origin_allowed(self, origin: str, host: str) -> bool:
        if origin.lower() in self._origins:
            return True
        # A page of this service: its host has just been checked.
        scheme, separator, authority = origin.lower().partition("://")
        return scheme in ("http", "https") and bool(separator) and authority == host

    async def _check_body(self, headers: Headers, receive: Receive, form: str | None) -> None:
        length = headers.get("content-length")
        if length is not None and (not length.isdecimal() or int(length[:20]) > self._body_bytes_max):
            # A client that asks before it sends gets the answer at once.
            asks = headers.get("expect", "").lower() == "100-continue"
            if length.isdecimal() and not asks and int(length[:20]) <= REFUSED_BODIES * self._body_bytes_max:
                await _drop_rest(receive, int(length))
            raise too_large(self._body_bytes_max)
        has_body = "transfer-encoding" in headers or length not in (None, "0")
        types = headers.getlist("content-type")
        if has_body and not (_is_json(types) if form is None else types == [form]):
            raise Problem(ProblemType.UNSUPPORTED_MEDIA_TYPE)


class _Answer:
    """``send`` with the security headers. Knows the status, and whether the answer has begun."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._request_id = request_id
        self.started = False
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
            headers[REQUEST_ID_HEADER] = self._request_id
        await self._send(message)


class _SizeLimited:
    """``receive`` with limits of size, for bodies without a declared length."""

    def __init__(self, receive: Receive, body_bytes_max: int, declared: int, ticket: Ticket) -> None:
        self._receive = receive
        self._left = body_bytes_max
        self._max = body_bytes_max
        self._declared = declared
        self._ticket = ticket

    async def __call__(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._left -= len(message.get("body", b""))
            if self._left < 0:
                if message.get("more_body", False):
                    await _drop_rest(self._receive, REFUSED_BODIES * self._max)
                raise too_large(self._max)
            if not self._declared:
                self._ticket.take(Bound.BODY_BYTES, len(message.get("body", b"")))
        return message


async def caller_with(scope: Scope, token: str | None) -> Identity:
    """The caller with this token. Raises 401 without a valid one, and 429 after too many wrong ones from the address."""
    if token is None:
        raise _unauthorized(ProblemType.UNAUTHORIZED.value.advice)
    authenticator: Authenticator = scope["app"].state.authenticator
    caller = authenticator.known(token)
    if caller is not None:
        return caller
    # Each look-up occupies a thread.
    with closing(_ticket(scope, _looker(scope, authenticator, token))) as ticket:
        ticket.take(Bound.REQUESTS)
        return await _looked_up(scope["app"].state.failed_logins, authenticator, token, address_of(scope))


def check_rate(scope: Scope, caller: Identity) -> None:
    """Count a request of the caller's key. Raises 429 above the rate limit."""
    if caller.key_id is None:
        return
    state = scope["app"].state
    wait_s = state.key_requests.take(caller.key_id)
    if wait_s:
        limit = f"{state.dependencies.settings.requests_per_s_max:g} requests per second of one key"
        raise _too_many(f"At most {limit} (setting requests_per_s_max).", wait_s)


async def _looked_up(failures: Buckets, authenticator: Authenticator, token: str, address: str) -> Identity:
    # A key that was valid before is not delayed by wrong tokens from the same address.
    wait_s = 0.0 if authenticator.was_good(token) else failures.wait_s(address)
    if wait_s:
        raise _too_many("Too many wrong tokens from this address (setting failed_logins_per_s_max).", wait_s)
    caller = await run_in_threadpool(authenticator.look_up, token)
    if caller is None:
        failures.take(address)
        logger.warning("a wrong token from %s", address)
        raise _unauthorized("Wrong token: it is neither the local token nor a valid API key.")
    return caller


async def _of_session(scope: Scope, session: str) -> Identity:
    """The caller of a browser. Raises 401 for a session that has ended."""
    authenticator: Authenticator = scope["app"].state.authenticator
    caller = authenticator.known_session(session)
    if caller is None:
        with closing(_ticket(scope, ("look-up", address_of(scope)))) as ticket:
            ticket.take(Bound.REQUESTS)
            caller = await run_in_threadpool(authenticator.look_up_session, session)
    if caller is None:
        raise _unauthorized("The session has ended. Sign in again.")
    return caller


def _refusal(problem: Problem, scope: Scope) -> Response:
    """The problem; for a page without a session the way to the sign-in page."""
    headers = Headers(scope=scope)
    if problem.kind is ProblemType.UNAUTHORIZED and wants_page(scope["method"], scope["path"], headers):
        return RedirectResponse(sign_in_path(scope["path"], scope["query_string"]), 303)
    return response(problem, scope["path"])


def _ticket(scope: Scope, caller: Caller) -> Ticket:
    state = scope["app"].state
    return Ticket(state.admission, state.dependencies.settings, caller)


def _looker(scope: Scope, authenticator: Authenticator, token: str) -> Caller:
    """Whose look-up it is: requests without a token, and guesses, delay no key that was valid before."""
    name = key_id(token)
    if name is not None and authenticator.was_good(token):
        return "known key", name
    return "look-up", address_of(scope)


async def _drop_rest(receive: Receive, bytes_max: int) -> None:
    """Receive the rest of a body, at most about so many bytes, and keep nothing of it. The server limits the time.

    The connection is closed after the refusal. Most clients send all of a body before they read, and a connection that is closed
    with a part of it unread is reset: they would see an error in place of the answer.
    """
    while bytes_max > 0:
        message = await receive()
        bytes_max -= len(message.get("body", b""))
        if not message.get("more_body", False):
            return


async def _after_body(receive: Receive) -> Receive:
    """Receive the whole body; returns a ``receive`` that gives it in one message, or the disconnection that came instead."""
    body = bytearray()
    message = await receive()
    while message["type"] == "http.request":
        body += message.get("body", b"")
        if not message.get("more_body", False):
            message = {"type": "http.request", "body": bytes(body), "more_body": False}
            break
        message = await receive()
    first = [message]

    async def again() -> Message:
        return first.pop() if first else await receive()

    return again


def too_large(limit_bytes: int) -> Problem:
    """413, with the limit and the setting's name."""
    return Problem(
        ProblemType.BODY_TOO_LARGE,
        f"At most {limit_bytes} bytes (setting body_bytes_max).",
        headers={"Connection": "close"},
    )


def _unauthorized(detail: str) -> Problem:
    return Problem(ProblemType.UNAUTHORIZED, detail, headers={"WWW-Authenticate": 'Bearer realm="sooner"'})


def _too_many(detail: str, wait_s: float) -> Problem:
    return Problem(ProblemType.TOO_MANY_REQUESTS, detail, headers={"Retry-After": str(math.ceil(wait_s))})


def _open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith((SITE_PATH, STATIC_PREFIX)) or _OWN_TOKEN.fullmatch(path) is not None


def _host(headers: Headers) -> str:
    values = headers.getlist("host")
    return values[0].lower() if len(values) == 1 else ""


def _host_allowed(host: str, allowed: frozenset[str]) -> bool:
    # An entry without a port allows every port.
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
