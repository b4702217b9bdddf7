"""HEAD: the answer to a GET without its body, for who may send that GET."""

import asyncio
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.types import Message, Receive, Scope, Send

from service.api.head import HeadAsGet
from service.domain.access import Role
from tests.api.client import client_of
from tests.api.conftest import World, pages_of
from tests.api.helpers import admit, plain_job
from tests.api.people import person, submitted

PATHS = (
    *("/v1/jobs", "/v1/jobs/1", "/v1/jobs/9", "/v1/overview", "/v1/users", "/v1/openapi.json", "/v1/no-such-thing"),
    *("/", "/jobs", "/jobs/1", "/sign-in", "/static/app.css", "/readyz", "/metrics", "/docs/"),
)


@pytest.fixture
def app(world: World) -> FastAPI:
    return pages_of(world)


def _of_one(headers: Any) -> dict[str, str]:
    """Without what differs between two equal requests."""
    return {name: value for name, value in headers.items() if name not in ("x-request-id", "date")}


def test_it_says_what_get_says(app: FastAPI, world: World) -> None:
    submitted(app, world, plain_job(user="bob", project="nlp"))
    admit(world)
    eve = person(world, "eve", Role.VIEWER, "vision").key
    statuses = set()
    for token in (world.token, eve, "wrong", None):
        with client_of(app, token) as client:
            for path in PATHS:
                got, head = client.get(path), client.head(path)
                assert head.status_code == got.status_code, (path, token)
                assert _of_one(head.headers) == _of_one(got.headers), (path, token)
                assert head.content == b""
                statuses.add(head.status_code)
    assert statuses >= {200, 401, 403, 404}


def test_what_is_no_get_has_no_head(app: FastAPI, world: World) -> None:
    with client_of(app, world.token) as client:
        head = client.head("/sign-out")
    assert (head.status_code, head.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", "/v1/jobs", "GET, HEAD, POST"),
        ("PATCH", "/v1/jobs/1", "GET, HEAD"),
        ("GET", "/v1/jobs/1/priority", "POST, PUT"),
        ("PUT", "/v1/jobs/1/cancel", "POST"),
        ("PUT", "/sign-in", "GET, HEAD, POST"),
        ("POST", "/readyz", "GET, HEAD"),
    ],
)
def test_allow_names_every_method_of_a_path(app: FastAPI, world: World, method: str, path: str, allowed: str) -> None:
    """Also where each method is a route of its own."""
    with client_of(app, world.token) as client:
        answer = client.request(method, path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)


def test_it_does_not_follow_a_stream(app: FastAPI, world: World) -> None:
    with client_of(app, world.token) as client:
        head = client.head("/v1/events")
    assert head.status_code == 200
    assert head.headers["content-type"].startswith("text/event-stream")


def test_the_server_gets_no_body_and_the_route_for_its_counts() -> None:
    sent: list[Message] = []

    async def inner(scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["method"] == "GET"
        scope["route"] = "the route"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        for part in (b"ab", b"cd"):
            await send({"type": "http.response.body", "body": part, "more_body": part == b"ab"})

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "HEAD"}
    asyncio.run(HeadAsGet(inner)(scope, receive, send))
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert (sent[0]["headers"], sent[1]["body"]) == ([(b"content-length", b"4")], b"")
    assert scope == {"type": "http", "method": "HEAD", "route": "the route"}
