"""Signing in and out: a form takes an API key or the local token once, and a session in a cookie stands for it from then on."""

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qs, quote

from sqlalchemy import Connection
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from service.api.access import address_of, request_id
from service.api.authenticate import Authenticator
from service.api.browser import COOKIE, SIGN_IN, csrf_token, session_cookie
from service.api.deps import ApiDependencies, dependencies_of
from service.api.problems import Problem
from service.api.security import caller_with, check_rate
from service.db.audit import Entry, Origin, Outcome, record
from service.db.web_sessions import Kind, close_session, open_session
from service.domain.access import Identity
from service.web.page import html

FORM_BYTES_MAX: Final = 16_384

_NEXT: Final = re.compile(r"(?:[A-Za-z0-9_-]+(?:/[A-Za-z0-9_.-]+)*)?(?:\?[A-Za-z0-9_.,:;%&=+~-]*)?")
"""A page of this service, relative to its root."""

_USED: Final = "This code has expired or was used. Run `sooner dashboard` again."


async def sign_in_page(request: Request) -> Response:
    """The form; with a valid code of ``sooner dashboard`` a single button; with an open session the way back."""
    asked = request.query_params
    code, wanted = asked.get("code"), asked.get("next", "")
    authenticator: Authenticator = request.app.state.authenticator
    if code is not None:
        whose = await run_in_threadpool(authenticator.look_up_code, code)
        return _form(
            request, wanted, _USED if whose is None else "", code=code if whose is not None else None, whose=whose
        )
    session = session_cookie(request.headers)
    if session is None and request.headers.get("sec-fetch-site") == "cross-site" and "again" not in asked:
        # A link on another site leads here without the cookie, which is strict. The browser sends it when this page asks.
        address = f"./{SIGN_IN}?again=1&next={quote(_page(wanted), safe='')}"
        return html(request, "again.html", {"address": address})
    if session is not None and await run_in_threadpool(authenticator.look_up_session, session) is not None:
        return RedirectResponse("./" + _page(wanted), 303)
    return _form(request, wanted, "")


async def sign_in(request: Request) -> Response:
    """Open a session for the key, or for the code, in the form."""
    form = await _fields(request)
    wanted = form.get("next", "")
    dependencies = dependencies_of(request)
    if "code" in form:
        caller = await run_in_threadpool(_used_code, request, form["code"])
        if caller is None:
            return _form(request, wanted, _USED, status=401)
    else:
        try:
            caller = await caller_with(request.scope, form.get("key", "").strip() or None)
            check_rate(request.scope, caller)
        except Problem as problem:
            said = problem.detail if "key" in form and form["key"].strip() else "Enter an API key."
            return _form(request, wanted, said, status=problem.status_code, headers=problem.headers)
    token = await run_in_threadpool(_opened, request, dependencies, caller)
    answer = RedirectResponse("./" + _page(wanted), 303)
    _set_cookie(request, answer, token, int(dependencies.settings.session_s))
    return answer


async def sign_out(request: Request) -> Response:
    """Delete the session, and its cookie."""
    session = session_cookie(request.headers)
    form = await _fields(request)
    answer = RedirectResponse(f"./{SIGN_IN}", 303)
    # The origin of the form is checked as that of every request; the token is a second lock.
    if session is not None and form.get("csrf") == csrf_token(session):
        await run_in_threadpool(_closed, request, dependencies_of(request), session)
        authenticator: Authenticator = request.app.state.authenticator
        authenticator.forget_session(session)
        _set_cookie(request, answer, "", 0)
    return answer


def _set_cookie(request: Request, answer: Response, token: str, max_age_s: int) -> None:
    # What the browser sees: a proxy may have ended the encryption.
    encrypted = request.url.scheme == "https" or request.headers.get("origin", "").startswith("https://")
    # Without a path the cookie is for that of this form (RFC 6265, section 5.1.4), which a proxy may have moved.
    answer.set_cookie(COOKIE, token, max_age=max_age_s, path=None, httponly=True, samesite="strict", secure=encrypted)


async def _fields(request: Request) -> dict[str, str]:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > FORM_BYTES_MAX:
            return {}
    try:
        found = parse_qs(body.decode("ascii"), keep_blank_values=True, max_num_fields=10)
    except ValueError:
        return {}
    return {name: values[-1] for name, values in found.items()}


def _form(
    request: Request,
    wanted: str,
    said: str,
    *,
    code: str | None = None,
    whose: Identity | None = None,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> Response:
    local = dependencies_of(request).settings.local_token
    values = {"next": _page(wanted), "said": said, "code": code, "whose": whose, "local_token": local}
    return html(request, "sign_in.html", values, status=status, headers=headers)


def _page(wanted: str) -> str:
    """The page to go to: nothing that leads away from this service, nor to another one below the same proxy."""
    leaves = not {".", ".."}.isdisjoint(wanted.partition("?")[0].split("/"))
    return wanted if _NEXT.fullmatch(wanted) and not leaves and not wanted.startswith((SIGN_IN, "sign-out")) else ""


def _used_code(request: Request, code: str) -> Identity | None:
    """Whose code it is; it opens nothing more."""
    authenticator: Authenticator = request.app.state.authenticator
    caller = authenticator.look_up_code(code)
    if caller is None:
        return None
    with dependencies_of(request).database.writing() as session:
        return caller if close_session(session.connection(), code) else None


def _opened(request: Request, dependencies: ApiDependencies, caller: Identity) -> str:
    now_s = dependencies.now_s()
    with dependencies.database.writing() as session:
        connection = session.connection()
        token = open_session(connection, Kind.SESSION, caller.key_id, now_s, now_s + dependencies.settings.session_s)
        _note(request, connection, caller, "POST /sign-in", now_s)
    return token


def _closed(request: Request, dependencies: ApiDependencies, session: str) -> None:
    authenticator: Authenticator = request.app.state.authenticator
    caller = authenticator.look_up_session(session)
    now_s = dependencies.now_s()
    with dependencies.database.writing() as writing:
        connection = writing.connection()
        if close_session(connection, session) and caller is not None:
            _note(request, connection, caller, "POST /sign-out", now_s)


def _note(request: Request, connection: Connection, caller: Identity, action: str, now_s: float) -> None:
    origin = Origin(caller, address_of(request.scope), request_id(request.scope))
    target = "session" if caller.key_id is None else f"key {caller.key_id}"
    record(connection, origin, Entry(action, target, Outcome.DONE, 303), now_s)
