"""The documentation site at ``/docs/``, open without a token: files that ``python -m docs.site`` wrote, here or for the wheel.

A page may run exactly the scripts that the build wrote into it, by their hashes, and loads nothing from other hosts.
"""

import base64
import hashlib
import re
from dataclasses import dataclass, field
from functools import lru_cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from service.api.documents import etag_matches
from service.api.problems import Problem, ProblemType

SITE_PATH: Final = "/docs/"
FOLDER: Final = Path(__file__).parents[1] / "_site"

_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".txt": "text/plain; charset=utf-8",
}
"""The service's own list: the machine's may call a script anything."""

_NAMED_BY_CONTENT: Final = re.compile(r"\.[0-9a-f]{8}\.min\.(?:js|css)$")
_FOR_EVER: Final = "public, max-age=31536000, immutable"
_ASK_AGAIN: Final = "no-cache"

_NOT_BUILT: Final = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Sooner documentation</title>
<h1>The documentation is not built</h1>
<p>Run <code>make docs</code> (or <code>python -m docs.site</code>) in the checkout, then load this page again.
An installed wheel contains it.</p>
<p>The <a href="../api/docs">reference of the HTTP API</a> needs no build.</p></html>
"""


@dataclass(frozen=True, slots=True)
class SiteFile:
    """A file as it is sent."""

    content: bytes = field(repr=False)
    headers: dict[str, str]


class _Inline(HTMLParser):
    """The scripts and styles that are in a page itself. Data (``type="application/json"``) is no script."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: dict[str, list[str]] = {"script": [], "style": []}
        self._open: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "style" or (tag == "script" and "src" not in given and "json" not in (given.get("type") or "")):
            self._open = tag
            self.texts[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == self._open:
            self._open = None

    def handle_data(self, data: str) -> None:
        if self._open is not None:
            self.texts[self._open][-1] += data


def content_security_policy(page: str) -> str:
    """Allows what the page's own origin serves, and the inline scripts and styles of this page."""
    inline = _Inline()
    inline.feed(page)
    inline.close()
    allowed = {kind: " ".join(["'self'", *map(_hash, dict.fromkeys(texts))]) for kind, texts in inline.texts.items()}
    return (
        f"default-src 'none'; script-src {allowed['script']}; style-src {allowed['style']}; img-src 'self' data:; "
        "font-src 'self'; connect-src 'self'; worker-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def site_routes(folder: Path = FOLDER) -> list[Route]:
    """The site of a folder. A folder without a site answers with a page that says how to build it."""

    async def to_the_start(request: Request) -> Response:
        # Relative: a proxy may put the service under any path.
        return RedirectResponse("docs/")

    async def answer(request: Request) -> Response:
        return await run_in_threadpool(_answer, folder, request)

    return [Route(SITE_PATH.rstrip("/"), to_the_start), Route(SITE_PATH + "{path:path}", answer)]


def _answer(folder: Path, request: Request) -> Response:
    path = request.path_params["path"] or "index.html"
    found = _find(folder, path)
    if found is None:
        if path == "index.html":
            return HTMLResponse(_NOT_BUILT)
        raise Problem(ProblemType.NOT_FOUND, f"The documentation has no file {path!r}.")
    known = request.headers.get("if-none-match")
    if known is not None and etag_matches(known, found.headers["ETag"]):
        # With the policy: a browser takes over the headers of this answer for the page that it keeps.
        return Response(status_code=304, headers=found.headers)
    headers = {**found.headers, "Content-Length": str(len(found.content))}
    return Response(found.content, headers=headers)


def _find(folder: Path, path: str) -> SiteFile | None:
    """The file of a path; None where there is none inside the folder."""
    try:
        file = (folder / path).resolve()
        if not file.is_relative_to(folder.resolve()) or not file.is_file():
            return None
        status = file.stat()
        return _read(file, status.st_mtime_ns, status.st_size)
    except (OSError, ValueError):
        # A name that is too long, or a rebuild that has just removed the file.
        return None


@lru_cache(maxsize=512)
def _read(file: Path, changed_ns: int, size: int) -> SiteFile:
    """The file as of ``changed_ns``; read once."""
    content = file.read_bytes()
    headers = {
        "Content-Type": _TYPES.get(file.suffix, "application/octet-stream"),
        "ETag": f'"{hashlib.sha256(content).hexdigest()[:32]}"',
        "Cache-Control": _FOR_EVER if _NAMED_BY_CONTENT.search(file.name) else _ASK_AGAIN,
    }
    if file.suffix == ".html":
        headers["Content-Security-Policy"] = content_security_policy(content.decode())
    return SiteFile(content, headers)
