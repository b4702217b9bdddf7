"""The timeline under wheels, mice and fingers."""

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.web.conftest import TIMEOUT_MS, Console, until
from tests.web.site import Site
from tests.web.test_gantt import WIDGET, opened, serve
from tests.web.timelines import timeline

AXIS_PX = 24
LINES = "<p>line</p>" * 60
# The bar's colour in the row of pixels below its upper edge, where no label is. A copy: reading a canvas makes it slow.
_BAR = """() => {
    const canvas = document.querySelector('#gantt canvas[tabindex]');
    const ratio = canvas.width / canvas.clientWidth;
    const context = new OffscreenCanvas(canvas.width, 1).getContext('2d', {willReadFrequently: true});
    context.drawImage(canvas, 0, -Math.round(26 * ratio));
    const row = context.getImageData(0, 0, canvas.width, 1).data;
    const found = [];
    for (let x = 0; x < canvas.width; x++)
        if (row[4 * x] === 86 && row[4 * x + 1] === 180 && row[4 * x + 2] === 233) found.push(x / ratio);
    return [found[0] ?? -1, found.at(-1) ?? -1];
}"""


def bar(tab: Page) -> tuple[float, float]:
    """Left and right end of the only bar, px from the left of the canvas."""
    left, right = tab.evaluate(_BAR)
    return left, right


def one_bar(tab: Page, site: Site, below: str = "") -> tuple[float, float]:
    """Show one running attempt on one GPU; where its row begins on the page."""
    serve(site, timeline(servers=1, gpus=1, bars=1))
    site.show("", WIDGET + below)
    site.show("jobs/1001", "<h1>Job 1001</h1>", root="../")
    box = opened(tab, site).bounding_box()
    assert box is not None
    until(tab, lambda: bar(tab)[0] > 0)
    return box["x"], box["y"] + AXIS_PX + 6


def test_the_wheel_zooms_about_the_pointer_with_control_and_moves_in_time_with_shift(tab: Page, site: Site) -> None:
    x, y = one_bar(tab, site)
    left, right = bar(tab)
    at = 0.5 * (left + right)
    tab.mouse.move(x + at, y)
    tab.keyboard.down("Control")
    tab.mouse.wheel(0, 60)
    factor = 2.71828 ** (60 / 140)
    until(tab, lambda: abs(bar(tab)[0] - (at - (at - left) / factor)) <= 3)
    assert abs(bar(tab)[1] - (at + (right - at) / factor)) <= 3
    tab.mouse.wheel(0, -60)
    until(tab, lambda: abs(bar(tab)[0] - left) <= 3)
    tab.keyboard.up("Control")
    tab.keyboard.down("Shift")
    tab.mouse.wheel(0, 80)
    until(tab, lambda: abs(bar(tab)[1] - (right - 80)) <= 3)
    tab.keyboard.up("Shift")


def test_the_wheel_scrolls_the_rows_and_at_their_end_the_page(tab: Page, site: Site) -> None:
    serve(site, timeline(servers=40, gpus=8, bars=400))
    site.show("", WIDGET + LINES)
    canvas = opened(tab, site)
    canvas.scroll_into_view_if_needed()
    before = tab.evaluate("scrollY")
    box = canvas.bounding_box()
    x, y, tip = box["x"] + 20, box["y"] + 60, tab.locator(".gantt-tip")
    tab.mouse.move(x, y)
    expect(tip).to_contain_text("node000")
    tab.mouse.wheel(0, 350)

    def moved() -> bool:
        tab.mouse.move(x + 1, y)
        tab.mouse.move(x, y)
        return "node000" not in tip.inner_text()

    until(tab, moved)
    assert tab.evaluate("scrollY") == before
    for _ in range(12):
        tab.mouse.wheel(0, 400)
    until(tab, lambda: tab.evaluate("scrollY") > before)


def test_another_button_of_the_mouse_does_not_move_the_chart(tab: Page, site: Site) -> None:
    x, y = one_bar(tab, site)
    left, right = bar(tab)
    tab.mouse.move(x + right - 60, y)
    tab.mouse.down(button="right")
    tab.mouse.move(x + right - 20, y, steps=3)
    expect(tab.locator(".gantt-tip")).to_contain_text("predicted end")
    tab.mouse.up(button="right")
    assert bar(tab) == pytest.approx((left, right), abs=2)


@pytest.fixture
def phone(chromium: Browser, site: Site) -> Iterator[Page]:
    """A tab of a device with a touch screen."""
    context = chromium.new_context(has_touch=True, viewport={"width": 800, "height": 700}, timezone_id="Asia/Tokyo")
    context.set_default_timeout(TIMEOUT_MS)
    opened = context.new_page()
    console = Console(opened, site.url.split("/proxy")[0])
    yield opened
    assert console.faults == []
    context.close()


def touch(tab: Page, *places: tuple[tuple[float, float], ...]) -> None:
    """Fingers go down at the first places, over the others, and up at the last."""
    session = tab.context.new_cdp_session(tab)

    def send(kind: str, points: tuple[tuple[float, float], ...]) -> None:
        fingers: list[Any] = [{"x": x, "y": y, "id": number} for number, (x, y) in enumerate(points)]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": fingers})

    send("touchStart", places[0])
    for points in places[1:]:
        send("touchMove", points)
    send("touchEnd", ())


def test_two_fingers_zoom_and_open_nothing(phone: Page, site: Site) -> None:
    x, y = one_bar(phone, site)
    left, right = bar(phone)
    spread = ((x + 200, y), (x + 600, y)), ((x + 250, y), (x + 550, y)), ((x + 300, y), (x + 500, y))
    touch(phone, *spread)
    until(phone, lambda: abs((bar(phone)[1] - bar(phone)[0]) / (right - left) - 0.5) < 0.05)
    touch(phone, *reversed(spread))
    until(phone, lambda: abs((bar(phone)[1] - bar(phone)[0]) / (right - left) - 1.0) < 0.1)
    assert phone.url == site.url


def test_a_finger_moves_in_time_and_a_tap_opens_the_job(phone: Page, site: Site) -> None:
    x, y = one_bar(phone, site)
    _, right = bar(phone)
    touch(phone, *((((x + 500 - step, y)),) for step in range(0, 121, 20)))
    until(phone, lambda: abs(bar(phone)[1] - (right - 120)) <= 16)
    assert phone.url == site.url
    phone.touchscreen.tap(x + bar(phone)[1] - 30, y)
    phone.wait_for_url(site.url + "jobs/1001")


def test_a_finger_moves_the_page_where_all_rows_are_shown(phone: Page, site: Site) -> None:
    x, y = one_bar(phone, site, LINES)
    touch(phone, *((((x + 300, y + 90 - step),)) for step in range(0, 201, 20)))
    until(phone, lambda: phone.evaluate("scrollY") > 100)
    assert phone.url == site.url
