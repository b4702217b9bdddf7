"""The event stream (server-sent events) as an iterator that survives broken connections."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import httpx

from service.client.transport import ApiError, Transport, Unreachable, line_of, problem_of

SILENT_S_MAX = 60.0
"""A stream without a byte for this long is broken: the service sends something four times as often."""

PAUSE_S = 2.0
"""Before a broken stream is opened again."""


class StreamEvent(NamedTuple):
    """One event of a stream: its position (for ``since``), its kind and its document."""

    id: str
    kind: str
    document: dict[str, Any]


def follow(
    transport: Transport, topic: str, since: str | None, pause: Callable[[float], None] = time.sleep
) -> Iterator[StreamEvent]:
    """Events of ``topic`` from now on, or after ``since``, without an end.

    A stream that ends or breaks is opened again at its last position. Raises :class:`ApiError` for a refusal and
    :class:`Unreachable` if the first connection fails.
    """
    position, reached = since, False
    while True:
        try:
            for event in _stream(transport, topic, position):
                reached = True
                if isinstance(event, StreamEvent):
                    position = event.id
                    yield event
                elif event is not None:
                    position = event
        except httpx.TransportError as error:
            if not reached:
                raise Unreachable(transport.address, line_of(error)) from error
        except ApiError as error:
            # 429: too many streams; 503: the service ends. Another attempt may reach another service.
            if not reached or error.status not in (429, 503):
                raise
        pause(PAUSE_S)


def _stream(transport: Transport, topic: str, position: str | None) -> Iterator[StreamEvent | str | None]:
    """The events and the positions of one connection; None for every other line, which shows that the connection is alive."""
    headers = {} if position is None else {"Last-Event-ID": position}
    with transport.stream("/v1/events", {"topic": topic}, headers, SILENT_S_MAX) as answer:
        if not answer.is_success:
            answer.read()
            raise ApiError(problem_of(answer))
        fields: dict[str, str] = {}
        for line in answer.iter_lines():
            name, separator, text = line.partition(": ")
            if line and separator and name:
                fields[name] = text
            elif not line and "data" in fields:
                yield StreamEvent(fields["id"], fields["event"], json.loads(fields["data"]))
                fields = {}
            elif not line and "id" in fields:
                yield fields["id"]
                fields = {}
            else:
                yield None
