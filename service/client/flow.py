"""What the client sends, in which order, and what becomes of the answers: without input or output.

A method of the client is a generator, a *flow*: it yields steps, is sent their results, and returns its own. The two connections
(:mod:`service.client.connection`) take the steps, one by blocking and one by awaiting. So routes, paging, retries and event
streams are stated once for both clients.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from random import uniform
from typing import Any, Final, Generic, TypeAlias, TypeVar

import httpx

from service.client.errors import ClientError, is_from_sooner, refusal, stranger, unreachable

T = TypeVar("T")

PAUSE_S: Final = 0.25
"""The longest pause before the first repetition of a request; each further one may be twice as long."""
PAUSE_S_MAX: Final = 8.0

KEY_HEADER: Final = "Idempotency-Key"
"""Every change has it, and no read."""


@dataclass(frozen=True, slots=True)
class Request:
    """Send a request. Its result is an :class:`httpx.Response`; an error of the connection is raised."""

    method: str
    path: str
    query: Mapping[str, Any] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait. No result."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Open:
    """Send a request whose answer is read line by line, and close the one before it. Its result is that of :class:`Request`.

    The answer breaks after ``silent_s_max`` seconds without a byte.
    """

    request: Request
    silent_s_max: float


@dataclass(frozen=True, slots=True)
class NextLine:
    """Read a line of the open answer. Its result is the line, or None at the end; an error of the connection is raised."""


@dataclass(frozen=True, slots=True)
class Emit(Generic[T]):
    """Give a value to the user. No result."""

    value: T


Step: TypeAlias = "Request | Pause | Open | NextLine"
Flow: TypeAlias = Generator[Step, Any, T]
"""A flow with one result."""
Many: TypeAlias = Generator[Step, Any, list[T]]
"""A flow whose result is a list: in a class with a method ``list`` the name is not the type's."""
Stream: TypeAlias = Generator["Step | Emit[T]", Any, None]
"""A flow that emits values while it runs."""


@dataclass(slots=True)
class Service:
    """The service of a client: its address, and for how long a request is repeated at most.

    ``answered``: it has answered this client before.
    """

    address: str
    patience_s: float
    answered: bool = False


def sent(service: Service, request: Request, also: int | None = None) -> Flow[httpx.Response]:
    """The answer; ``also`` is an error status that is returned like a success.

    Every request is safe to repeat: reads change nothing, and changes have an idempotency key. It is repeated when the answer was
    lost, and when the service asks for it (``Retry-After``), for at most ``patience_s`` seconds. A service that has never
    answered is not waited for. Raises :class:`ApiError` for a refusal and for an answer of something else than Sooner,
    :class:`Unreachable` without an answer.
    """
    left_s, pause_s_max = service.patience_s, PAUSE_S
    while True:
        pause_s = uniform(pause_s_max / 2, pause_s_max)
        began_s = time.monotonic()
        try:
            answer: httpx.Response = yield request
        except (httpx.TransportError, httpx.InvalidURL) as error:
            failure: ClientError = unreachable(service.address, error)
            again = _lost(request, error, service)
        else:
            service.answered = True
            if answer.is_success or answer.status_code == also:
                if not is_from_sooner(answer):
                    raise stranger(answer)
                return answer
            failure = refusal(answer)
            again = answer.status_code in _BUSY and answer.headers.get("Retry-After", "").isdecimal()
            if again:
                pause_s += float(answer.headers["Retry-After"])
        left_s -= time.monotonic() - began_s + pause_s
        if not again or left_s < 0.0:
            raise failure
        yield Pause(pause_s)
        pause_s_max = min(2.0 * pause_s_max, PAUSE_S_MAX)


_BUSY = frozenset({httpx.codes.CONFLICT, httpx.codes.TOO_MANY_REQUESTS, httpx.codes.SERVICE_UNAVAILABLE})
"""Statuses that ask for a repetition where they come with ``Retry-After``. A conflict: the same request still runs."""


def _lost(request: Request, error: Exception, service: Service) -> bool:
    """Whether the answer may have been lost on the way, so that another attempt may bring it.

    Of a service that has never answered only that of a change: for a read, it is more useful to say at once what is wrong.
    """
    if not service.answered and (isinstance(error, _NOT_SENT) or KEY_HEADER not in request.headers):
        return False
    return isinstance(error, httpx.NetworkError | httpx.TimeoutException | httpx.RemoteProtocolError)


_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout)
