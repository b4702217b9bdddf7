"""The request guard: nothing gets in without the token, from a foreign host or page, in another format, or too large."""

import asyncio
import json
import re
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import pytest
from fastapi import FastAPI
from httpx import Client, Headers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.types import Message

from service.api import routers
from service.api.app import create_app
from service.api.security import REFUSED_BODIES
from service.config.kinds import MIB
from service.domain.proof import PROOF_PATH
from tests.api.client import client_of
from tests.api.conftest import World, make_world
from tests.api.helpers import SECURITY_HEADERS, assert_problem, plain_job
from tests.api.live import Address, listening

OPEN = {"/healthz", "/readyz", "/docs/problems/{slug}", PROOF_PATH}


def all_routes(app: FastAPI) -> Iterator[tuple[str, str]]:
    """Every method and path of the OpenAPI document."""
    for path, item in app.openapi()["paths"].items():
        for method in item:
            yield method.upper(), path


def filled(path: str) -> str:
    """The path with some value for each of its parameters."""
    values = {"attempt_id": "1.1", "name": "a", "model_id": "m", "slug": "internal"}
    return re.sub(r"\{(\w+)\}", lambda found: values.get(found[1], "1"), path)


def test_every_route_needs_the_token_unless_it_is_meant_for_probes(tmp_path: Path) -> None:
    world = make_world(tmp_path, failed_logins_burst_max=10_000)
    app = create_app(world.dependencies())
    routes = list(all_routes(app))
    assert len(routes) > 25
    with client_of(app, None) as nobody, client_of(app, "wrong") as stranger:
        for method, path in routes:
            params = {"nonce": "0" * 64} if path == PROOF_PATH else None
            for client in (nobody, stranger):
                answer = client.request(
                    method, filled(path), params=params, json={"iteration": 1} if method != "GET" else None
                )
                if path in OPEN:
                    assert answer.status_code == 200, path
                else:
                    assert_problem(answer, "unauthorized")
                    assert answer.headers["www-authenticate"].startswith("Bearer ")
    world.database.close()


def test_the_document_lists_every_route_that_there_is(app: FastAPI) -> None:
    modules = [import_module(f"{routers.__name__}.{entry.name}") for entry in iter_modules(routers.__path__)]
    found = [route for module in modules if hasattr(module, "routes") for route in module.routes.routes]
    served = {(method, route.path_format) for route in found for method in route.methods}
    assert len(served) > 25
    assert set(all_routes(app)) == served


@pytest.mark.parametrize(
    "path",
    ["/v1/nothing", "/", "/v1", "/v1/openapi.json", "/api/docs/", "/redoc", "/healthz/", "/HEALTHZ", "//healthz"],
)
def test_paths_that_no_route_names_are_closed_too(app: FastAPI, path: str) -> None:
    with client_of(app, None) as nobody:
        assert_problem(nobody.request("GET", f"http://127.0.0.1{path}"), "unauthorized")


@pytest.mark.parametrize(
    "value",
    ["", "Bearer", "Bearer ", "Basic {token}", "{token}", "Bearer {token}x", "Bearer {half}", "Bearer {token} x"],
)
def test_only_the_whole_bearer_token_opens(app: FastAPI, world: World, value: str) -> None:
    with client_of(app, None) as client:
        header = value.format(token=world.token, half=world.token[:20])
        assert_problem(client.get("/v1/jobs", headers={"Authorization": header}), "unauthorized")
        twice = [("Authorization", f"Bearer {world.token}"), ("Authorization", f"Bearer {world.token}")]
        assert_problem(client.get("/v1/jobs", headers=twice), "unauthorized")
        odd = client.get("/v1/jobs", headers={b"Authorization": b"Bearer \xff\xfe"})
        assert_problem(odd, "unauthorized")
        assert client.get("/v1/jobs", headers={"Authorization": f"bearer {world.token}"}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.", "127.0.0.1@evil.example", "", "8765"]
)
def test_a_foreign_host_is_not_answered(client: Client, host: str) -> None:
    assert_problem(client.get("/v1/jobs", headers={"Host": host}), "wrong-host")
    assert_problem(client.get("/healthz", headers={"Host": host}), "wrong-host")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:1", "localhost:8765", "LOCALHOST", "[::1]", "[::1]:8765"])
def test_our_hosts_are_answered_on_any_port(client: Client, host: str) -> None:
    assert client.get("/v1/jobs", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "null",
        "http://127.0.0.1:9999",
        "https://localhost:8765",
        "http://[",
        "http://127.0.0.1:8765.evil.example",
        "file://",
    ],
)
def test_a_foreign_page_may_not_call_even_with_the_token(client: Client, world: World, origin: str) -> None:
    answer = client.post("/v1/jobs", json=plain_job(), headers={"Origin": origin})
    assert_problem(answer, "origin-not-allowed")
    assert "access-control-allow-origin" not in answer.headers
    assert not world.store.pending_requests(10)


def test_our_own_page_and_listed_ones_may_call(tmp_path: Path) -> None:
    world = make_world(
        tmp_path, allowed_origins=("https://board.example",), allowed_hosts=("sooner.example:80", "127.0.0.1")
    )
    with client_of(create_app(world.dependencies()), world.token) as client:
        for origin in ("http://127.0.0.1:8765", "https://board.example", "HTTPS://BOARD.EXAMPLE"):
            answer = client.get("/v1/jobs", headers={"Origin": origin})
            assert answer.status_code == 200
            assert "access-control-allow-origin" not in answer.headers
        # An entry with a port allows that port alone.
        assert client.get("/v1/jobs", headers={"Host": "sooner.example:80"}).status_code == 200
        assert_problem(client.get("/v1/jobs", headers={"Host": "sooner.example:81"}), "wrong-host")
    world.database.close()


@pytest.mark.parametrize(
    "content_type",
    [
        None,
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "application/json-patch+json",
        "application/json; charset=utf-16",
        "application/ json",
    ],
)
def test_bodies_are_json(client: Client, content_type: str | None) -> None:
    headers = {"Content-Type": content_type} if content_type is not None else {}
    for path in ("/v1/jobs", "/v1/jobs/1/cancel", "/v1/models/train"):
        assert_problem(client.post(path, content=b"{}", headers=headers), "unsupported-media-type")


def test_json_with_its_charset_is_json(client: Client) -> None:
    for value in ("application/json; charset=utf-8", 'Application/JSON;charset="UTF-8"'):
        answer = client.post("/v1/jobs", content=b"{}", headers={"Content-Type": value})
        assert_problem(answer, "invalid-body")


def test_a_body_over_the_limit_is_refused_and_the_limit_named(tmp_path: Path) -> None:
    world = make_world(tmp_path, body_bytes_max=2048)
    with client_of(create_app(world.dependencies()), world.token) as client:
        fitting = plain_job(labels={"x": "y" * 100})
        assert client.post("/v1/jobs", json=fitting).status_code == 201
        for path in ("/v1/jobs", "/v1/jobs/1/cancel"):
            answer = client.post(path, content=b" " * 2049, headers={"Content-Type": "application/json"})
            detail = assert_problem(answer, "body-too-large")["detail"]
            assert "2048 bytes" in detail
            assert "body_bytes_max" in detail
        assert (
            client.post("/v1/jobs", content=b" " * 2048, headers={"Content-Type": "application/json"}).status_code
            == 400
        )
    world.database.close()


def test_a_body_without_a_length_is_cut_off_at_the_limit(tmp_path: Path) -> None:
    """A hundred chunks: the application must stop reading a while after the limit, not wait for the end."""
    world = make_world(tmp_path, body_bytes_max=2048)
    app = create_app(world.dependencies())
    pulled = 0
    sent: list[Message] = []

    async def receive() -> Message:
        nonlocal pulled
        pulled += 1
        return {"type": "http.request", "body": b" " * 1024, "more_body": pulled < 100}

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [
        (b"host", b"localhost"),
        (b"authorization", f"Bearer {world.token}".encode()),
        (b"content-type", b"application/json"),
        (b"transfer-encoding", b"chunked"),
    ]
    scope: dict[str, Any] = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": "/v1/jobs", "raw_path": b"/v1/jobs", "query_string": b"", "root_path": "", "headers": headers,
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8765),
    }  # fmt: skip
    asyncio.run(app(scope, receive, send))
    assert sent[0]["status"] == 413
    assert pulled == 3 + 2 * REFUSED_BODIES
    world.database.close()


@contextmanager
def served(tmp_path: Path, body_bytes_max: int) -> Iterator[tuple[World, Address]]:
    """The application behind the real server."""
    world = make_world(tmp_path, body_bytes_max=body_bytes_max)
    with closing(world.database), listening(create_app(world.dependencies()), world.settings) as address:
        yield world, address


@pytest.mark.parametrize("declared", [True, False])
def test_a_client_that_sends_all_of_a_body_before_it_reads_sees_the_refusal(tmp_path: Path, declared: bool) -> None:
    """The body is larger than all buffers between both ends."""
    part, parts = b" " * MIB, REFUSED_BODIES - 1
    with served(tmp_path, MIB) as (world, (host, port)):
        length = {"Content-Length": str(parts * MIB)} if declared else {}
        headers = {"Authorization": f"Bearer {world.token}", "Content-Type": "application/json", **length}
        body = (part for _ in range(parts))
        request = urllib.request.Request(f"http://{host}:{port}/v1/jobs", body, headers, method="POST")
        with pytest.raises(urllib.error.HTTPError) as refusal, urllib.request.urlopen(request, timeout=60.0):
            pass
        with refusal.value as answer:
            assert answer.status == 413
            assert json.load(answer)["detail"] == f"At most {MIB} bytes (setting body_bytes_max)."


@pytest.mark.parametrize("lines", [("Content-Length: 2049", "Expect: 100-continue"), ("Content-Length: 16385",)])
def test_a_body_that_nobody_would_read_is_refused_before_it_is_sent(tmp_path: Path, lines: tuple[str, ...]) -> None:
    with served(tmp_path, 2048) as (world, address), socket.create_connection(address, timeout=60.0) as client:
        head = ("POST /v1/jobs HTTP/1.1", "Host: localhost", f"Authorization: Bearer {world.token}", *lines, "", "")
        client.sendall("\r\n".join(head).encode())
        with client.makefile("rb") as answer:
            assert answer.readline().startswith(b"HTTP/1.1 413 ")


def test_every_answer_carries_the_security_headers(client: Client) -> None:
    for path in ("/healthz", "/v1/jobs", "/v1/cluster"):
        answer = client.get(path)
        for name, value in SECURITY_HEADERS.items():
            assert answer.headers[name] == value
    assert client.get("/v1/jobs/1").headers["x-content-type-options"] == "nosniff"


def test_a_defect_is_answered_without_its_cause(world: World, caplog: pytest.LogCaptureFixture) -> None:
    app = create_app(world.dependencies())

    def broken() -> None:
        raise RuntimeError("secret: hunter2")

    app.add_api_route("/v1/broken", broken)
    with client_of(app, world.token) as client:
        answer = client.get("/v1/broken")
    assert_problem(answer, "internal")
    assert "hunter2" not in answer.text
    assert "hunter2" in caplog.text


@pytest.mark.parametrize("world", ["sqlite"], indirect=True)
def test_a_database_that_does_not_answer_is_unavailable(client: Client, world: World) -> None:
    with world.database.writing() as session:
        session.connection().exec_driver_sql("ALTER TABLE jobs RENAME TO gone")
    answer = client.get("/v1/jobs")
    assert_problem(answer, "unavailable")
    assert int(answer.headers["retry-after"]) > 0
    assert "gone" not in answer.text


def test_methods_and_paths_that_are_not_there(client: Client) -> None:
    answer = client.delete("/v1/jobs/1")
    assert_problem(answer, "method-not-allowed")
    assert answer.headers["allow"] == "GET, HEAD"
    for path in ("/v1/nothing", "/v1/jobs/", "/v1/jobs/1/", "/prefix/v1/jobs"):
        problem = assert_problem(client.get(path), "not-found")
        assert problem["detail"] == f"There is no {path} here."


def test_websockets_are_closed_at_the_door(app: FastAPI) -> None:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(app({"type": "websocket", "path": "/v1/jobs", "headers": []}, receive, send))
    assert sent == [{"type": "websocket.close", "code": 1008}]


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    authorization=st.binary(max_size=60) | st.binary(max_size=60).map(lambda rest: b"Bearer sooner_" + rest),
    request_id=st.binary(max_size=80),
)
@pytest.mark.parametrize("world", ["sqlite"], indirect=True)
def test_no_header_breaks_the_door(app: FastAPI, authorization: bytes, request_id: bytes) -> None:
    """Whatever bytes a header holds, nobody gets in, nothing fails, and the answer names a plain request id."""
    headers = {b"authorization": authorization, b"x-request-id": request_id}
    with client_of(app, None) as client:
        request = client.build_request("GET", "/v1/jobs")
        request.headers = Headers([*request.headers.raw, *headers.items()])
        answer = client.send(request)
    assert_problem(answer, "unauthorized")
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,64}", answer.headers["x-request-id"])
