"""Screenshots of the dashboard for its page in the documentation: ``python -m docs.screenshots`` takes them.

They show a service with made-up jobs at a fixed time, so they change only when the pages do. Beside each picture stands a file
with the words of its page, and digests of the page's structure and of the picture. `make test-web` takes all again and compares
these files. Pixels are not compared: they differ with the fonts and the browser of each machine.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Final, Literal

from playwright.sync_api import Browser, Page, expect

FOLDER: Final = Path(__file__).parents[1] / "how-to" / "pictures"

PICTURE: Final = "picture"
"""First word of the last line of a file of words."""

_STRUCTURE: Final = """() => [...document.querySelectorAll("body *:not([data-widget] *):not(option):not(svg *)")]
  .map((each) => each.tagName + "#" + each.id + "." + each.getAttribute("class")).join("\\n")"""
"""Elements with their ids and classes. What a script draws into its place depends on the size of letters, and is left out."""


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
    "job": Shot("jobs/147"),
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
    # A page that is scrolled has its head in the middle of the picture.
    tab.evaluate("window.scrollTo(0, 0)")
    picture = tab.screenshot(path=target.with_suffix(".png"), full_page=True, animations="disabled", caret="hide")
    lines = [line.strip() for line in tab.locator("main").inner_text().splitlines()]
    lines += ["", f"structure {_digest(tab.evaluate(_STRUCTURE).encode())}", f"{PICTURE} {_digest(picture)}"]
    words = "\n".join(line for line in lines if line)
    target.with_suffix(".txt").write_text(words + "\n", encoding="utf-8")


def out_of_date(old: Path, new: Path) -> list[str]:
    """What the pictures in the folder ``old`` no longer show of the pages, of which ``new`` has pictures; one sentence each."""
    found = []
    for name in SHOTS:
        picture = old / f"{name}.png"
        words = [each / f"{name}.txt" for each in (old, new)]
        if not all(each.exists() for each in (picture, *words)):
            found.append(f"{name}: there is no picture of it")
            continue
        before, after = (each.read_text(encoding="utf-8").splitlines() for each in words)
        if before.pop() != f"{PICTURE} {_digest(picture.read_bytes())}":
            found.append(f"{name}: the picture was not taken with its words")
        after.pop()
        lines = [line for line in after if line not in before] + [line for line in before if line not in after]
        found += [f"{name}: {line!r} differs" for line in lines[:5]]
        if not lines and before != after:
            found.append(f"{name}: the words have another order")
    return found


def _digest(content: bytes) -> str:
    return sha256(content).hexdigest()[:16]
