"""A real Chromium, and a page whose console stays silent."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.e2e.harness import LiveService
from tests.web.live import served
from tests.web.run import REQUIRED, WEB
from tests.web.site import Site

HERE = Path(__file__).parent
AXE = WEB / "node_modules" / "axe-core" / "axe.min.js"
TIMEOUT_MS = 20_000.0
expect.set_options(timeout=TIMEOUT_MS)
SERIOUS = ("serious", "critical")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.web)


def lacking(what: str) -> None:
    """Fail where the tests must run, else skip."""
    if os.environ.get(REQUIRED):
        pytest.fail(f"{what} is missing")
    pytest.skip(f"{what} is missing: run `make test-web`")


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        lacking("Chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()


@pytest.fixture
def context(chromium: Browser) -> Iterator[BrowserContext]:
    opened = chromium.new_context(timezone_id="Asia/Tokyo", locale="en-GB", viewport={"width": 1280, "height": 800})
    opened.set_default_timeout(TIMEOUT_MS)
    yield opened
    opened.close()


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    made.start()
    yield made
    made.stop()


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveService]:
    """Two servers of four GPUs with timers instead of programs. Many tests use it, each with jobs of its own names."""
    with served(tmp_path_factory.mktemp("timers"), [{"count": 2, "gpus": 4, "rack": "r1"}], EXECUTOR="fake") as made:
        yield made


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveService]:
    """A server of two GPUs that runs real programs."""
    with served(tmp_path_factory.mktemp("programs"), [{"count": 1, "gpus": 2}]) as made:
        yield made


class Console:
    """What went wrong in a page: script errors, refused content, requests that leave the origin."""

    def __init__(self, page: Page, origin: str = "") -> None:
        self.faults: list[str] = []
        self._origin = origin
        page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        page.on("console", lambda entry: self._note(entry.type, entry.text))
        page.on("request", lambda request: self._leave(request.url))

    def _note(self, kind: str, text: str) -> None:
        # The browser reports each answer of 400 and more; the tests ask for some of them.
        if kind in ("error", "warning") and not text.startswith("Failed to load resource"):
            self.faults.append(f"{kind}: {text}")

    def _leave(self, url: str) -> None:
        # Without an origin, it is that of the first page.
        self._origin = self._origin or "/".join(url.split("/", 3)[:3]) + "/"
        if not url.startswith((self._origin, "data:", "blob:")):
            self.faults.append(f"left the origin: {url}")


@pytest.fixture
def tab(context: BrowserContext, site: Site) -> Iterator[Page]:
    """A tab of the browser. The test fails on any fault of the console."""
    opened = context.new_page()
    console = Console(opened, site.url.split("/proxy")[0])
    yield opened
    assert console.faults == []


@pytest.fixture
def browser_tab(context: BrowserContext) -> Iterator[Page]:
    """A tab for a real service, all of whose pages are of one origin. The test fails on any fault of the console."""
    opened = context.new_page()
    console = Console(opened)
    yield opened
    assert console.faults == []


def until(tab: Page, condition: Callable[[], bool]) -> None:
    """Wait for what the page or the site does. The page's policy forbids Playwright's own way, which evaluates text."""
    ends_at_s = time.monotonic() + TIMEOUT_MS / 1000
    while not condition():
        assert time.monotonic() < ends_at_s
        tab.evaluate("new Promise(resolve => requestAnimationFrame(resolve))")


def serious_faults(page: Page) -> list[str]:
    """What axe-core finds that keeps people out."""
    if not AXE.exists():
        lacking("axe-core")
    # Evaluated by the debugger, so the page's policy stays as it is.
    page.evaluate(AXE.read_text(encoding="utf-8") + ";0")
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{fault['id']}: {node['target']} {node['failureSummary']}"
        for fault in found["violations"]
        if fault["impact"] in SERIOUS
        for node in fault["nodes"]
    ]
