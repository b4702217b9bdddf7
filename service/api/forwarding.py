"""Sends on what this service cannot answer: to the leader what needs the live loop, to another service its attempts' logs.

Everything else is answered from the database, by whichever service was asked. Pure ASGI, behind the door: the caller is
known by then, and stays the caller. What was sent on once is not sent on again.
"""

import logging
import re
from collections.abc import Callable
from functools import cache
from ssl import SSLContext
from typing import Final

import httpx
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from policies.model.ids import JobId
from service.api.access import REQUEST_ID_HEADER, caller_of, origin_of
from service.api.deps import ApiDependencies
from service.api.peers import CLIENT_HEADER, PEER_HEADER, Peers, is_from_peer, target_of
from service.api.problems import no_leader, response

logger = logging.getLogger(__name__)

CONNECT_S: Final = 3.0
"""How long another service may take to answer the telephone."""

SLACK_S: Final = 20.0
"""Beyond a forecast's time limit, before the answer of another service is given up."""

_LIVE: Final = tuple(
    (method, re.compile(path))
    for method, path in (
        ("GET", r"/v1/jobs/[^/]+/(explanation|forecast|prediction)"),
        ("GET", r"/v1/forecasts"),
        ("GET", r"/v1/cluster"),
        ("GET", r"/v1/predictor"),
        ("GET", r"/v1/shadow"),
        ("GET", r"/v1/snapshots(/now)?"),
        ("GET", r"/v1/cycles/[^/]+/snapshot"),
        ("POST", r"/v1/plans"),
        ("POST", r"/v1/models/train"),
        ("POST", r"/v1/models/[^/]+/promote"),
    )
)
"""What only the leader can answer."""

_LOGS: Final = re.compile(r"/v1/jobs/([1-9][0-9]{0,9})/logs")

_SENT_ON: Final = frozenset({"accept", "content-type", "if-none-match", "if-match", "idempotency-key"})
_NOT_GIVEN_BACK: Final = frozenset(
    {"connection", "content-length", "date", "keep-alive", "server", "transfer-encoding", "content-encoding"}
    | {REQUEST_ID_HEADER.lower()}
)


class Forwarding:
    """ASGI middleware; see the module."""

    def __init__(self, app: ASGIApp, dependencies: Callable[[], ApiDependencies], peers: Callable[[], Peers]) -> None:
        self._app = app
        self._dependencies = dependencies
        self._peers = peers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer here, or fetch the answer."""
        if scope["type"] == "http" and (scope["path"].startswith("/v1/")):
            dependencies = self._dependencies()
            live = any(method == scope["method"] and path.fullmatch(scope["path"]) for method, path in _LIVE)
            if live and not dependencies.leads():
                await self._to_leader(dependencies, scope, receive, send)
                return
            if scope["method"] == "GET" and (logs := _LOGS.fullmatch(scope["path"])) and not is_from_peer(scope):
                url = await run_in_threadpool(_holder, dependencies, scope, int(logs[1]))
                if url is not None:
                    await self._to(url, dependencies, scope, receive, send)
                    return
        await self._app(scope, receive, send)

    async def _to_leader(self, dependencies: ApiDependencies, scope: Scope, receive: Receive, send: Send) -> None:
        url = None if is_from_peer(scope) else await run_in_threadpool(_leader, dependencies)
        if url is None:
            await _refuse(scope, receive, send, "")
        else:
            await self._to(url, dependencies, scope, receive, send)

    async def _to(self, url: str, dependencies: ApiDependencies, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        target, caller, origin = target_of(scope), caller_of(request), origin_of(request)
        headers = {name: value for name, value in Headers(scope=scope).items() if name in _SENT_ON}
        headers[PEER_HEADER] = await run_in_threadpool(self._peers().sign, scope["method"], target, caller)
        if origin is not None:
            headers[REQUEST_ID_HEADER] = origin.request_id
            headers[CLIENT_HEADER] = origin.address or ""
        timeout = httpx.Timeout(dependencies.settings.forecast_timeout_s + SLACK_S, connect=CONNECT_S)
        try:
            content = await request.body()
        except ClientDisconnect:
            return  # whoever asked has left in the middle of it
        try:
            async with make_client(timeout) as client:
                answer = await client.request(scope["method"], url + target, headers=headers, content=content)
        except httpx.HTTPError as error:
            logger.warning("%s does not answer: %s", url, error or type(error).__name__)
            await _refuse(scope, receive, send, f"The service at {url} does not answer.")
            return
        given_back = Response(answer.content, answer.status_code)
        for name, value in answer.headers.items():
            if name not in _NOT_GIVEN_BACK:
                given_back.headers[name] = value
        await given_back(scope, receive, send)


async def _refuse(scope: Scope, receive: Receive, send: Send, detail: str) -> None:
    problem = no_leader(detail)
    await response(problem.kind, scope["path"], problem.detail, headers=problem.headers)(scope, receive, send)


def _leader(dependencies: ApiDependencies) -> str | None:
    return next((service.registered.url for service in dependencies.services() if service.leads), None)


def _holder(dependencies: ApiDependencies, scope: Scope, job: int) -> str | None:
    """Where the log of the attempt that is asked for lies, if that is not here."""
    number = Request(scope).query_params.get("attempt", "")
    attempt = int(number) if re.fullmatch(r"[1-9][0-9]{0,9}", number) else None
    return dependencies.log_holder(JobId(job), attempt)


def make_client(timeout: httpx.Timeout) -> httpx.AsyncClient:
    """What asks another service. Proxies of the environment lead elsewhere."""
    return httpx.AsyncClient(timeout=timeout, trust_env=False, verify=_tls())


@cache
def _tls() -> SSLContext:
    """Reading the certificates takes longer than a request."""
    return httpx.create_ssl_context(trust_env=False)
