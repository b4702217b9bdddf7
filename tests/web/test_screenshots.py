"""Screenshots of the documentation show the pages as they are."""

import re
from pathlib import Path

from playwright.sync_api import Browser

from docs.screenshots import FOLDER, SHOTS, out_of_date, take
from tests.api.conftest import NOW_S, TOKEN
from tests.web.scene import serving

PAGE = FOLDER.parent / "dashboard.md"


def test_screenshots_are_of_the_pages_as_they_are(chromium: Browser, tmp_path: Path) -> None:
    made = tmp_path / "pictures"
    with serving(tmp_path) as url:
        take(chromium, url, TOKEN, NOW_S, made)
    named = re.findall(r"\(pictures/([a-z-]+)\.png\)", PAGE.read_text(encoding="utf-8"))
    assert sorted(named) == sorted(each.stem for each in made.glob("*.png"))
    assert all(each.read_bytes().startswith(b"\x89PNG") for each in made.glob("*.png"))
    assert out_of_date(FOLDER, made) == [], "run: python -m docs.screenshots"


def test_another_picture_and_other_words_are_found(tmp_path: Path) -> None:
    """The copy is what is checked; the folder of the documentation is the truth."""
    for name in SHOTS:
        for suffix in (".png", ".txt"):
            source = "cluster" if name == "queue" and suffix == ".png" else name
            (tmp_path / f"{name}{suffix}").write_bytes((FOLDER / f"{source}{suffix}").read_bytes())
    words = tmp_path / "job.txt"
    words.write_text("Another button\n" + words.read_text(encoding="utf-8"), encoding="utf-8")
    words = tmp_path / "cluster.txt"
    words.write_text(re.sub("(?m)^structure .*$", "structure 0", words.read_text(encoding="utf-8")), encoding="utf-8")
    (tmp_path / "usage.png").unlink()
    found = out_of_date(tmp_path, FOLDER)
    assert {each.split(":")[0] for each in found} == {"queue", "job", "usage", "cluster"}
    assert "job: 'Another button' differs" in found
    assert "queue: the picture was not taken with its words" in found
