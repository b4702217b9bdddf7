"""The two ways of taking the steps of a flow: blocking, and awaiting. Each is over one httpx client."""

from __future__ import annotations

import math
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, aclosing, closing
from typing import Any, Final, TypeVar

import httpx

from service.client.errors import ClientError, Unsendable
from service.client.flow import Emit, Flow, NextLine, Open, Pause, Request, Service, Step, Stream

T = TypeVar("T")

TOKEN_RULE: Final = "must be one line of printable ASCII characters"  # noqa: S105 (a rule, no token)


def can_be_sent(token: str) -> bool:
    """Whether the text can be the value of a header: :data:`TOKEN_RULE`."""
    return token.isascii() and token.isprintable()


def http_options(base_url: str, token: str | None, timeout_s: float, tls: ssl.SSLContext | None) -> dict[str, Any]:
    """What both kinds of httpx clients are made with. Raises :class:`ClientError` for what is no address or no token."""
    try:
        parsed = httpx.URL(base_url)
    except (httpx.InvalidURL, UnicodeEncodeError) as error:
        raise ClientError(f"base_url {base_url!r} is not an address of a service: {error}") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ClientError(f"base_url {base_url!r} is not an address like http://127.0.0.1:8765")
    if token is not None and not can_be_sent(token):
        # Without the token: messages get into logs.
        raise ClientError(f"token {TOKEN_RULE}")
    if tls is None and parsed.scheme == "https":
        # Without a context httpx trusts a list of its own.
        tls = ssl.create_default_context()
    # The token opens a service that runs commands: send it to this address alone, never through a proxy of the
    # environment or along a redirect.
    return {
        "base_url": parsed,
        "headers": {"Authorization": f"Bearer {token}"} if token else {},
        "timeout": timeout_s,
        "trust_env": False,
        "verify": tls if tls is not None else True,
    }


_ERRORS = (httpx.TransportError, httpx.InvalidURL)
"""What a flow may handle."""


class Connection:
    """Takes steps by blocking."""

    def __init__(self, http: httpx.Client, service: Service) -> None:
        self.http = http
        self.service = service

    def run(self, flow: Flow[T]) -> T:
        """The result of a flow."""
        with closing(self.stream(_emitting(flow))) as values:
            return next(values)

    def stream(self, flow: Stream[T]) -> Generator[T, None, None]:
        """The values that a flow emits."""
        lines: Iterator[str] = iter(())
        result: Any = None
        failure: Exception | None = None
        with closing(flow), ExitStack() as opened:
            while (step := _next(flow, result, failure)) is not None:
                result, failure = None, None
                if isinstance(step, Emit):
                    yield step.value
                    continue
                try:
                    if isinstance(step, Open):
                        opened.close()
                        result = opened.enter_context(self.http.stream(**_streamed(step, self.http.timeout)))
                        lines = result.iter_lines()
                        if not result.is_success:
                            result.read()
                    elif isinstance(step, NextLine):
                        result = next(lines, None)
                    elif isinstance(step, Pause):
                        self.pause(step.seconds)
                    else:
                        result = self.http.request(**_request(step))
                except _ERRORS as error:
                    failure = error
                except ValueError as error:
                    raise _unsendable(step, error) from None

    def pause(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


class AsyncConnection:
    """Takes steps by awaiting."""

    def __init__(self, http: httpx.AsyncClient, service: Service) -> None:
        self.http = http
        self.service = service

    async def run(self, flow: Flow[T]) -> T:
        """The result of a flow."""
        async with aclosing(self.stream(_emitting(flow))) as values:
            return await anext(values)

    async def stream(self, flow: Stream[T]) -> AsyncGenerator[T, None]:
        """The values that a flow emits."""
        lines: AsyncIterator[str] | None = None
        result: Any = None
        failure: Exception | None = None
        with closing(flow):
            async with AsyncExitStack() as opened:
                while (step := _next(flow, result, failure)) is not None:
                    result, failure = None, None
                    if isinstance(step, Emit):
                        yield step.value
                        continue
                    try:
                        if isinstance(step, Open):
                            await opened.aclose()
                            result = await opened.enter_async_context(
                                self.http.stream(**_streamed(step, self.http.timeout))
                            )
                            lines = result.aiter_lines()
                            if not result.is_success:
                                await result.aread()
                        elif isinstance(step, NextLine):
                            result = None if lines is None else await anext(lines, None)
                        elif isinstance(step, Pause):
                            await self.pause(step.seconds)
                        else:
                            result = await self.http.request(**_request(step))
                    except _ERRORS as error:
                        failure = error
                    except ValueError as error:
                        raise _unsendable(step, error) from None

    async def pause(self, seconds: float) -> None:
        """Wait."""
        import anyio  # only here: it takes longer to import than a command to run

        await anyio.sleep(seconds)


def _emitting(flow: Flow[T]) -> Stream[T]:
    """A flow that emits its result."""
    yield Emit((yield from flow))


def _next(flow: Stream[T], result: Any, failure: Exception | None) -> Step | Emit[T] | None:
    """The next step after the result of the one before, or its failure; None at the end."""
    try:
        return flow.send(result) if failure is None else flow.throw(failure)
    except StopIteration:
        return None


def _request(step: Request) -> dict[str, Any]:
    given = {"params": step.query or None, "json": step.body, "headers": step.headers}
    return {"method": step.method, "url": step.path, **given}


def _unsendable(step: Step, error: ValueError) -> ValueError | Unsendable:
    """The error of a request that cannot be encoded. Without the text, which may be a secret."""
    request = step.request if isinstance(step, Open) else step
    parts = (request.query, request.body) if isinstance(request, Request) else ()
    for part in parts:
        if (found := _fault(part or {})) is not None:
            return Unsendable(": ".join(found))
    return Unsendable("the request: must be UTF-8") if isinstance(error, UnicodeEncodeError) else error


def _fault(value: object) -> tuple[str, str] | None:
    """Where in a body or a query there is a value that cannot be sent, its keys joined by dots, and what it must be."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return "", "must be UTF-8"
        return None
    if isinstance(value, float):
        return None if math.isfinite(value) else ("", f"must be a finite number (got {value})")
    pairs = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, item in pairs:
        if (found := _fault(key)) is not None:
            return repr(key), found[1]
        if (found := _fault(item)) is not None:
            return f"{key}.{found[0]}" if found[0] else str(key), found[1]
    return None


def _streamed(step: Open, usual: httpx.Timeout) -> dict[str, Any]:
    return {**_request(step.request), "timeout": httpx.Timeout(usual.connect, read=step.silent_s_max)}
