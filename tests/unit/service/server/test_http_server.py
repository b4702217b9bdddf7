"""The HTTP server: which connections it closes, and when."""

import asyncio
import socket
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from starlette.types import Receive, Scope, Send

from service.config.settings import Settings
from service.server import http_server
from service.server.http_server import HEAD_BYTES_MAX, JoinedWrites
from tests.api.live import listening
from tests.local_executor import wait_for

LINES = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


class Endless:
    """Answers with bytes without end."""

    def __init__(self) -> None:
        self.answering = 0
        self.ended = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        self.answering += 1
        gone = asyncio.create_task(_disconnected(receive))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not gone.done():
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
            await asyncio.sleep(0)
        self.ended += 1


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _refuses(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers 413 without reading the body."""
    await send({"type": "http.response.start", "status": 413, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"no"})


def test_a_body_that_comes_after_its_refusal_is_no_head(tmp_path: Path) -> None:
    size = 4 * HEAD_BYTES_MAX
    with (
        listening(_refuses, Settings(data_dir=tmp_path)) as address,
        closing(socket.create_connection(address)) as client,
        client.makefile("rb") as answers,
    ):
        for body in (b"x" * size, b"x" * size, b""):
            client.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body))
            assert answers.readline() == b"HTTP/1.1 413 Request Entity Too Large\r\n"
            while answers.readline() != b"\r\n":
                pass
            assert answers.read(2) == b"no"
            client.sendall(body)
        # A head is limited all the same.
        client.sendall(b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * (HEAD_BYTES_MAX // 6))
        assert answers.readline().startswith(b"HTTP/1.1 431 ")


def test_a_client_that_does_not_read_its_answer_is_given_up(tmp_path: Path) -> None:
    app = Endless()
    settings = Settings(data_dir=tmp_path, request_timeout_s=1.0)
    with listening(app, settings) as address, closing(socket.create_connection(address)) as deaf:
        deaf.sendall(LINES)
        wait_for(lambda: app.answering == 1, "an answer that has begun")
        wait_for(lambda: app.ended == 1, "the end of the answer")


def test_a_client_that_reads_on_is_not(tmp_path: Path) -> None:
    """Its answer takes many times as long as the limit allows for one that reads nothing."""
    app = Endless()
    settings = Settings(data_dir=tmp_path, request_timeout_s=1.0)
    with listening(app, settings) as address, closing(socket.create_connection(address)) as reader:
        reader.sendall(LINES)
        got = 0
        while got < 256 << 20:
            part = reader.recv(1 << 20)
            assert part
            got += len(part)
        assert app.ended == 0
        reader.close()
        wait_for(lambda: app.ended == 1, "the end of the answer")


class _Sent(asyncio.Transport):
    """Notes what is sent."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent.append(bytes(data))

    def close(self) -> None:
        self.sent.append(b"closed")


def test_a_head_is_sent_with_its_body_or_else_in_the_next_pass_of_the_loop() -> None:
    head = b"HTTP/1.1 200 OK\r\n\r\n"

    async def answers() -> list[bytes]:
        below = _Sent()
        transport = JoinedWrites(below, asyncio.get_running_loop())
        transport.write(head)
        transport.write(b"body")
        transport.write(b"more")
        transport.write(head)
        assert below.sent == [head + b"body", b"more"]
        await asyncio.sleep(0)
        transport.write(b"event")
        transport.write(head)
        transport.close()
        await asyncio.sleep(0)
        return below.sent

    assert asyncio.run(answers()) == [b"HTTP/1.1 200 OK\r\n\r\nbody", b"more", head, b"event", head, b"closed"]


def test_idle_connections_leave_files_to_a_process_that_may_open_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(http_server, "files_max", lambda: 8)
    with ExitStack() as stack:
        address = stack.enter_context(listening(_refuses, Settings(data_dir=tmp_path)))
        clients = []
        for _ in range(5):
            clients.append(stack.enter_context(closing(socket.create_connection(address))))
            clients[-1].sendall(LINES)
            assert clients[-1].recv(20).startswith(b"HTTP/1.1 413 ")
        clients[0].settimeout(60.0)
        while _received(clients[0]):
            pass  # until it is closed
    assert "is 500, but this process may have 8 files open (ulimit -n): at most 4 connections are kept" in caplog.text


def _received(client: socket.socket) -> bytes:
    try:
        return client.recv(4096)
    except ConnectionResetError:
        return b""
