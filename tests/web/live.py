"""Real services for tests of pages, and what a reader does first on them."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Page, expect

from service.web.app import PAGES
from tests.e2e.harness import LiveService, free_port

LONG: Final = {"labels": {"fake_duration_s": "3600"}}


@contextmanager
def served(folder: Path, servers: Iterable[Mapping[str, object]], **settings: str) -> Iterator[LiveService]:
    """A service that keeps its port when it is started again."""
    made = LiveService(folder, servers, PORT=str(free_port()), **settings)
    made.start()
    try:
        yield made
    finally:
        made.close()


def token_of(service: LiveService) -> str:
    return (service.data_dir / "token").read_text().strip()


def sign_in(tab: Page, service: LiveService, path: str = "") -> None:
    tab.goto(f"{service.url}/{path}")
    tab.get_by_label("API key").fill(token_of(service))
    tab.get_by_role("button", name="Sign in").click()
    expect(tab.get_by_role("button", name="Sign out")).to_be_visible()
    tab.wait_for_load_state()  # then its script listens


def wait_live(tab: Page) -> None:
    expect(tab.locator("[data-live-state]")).to_have_attribute("data-live-state", "live")


def submitted(service: LiveService, name: str, **body: Any) -> int:
    return service.submit(**{"name": name, "gpus": 1, "command": ["true"], "labels": {"fake_duration_s": "1"}, **body})


def addresses(service: LiveService) -> list[str]:
    """Every page, with the newest of what it may be about."""
    plain = [page.path[1:] for page in PAGES if "{" not in page.path]
    jobs = [f"jobs/{job['id']}" for job in service.get("/v1/jobs?limit=1")["items"]]
    simulations = [f"what-if/{each['id']}" for each in service.get("/v1/simulations?limit=1")["items"]]
    return [*plain, *jobs, *simulations]
