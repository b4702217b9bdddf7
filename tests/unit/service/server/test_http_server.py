"""The HTTP server: which connections it closes, and when."""

import asyncio
import socket
from contextlib import closing
from pathlib import Path

from starlette.types import Receive, Scope, Send

from service.config.settings import Settings
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
