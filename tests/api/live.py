"""The application behind the real HTTP server: in this process, with sockets."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import ASGIApp

from service.config.settings import Settings
from service.server.http_server import http_server
from tests.local_executor import wait_for

Address = tuple[str, int]


@contextmanager
def listening(app: ASGIApp, settings: Settings) -> Iterator[Address]:
    """Serve until the end of the block; yields the address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = http_server(app, settings)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            wait_for(lambda: server.started, "the server has started")
            yield listener.getsockname()[:2]
        finally:
            server.should_exit = True
            thread.join()
