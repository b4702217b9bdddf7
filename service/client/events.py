"""The event stream (server-sent events): opened again at its position whenever it breaks."""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

import httpx

from service.client.errors import is_from_sooner, refusal, stranger, unreachable
from service.client.flow import Flow, NextLine, Open, Pause, Request, Service

SILENT_S_MAX: Final = 60.0
"""A stream without a byte for this long is broken: the service sends something four times as often."""

PAUSE_S: Final = 2.0
"""Before a broken stream is opened again."""

_BUSY = frozenset({httpx.codes.TOO_MANY_REQUESTS, httpx.codes.SERVICE_UNAVAILABLE})
"""Too many streams, or a service that ends: another attempt may reach another service."""


class StreamEvent(NamedTuple):
    """One event of a stream: its position (for ``since``), its kind and its document."""

    id: str
    kind: str
    document: dict[str, Any]


class EventStream:
    """The stream of a topic from now on, or after ``position``."""

    def __init__(self, service: Service, topic: str, position: str | None) -> None:
        self.position = position
        self._service = service
        self._topic = topic
        self._open = False
        self._reached = False

    def next(self) -> Flow[StreamEvent | None]:
        """The next event, or None when the service says that it has sent all before :attr:`position`.

        Raises :class:`ApiError` for a refusal, and :class:`Unreachable` if the first connection fails. A stream that breaks later
        is opened again without a limit of time.
        """
        while True:
            try:
                if not self._open:
                    yield from self._connect()
                while (found := (yield from self._block())) is not None:
                    self.position = found["id"]
                    if "data" not in found:
                        return None
                    return StreamEvent(found["id"], found["event"], json.loads(found["data"]))
            except httpx.TransportError as error:
                if not self._reached:
                    raise unreachable(self._service.address, error) from error
            self._open = False
            yield Pause(PAUSE_S)

    def _connect(self) -> Flow[None]:
        headers = {} if self.position is None else {"Last-Event-ID": self.position}
        request = Request("GET", "/v1/events", {"topic": self._topic}, headers=headers)
        while True:
            answer: httpx.Response = yield Open(request, SILENT_S_MAX)
            if answer.is_success:
                if not is_from_sooner(answer):
                    raise stranger(answer)
                break
            if not self._reached or answer.status_code not in _BUSY:
                raise refusal(answer)
            yield Pause(PAUSE_S)
        self._open, self._reached = True, True

    def _block(self) -> Flow[dict[str, str] | None]:
        """The fields up to the next empty line, if they have a position; None at the end of the answer."""
        fields: dict[str, str] = {}
        while (line := (yield NextLine())) is not None:
            name, separator, text = line.partition(": ")
            if line and separator and name:
                fields[name] = text
            elif not line and "id" in fields:
                return fields
            elif not line:
                fields = {}
        return None
