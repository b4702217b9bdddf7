"""Screenshots of the documentation show the pages as they are."""

from pathlib import Path

from playwright.sync_api import Browser

from docs.screenshots import FOLDER, SHOTS, differences, take
from tests.api.conftest import NOW_S, TOKEN
from tests.web.scene import serving


def test_screenshots_are_of_the_pages_as_they_are(chromium: Browser, tmp_path: Path) -> None:
    made = tmp_path / "pictures"
    with serving(tmp_path) as url:
        take(chromium, url, TOKEN, NOW_S, made)
    assert differences(chromium, FOLDER, made) == [], "run: python -m docs.screenshots"


def test_another_page_and_other_words_are_found(chromium: Browser, tmp_path: Path) -> None:
    for name in SHOTS:
        for suffix in (".png", ".txt"):
            source = "cluster" if name == "queue" and suffix == ".png" else name
            (tmp_path / f"{name}{suffix}").write_bytes((FOLDER / f"{source}{suffix}").read_bytes())
    with (tmp_path / "job.txt").open("a", encoding="utf-8") as words:
        words.write("Another button\n")
    (tmp_path / "usage.png").unlink()
    found = differences(chromium, FOLDER, tmp_path)
    assert {each.split(":")[0] for each in found} == {"queue", "job", "usage"}
    assert "job: 'Another button' differs" in found
