"""What the API's nouns are made of: each route is one method, which both clients have.

A method is a flow (:mod:`service.client.flow`) under :class:`call`. In :class:`Client` it blocks and returns the flow's result;
in :class:`AsyncClient` it returns an awaitable of it. :class:`stream` does the same for flows that emit values.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeVar, overload
from urllib.parse import quote

import httpx

from service.client.connection import AsyncConnection, Connection
from service.client.errors import ApiError, ClientError, Unsendable
from service.client.flow import KEY_HEADER, Flow, Many, Request, Stream, sent

T = TypeVar("T")
P = ParamSpec("P")
C = TypeVar("C", bound="Connection | AsyncConnection")

PAGE_SIZE: Final = 500
"""Entries of one page: the most that a service with default settings gives."""


class Noun(Generic[C]):
    """Requests about one kind of thing, over a blocking or an awaiting connection."""

    def __init__(self, connection: C) -> None:
        self._connection = connection

    def _get(self, path: str, query: Mapping[str, Any] | None = None, *, also: int | None = None) -> Flow[Any]:
        """The JSON answer of a GET. ``also`` is an error status that is returned like a success."""
        answer = yield from self._answer("GET", path, query, also=also)
        return self._json(answer)

    def _post(self, path: str, body: Mapping[str, Any] | None = None, key: str | None = None) -> Flow[Any]:
        """The JSON answer of a POST that changes something."""
        return self._change("POST", path, body, key)

    def _change(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        key: str | None = None,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Flow[Any]:
        """The JSON answer of a change. It has an idempotency key, ``key`` or a new one, so that it can be repeated."""
        keyed = {**(headers or {}), KEY_HEADER: key if key is not None else str(uuid.uuid4())}
        answer = yield from self._answer(method, path, query, body, keyed)
        return self._json(answer)

    def _answer(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        also: int | None = None,
    ) -> Flow[httpx.Response]:
        """The answer of a request that is safe to repeat: it changes nothing, or its ``headers`` have an idempotency key."""
        return sent(self._connection.service, Request(method, path, _given(query), body, headers or {}), also)

    def _json(self, answer: httpx.Response) -> Any:
        try:
            return answer.json()
        except ValueError:
            at = answer.url.copy_with(query=None)
            raise ClientError(f"the answer of {at} is not JSON") from None

    def _pages(
        self,
        path: str,
        filters: Mapping[str, Any] | None = None,
        limit: int | None = None,
        until: Callable[[Any], bool] | None = None,
    ) -> Many[Any]:
        """The entries of a list, at most ``limit``, and those before the first one for which ``until`` holds."""
        query, found = dict(_given(filters)), list[Any]()
        while limit is None or len(found) < limit:
            page = yield from self._page(
                path, query, PAGE_SIZE if limit is None else min(PAGE_SIZE, limit - len(found))
            )
            for entry in page["items"]:
                if until is not None and until(entry):
                    return found
                found.append(entry)
            if page["next"] is None:
                break
            query["after"] = page["next"]
        return found[:limit]

    def _page(self, path: str, query: Mapping[str, Any], size: int) -> Flow[Any]:
        try:
            return (yield from self._get(path, {**query, "limit": size}))
        except ApiError as error:
            # The setting page_size_max may be smaller than the page: take the default size of the service.
            if not any(fault.get("parameter") == "limit" for fault in error.errors):
                raise
        return (yield from self._get(path, query))


class call(Generic[P, T]):
    """Decorates a flow with one result."""

    def __init__(self, function: Callable[Concatenate[Any, P], Flow[T]]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    @overload
    def __get__(self, noun: None, owner: type) -> call[P, T]: ...
    @overload
    def __get__(self, noun: Noun[Connection], owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, noun: Noun[AsyncConnection], owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, noun: Noun[Any] | None, owner: type) -> Any:
        if noun is None:
            return self
        flow = self._function.__get__(noun)

        @functools.wraps(flow)
        def run(*positional: P.args, **named: P.kwargs) -> Any:
            return noun._connection.run(flow(*positional, **named))

        return run


class stream(Generic[P, T]):
    """Decorates a flow that emits values: an iterator, or an asynchronous one."""

    def __init__(self, function: Callable[Concatenate[Any, P], Stream[T]]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    @overload
    def __get__(self, noun: None, owner: type) -> stream[P, T]: ...
    @overload
    def __get__(self, noun: Noun[Connection], owner: type) -> Callable[P, Generator[T, None, None]]: ...
    @overload
    def __get__(self, noun: Noun[AsyncConnection], owner: type) -> Callable[P, AsyncGenerator[T, None]]: ...
    def __get__(self, noun: Noun[Any] | None, owner: type) -> Any:
        if noun is None:
            return self
        flow = self._function.__get__(noun)

        @functools.wraps(flow)
        def run(*positional: P.args, **named: P.kwargs) -> Any:
            return noun._connection.stream(flow(*positional, **named))

        return run


def segment(text: str) -> str:
    """One segment of a path: a slash or a question mark in a name stays part of the name."""
    if not text:
        raise Unsendable("a name must not be empty")
    # Alone, one or two dots would be taken for this or the upper folder.
    if text in (".", ".."):
        return text.replace(".", "%2E")
    try:
        return quote(text, safe="")
    except UnicodeEncodeError as error:
        raise Unsendable(f"{text!r} is not UTF-8") from error


def _given(query: Mapping[str, Any] | None) -> Mapping[str, Any]:
    return {name: value for name, value in (query or {}).items() if value is not None and value != []}
