"""Requests that another service must answer: the leader, or the service that holds the log of an attempt.

Everything else is answered from the database by any service. A forwarded request keeps its caller, and is never forwarded again.
A leader forwards hardly anything, so its start does not wait for the HTTP client to be imported (:func:`prepare`).
"""

import logging
from collections.abc import Callable, Coroutine
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fastapi import Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from service.api.access import REQUEST_ID_HEADER, caller_of, forwarded, origin_of
from service.api.admission import Bound, ticket_of
from service.api.deps import dependencies_of, the_leader
from service.api.heavy import is_heavy
from service.api.peers import CLIENT_HEADER, PEER_HEADER, Peers, is_from_peer, target_of
from service.api.problems import no_leader
from service.api.strict_json import StrictRoute
from service.runtime.tls import peer_context

if TYPE_CHECKING:
    import httpx

logger = logging.getLogger(__name__)

CONNECT_S: Final = 3.0
"""Time limit for the connection to another service."""

SLACK_S: Final = 20.0
"""Time limit of another service's answer, beyond the time limit of a forecast."""

_SENT_ON: Final = frozenset({"accept", "content-type", "if-none-match", "if-match", "idempotency-key"})
_NOT_GIVEN_BACK: Final = frozenset(
    {"connection", "content-length", "date", "keep-alive", "server", "transfer-encoding", "content-encoding"}
    | {REQUEST_ID_HEADER.lower()}
)


class HeldElsewhere(Exception):
    """Raised by a route that the service at ``url`` must answer."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.url = url


class Route(StrictRoute):
    """A route of the API. One with a parameter of type ``ToLeader`` is forwarded while this service does not lead."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler here, or the answer of another service."""
        handler = super().get_route_handler()
        needs_leader = any(part.call is the_leader for part in self.dependant.dependencies)

        computes = is_heavy(self.endpoint)

        async def answer(request: Request) -> Response:
            # Before anything of the body is read: the leader checks the request.
            if needs_leader and dependencies_of(request).scheduler.leader() is None:
                return await _forward_to_leader(request)
            if computes:
                ticket_of(request.scope).take(Bound.HEAVY)
            try:
                return await handler(request)
            except HeldElsewhere as elsewhere:
                return await _forward(request, elsewhere.url)

        return answer


def prepare() -> None:
    """Import the HTTP client before the first request comes: for a service that does not lead."""
    import_module("httpx")


async def _forward_to_leader(request: Request) -> Response:
    if is_from_peer(request.scope):
        raise no_leader()
    fleet = dependencies_of(request).fleet
    services = await run_in_threadpool(fleet.services)
    # The database may name this service: it is about to lead, or has just stopped.
    others = (service for service in services if service.registered.id != fleet.host)
    url = next((service.registered.url for service in others if service.leads), None)
    if url is None:
        raise no_leader()
    return await _forward(request, url)


async def _forward(request: Request, url: str) -> Response:
    """The answer of the service at ``url``, asked in the caller's name. Raises Problem (503) if it does not answer."""
    import httpx

    forwarded(request)
    peers: Peers = request.app.state.peers
    target, caller, origin = target_of(request.scope), caller_of(request), origin_of(request)
    headers = {name: value for name, value in request.headers.items() if name in _SENT_ON}
    headers[PEER_HEADER] = await run_in_threadpool(peers.sign, request.method, target, caller)
    if origin is not None:
        headers[REQUEST_ID_HEADER] = origin.request_id
        headers[CLIENT_HEADER] = origin.address or ""
    timeout = httpx.Timeout(dependencies_of(request).settings.forecast_timeout_s + SLACK_S, connect=CONNECT_S)
    # From here on no thread is held: those of the other service limit what runs.
    ticket_of(request.scope).end_turns()
    try:
        content = await request.body()
        async with make_client(timeout, dependencies_of(request).settings.tls_ca) as client:
            answer = await client.request(request.method, url + target, headers=headers, content=content)
    except ClientDisconnect:
        return _NoResponse()
    except httpx.HTTPError as error:
        logger.warning("service %s: no answer: %s", url, error or type(error).__name__)
        raise no_leader(f"The service at {url} does not answer.") from None
    response = Response(answer.content, answer.status_code)
    response.headers.update({name: value for name, value in answer.headers.items() if name not in _NOT_GIVEN_BACK})
    return response


class _NoResponse(Response):
    """For a client that has disconnected."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send nothing."""


def make_client(timeout: "httpx.Timeout", ca: Path | None) -> "httpx.AsyncClient":
    """The client for requests to another service, whose certificate ``ca`` must have signed. It uses no proxy of the
    environment."""
    import httpx

    return httpx.AsyncClient(timeout=timeout, trust_env=False, verify=peer_context(ca))
