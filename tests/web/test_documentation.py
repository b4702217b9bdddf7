"""The documentation site in a real browser, from the real server: whole under its strict policy, with search and both themes."""

import re
from collections.abc import Iterator
from typing import Literal

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from docs.site.build import build
from service.api import app as app_module
from service.api.app import create_app
from service.api.site import site_routes
from tests.api.conftest import make_world
from tests.api.live import listening
from tests.web.conftest import Console, serious_faults, until

START = "explanation/a-srpt.html"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a service serves the site."""
    folder = tmp_path_factory.mktemp("documentation")
    build(folder / "site")
    world = make_world(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app_module, "site_routes", lambda: site_routes(folder / "site"))
        app = create_app(world.dependencies())
    with listening(app, world.settings) as (host, port):
        yield f"http://{host}:{port}/docs/"
    world.database.close()


@pytest.fixture
def reader(context: BrowserContext, address: str) -> Iterator[Page]:
    """A tab without any token. The test fails if something is refused by the policy or leaves the origin."""
    opened = context.new_page()
    console = Console(opened, address.removesuffix("/docs/"))
    yield opened
    assert console.faults == []


def test_search_finds_pages_without_another_host(reader: Page, address: str) -> None:
    reader.goto(address.removesuffix("/"))
    expect(reader).to_have_url(address)
    reader.get_by_role("textbox", name="Search").fill("Heavy-Edge mapping")
    found = reader.locator("a.md-search-result__link", has_text="A-SRPT").first
    found.click()
    expect(reader).to_have_url(re.compile(re.escape(START)))


def test_pictures_are_shown_and_the_theme_is_kept(reader: Page, address: str) -> None:
    reader.goto(address + START)
    pictures = reader.locator("article img")
    expect(pictures).to_have_count(4)
    until(reader, lambda: pictures.evaluate_all("all => all.every(each => each.complete && each.naturalWidth > 300)"))
    body = reader.locator("body")
    # From the system's setting to light, then to dark.
    for name in ("Switch to light", "Switch to dark"):
        reader.locator(f"label[title='{name}']").click()
    expect(body).to_have_attribute("data-md-color-scheme", "slate")
    reader.goto(address)
    expect(body).to_have_attribute("data-md-color-scheme", "slate")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_a_narrow_screen_and_keep_nobody_out(
    reader: Page, address: str, scheme: Literal["light", "dark"]
) -> None:
    reader.emulate_media(color_scheme=scheme)
    for path in ("", START, "how-to/slurm-users.html"):
        reader.set_viewport_size({"width": 1280, "height": 800})
        reader.goto(address + path)
        assert serious_faults(reader) == []
        reader.set_viewport_size({"width": 360, "height": 740})
        assert reader.evaluate("document.documentElement.scrollWidth") <= 360
