"""Every route of the API has a method in both clients, and every method asks for a route as the API takes it."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp

from service.api.app import create_app
from service.client import ApiError, AsyncClient, Client
from service.client.noun import Noun, call
from tests.api.client import BASE_URL, AppTransport
from tests.api.conftest import World, make_world
from tests.unit.service.client.both import KINDS, Kind, blocking

BODY: dict[str, Any] = {"name": "digits", "command": ["true"], "gpus": 2}
SAMPLES: dict[str, Any] = {
    "after": None,
    "changed_since": None,
    "resolution_s": 60.0,
    "servers": ("a",),
    "since": "2026-01-01T00:00:00Z",
    "until": "2026-01-02T00:00:00Z",
    "array": 1,
    "array_id": 1,
    "attempt": 1,
    "body": BODY,
    "cycle": 7,
    "days": 3,
    "disabled": True,
    "expires_in_s": 60.0,
    "first_day": "2026-01-01",
    "group": ("user", "day"),
    "idempotency_key": "k",
    "job_id": 1,
    "jobs": [1, 2],
    "key_id": "a/b",
    "last_day": "2026-01-02",
    "limit": 3,
    "limits": {"gpus_running_max": 4},
    "model_id": "m/1",
    "name": "digits",
    "node": 1,
    "note": "n",
    "number": 1,
    "offset": 5,
    "order": "oldest",
    "path": "/v1/me",
    "preempt": True,
    "priority": 3,
    "project": "nlp",
    "projects": ("nlp",),
    "query": {},
    "reservation": {},
    "reservation_id": 1,
    "role": "viewer",
    "known": True,
    "run": 1,
    "scope": "user",
    "server": {"name": "d", "gpus": 2},
    "simulation": {},
    "simulation_id": 1,
    "since_s": 0.0,
    "states": ("queued",),
    "target": "job 1",
    "user": "ada",
    "wait_prediction": False,
    "webhook": {},
    "webhook_id": 1,
}
"""A value for each parameter of the methods, by name."""
OTHERS: dict[tuple[str, str], Any] = {
    ("cluster.drain", "server"): "a/b",
    ("cluster.resume", "server"): "a/b",
    ("queue.pause", "part"): {"user": "ada", "reason": "r"},
    ("queue.resume", "part"): {"user": "ada"},
}
"""The same where a name has another meaning in one method."""

WITHOUT_METHOD = {
    "GET /v1/events": "streams: client.follow() and client.watch()",
    "POST /v1/attempts/{attempt_id}/progress": "for the programs of jobs, with a token of their own",
    "POST /v1/jobs/{job_id}/priority": "as PUT",
    "POST /v1/arrays/{array_id}/priority": "as PUT",
    "GET /healthz": "for probes: client.ready() asks for more",
    "GET /proof": "asked before a connection is used",
    "GET /docs/problems/{slug}": "a page",
}


def methods(noun: Noun[Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The requests of a client, by name, and their functions."""
    for name, found in inspect.getmembers(noun):
        if name.startswith("_"):
            continue
        if isinstance(found, Noun):
            yield from methods(found, f"{name}.")
        elif isinstance(inspect.getattr_static(type(noun), name, None), call):
            yield prefix + name, found


NAMES = {name: inspect.signature(method) for name, method in methods(Client("http://sooner.test"))}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = make_world(tmp_path_factory.mktemp("routes"))
    yield made
    made.database.close()


@pytest.fixture(scope="module")
def app(world: World) -> Any:
    return create_app(world.dependencies())


class Noted(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """The application; notes its requests."""

    def __init__(self, app: ASGIApp) -> None:
        self._blocking = AppTransport(app)
        self._awaiting = httpx.ASGITransport(app)
        self.asked: list[httpx.Request] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        return self._blocking.handle_request(request)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        return await self._awaiting.handle_async_request(request)


def asked(kind: Kind, name: str, app: Any, token: str) -> list[httpx.Request]:
    """The requests of a method that is called with all its parameters."""
    parameters = list(NAMES[name].parameters)
    missing = [each for each in parameters if each not in SAMPLES and (name, each) not in OTHERS]
    assert not missing, f"{name}: SAMPLES needs values of {missing}"
    given = {each: OTHERS.get((name, each), SAMPLES.get(each)) for each in parameters}
    transport = Noted(app)
    with blocking(kind(BASE_URL, token, transport=transport, patience_s=0.0)) as client:
        method = client
        for part in name.split("."):
            method = getattr(method, part)
        refusal = ""
        try:
            method(**given)
        except ApiError as error:
            refusal = error.kind
    assert refusal not in ("invalid-parameter", "method-not-allowed", "unauthorized"), name
    return transport.asked


def route_of(request: httpx.Request, document: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The route of a request and its description: the one with the fewest parameters that fits."""
    path = request.url.raw_path.decode().partition("?")[0]
    fitting = [
        known
        for known, item in document["paths"].items()
        if request.method.lower() in item and re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", known), path)
    ]
    assert fitting, f"no route for {request.method} {path}"
    found = min(fitting, key=lambda known: known.count("{"))
    return f"{request.method} {found}", document["paths"][found][request.method.lower()]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_method_asks_for_a_route_as_the_api_takes_it(kind: Kind, name: str, world: World, app: Any) -> None:
    requests = asked(kind, name, app, world.token)
    assert requests
    for request in requests:
        route, operation = route_of(request, app.openapi())
        known = {each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"}
        assert set(request.url.params) <= known, route
        takes_key = any(each["name"].lower() == "idempotency-key" for each in operation.get("parameters", ()))
        assert ("idempotency-key" in request.headers) == takes_key, route
        if not takes_key:
            assert request.method == "GET" or route == "POST /v1/plans", "it is repeated, so it must change nothing"


def test_every_route_has_a_method(world: World, app: Any) -> None:
    document = app.openapi()
    reached = {
        route_of(request, document)[0] for name in NAMES for request in asked(Client, name, app, world.token)
    } | set(WITHOUT_METHOD)
    routes = {f"{method.upper()} {path}" for path, item in document["paths"].items() for method in item}
    assert routes == reached


def test_both_clients_have_the_same_methods() -> None:
    client, other = Client("http://sooner.test"), AsyncClient("http://sooner.test")
    assert {name: inspect.signature(method) for name, method in methods(other)} == NAMES
    assert inspect.getdoc(other.jobs.show) == inspect.getdoc(client.jobs.show) == "One job."
