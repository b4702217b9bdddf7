"""Errors of the client, each a line for a person."""

from collections.abc import Mapping
from typing import Any, Final

import httpx


class ClientError(Exception):
    """A request without a usable answer; ``str()`` is one line for a person."""


class Unsendable(ClientError):
    """Nothing was sent: a text of the request is not UTF-8, as arguments and names of files may be, a number is not finite, or a
    name in the path is empty."""


REQUEST_ID_HEADER: Final = "X-Request-Id"
"""Every answer of Sooner has it."""

REFUSED = "connection refused"
"""The cause where nothing listens."""


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


def refusal(answer: httpx.Response) -> ApiError:
    """The problem document of an answer, or one made from the status where something else than Sooner answered."""
    try:
        document = answer.json()
    except ValueError:
        document = None
    if is_from_sooner(answer) and isinstance(document, dict) and "title" in document:
        return ApiError(document)
    return stranger(answer)


def is_from_sooner(answer: httpx.Response) -> bool:
    """Whether Sooner may have sent the answer. Other services answer with JSON, too, and few of them with this header."""
    return REQUEST_ID_HEADER in answer.headers


def stranger(answer: httpx.Response) -> ApiError:
    """The error for an answer of something else than Sooner."""
    status = f"HTTP {answer.status_code} {answer.reason_phrase}".strip()
    at = answer.url.copy_with(query=None)
    return ApiError({"status": answer.status_code, "title": f"something else than Sooner answers at {at}: {status}"})


def unreachable(address: str, error: Exception) -> Unreachable:
    """Why the service at ``address`` gave no answer. ``error`` is its cause."""
    why = _line_of(error)
    if isinstance(error, httpx.ConnectError):
        why = REFUSED if _is_refused(error) else _why_not_connected(why)
    elif isinstance(error, httpx.RemoteProtocolError | httpx.ReadError):
        why = why.rstrip(".")
        if address.startswith("http:"):
            why += "; if it speaks TLS, its address begins with https://"
    made = Unreachable(address, why)
    made.__cause__ = error
    return made


def _is_refused(error: BaseException | None) -> bool:
    """Whether some cause of an error is a refused connection: one of several addresses, where a name has them."""
    if isinstance(error, BaseExceptionGroup):
        return any(_is_refused(each) for each in error.exceptions)
    return error is not None and (
        isinstance(error, ConnectionRefusedError) or _is_refused(error.__cause__ or error.__context__)
    )


def _why_not_connected(text: str) -> str:
    if "CERTIFICATE_VERIFY_FAILED" in text:
        why = text.partition("verify failed: ")[2].rpartition(" (_ssl")[0] or text
        return f"its certificate is not trusted: {why}; SOONER_TLS_CA names the file of those that are"
    if "WRONG_VERSION_NUMBER" in text or "record layer failure" in text.lower():
        return "it does not speak TLS; its address begins with http://"
    return text


def _line_of(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
