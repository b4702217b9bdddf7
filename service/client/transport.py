"""HTTP requests to the service: one request, all pages of a list, and the errors they raise."""

import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx

PAGE_SIZE = 500
"""Entries of one page: the most that a service with default settings gives."""
TIMEOUT_S = 30.0
"""A request waits at most ten seconds for the database's write lock; this is longer than any request takes."""


class ClientError(Exception):
    """A request without a usable answer; ``str()`` is one line for a person."""


class Unreachable(ClientError):
    """There is no service at ``url``; ``cause`` is the error of the connection."""

    def __init__(self, url: str, cause: str) -> None:
        super().__init__(f"cannot reach Sooner at {url} ({cause})")
        self.url = url
        self.cause = cause


_COMPLETE = frozenset({"not-found", "job-finished", "conflict"})
"""Problem types whose detail is a whole message."""


class ApiError(ClientError):
    """The service refused: its problem document (RFC 9457). ``errors`` point to the single faults."""

    def __init__(self, problem: Mapping[str, Any]) -> None:
        self.problem = dict(problem)
        self.status = int(problem.get("status", 0))
        self.kind = str(problem.get("type", "")).rpartition("/")[2]
        self.title = str(problem.get("title", ""))
        self.detail = str(problem.get("detail", ""))
        self.errors: list[dict[str, str]] = list(problem.get("errors", []))
        # The detail names the first fault, or the resource and its state: the title would only repeat it.
        complete = bool(self.detail) and (bool(self.errors) or self.kind in _COMPLETE)
        whole = f"{self.title}: {self.detail}" if self.detail else self.title
        super().__init__(self.detail if complete else whole)


class Transport(AbstractContextManager["Transport"]):
    """The connection to one service. Requests raise :class:`ApiError` for a refusal, :class:`Unreachable` without an answer."""

    def __init__(
        self,
        base_url: str,
        token: str | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        transport: httpx.BaseTransport | None = None,
        before: Callable[[httpx.Request], None] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """``before`` sees every request before it is sent, such as :func:`service.client.proven.asks_for_proof`.

        ``tls``: what is trusted, instead of the authorities of the system.
        """
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        if tls is None and base_url.lower().startswith("https:"):
            # Without a context httpx trusts a list of its own.
            tls = ssl.create_default_context()
        # The token opens a service that runs commands: send it to this address alone, never through a proxy of the
        # environment or along a redirect.
        self._http = httpx.Client(
            base_url=base_url,
            headers=headers,
            timeout=timeout_s,
            transport=transport,
            trust_env=False,
            verify=tls if tls is not None else True,
            event_hooks={"request": [before] if before is not None else []},
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __enter__(self) -> Self:
        return self

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    @property
    def address(self) -> str:
        """The base URL of the service."""
        return str(self._http.base_url).rstrip("/")

    def get(self, path: str, parameters: Mapping[str, Any] | None = None) -> Any:
        """The JSON answer of a GET."""
        return self.send("GET", path, parameters=parameters)

    def post(self, path: str, body: Mapping[str, Any] | None = None, key: str | None = None) -> Any:
        """The JSON answer of a POST. ``key`` is an idempotency key: the request can be repeated safely."""
        return self.send("POST", path, body=body, key=key)

    def send(self, method: str, path: str, **options: Any) -> Any:
        """The JSON answer; ``options`` as for :meth:`request`."""
        answer = self.request(method, path, **options)
        try:
            return answer.json()
        except ValueError:
            raise ClientError(f"{self._http.base_url} is not a Sooner service: its response is not JSON") from None

    def request(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        parameters: Mapping[str, Any] | None = None,
        key: str | None = None,
        also: int | None = None,
    ) -> httpx.Response:
        """The answer; ``also`` is an error status that is returned like a success."""
        headers = {"Idempotency-Key": key} if key is not None else None
        try:
            answer = self._http.request(method, path, json=body, params=parameters, headers=headers)
        except httpx.ConnectError as error:
            raise Unreachable(self.address, _why_not_connected(error)) from error
        except (httpx.RemoteProtocolError, httpx.ReadError) as error:
            hint = (
                "; if it speaks TLS, its address begins with https://" if self._http.base_url.scheme == "http" else ""
            )
            raise Unreachable(self.address, line_of(error).rstrip(".") + hint) from error
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise Unreachable(self.address, line_of(error)) from error
        if not answer.is_success and answer.status_code != also:
            raise ApiError(problem_of(answer))
        return answer

    def stream(
        self, path: str, parameters: Mapping[str, Any], headers: Mapping[str, str], silent_s_max: float
    ) -> AbstractContextManager[httpx.Response]:
        """An answer that is read while it arrives; it breaks after ``silent_s_max`` seconds without a byte."""
        timeout = httpx.Timeout(self._http.timeout.connect, read=silent_s_max)
        return self._http.stream("GET", path, params=parameters, headers=headers, timeout=timeout)

    def pages(self, path: str, filters: Mapping[str, Any] | None = None, limit: int | None = None) -> Iterator[Any]:
        """The entries of a list, at most ``limit``; a page is requested when its first entry is taken."""
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
            return self.get(path, {**parameters, "limit": size})
        except ApiError as error:
            # The setting page_size_max may be smaller than the page: take the default size of the service.
            if not any(fault.get("parameter") == "limit" for fault in error.errors):
                raise
            return self.get(path, parameters)


def _why_not_connected(error: httpx.ConnectError) -> str:
    text = line_of(error)
    if "refused" in text.lower():
        return "connection refused"
    if "CERTIFICATE_VERIFY_FAILED" in text:
        why = text.partition("verify failed: ")[2].rpartition(" (_ssl")[0] or text
        return f"its certificate is not trusted: {why}; SOONER_TLS_CA names the file of those that are"
    if "WRONG_VERSION_NUMBER" in text or "record layer failure" in text.lower():
        return "it does not speak TLS; its address begins with http://"
    return text


def problem_of(answer: httpx.Response) -> Mapping[str, Any]:
    """The problem document of an answer, or one made from the status where something else than Sooner answered."""
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
