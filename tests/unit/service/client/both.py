"""Both clients for one test: :class:`Awaited` makes the asynchronous one answer at once, so a test is written once."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp

from service.client import AsyncClient, Client
from service.client.connection import AsyncConnection, Connection
from service.client.errors import REQUEST_ID_HEADER
from service.client.noun import Noun
from tests.api.client import BASE_URL, AppTransport

Kind = type[Client] | type[AsyncClient]
KINDS: tuple[Kind, ...] = (Client, AsyncClient)
"""The values of a parameter ``kind``."""


@contextmanager
def client_of(kind: Kind, app: ASGIApp, token: str | None) -> Iterator[Any]:
    """A client of an application, without a socket."""
    transport = AppTransport(app) if kind is Client else httpx.ASGITransport(app, raise_app_exceptions=False)
    with blocking(kind(BASE_URL, token, transport=transport)) as client:  # type: ignore[arg-type]
        yield client


def as_sooner(handler: Callable[[httpx.Request], httpx.Response]) -> httpx.MockTransport:
    """A transport with these answers, each with the header by which the clients know Sooner."""

    def answer(request: httpx.Request) -> httpx.Response:
        made = handler(request)
        made.headers[REQUEST_ID_HEADER] = "7"
        return made

    return httpx.MockTransport(answer)


def noted_pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses of all clients from now on, in seconds; they take no time."""
    pauses: list[float] = []

    async def pause(self: AsyncConnection, seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(Connection, "pause", lambda self, seconds: pauses.append(seconds))
    monkeypatch.setattr(AsyncConnection, "pause", pause)
    return pauses


@contextmanager
def blocking(client: Client | AsyncClient) -> Iterator[Any]:
    """The client as :class:`Client` is used: results instead of awaitables, iterators instead of asynchronous ones."""
    if isinstance(client, Client):
        with client:
            yield client
        return
    with asyncio.Runner() as runner:
        streams: list[AsyncGenerator[Any, None]] = []
        try:
            yield Awaited(client, runner, streams)
        finally:
            for made in streams:
                runner.run(_awaited(made.aclose()))
            runner.run(client.close())


class Awaited:
    """An asynchronous client, or one of its nouns, in an event loop of its own. ``streams``: those that were opened."""

    def __init__(self, noun: Noun[Any], runner: asyncio.Runner, streams: list[AsyncGenerator[Any, None]]) -> None:
        self._noun = noun
        self._runner = runner
        self._streams = streams

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._noun, name)
        if isinstance(found, Noun):
            return Awaited(found, self._runner, self._streams)
        return self._awaiting(found) if callable(found) else found

    def _awaiting(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*positional: Any, **named: Any) -> Any:
            made = method(*positional, **named)
            if isinstance(made, AsyncGenerator):
                self._streams.append(made)
                return self._values(made)
            return self._runner.run(_awaited(made))

        return call

    def _values(self, made: AsyncGenerator[Any, None]) -> Iterator[Any]:
        end = object()
        while (found := self._runner.run(_awaited(anext(made, end)))) is not end:
            yield found


async def _awaited(made: Awaitable[Any]) -> Any:
    return await made
