"""One page: a template, filled with what its view has read of the API."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from jinja2 import Environment
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from service.api.access import caller_of, origin_of
from service.api.browser import csrf_token, root_of, session_cookie
from service.api.deps import dependencies_of
from service.domain.access import Identity, Role
from service.web.reader import Reader, Unavailable

CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; font-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Scripts, styles and requests of this service alone."""

_HEADERS: Final = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    # With no-referrer a browser would send the forms of these pages with the origin "null".
    "Referrer-Policy": "same-origin",
}
_THEMES: Final = ("light", "dark")
THEME_COOKIE: Final = "sooner_theme"


@dataclass(frozen=True, slots=True)
class Asked:
    """What a view may use: reads of the API, and the request's path and query."""

    read: Reader
    request: Request
    caller: Identity

    def query(self, name: str) -> str | None:
        """A parameter of the page's address; None if it is missing or empty."""
        return self.request.query_params.get(name) or None

    def rows(self, wanted: int) -> int:
        """The ``limit`` of a list: as many rows as wanted, if the API gives so many on a page."""
        return min(wanted, dependencies_of(self.request).settings.page_size_max)

    def may(self, role: str) -> bool:
        """Whether the caller has the rights of this role."""
        return self.caller.role.covers(Role(role))


View = Callable[[Asked], Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Page:
    """``path`` as Starlette writes it. ``live``: the topic of the event stream at which the page is read again. ``key``: opens it
    after ``g``; pages without a ``label`` are not in the navigation. ``least``: the role that its navigation entry needs.
    """

    path: str
    template: str
    view: View
    live: str = ""
    label: str = ""
    key: str = ""
    least: Role = Role.VIEWER


def endpoint(page: Page, navigation: tuple[Page, ...]) -> Callable[[Request], Awaitable[Response]]:
    """The endpoint of a page."""

    async def show(request: Request) -> Response:
        asked = Asked(Reader(request), request, caller_of(request))
        now_s = dependencies_of(request).now_s()
        common = {"page": page, "navigation": navigation, "asked": asked, "caller": asked.caller, "now_s": now_s}
        try:
            values = await page.view(asked)
        except Unavailable as problem:
            return problem_page(request, navigation, problem.status, problem.title, problem.detail, page)
        # Hundreds of rows take a while, in which the event loop serves others.
        return await run_in_threadpool(html, request, page.template, common | values)

    return show


async def _nothing(_: Asked) -> dict[str, Any]:
    return {}


_NO_PAGE: Final = Page("", "problem.html", _nothing)


def problem_page(
    request: Request,
    navigation: tuple[Page, ...],
    status: int,
    title: str,
    detail: str,
    page: Page = _NO_PAGE,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """What a person's browser shows instead of a page. Without a caller it has no navigation."""
    origin = origin_of(request)
    values = {
        "page": page,
        "navigation": navigation,
        "caller": None if origin is None else origin.identity,
        "title": title,
        "detail": detail,
        "again": request.url.path.rsplit("/", 1)[-1] or "./",
    }
    return html(request, "problem.html", values, status=status, headers=headers)


def html(
    request: Request,
    template: str,
    values: Mapping[str, Any],
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """The page of a template. ``root``: the relative address of the service's root."""
    templates: Environment = request.app.state.templates
    session = session_cookie(request.headers)
    theme = request.cookies.get(THEME_COOKIE, "auto")
    common = {
        "root": root_of(request.url.path),
        "csrf": csrf_token(session) if session is not None else "",
        "theme": theme if theme in _THEMES else "auto",
    }
    text = templates.get_template(template).render(common | dict(values))
    return HTMLResponse(text, status, {**_HEADERS, **(headers or {})})
