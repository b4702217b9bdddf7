"""Browsers: the cookie of a session, and proof that a change was asked for by a page of this service.

A browser sends a cookie with every request, whatever page has caused it. So a change needs a second value as well, which only a
page of this service can read: the CSRF token. It follows from the cookie, so nothing of it is stored.
"""

import hashlib
import hmac
import re
from typing import Final
from urllib.parse import quote

from starlette.datastructures import Headers

from service.api.problems import Problem, ProblemType

COOKIE: Final = "sooner_session"
CSRF_HEADER: Final = "X-CSRF-Token"

SIGN_IN: Final = "sign-in"
"""The page, relative to the root of the service."""

_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{43}")


def session_cookie(headers: Headers) -> str | None:
    """The session of the request; None for a program, which sends a bearer token, and without a well-formed cookie.

    Browsers add the password that a proxy has asked for as another kind of authorization. Other services of the host may set
    cookies of any form, and one of this name for a shorter path: the cookie of the longest path comes first.
    """
    if any(value.partition(" ")[0].lower() == "bearer" for value in headers.getlist("authorization")):
        return None
    parts = (part.strip().partition("=") for line in headers.getlist("cookie") for part in line.split(";"))
    return next((value for name, _, value in parts if name == COOKIE and _TOKEN.fullmatch(value)), None)


def csrf_token(session: str) -> str:
    """What a change of this session must state."""
    return hmac.new(session.encode("ascii"), b"csrf", hashlib.sha256).hexdigest()


def is_change(method: str) -> bool:
    """Whether a request of this method may change something."""
    return method not in _SAFE


def check_csrf(method: str, headers: Headers, session: str) -> None:
    """Raise Problem (403) for a change without the session's CSRF token."""
    if not is_change(method):
        return
    given = headers.get(CSRF_HEADER, "").encode("utf-8", "surrogateescape")
    if not hmac.compare_digest(given, csrf_token(session).encode("ascii")):
        raise Problem(
            ProblemType.FORBIDDEN,
            f"A change with a session's cookie needs the header {CSRF_HEADER} with the token of the page. Reload the page.",
        )


def wants_page(method: str, path: str, headers: Headers) -> bool:
    """Whether a person's browser asks for a page rather than a program for a document."""
    return method == "GET" and not path.startswith("/v1/") and "text/html" in headers.get("accept", "")


def sign_in_path(path: str, query: bytes) -> str:
    """The address of the sign-in page, relative to ``path``, with the way back."""
    wanted = path.lstrip("/") + (f"?{query.decode('latin-1')}" if query else "")
    return root_of(path) + SIGN_IN + (f"?next={quote(wanted, safe='')}" if wanted else "")


def root_of(path: str) -> str:
    """The root of the service, relative to a path: a proxy may have put the service anywhere."""
    return "../" * (path.count("/") - 1) or "./"
