"""The documentation site at /docs/: what is answered, with what headers, and what is never answered."""

import base64
import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from httpx import Client

from service.api import app as app_module
from service.api.app import create_app
from service.api.site import content_security_policy, site_routes
from tests.api.client import client_of
from tests.api.conftest import make_world
from tests.api.helpers import assert_problem

SECRET = "nothing that a path may reach"
SCRIPT, STYLE = 'start("é")', "p { color: red }"
PAGE = (
    f'<!doctype html><script>{SCRIPT}</script><script src="assets/x.js"></script>'
    f'<script type="application/json">{{"base": "."}}</script><style>{STYLE}</style><script>{SCRIPT}</script>'
)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small site, and a secret beside it that no path may reach."""
    folder = tmp_path_factory.mktemp("built") / "site"
    (folder / "how-to").mkdir(parents=True)
    (folder / "assets").mkdir()
    (folder / "index.html").write_text(PAGE, encoding="utf-8")
    (folder / "how-to" / "run.html").write_text("<!doctype html>run")
    (folder / "assets" / "bundle.0123abcd.min.js").write_text("1")
    (folder / "assets" / "icon.svg").write_text("<svg/>")
    (folder.parent / "secret.txt").write_text(SECRET)
    (folder / "link.txt").symlink_to(folder.parent / "secret.txt")
    return folder


def _browser(folder: Path, data: Path) -> Iterator[Client]:
    """A client without a token of the whole application, which serves the site of the folder."""
    world = make_world(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app_module, "site_routes", lambda: site_routes(folder))
        app = create_app(world.dependencies())
    with client_of(app, None) as client:
        yield client
    world.database.close()


@pytest.fixture(scope="module")
def browser(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of the small site."""
    yield from _browser(site, tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def without_a_build(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of a service whose site was never built."""
    folder = tmp_path_factory.mktemp("empty")
    yield from _browser(folder / "none", folder)


def test_the_start_page_is_open_and_docs_leads_to_it(browser: Client) -> None:
    first = browser.get("/docs")
    assert first.status_code == 307
    # Relative, so that it holds below a path of a proxy.
    assert first.headers["location"] == "docs/"
    page = browser.get("/docs/")
    assert (page.status_code, page.text) == (200, PAGE)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert browser.get("/docs/how-to/run.html").status_code == 200


def test_the_policy_allows_the_inline_scripts_of_the_page_by_hash_and_nothing_else(browser: Client) -> None:
    headers = browser.get("/docs/").headers
    assert headers["content-security-policy"] == content_security_policy(PAGE)
    directives = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert directives["script-src"] == f"'self' {_hash(SCRIPT)}"
    assert directives["style-src"] == f"'self' {_hash(STYLE)}"
    assert directives["default-src"] == directives["frame-ancestors"] == "'none'"
    assert "unsafe" not in headers["content-security-policy"]
    assert "http" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"


def test_a_file_is_sent_again_only_when_it_has_changed(browser: Client, site: Path) -> None:
    page = browser.get("/docs/how-to/run.html")
    assert page.headers["cache-control"] == "no-cache"
    again = browser.get("/docs/how-to/run.html", headers={"If-None-Match": page.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    # A browser takes the headers of this answer over for the page that it keeps.
    assert again.headers["content-security-policy"] == page.headers["content-security-policy"]
    (site / "how-to" / "run.html").write_text("<!doctype html>rebuilt, and longer than before")
    rebuilt = browser.get("/docs/how-to/run.html", headers={"If-None-Match": page.headers["etag"]})
    assert rebuilt.status_code == 200
    assert "rebuilt" in rebuilt.text


def test_files_named_by_their_content_are_kept_for_ever(browser: Client) -> None:
    script = browser.get("/docs/assets/bundle.0123abcd.min.js")
    assert script.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert script.headers["content-type"] == "text/javascript; charset=utf-8"
    assert script.headers["x-content-type-options"] == "nosniff"
    assert script.headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
    assert browser.get("/docs/assets/icon.svg").headers["content-type"] == "image/svg+xml"


def test_head_has_the_headers_and_no_body(browser: Client) -> None:
    page, head = browser.get("/docs/"), browser.head("/docs/")
    assert head.content == b""
    for name in ("etag", "content-length", "content-type", "content-security-policy", "cache-control"):
        assert head.headers[name] == page.headers[name]
    assert_problem(browser.post("/docs/", json={}), "method-not-allowed")


OUTSIDE = (
    *(
        "nothing.html",
        "how-to",
        "how-to/",
        "../secret.txt",
        "%2e%2e/secret.txt",
        "how-to/../../secret.txt",
        "..%5csecret.txt",
    ),
    *("how-to/%2e%2e%2f%2e%2e%2fsecret.txt", "link.txt", "/etc/passwd", "%2Fetc%2Fpasswd", "x" * 5000),
)


def test_nothing_outside_the_site_is_answered(browser: Client) -> None:
    for path in OUTSIDE:
        answer = browser.get(f"/docs/{path}")
        assert answer.status_code in (401, 404), path
        assert SECRET not in answer.text
        assert "root:" not in answer.text


def test_problem_types_stay_where_they_are(browser: Client) -> None:
    answer = browser.get("/docs/problems/not-found")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert "HTTP 404" in answer.text


def test_without_a_build_the_start_page_says_how_to_build(without_a_build: Client) -> None:
    answer = without_a_build.get("/docs/")
    assert answer.status_code == 200
    assert "make docs" in answer.text
    assert '"../api/docs"' in answer.text
    assert "<script" not in answer.text
    assert_problem(without_a_build.get("/docs/how-to/run.html"), "not-found")
