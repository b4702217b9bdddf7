"""Screenshots of the dashboard for its page in the documentation: ``python -m docs.screenshots`` takes them.

They show a service with made-up jobs at a fixed time, so they change only when the pages do. The words of each page stand in a
file beside its picture. `make test-web` takes all again, and fails if words differ, or pictures by more than fonts do.
"""

from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

from playwright.sync_api import Browser, Page, expect

FOLDER: Final = Path(__file__).parents[1] / "how-to" / "pictures"

GRID: Final = (48, 32)
DIFFERENCE_MAX: Final = 8.0
"""Of 255, the mean over the cells of a coarse grid. Other fonts and their smoothing give up to 3; a missing panel gives 15."""

HEIGHT_RATIO_MAX: Final = 1.1

_COARSE: Final = """async ([left, right, [width, height]]) => {
  const grid = async (bytes) => {
    const image = new Image();
    image.src = "data:image/png;base64," + bytes;
    await image.decode();
    const canvas = Object.assign(document.createElement("canvas"), { width, height });
    const pen = canvas.getContext("2d");
    pen.imageSmoothingQuality = "high";
    pen.drawImage(image, 0, 0, width, height);
    return [pen.getImageData(0, 0, width, height).data, image.naturalWidth, image.naturalHeight];
  };
  const [[one, oneWidth, oneHeight], [two, twoWidth, twoHeight]] = [await grid(left), await grid(right)];
  const sum = one.reduce((total, value, place) => total + Math.abs(value - two[place]), 0);
  return [(sum * 4) / 3 / one.length, oneWidth / twoWidth, oneHeight / twoHeight];
}"""
"""The mean difference of two pictures, and the ratios of their sizes. Every fourth value is the opacity, which is equal."""


def _plan(tab: Page) -> None:
    tab.get_by_role("button", name="Plan").click()
    expect(tab.locator("#plan article")).to_be_visible()


def _drawn(tab: Page) -> None:
    expect(tab.locator("#gantt canvas").first).to_be_visible()


@dataclass(frozen=True)
class Shot:
    """A page, and what is done on it before the picture is taken."""

    path: str
    scheme: Literal["light", "dark"] = "light"
    before: Callable[[Page], None] | None = None


SHOTS: Final[Mapping[str, Shot]] = {
    "overview": Shot("", before=_drawn),
    "overview-dark": Shot("", "dark", _drawn),
    "queue": Shot("queue"),
    "job": Shot("jobs/151"),
    "predictions": Shot("predictions"),
    "usage": Shot("usage"),
    "cluster": Shot("cluster"),
    "submit": Shot("submit", before=_plan),
}
"""Name of the picture -> how it is taken."""


def take(browser: Browser, url: str, token: str, now_s: float, folder: Path) -> None:
    """Write all pictures, and the words of their pages, of the service at ``url`` at this time."""
    folder.mkdir(parents=True, exist_ok=True)
    for scheme in ("light", "dark"):
        context = browser.new_context(
            color_scheme=scheme,  # type: ignore[arg-type]
            viewport={"width": 1280, "height": 800},
            timezone_id="UTC",
            locale="en-GB",
            reduced_motion="reduce",
        )
        tab = context.new_page()
        tab.clock.set_fixed_time(datetime.fromtimestamp(now_s, UTC))
        tab.goto(f"{url}/")
        tab.get_by_label("API key").fill(token)
        tab.get_by_role("button", name="Sign in").click()
        for name, shot in SHOTS.items():
            if shot.scheme == scheme:
                _take(tab, f"{url}/{shot.path}", shot, folder / name)
        context.close()


def _take(tab: Page, address: str, shot: Shot, target: Path) -> None:
    tab.goto(address)
    for widget in tab.locator("[data-widget]").all():
        expect(widget).to_have_attribute("data-mounted", "")
    if tab.locator("body[data-live]").count():
        expect(tab.locator("[data-live-state]")).to_have_attribute("data-live-state", "live")
    if shot.before is not None:
        shot.before(tab)
    tab.screenshot(path=target.with_suffix(".png"), full_page=True, animations="disabled", caret="hide")
    lines = (line.strip() for line in tab.locator("main").inner_text().splitlines())
    target.with_suffix(".txt").write_text("".join(f"{line}\n" for line in lines if line), encoding="utf-8")


def differences(browser: Browser, old: Path, new: Path) -> list[str]:
    """What the pictures and words in the folder ``old`` no longer show, one sentence each."""
    page = browser.new_page()
    found = []
    for name in SHOTS:
        pictures, words = ([each / f"{name}{suffix}" for each in (old, new)] for suffix in (".png", ".txt"))
        if not all(each.exists() for each in (*pictures, *words)):
            found.append(f"{name}: there is no picture of it")
            continue
        before, after = (each.read_text(encoding="utf-8").splitlines() for each in words)
        lines = [line for line in after if line not in before] + [line for line in before if line not in after]
        found += [f"{name}: {line!r} differs" for line in lines[:5]]
        mean, wide, high = page.evaluate(_COARSE, [*(_base64(each) for each in pictures), GRID])
        if mean > DIFFERENCE_MAX:
            found.append(f"{name}: the picture differs by {mean:.1f} of 255, at most {DIFFERENCE_MAX:g} is allowed")
        if wide != 1.0 or not 1.0 / HEIGHT_RATIO_MAX < high < HEIGHT_RATIO_MAX:
            found.append(f"{name}: the picture has another size")
    page.close()
    return found


def _base64(path: Path) -> str:
    return b64encode(path.read_bytes()).decode()
