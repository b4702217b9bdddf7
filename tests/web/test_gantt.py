"""The timeline of GPUs: what it shows, and how it is steered."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.web.conftest import serious_faults, until
from tests.web.site import Request, Site, json_answer
from tests.web.timelines import ended, timeline

WIDGET = (
    '<section class="panel"><h2>GPUs</h2><div id="gantt" data-widget="gantt" data-timeline="./v1/timeline"'
    ' data-job-link="./jobs/"></div></section>'
)


def serve(site: Site, document: dict[str, Any], change: dict[str, Any] | None = None, live: str = "") -> None:
    answer_with(site, document, change)
    site.show("", WIDGET, live=live)


def answer_with(site: Site, document: dict[str, Any], change: dict[str, Any] | None) -> None:
    def answer(request: Request) -> Any:
        return json_answer(change if change is not None and "changed_since" in request.query else document)

    site.routes["GET /v1/timeline"] = answer


def opened(tab: Page, site: Site) -> Any:
    tab.goto(site.url)
    expect(tab.locator("#gantt")).to_have_attribute("data-ready", "")
    return tab.locator("#gantt canvas[tabindex]")


def test_keys_select_announce_and_open(tab: Page, site: Site) -> None:
    serve(site, timeline())
    site.show("jobs/1001", "<h1>Job 1001</h1>", root="../")
    canvas = opened(tab, site)
    canvas.focus()
    said = tab.locator("#gantt [aria-live]")
    tab.keyboard.press("ArrowRight")
    expect(said).to_contain_text("Job 1001")
    tab.keyboard.press("ArrowRight")
    expect(said).to_contain_text("Job 1002")
    tab.keyboard.press("ArrowDown")
    expect(said).not_to_contain_text("Job 1002")
    tab.keyboard.press("ArrowUp")
    tab.keyboard.press("Escape")
    tab.keyboard.press("ArrowLeft")
    expect(said).to_contain_text("Job 1001")
    tab.keyboard.press("Enter")
    tab.wait_for_url(site.url + "jobs/1001")


def test_a_click_opens_the_job_under_the_pointer_and_a_drag_does_not(tab: Page, site: Site) -> None:
    document = timeline(servers=1, gpus=1, bars=1)
    serve(site, document)
    site.show("jobs/1001", "<h1>Job 1001</h1>", root="../")
    canvas = opened(tab, site)
    box = canvas.bounding_box()
    x, y = box["x"] + box["width"] * 0.85, box["y"] + 32
    tab.mouse.move(x, y)
    expect(tab.locator(".gantt-tip")).to_contain_text("1 GPU on node000")
    expect(tab.locator(".gantt-tip")).to_contain_text("predicted end")
    tab.mouse.down()
    tab.mouse.move(x + 60, y, steps=4)
    tab.mouse.up()
    assert tab.url == site.url
    tab.mouse.click(x + 50, y)
    tab.wait_for_url(site.url + "jobs/1001")


def test_an_increment_replaces_its_attempts(tab: Page, site: Site) -> None:
    document = timeline(servers=1, gpus=8, bars=30)
    running = document["attempts"]["state"].index("running")
    open_ones = document["attempts"]["state"].count("running")
    serve(site, document, ended(document, running), live="jobs")
    opened(tab, site)
    expect(tab.locator("#gantt")).to_contain_text(f"{open_ones:,} of them open")
    site.emit()
    expect(tab.locator("#gantt")).to_contain_text(f"{open_ones - 1:,} of them open")
    asked = [request.query for request in site.requests if request.path == "/v1/timeline"]
    assert asked[0] == ""
    assert asked[1] == "changed_since=1-1"


def test_the_selection_stays_on_an_attempt_that_changes(tab: Page, site: Site) -> None:
    document = timeline()
    serve(site, document, ended(document, 0), live="jobs")
    canvas = opened(tab, site)
    canvas.focus()
    tab.keyboard.press("ArrowRight")
    said = tab.locator("#gantt [aria-live]")
    expect(said).to_contain_text("Job 1001")
    site.emit()
    expect(tab.locator("#gantt")).to_have_attribute("data-updates", "1")
    tab.keyboard.press("ArrowRight")
    expect(said).to_contain_text("Job 1002")


def test_what_arrives_later_has_its_place_in_the_legend(tab: Page, site: Site) -> None:
    document = timeline(servers=1, gpus=1, bars=1)
    empty = {name: [] for name in document["attempts"]}
    nothing = document | {"attempts": empty, "bars": {name: [] for name in document["bars"]}}
    serve(site, nothing, document | {"increment": True, "mark": "2-2"}, live="jobs")
    opened(tab, site)
    expect(tab.locator("#gantt .chip")).to_have_count(0)
    site.emit()
    expect(tab.locator("#gantt .chip")).to_have_count(1)


def test_a_view_of_everything_does_not_grow_for_as_long_as_the_page_is_open(tab: Page, site: Site) -> None:
    document = timeline()
    later = (datetime.fromisoformat(document["at"]) + timedelta(hours=8)).isoformat()
    serve(site, document, ended(document, 0) | {"at": later}, live="jobs")
    opened(tab, site)
    site.emit()
    expect(tab.locator("#gantt")).to_have_attribute("data-updates", "1")
    site.emit()
    expect(tab.locator("#gantt")).to_have_attribute("data-updates", "2")
    asked = [request.query for request in site.requests if request.path == "/v1/timeline"]
    assert asked == ["", "changed_since=1-1", ""]


def test_a_table_says_the_same_and_hostile_names_are_text(tab: Page, site: Site) -> None:
    document = timeline(servers=1, gpus=2, bars=2)
    document["attempts"]["name"][0] = '<img src=x onerror="throw 1">\u202egnp'
    document["attempts"]["job"][1] = document["attempts"]["name"][1] = document["attempts"]["user"][1] = None
    serve(site, document)
    opened(tab, site)
    tab.get_by_text("As a table").click()
    table = tab.locator("#gantt table")
    expect(table).to_contain_text("<img src=x onerror")
    expect(table).to_contain_text("hidden")
    assert tab.locator("#gantt img").count() == 0


def test_zooming_out_loads_what_was_before(tab: Page, site: Site) -> None:
    serve(site, timeline())
    canvas = opened(tab, site)
    canvas.focus()
    for _ in range(4):
        tab.keyboard.press("-")
    until(tab, lambda: any("since=" in request.query for request in site.requests))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_it_keeps_people_out_nowhere(tab: Page, site: Site, scheme: Any, width: int) -> None:
    serve(site, timeline())
    tab.set_viewport_size({"width": width, "height": 800})
    tab.emulate_media(color_scheme=scheme)
    opened(tab, site)
    tab.get_by_text("As a table").click()
    assert serious_faults(tab) == []
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_failed_load_is_said(tab: Page, site: Site) -> None:
    site.routes["GET /v1/timeline"] = lambda _: json_answer({"detail": "No leader answers."}, 503)
    site.show("", WIDGET)
    tab.goto(site.url)
    expect(tab.locator("#gantt")).to_contain_text("could not be loaded")
    expect(tab.get_by_role("alert")).to_contain_text("No leader answers.")


def test_a_large_cluster_is_shown_moved_and_updated(tab: Page, site: Site) -> None:
    """2,000 GPUs with 20,000 bars. What it costs is printed by ``benchmarks.web``."""
    document = timeline(servers=250, gpus=8, bars=21_000)
    assert len(document["bars"]["attempt"]) > 19_000
    serve(site, document, live="jobs")
    canvas = opened(tab, site)
    pixels = "canvas => canvas.toDataURL()"
    shown = canvas.evaluate(pixels)
    box = canvas.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + 60
    tab.mouse.move(x, y)
    tab.mouse.down()
    tab.mouse.move(x + 200, y, steps=4)
    tab.mouse.up()
    until(tab, lambda: canvas.evaluate(pixels) != shown)
    open_ones = document["attempts"]["state"].count("running")
    expect(tab.locator("#gantt")).to_contain_text(f"{open_ones:,} of them open")
    # Not before: the page also asks by itself, sooner than a slow machine gets here.
    answer_with(site, document, ended(document, document["attempts"]["state"].index("running")))
    site.emit()
    expect(tab.locator("#gantt")).to_contain_text(f"{open_ones - 1:,} of them open")
