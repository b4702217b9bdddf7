"""What pages show: documents of the public API, read in this process for the caller of the page.

A page reads what its JSON links lead to. So it shows what the caller may see, and nothing has a second definition. A service that
does not lead forwards some of these requests to the leader, as it does for other clients.
"""

import asyncio
import json
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.types import Message

from service.api.access import caller_of
from service.domain.access import Identity

SHARED_S: Final = 1.0
"""Age up to which a document serves other pages: fifty open dashboards cost little more than one."""

SHARED_MAX: Final = 256

Parameters = Mapping[str, str | int | float | Sequence[str] | None]

_Key = tuple[Identity | None, str]
"""The caller or the sight of several, None for what all callers share; and the name."""


class Unavailable(Exception):
    """The API answers with a problem. ``status`` and ``detail`` are the problem's."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        self.status = status
        self.title = str(problem.get("title", "The request failed"))
        self.detail = str(problem.get("detail", ""))
        super().__init__(self.detail or self.title)


class SharedDocuments:
    """Newest documents, and what was made of them. One instance an application; not thread-safe."""

    def __init__(self) -> None:
        self._found: OrderedDict[_Key, tuple[float, asyncio.Future[Any]]] = OrderedDict()

    def get(self, key: _Key) -> asyncio.Future[Any] | None:
        """A document, which may still be on its way; None if there is none, it is too old, or making it failed."""
        until_s, found = self._found.get(key, (float("-inf"), None))
        if found is None or time.monotonic() > until_s or found.cancelled():
            return None
        return None if found.done() and found.exception() is not None else found

    def put(self, key: _Key, document: asyncio.Future[Any], age_s: float) -> None:
        """Share a document from now on, until it is ``age_s`` old."""
        now_s = time.monotonic()
        # One document may take megabytes.
        for old in [each for each, (until_s, _) in self._found.items() if now_s > until_s]:
            del self._found[old]
        self._found[key] = (now_s + age_s, document)
        self._found.move_to_end(key)
        while len(self._found) > SHARED_MAX:
            self._found.popitem(last=False)

    def forget(self, caller: Identity) -> None:
        """The caller has changed something: what the next page shows must be newer."""
        for key in [key for key in self._found if key[0] in (caller, caller.sight)]:
            del self._found[key]

    def __len__(self) -> int:
        return len(self._found)


class Reader:
    """Reads of one page: one at a time, because a page counts as one request of its caller, and each read holds a thread."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._turn = asyncio.Lock()
        self._shared: SharedDocuments = request.app.state.shared_documents

    async def get(self, path: str, parameters: Parameters | None = None, *, by_sight: bool = False) -> Any:
        """The document at ``path``, such as ``v1/jobs/12``. Raises :class:`Unavailable`.

        ``by_sight``: it depends on what the caller sees, and not on what is the caller's own. Callers who see the same share it.
        """
        url, caller = address(path, parameters), caller_of(self._request)
        return _body(await self._once((caller.sight if by_sight else caller, url), SHARED_S, lambda: self._read(url)))

    async def get_alone(self, path: str, parameters: Parameters | None = None) -> Any:
        """As :meth:`get` for a large document of which little is shown: it is not kept for other pages."""
        return _body(await self._read(address(path, parameters)))

    async def for_all(self, name: str, age_s: float, make: Callable[[], Awaitable[Any]]) -> Any:
        """What ``make`` returns, or what it returned for a page of any caller at most ``age_s`` ago: the same for all of them."""
        return await self._once((None, name), age_s, make)

    async def _once(self, key: _Key, age_s: float, make: Callable[[], Awaitable[Any]]) -> Any:
        found = self._shared.get(key)
        if found is None:
            found = asyncio.ensure_future(make())
            self._shared.put(key, found, age_s)
        # A page that is closed must not take the document from the others.
        return await asyncio.shield(found)

    async def get_or(
        self, default: Any, path: str, parameters: Parameters | None = None, *, by_sight: bool = False
    ) -> Any:
        """As :meth:`get`; ``default`` where the API answers with a problem."""
        try:
            return await self.get(path, parameters, by_sight=by_sight)
        except Unavailable:
            return default

    async def _read(self, url: str) -> tuple[int, Any]:
        path, _, query = url.partition("?")
        outer = self._request.scope
        kept = ("type", "asgi", "http_version", "scheme", "server", "client", "app", "state", "ticket")
        scope = {name: outer[name] for name in kept if name in outer}
        scope |= {
            "method": "GET",
            "path": f"/{path}",
            "raw_path": f"/{path}".encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(b"accept", b"application/json"), (b"host", self._request.headers["host"].encode("latin-1"))],
        }
        status, body = 500, bytearray()

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                body.extend(message.get("body", b""))

        async with self._turn:
            await self._request.app.state.reads(scope, receive, send)
        return status, json.loads(body) if body else None


def address(path: str, parameters: Parameters | None) -> str:
    """The path with those parameters that are given."""
    given = {name: value for name, value in (parameters or {}).items() if value is not None}
    return f"{path}?{urlencode(given, doseq=True)}" if given else path


def _body(answer: tuple[int, Any]) -> Any:
    status, body = answer
    if status >= 400:
        raise Unavailable(status, body)
    return body
