"""The dashboard of a real service with real requests, in a real browser."""

import os
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.e2e.harness import LiveService
from tests.web.conftest import TIMEOUT_MS, serious_faults, until
from tests.web.live import LONG, addresses, sign_in, submitted, token_of, wait_live

HOSTILE = '<img src=x onerror="document.title=1">\N{ZERO WIDTH SPACE}gnp.exe'


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


def test_a_form_that_is_sent_before_the_script_listens_does_nothing(chromium: Browser, service: LiveService) -> None:
    """As a request of the browser it would be a GET, with what was typed in the address and no other effect."""
    job = submitted(service, "early", hold=True)
    context = chromium.new_context(java_script_enabled=False)
    tab = context.new_page()
    sign_in(tab, service, f"jobs/{job}")
    tab.get_by_label("Priority").fill("7")
    tab.get_by_role("button", name="Change").click()
    expect(tab).to_have_url(f"{service.url}/jobs/{job}")
    expect(tab.get_by_label("Priority")).to_have_value("7")
    context.close()
    service.request("POST", f"/v1/jobs/{job}/cancel")


def test_a_page_that_was_open_during_a_restart_misses_nothing(browser_tab: Page, service: LiveService) -> None:
    tab = browser_tab
    sign_in(tab, service, "jobs")
    wait_live(tab)
    tab.evaluate("window.same = true")
    service.kill()
    state = tab.locator("[data-live-state]")
    expect(state).to_contain_text("Not connected. This is as of")
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


def test_text_of_users_is_shown_as_text(browser_tab: Page, service: LiveService) -> None:
    tab = browser_tab
    job = submitted(service, HOSTILE, hold=True)
    sign_in(tab, service)
    for path in [*addresses(service), f"jobs/{job}"]:
        tab.goto(f"{service.url}/{path}")
        assert tab.title() != "1", path
        assert tab.locator("main img").count() == 0, path
    expect(tab.locator("h1 bdi")).to_contain_text("<img src=x")
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
    expect(tab).to_have_url(re.compile(r"/jobs\?"))
    expect(tab.locator(".empty")).to_contain_text("No job matches")


@pytest.mark.parametrize("look", ["light", "dark", "narrow"])
def test_pages_in_each_look(chromium: Browser, service: LiveService, tmp_path: Path, look: str) -> None:
    """Fit for readers with aids, and for a narrow screen. Pictures are kept in DASHBOARD_SCREENSHOTS, if it is set."""
    folder = Path(os.environ.get("DASHBOARD_SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    jobs = [submitted(service, f"train-{number} " + "x" * 90, gpus=number + 1, **LONG) for number in range(4)]
    narrow = look == "narrow"
    context = chromium.new_context(
        color_scheme="dark" if look == "dark" else "light", viewport={"width": 360 if narrow else 1280, "height": 900}
    )
    tab = context.new_page()
    sign_in(tab, service)
    for path in addresses(service):
        tab.goto(f"{service.url}/{path}")
        if tab.locator("body[data-live]").count():
            wait_live(tab)
        picture = folder / f"{re.sub(r'[^a-z0-9]+', '-', path) or 'overview'}-{look}.png"
        tab.screenshot(path=picture, full_page=True)
        assert picture.stat().st_size > 5_000, path
        if narrow:
            assert tab.evaluate("document.documentElement.scrollWidth") <= 360, path
        else:
            assert serious_faults(tab) == [], path
    context.close()
    for job in jobs:
        service.request("POST", f"/v1/jobs/{job}/cancel")
