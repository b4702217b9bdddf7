"""The client's side of several services: who there is, and what happens as it happens."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypedDict

import httpx

from service.client.transport import ApiError, Transport, Unreachable, line_of, problem_of

SILENT_S_MAX = 60.0
"""A stream that says nothing for so long is dead: a service shows a sign of life four times as often."""

PAUSE_S = 2.0
"""Before a stream that has broken is asked for again."""


class Service(TypedDict):
    """One service of the database."""

    id: str
    name: str
    url: str
    version: str
    role: str
    started_at: str
    seen_at: str
    silent_s: float
    condemned: bool


class Happening(NamedTuple):
    """One event of a stream: where it stands (for ``since``), its kind, and its document."""

    id: str
    kind: str
    document: dict[str, Any]


class ServicesClient(Transport):
    """Services and their event stream."""

    def services(self) -> list[Service]:
        """Every service of the database, the one seen last first."""
        return list(self._json("GET", "/v1/services")["services"])

    def follow(
        self, topic: str = "jobs", since: str | None = None, pause: Callable[[float], None] = time.sleep
    ) -> Iterator[Happening]:
        """Events of a topic (``jobs``, ``job:NUMBER``, ``cycle``) from now on, or from those after ``since`` on, for ever.

        A stream that ends or breaks is taken up again where it was. Raises :class:`ApiError` for a refusal and
        :class:`Unreachable` where nobody answers from the start.
        """
        position, reached = since, False
        while True:
            try:
                for step in self._stream(topic, position):
                    reached = True
                    if step is not None:
                        position = step.id
                        yield step
            except httpx.TransportError as error:
                if not reached:
                    raise Unreachable(self.address, line_of(error)) from error
            except ApiError as error:
                # A service that ends or has enough streams says so: another moment, or another service behind the address.
                if not reached or error.status not in (429, 503):
                    raise
            pause(PAUSE_S)

    def _stream(self, topic: str, position: str | None) -> Iterator[Happening | None]:
        headers = {} if position is None else {"Last-Event-ID": position}
        timeout = httpx.Timeout(self._http.timeout.connect, read=SILENT_S_MAX)
        with self._http.stream(
            "GET", "/v1/events", params={"topic": topic}, headers=headers, timeout=timeout
        ) as answer:
            if not answer.is_success:
                answer.read()
                raise ApiError(problem_of(answer))
            fields: dict[str, str] = {}
            for line in answer.iter_lines():
                name, separator, text = line.partition(": ")
                if line and separator and name:
                    fields[name] = text
                elif not line and "data" in fields:
                    yield Happening(fields["id"], fields["event"], json.loads(fields["data"]))
                    fields = {}
                else:
                    yield None
