"""The pages, their scripts and their styles, as routes beside those of the API."""

import json
import os
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Final

from fastapi import FastAPI
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from starlette.convertors import Convertor, register_url_convertor
from starlette.datastructures import Headers
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.middleware.gzip import DEFAULT_EXCLUDED_CONTENT_TYPES, GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import PathLike, StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.access import origin_of
from service.api.browser import is_change, session_cookie, wants_page
from service.api.head import HeadAsGet
from service.api.problems import MEDIA_TYPE
from service.domain.access import Role
from service.web.page import Page, endpoint, problem_page
from service.web.pages.admin import admin
from service.web.pages.cluster import cluster, usage
from service.web.pages.jobs import job, jobs, queue
from service.web.pages.overview import overview
from service.web.pages.predictions import predictions
from service.web.pages.submit import simulation, submit, what_if
from service.web.reader import SharedDocuments
from service.web.render import environment
from service.web.sign_in import sign_in, sign_in_page, sign_out


class Number(Convertor[int]):
    """A number of a job or of a simulation. Python refuses to read one of thousands of digits."""

    regex = "[0-9]{1,18}"

    def convert(self, value: str) -> int:
        """The number."""
        return int(value)

    def to_string(self, value: int) -> str:
        """Its digits."""
        return str(value)


register_url_convertor("number", Number())

COMPRESSED_FROM: Final = 8192
"""Bytes from which an answer is compressed for clients that take it."""

_COMPRESSION: Final = 1
"""Of a timeline of two megabytes a fifth is left, in 10 ms; the highest level leaves little less, in 150 ms."""

_NOT_COMPRESSED: Final = (*DEFAULT_EXCLUDED_CONTENT_TYPES, "text/html")
"""Streams of events; and pages, because their compressed length would tell of the CSRF token beside text of the address."""

PAGES: Final = (
    Page("/", "overview.html", overview, "changes", "Overview", "o"),
    Page("/queue", "queue.html", queue, "changes", "Queue", "q"),
    Page("/jobs", "jobs.html", jobs, "changes", "Jobs", "j"),
    Page("/jobs/{job_id:number}", "job.html", job),
    Page("/predictions", "predictions.html", predictions, "", "Predictions", "p"),
    Page("/usage", "usage.html", usage, "", "Usage", "u"),
    Page("/what-if", "what_if.html", what_if, "", "What if", "w", Role.OPERATOR),
    Page("/what-if/{number:number}", "simulation.html", simulation),
    Page("/cluster", "cluster.html", cluster, "servers", "Cluster", "c"),
    Page("/submit", "submit.html", submit, "", "Submit", "s", Role.SUBMITTER),
    Page("/admin", "admin.html", admin, "", "Admin", "a"),
)
"""All pages; those with a label in the order of the navigation."""


_OF_DOCUMENTS: Final = ("content-type", "content-length", "content-security-policy", "referrer-policy")
"""Headers that a page has of its own."""


class ProblemPages:
    """Middleware: a person's browser that asks for a page, and not for a document, gets problems as pages."""

    def __init__(self, app: ASGIApp, navigation: tuple[Page, ...]) -> None:
        self._app = app
        self._navigation = navigation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http" or not wants_page(scope["method"], scope["path"], Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        problem: Message | None = None
        body = bytearray()

        async def answer(message: Message) -> None:
            nonlocal problem
            if message["type"] == "http.response.start":
                kind = Headers(raw=message["headers"]).get("content-type")
                problem = message if kind == MEDIA_TYPE else None
            if problem is None:
                await send(message)
                return
            body.extend(message.get("body", b""))
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                await self._page(scope, problem, json.loads(body))(scope, receive, send)

        await self._app(scope, receive, answer)

    def _page(self, scope: Scope, problem: Message, document: Mapping[str, Any]) -> Response:
        kept = {name: value for name, value in Headers(raw=problem["headers"]).items() if name not in _OF_DOCUMENTS}
        status = problem["status"]
        return problem_page(
            Request(scope), self._navigation, status, document["title"], document["detail"], headers=kept
        )


class Static(StaticFiles):
    """Scripts and styles. A name with a hash never changes; the others are asked for again, and not sent if they are the same."""

    def file_response(
        self, full_path: PathLike, stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        """The file, with how long a browser may keep it."""
        answer = super().file_response(full_path, stat_result, scope, status_code)
        kept = "public, max-age=31536000, immutable" if "/chunks/" in str(full_path) else "no-cache"
        answer.headers["Cache-Control"] = kept
        return answer


class FreshAfterChanges:
    """Middleware: after a change by a page, its caller's pages share no document that was read before it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http" or not is_change(scope["method"]) or session_cookie(Headers(scope=scope)) is None:
            await self._app(scope, receive, send)
            return

        async def answer(message: Message) -> None:
            # Before the browser learns of the change, and so before it reads the page again.
            if message["type"] == "http.response.start" and (origin := origin_of(Request(scope))) is not None:
                shared: SharedDocuments = scope["app"].state.shared_documents
                shared.forget(origin.identity)
            await send(message)

        await self._app(scope, receive, answer)


def reads_of(app: FastAPI) -> ASGIApp:
    """The routes as a page reads them: the page's own request has passed the request guard and the other middleware."""
    return ExceptionMiddleware(AsyncExitStackMiddleware(app.router), handlers=app.exception_handlers)


def install(app: FastAPI) -> None:
    """Add the pages to the application of the API, behind its request guard."""
    app.state.templates = environment()
    app.state.shared_documents = SharedDocuments()
    app.state.reads = reads_of(app)
    app.add_middleware(FreshAfterChanges)
    navigation = tuple(page for page in PAGES if page.label)
    app.add_middleware(ProblemPages, navigation=navigation)
    app.add_middleware(
        GZipMiddleware,
        minimum_size=COMPRESSED_FROM,
        compresslevel=_COMPRESSION,
        exclude_content_types=_NOT_COMPRESSED,
    )
    app.add_middleware(HeadAsGet)
    # Before those of the API, which takes longer to see that a path is none of its own.
    app.router.routes[:0] = [
        *(Route(page.path, endpoint(page, navigation), methods=["GET"]) for page in PAGES),
        Route("/sign-in", sign_in_page, methods=["GET"]),
        Route("/sign-in", sign_in, methods=["POST"]),
        Route("/sign-out", sign_out, methods=["POST"]),
        Mount("/static", Static(directory=str(files("service.web") / "static"))),
    ]
