"""Submitting on a real service: plan, faults, submission; and all of it with the keyboard alone."""

from typing import Any

from playwright.sync_api import Locator, Page, expect

from tests.e2e.harness import LiveService
from tests.web.live import sign_in, token_of, wait_live

JOB = """name: {name}
command: ["true"]
labels: {{fake_duration_s: "3600"}}
"""
"""Three lines of a job, which lacks its GPUs."""


def write(tab: Page, text: str) -> None:
    """Put a text into the editor in place of the one that it has."""
    tab.get_by_role("textbox", name="The job as YAML").click()
    tab.keyboard.press("Control+a")
    tab.keyboard.press("Delete")
    tab.keyboard.insert_text(text)


def opened(tab: Page, service: LiveService) -> None:
    sign_in(tab, service, "submit")
    expect(tab.locator("#editor")).to_have_attribute("data-mounted", "")


def named(service: LiveService, name: str) -> list[Any]:
    found: list[Any] = service.get(f"/v1/jobs?name={name}")["items"]
    return found


def test_a_plan_submits_nothing_and_the_submission_leads_to_its_job(browser_tab: Page, service: LiveService) -> None:
    tab = browser_tab
    opened(tab, service)
    write(tab, JOB.format(name="planned-first") + "gpus: 1")
    tab.get_by_role("button", name="Plan").click()
    plan = tab.locator("#plan")
    expect(plan).to_contain_text("planned-first")
    expect(plan).to_contain_text("free now")
    expect(plan.locator(".value", has_text="1 GPU on ")).to_be_visible()
    assert named(service, "planned-first") == []
    tab.get_by_role("button", name="Submit").click()
    expect(tab.locator("h1")).to_contain_text("planned-first")
    (job,) = named(service, "planned-first")
    expect(tab).to_have_url(f"{service.url}/jobs/{job['id']}")
    expect(tab.locator("h1")).to_contain_text("running")
    service.request("POST", f"/v1/jobs/{job['id']}/cancel")


def test_faults_are_shown_at_their_lines(browser_tab: Page, service: LiveService) -> None:
    tab = browser_tab
    opened(tab, service)
    alert, marks = tab.locator("[data-errors]"), tab.locator("#editor .cm-lint-marker-error")
    for button, line, fault in (
        ("Plan", "gpus: 0", "Line 4: gpus: must be at least 1 (got 0)"),
        ("Submit", "gpus: 1\ngpu: 2", "Line 5: gpu: is unknown; did you mean 'gpus'?"),
        ("Submit", "gpus: 1\npreemption:\n  grace: 3", "Line 6: preemption.grace: is unknown; did you mean 'grace_s'?"),
        ("Submit", "gpus: 1\nenv: {A: [3]}", "Line 5: env.A: must be a text"),
        ("Plan", "gpus: [1", "The text is not YAML."),
    ):
        write(tab, JOB.format(name="faulty") + line)
        tab.get_by_role("button", name=button).click()
        expect(alert).to_contain_text(fault)
        expect(marks).to_have_count(1)
        expect(tab.locator("#plan")).to_be_hidden()
    assert named(service, "faulty") == []


def has_focus(place: Locator) -> bool:
    return bool(place.evaluate("element => element.getRootNode().activeElement === element"))


def tab_to(tab: Page, place: Locator) -> None:
    """Press Tab until the focus is there."""
    expect(place).to_be_visible()
    for _ in range(60):
        if has_focus(place):
            return
        tab.keyboard.press("Tab")
    raise AssertionError(f"the focus never came to {place}")


def test_a_job_is_submitted_and_cancelled_with_the_keyboard_alone(browser_tab: Page, service: LiveService) -> None:
    tab, keys = browser_tab, browser_tab.keyboard
    tab.goto(f"{service.url}/")
    keys.type(token_of(service))
    keys.press("Enter")
    wait_live(tab)
    keys.press("g")
    keys.press("s")
    expect(tab.locator("#editor")).to_have_attribute("data-mounted", "")
    tab_to(tab, tab.get_by_role("textbox", name="The job as YAML"))
    keys.press("Control+a")
    keys.press("Delete")
    for line in [*JOB.format(name="by-keys").splitlines(), "gpus: 1"]:
        keys.type(line)
        # The list of completions would take the key.
        expect(tab.locator(".cm-tooltip-autocomplete")).to_have_count(0)
        keys.press("Enter")
    tab_to(tab, tab.get_by_role("button", name="Plan"))
    keys.press("Enter")
    expect(tab.locator("#plan")).to_contain_text("by-keys")
    tab_to(tab, tab.get_by_role("button", name="Submit", exact=True))
    keys.press("Space")
    expect(tab.locator("h1")).to_contain_text("by-keys")
    wait_live(tab)
    expect(tab.locator("h1")).to_contain_text("running")
    tab_to(tab, tab.get_by_role("button", name="Cancel"))
    keys.press("Enter")
    dialog = tab.get_by_role("dialog")
    assert has_focus(dialog.get_by_role("button", name="Back"))
    tab_to(tab, dialog.get_by_role("button", name="Cancel"))
    keys.press("Enter")
    expect(tab.locator("h1")).to_contain_text("cancelled")
    (job,) = named(service, "by-keys")
    assert job["state"] == "cancelled"
