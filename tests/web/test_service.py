"""The dashboard of a real service with real requests, in a real browser."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from service.web.app import PAGES
from tests.e2e.harness import LiveService, free_port
from tests.web.conftest import AXE, SERIOUS, TIMEOUT_MS, Console, until

HOSTILE = '<img src=x onerror="document.title=1">\N{RIGHT-TO-LEFT OVERRIDE}gnp.exe'


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveService]:
    """Two servers of four GPUs with timers instead of programs. All tests use it, each with jobs of its own names."""
    folder = tmp_path_factory.mktemp("service")
    made = LiveService(folder, [{"count": 2, "gpus": 4, "rack": "r1"}], EXECUTOR="fake", PORT=str(free_port()))
    made.start()
    yield made
    made.close()


@pytest.fixture
def browser_tab(context: BrowserContext, service: LiveService) -> Iterator[Page]:
    """A tab whose console stays silent."""
    tab = context.new_page()
    console = Console(tab, service.url)
    yield tab
    assert console.faults == []


def token_of(service: LiveService) -> str:
    return (service.data_dir / "token").read_text().strip()


def sign_in(tab: Page, service: LiveService, path: str = "") -> None:
    tab.goto(f"{service.url}/{path}")
    tab.get_by_label("API key").fill(token_of(service))
    tab.get_by_role("button", name="Sign in").click()
    expect(tab.get_by_role("button", name="Sign out")).to_be_visible()


def wait_live(tab: Page) -> None:
    expect(tab.locator("[data-live-state]")).to_have_attribute("data-live-state", "live")


def submitted(service: LiveService, name: str, **body: Any) -> int:
    return service.submit(**{"name": name, "gpus": 1, "command": ["true"], "labels": {"fake_duration_s": "1"}, **body})


LONG = {"labels": {"fake_duration_s": "3600"}}


def test_signing_in_leads_to_the_page_that_was_asked_for_and_signing_out_closes_it(
    browser_tab: Page, service: LiveService
) -> None:
    tab = browser_tab
    tab.goto(f"{service.url}/jobs?state=failed")
    tab.get_by_label("API key").fill("wrong")
    tab.get_by_role("button", name="Sign in").click()
    expect(tab.get_by_role("alert")).to_contain_text("Wrong token")
    tab.get_by_label("API key").fill(token_of(service))
    tab.get_by_role("button", name="Sign in").click()
    expect(tab).to_have_url(f"{service.url}/jobs?state=failed")
    assert tab.evaluate("document.cookie.includes('sooner_session')") is False
    assert tab.evaluate("Object.values(localStorage).concat(Object.values(sessionStorage)).join()") == ""
    tab.get_by_role("button", name="Sign out").click()
    expect(tab.get_by_label("API key")).to_be_visible()
    tab.goto(f"{service.url}/jobs")
    expect(tab.get_by_label("API key")).to_be_visible()


def test_a_job_appears_runs_and_ends_without_a_reload(browser_tab: Page, service: LiveService) -> None:
    tab = browser_tab
    sign_in(tab, service, "jobs")
    wait_live(tab)
    tab.evaluate("window.same = true")
    job = submitted(service, "appears")
    row = tab.locator(f"#job-{job}")
    expect(row).to_contain_text("appears")
    expect(row).to_contain_text("succeeded")
    row.get_by_role("link").first.click()
    expect(tab.locator("#story li")).to_have_count(4)
    expect(tab.locator("h1")).to_contain_text(f"Job {job} appears succeeded")
    tab.go_back()
    assert tab.evaluate("window.same") in (True, None)


def test_a_job_is_held_released_and_cancelled(browser_tab: Page, service: LiveService) -> None:
    tab = browser_tab
    job = submitted(service, "acts", gpus=1, hold=True, **LONG)
    sign_in(tab, service, f"jobs/{job}")
    wait_live(tab)
    tab.get_by_role("button", name="Release").click()
    expect(tab.locator("h1")).to_contain_text("running")
    tab.get_by_role("button", name="Cancel").click()
    dialog = tab.get_by_role("dialog")
    expect(dialog).to_contain_text(f"Cancel job {job}?")
    tab.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    assert service.job(job)["state"] == "running"
    tab.get_by_role("button", name="Cancel").click()
    dialog.get_by_role("button").last.click()
    expect(tab.locator("h1")).to_contain_text("cancelled")
    expect(tab.get_by_role("button", name="Cancel")).to_have_count(0)


def test_a_job_is_planned_and_submitted_with_the_fields(browser_tab: Page, service: LiveService) -> None:
    tab = browser_tab
    sign_in(tab, service, "submit")
    for widget in ("job-form", "editor"):
        expect(tab.locator(f"#{widget}")).to_have_attribute("data-mounted", "")
    for label, text in (("Name", "by fields"), ("GPUs", "2"), ("Command", "python 'my program.py'"), ("Priority", "3")):
        tab.get_by_label(label, exact=True).fill(text)
    tab.get_by_role("button", name="Plan").click()
    plan = tab.locator("#plan")
    expect(plan).to_contain_text("by fields")
    expect(plan).to_contain_text("2 GPUs")
    before = len(service.get("/v1/jobs")["items"])
    tab.get_by_role("button", name="Submit", exact=True).click()
    expect(tab.locator("h1")).to_contain_text("by fields")
    job = service.get("/v1/jobs")["items"][0]
    assert len(service.get("/v1/jobs")["items"]) == before + 1, "the plan submitted nothing"
    assert (job["gpus"], job["priority"]) == (2, 3)
    assert service.get(f"/v1/jobs/{job['id']}/spec")["command"] == ["python", "my program.py"]
    service.request("POST", f"/v1/jobs/{job['id']}/cancel")


def test_a_priority_is_changed(browser_tab: Page, service: LiveService) -> None:
    tab = browser_tab
    job = submitted(service, "priority", hold=True)
    sign_in(tab, service, f"jobs/{job}")
    field = tab.get_by_label("Priority")
    field.fill("7")
    tab.get_by_role("button", name="Change").click()
    until(tab, lambda: service.job(job)["priority"] == 7)
    expect(tab.locator("#card-times")).to_contain_text("priority 7")
    service.request("POST", f"/v1/jobs/{job}/cancel")


def test_a_page_that_was_open_during_a_restart_misses_nothing(browser_tab: Page, service: LiveService) -> None:
    tab = browser_tab
    sign_in(tab, service, "jobs")
    wait_live(tab)
    tab.evaluate("window.same = true")
    service.kill()
    state = tab.locator("[data-live-state]")
    expect(state).not_to_have_attribute("data-live-state", "live")
    service.start()
    job = submitted(service, "meanwhile")
    expect(tab.locator(f"#job-{job}")).to_contain_text("succeeded", timeout=2 * TIMEOUT_MS)
    wait_live(tab)
    assert tab.evaluate("window.same") is True, "the page was not loaded again"


def test_a_session_that_has_ended_leads_to_the_form_and_back(
    browser_tab: Page, context: BrowserContext, service: LiveService
) -> None:
    tab = browser_tab
    sign_in(tab, service, "queue")
    wait_live(tab)
    context.clear_cookies(name="sooner_session")
    submitted(service, "after the end")
    expect(tab.get_by_label("API key")).to_be_visible()
    tab.get_by_label("API key").fill(token_of(service))
    tab.get_by_role("button", name="Sign in").click()
    expect(tab).to_have_url(f"{service.url}/queue")


def test_the_command_signs_a_browser_in_once(browser_tab: Page, service: LiveService) -> None:
    tab = browser_tab
    made = service.request("POST", "/v1/sign-in-codes").json()
    tab.goto(f"{service.url}/{made['path']}")
    tab.get_by_role("button", name="Sign in").click()
    expect(tab).to_have_url(f"{service.url}/")
    expect(tab.locator("h1")).to_have_text("Overview")


def test_pages_are_read_without_scripts(chromium: Browser, service: LiveService) -> None:
    job = submitted(service, "plain", hold=True)
    context = chromium.new_context(java_script_enabled=False)
    tab = context.new_page()
    sign_in(tab, service, "queue")
    expect(tab.locator(f"#job-{job}")).to_contain_text("plain")
    tab.goto(f"{service.url}/jobs/{job}")
    expect(tab.locator("h1")).to_contain_text("plain")
    expect(tab.locator("#story")).to_contain_text("UTC")
    tab.get_by_role("button", name="Sign out").click()
    expect(tab.get_by_label("API key")).to_be_visible()
    context.close()
    service.request("POST", f"/v1/jobs/{job}/cancel")


def addresses(service: LiveService) -> list[str]:
    jobs = service.get("/v1/jobs")["items"]
    plain = [page.path[1:] for page in PAGES if "{" not in page.path]
    return [*plain, *(f"jobs/{job['id']}" for job in jobs[:1])]


def test_text_of_users_is_shown_as_text(browser_tab: Page, service: LiveService) -> None:
    tab = browser_tab
    job = submitted(service, HOSTILE, hold=True)
    sign_in(tab, service)
    for path in addresses(service):
        tab.goto(f"{service.url}/{path}")
        assert tab.title() != "1", path
        assert tab.locator("main img").count() == 0, path
    expect(tab.locator("h1 bdi")).to_contain_text("<img src=x")
    service.request("POST", f"/v1/jobs/{job}/cancel")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_page_has_a_serious_fault_for_readers_with_aids(chromium: Browser, service: LiveService, theme: Any) -> None:
    running = submitted(service, "running", **LONG)
    context = chromium.new_context(color_scheme=theme, bypass_csp=True)
    tab = context.new_page()
    sign_in(tab, service)
    for path in addresses(service):
        tab.goto(f"{service.url}/{path}")
        tab.add_script_tag(path=AXE)
        found = tab.evaluate("axe.run()")
        serious = [
            (fault["id"], [node["html"] for node in fault["nodes"]][:3])
            for fault in found["violations"]
            if fault["impact"] in SERIOUS
        ]
        assert serious == [], path
    context.close()
    service.request("POST", f"/v1/jobs/{running}/cancel")


def test_pages_fit_a_narrow_screen(chromium: Browser, service: LiveService) -> None:
    job = submitted(service, "narrow " + "x" * 90, hold=True)
    context = chromium.new_context(viewport={"width": 360, "height": 740})
    tab = context.new_page()
    sign_in(tab, service)
    for path in addresses(service):
        tab.goto(f"{service.url}/{path}")
        assert tab.evaluate("document.documentElement.scrollWidth") <= 360, path
    context.close()
    service.request("POST", f"/v1/jobs/{job}/cancel")


def test_pages_are_reached_by_keys(browser_tab: Page, service: LiveService) -> None:
    tab = browser_tab
    sign_in(tab, service)
    wait_live(tab)
    for key, path in (("q", "queue"), ("j", "jobs"), ("c", "cluster"), ("o", "")):
        tab.keyboard.press("g")
        tab.keyboard.press(key)
        expect(tab).to_have_url(f"{service.url}/{path}")
        wait_live(tab)
    tab.keyboard.press("/")
    expect(tab.get_by_role("searchbox", name="Search jobs")).to_be_focused()
    tab.keyboard.type("no such job")
    tab.keyboard.press("Enter")
    expect(tab.locator(".empty")).to_contain_text("No job matches")


def test_screenshots_of_all_pages(chromium: Browser, service: LiveService, tmp_path: Path) -> None:
    """Kept as output of the run: in DASHBOARD_SCREENSHOTS, if it is set."""
    folder = Path(os.environ.get("DASHBOARD_SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(4):
        submitted(service, f"train-{number}", gpus=number + 1, **LONG)
    for name, scheme, width in (("light", "light", 1280), ("dark", "dark", 1280), ("narrow", "light", 360)):
        context = chromium.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})  # type: ignore[arg-type]
        tab = context.new_page()
        sign_in(tab, service)
        for path in addresses(service):
            tab.goto(f"{service.url}/{path}")
            if tab.locator("body[data-live]").count():
                wait_live(tab)
            picture = folder / f"{re.sub(r'[^a-z0-9]+', '-', path) or 'overview'}-{name}.png"
            tab.screenshot(path=picture, full_page=True)
            assert picture.stat().st_size > 5_000, path
        context.close()
