"""Time and size limits for requests of slow clients: a connection whose request does not arrive in time is closed.

uvicorn waits without limit for the rest of a header or a body. Such a connection holds a file descriptor, and a process has a few
thousand of them. The faster of uvicorn's two parsers does not limit the size of a header either.
"""

import asyncio
from typing import TYPE_CHECKING

from uvicorn.protocols.http.auto import AutoHTTPProtocol

if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import H11Protocol as Protocol
else:
    Protocol = AutoHTTPProtocol


HEAD_BYTES_MAX = 64 * 1024
"""Largest request line and headers, not counting the last read: far more than Sooner's clients send."""

_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class PromptProtocol(Protocol):
    """The protocol that uvicorn chose, with a time limit for the arrival of a request."""

    request_timeout_s: float
    _deadline: asyncio.TimerHandle | None = None
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time limit of the first request."""
        super().connection_made(transport)
        self._set_deadline()

    def data_received(self, data: bytes) -> None:
        """Take a part of a request, a whole one, or several."""
        super().data_received(data)
        self._head_bytes = self._head_bytes + len(data) if self._is_between() else 0
        if self._head_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
            self.transport.write(_TOO_LARGE)
            self.transport.close()
        if not self._is_incomplete():
            self._drop_deadline()
        elif self._deadline is None:
            self._set_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the time limit."""
        self._drop_deadline()
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

    def _give_up(self) -> None:
        self._deadline = None
        if self._is_incomplete() and not self.transport.is_closing():
            self.transport.close()


def prompt_protocol(request_timeout_s: float) -> type[asyncio.Protocol]:
    """The protocol with this limit, for uvicorn's ``http`` option."""
    return type("PromptProtocol", (PromptProtocol,), {"request_timeout_s": request_timeout_s})
