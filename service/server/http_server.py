"""The HTTP server: uvicorn with limits of time and size for slow clients, and of the number of connections.

uvicorn waits without limit for the rest of a header or a body, and for a client to read its answer. Each such connection holds
a file descriptor, and a process has a few thousand of them. The faster of uvicorn's two parsers does not limit the size of a
header either. uvicorn's own limit of connections counts silent ones, and above it every request gets 503.
"""

import asyncio
import logging
import math
import resource
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from service.config.settings import Settings, env_name

if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import H11Protocol as Protocol
else:
    Protocol = AutoHTTPProtocol

logger = logging.getLogger(__name__)

HEAD_BYTES_MAX: Final = 64 * 1024
"""Largest request line and headers, not counting the last read: far more than Sooner's clients send."""

BACKLOG: Final = 128
"""Connections that the kernel holds for the server. All of them may be accepted before the first one is closed."""

_CONNECTIONS_RATIO: Final = 0.5
_BACKLOG_RATIO: Final = 0.25
"""Share of the files that the process may have open; the usual 1,024 are enough for the defaults."""

_HEAD: Final = b"HTTP/1.1 "

_TOO_LARGE: Final = b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class Connections:
    """The connections of one server. Used by the thread of its event loop alone.

    A connection is idle while no request is under way: before its first header is complete, and after an answer.
    """

    def __init__(self, connections_max: int) -> None:
        self._max = connections_max
        self._open: set[PromptProtocol] = set()
        self._idle: OrderedDict[PromptProtocol, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: "PromptProtocol") -> None:
        """Add a new one. Above the limit the one that has been idle for longest is closed."""
        self._open.add(connection)
        while len(self._open) > self._max and self._idle:
            oldest = next(iter(self._idle))
            self.remove(oldest)
            # Not ``close``, which waits for as long as the client does not read.
            oldest.transport.abort()
        self._idle[connection] = None

    def set_idle(self, connection: "PromptProtocol", idle: bool) -> None:
        """Note whether it is idle."""
        if not idle:
            self._idle.pop(connection, None)
        elif connection in self._open:
            self._idle.setdefault(connection)

    def remove(self, connection: "PromptProtocol") -> None:
        """Remove one that is closed, or will be."""
        self._open.discard(connection)
        self._idle.pop(connection, None)


class JoinedWrites:
    """A transport that sends the head of an answer together with the body that follows in the same pass of the loop.

    uvicorn writes them one after the other, and a system call costs as much as a tenth of a small request. All else is the
    transport's own.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send, or keep a head until the next write or the next pass of the loop."""
        if self._head:
            data, self._head = self._head + data, b""
        elif data.startswith(_HEAD):
            self._head = data
            self._loop.call_soon(self.flush)
            return
        self._transport.write(data)

    def flush(self) -> None:
        """Send a head that is kept."""
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)

    def close(self) -> None:
        """Close after everything is sent."""
        self.flush()
        self._transport.close()


class PromptProtocol(Protocol):
    """The protocol that uvicorn chose, with a time limit for the arrival of a request and for a client that does not read."""

    request_timeout_s: float
    opened: Connections
    _deadline: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _in_body = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time limit of the first request."""
        super().connection_made(JoinedWrites(transport, self.loop))  # type: ignore[arg-type]
        self.opened.add(self)
        self._set_deadline()

    def data_received(self, data: bytes) -> None:
        """Take a part of a request, a whole one, or several."""
        had_body = self._in_body
        super().data_received(data)
        in_head = self._is_between() and not self._in_body
        if not in_head or had_body:
            self._head_bytes = 0
        else:
            self._head_bytes += len(data)
        if self._head_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
            self.transport.write(_TOO_LARGE)
            self.transport.close()
        self.opened.set_idle(self, self._is_between())
        if not self._is_incomplete():
            self._drop_deadline()
        elif self._deadline is None:
            self._set_deadline()

    def on_headers_complete(self) -> None:
        """Note the end of a head."""
        super().on_headers_complete()  # type: ignore[misc]  # of the faster parser
        self._in_body = True

    def on_message_complete(self) -> None:
        """Note the end of a body, also of one that was answered before it has arrived."""
        super().on_message_complete()  # type: ignore[misc]
        self._in_body = False

    def on_response_complete(self) -> None:
        """Note the end of an answer."""
        super().on_response_complete()
        self.opened.set_idle(self, self._is_between())

    def pause_writing(self) -> None:
        """Start the time limit of a client that does not read."""
        super().pause_writing()
        self._unread = self.loop.call_later(self.request_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop that time limit."""
        self._drop_unread()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the time limits."""
        self._drop_deadline()
        self._drop_unread()
        self.opened.remove(self)
        super().connection_lost(exc)

    def _is_incomplete(self) -> bool:
        """Whether a part of a request is still to come."""
        return self._is_between() or self.cycle.more_body

    def _is_between(self) -> bool:
        """Whether the head of the next request is not complete yet."""
        return self.cycle is None or self.cycle.response_complete

    def _set_deadline(self) -> None:
        self._deadline = self.loop.call_later(self.request_timeout_s, self._give_up)

    def _drop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _drop_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _give_up(self) -> None:
        self._deadline = None
        if self._is_incomplete() and not self.transport.is_closing():
            self.transport.close()


def files_max() -> float:
    """Files and connections that this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return math.inf if soft == resource.RLIM_INFINITY else soft


def http_server(app: ASGIApp, settings: Settings) -> uvicorn.Server:
    """The server of the application, with fewer connections than ``connections_max`` where few files may be open.

    The database, logs and attempts need files, too. The limit is not raised, because the programs of jobs would inherit that.
    """
    open_max = files_max()
    connections_max = int(min(settings.connections_max, open_max * _CONNECTIONS_RATIO))
    if connections_max < settings.connections_max:
        logger.warning(
            "connections_max (%s) is %d, but this process may have %d files open (ulimit -n): at most %d connections are kept",
            env_name("connections_max"),
            settings.connections_max,
            open_max,
            connections_max,
        )
    limits = {"request_timeout_s": settings.request_timeout_s, "opened": Connections(connections_max)}
    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=type("PromptProtocol", (PromptProtocol,), limits),
            backlog=int(min(BACKLOG, open_max * _BACKLOG_RATIO)),
            ssl_certfile=settings.tls_cert,
            ssl_keyfile=settings.tls_key,
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=5,
            # Else a client on this machine could put another address into the audit log.
            proxy_headers=bool(settings.trusted_proxies),
            forwarded_allow_ips=list(settings.trusted_proxies),
        )
    )
