"""Connections of clients that take their time: a request comes in whole within a limit, or its connection is closed.

uvicorn waits for ever for the rest of a header or a body. Such a connection keeps no thread, but a file handle, of which a
process has some thousand; and whoever opens one more than that shuts everybody else out. Nor does the faster of its two parsers
limit how long a header grows.
"""

import asyncio
from typing import TYPE_CHECKING

from uvicorn.protocols.http.auto import AutoHTTPProtocol

if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import H11Protocol as Protocol
else:
    Protocol = AutoHTTPProtocol


HEAD_BYTES_MAX = 64 * 1024
"""Of a request's line and headers, besides what the last read brought: far more than any client of ours sends."""

_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class PromptProtocol(Protocol):
    """uvicorn's protocol, whichever it chose, with a limit on how long a request may be on its way."""

    request_timeout_s: float
    _deadline: asyncio.TimerHandle | None = None
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Somebody has connected, and is to say something."""
        super().connection_made(transport)
        self._set_deadline()

    def data_received(self, data: bytes) -> None:
        """Part of a request, or all of it, or several."""
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
        """Nothing more will come."""
        self._drop_deadline()
        super().connection_lost(exc)

    def _is_incomplete(self) -> bool:
        """Whether the client still owes part of a request."""
        return self._is_between() or self.cycle.more_body

    def _is_between(self) -> bool:
        """Whether no request is under way whose head is known: what has come since the last answer belongs to the next."""
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
