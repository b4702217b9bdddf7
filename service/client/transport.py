"""How a client of the HTTP API asks: one request, pages, and what it raises. What can be asked is the clients' business."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx

from service.client.documents import Accepted

PAGE_SIZE = 500
"""Entries asked for at once: the most that a service with default settings gives."""
TIMEOUT_S = 30.0
"""Longer than any request takes whose transaction gets the write lock within its own limit of ten seconds."""


class ClientError(Exception):
    """Something between this process and the answer; ``str()`` is one line for a person."""


class Unreachable(ClientError):
    """Nobody answered at ``url``; ``cause`` says how that showed."""

    def __init__(self, url: str, cause: str) -> None:
        super().__init__(f"cannot reach Sooner at {url} ({cause})")
        self.url = url
        self.cause = cause


class ApiError(ClientError):
    """The service refused: its problem document (RFC 9457). ``errors`` point to the single faults."""

    def __init__(self, problem: Mapping[str, Any]) -> None:
        self.problem = dict(problem)
        self.status = int(problem.get("status", 0))
        self.kind = str(problem.get("type", "")).rpartition("/")[2]
        self.title = str(problem.get("title", ""))
        self.detail = str(problem.get("detail", ""))
        self.errors: list[dict[str, str]] = list(problem.get("errors", []))
        super().__init__(f"{self.title}: {self.detail}" if self.detail else self.title)


class Transport(AbstractContextManager["Transport"]):
    """Talks to one service. Every method raises :class:`ApiError` for a refusal and :class:`Unreachable` for silence."""

    def __init__(
        self,
        base_url: str,
        token: str | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        # The token opens a service that runs commands: it goes to that address alone, never through a proxy of the
        # environment or along with a redirect.
        self._http = httpx.Client(
            base_url=base_url, headers=headers, timeout=timeout_s, transport=transport, trust_env=False
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __enter__(self) -> Self:
        return self

    def close(self) -> None:
        """Give back the connections."""
        self._http.close()

    def _accepted(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Accepted:
        found: Accepted = self._json(method, path, body=body)
        return found

    def _pages(self, path: str, filters: Mapping[str, Any] | None = None, limit: int | None = None) -> Iterator[Any]:
        """The entries of a list, page after page, as long as the caller takes them."""
        given = {name: value for name, value in (filters or {}).items() if value not in (None, [])}
        left = limit
        while left is None or left > 0:
            page = self._page(path, given, PAGE_SIZE if left is None else min(PAGE_SIZE, left))
            items = page["items"] if left is None else page["items"][:left]
            yield from items
            if page["next"] is None:
                return
            given["after"] = page["next"]
            left = left - len(items) if left is not None else None

    def _page(self, path: str, parameters: Mapping[str, Any], size: int) -> Any:
        try:
            return self._json("GET", path, parameters={**parameters, "limit": size})
        except ApiError as error:
            # An operator may allow fewer entries a page than we like to ask for: take what they give by default.
            if not any(fault.get("parameter") == "limit" for fault in error.errors):
                raise
            return self._json("GET", path, parameters=parameters)

    def _json(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        parameters: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        also: int | None = None,
    ) -> Any:
        answer = self._request(method, path, body=body, parameters=parameters, headers=headers, also=also)
        try:
            return answer.json()
        except ValueError:
            raise ClientError(f"{self._http.base_url} does not speak Sooner's API: its answer is not JSON") from None

    def _request(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        parameters: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        also: int | None = None,
    ) -> httpx.Response:
        """The answer; ``also`` is a status of an answer that is no refusal, though it looks like one."""
        try:
            answer = self._http.request(method, path, json=body, params=parameters, headers=headers)
        except httpx.ConnectError as error:
            refused = "refused" in str(error).lower()
            raise Unreachable(self.address, "connection refused" if refused else line_of(error)) from error
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise Unreachable(self.address, line_of(error)) from error
        if not answer.is_success and answer.status_code != also:
            raise ApiError(problem_of(answer))
        return answer

    @property
    def address(self) -> str:
        """Where the service is."""
        return str(self._http.base_url).rstrip("/")


def problem_of(answer: httpx.Response) -> Mapping[str, Any]:
    """The problem document of an answer, or one made from the status where a stranger answered."""
    try:
        document = answer.json()
    except ValueError:
        document = None
    if isinstance(document, dict) and "title" in document:
        return document
    return {"status": answer.status_code, "title": f"HTTP {answer.status_code} {answer.reason_phrase}".strip()}


def line_of(error: Exception) -> str:
    """An error in one line."""
    return " ".join(str(error).split()) or type(error).__name__


def segment(text: str) -> str:
    """One segment of a path: a slash or a question mark in a name stays part of the name."""
    return quote(text, safe="")
