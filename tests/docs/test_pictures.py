"""Pictures of pages are what the simulator does now, and whoever cannot see them can read what they show."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from docs.pictures import PICTURES
from docs.pictures.example import simulated, virtual_schedule
from service.reports.svg import CHARACTER
from tests.docs.markdown import ROOT, pages

_IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)")


@pytest.mark.parametrize("name", sorted(PICTURES))
def test_the_picture_on_disk_is_what_the_simulator_does(name: str) -> None:
    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == PICTURES[name](), "run: python -m docs.pictures"


def test_every_picture_is_made_by_the_command_and_shown_with_words_in_its_place() -> None:
    shown: dict[Path, str] = {}
    for page in pages():
        for words, target in _IMAGE.findall(page.read_text(encoding="utf-8")):
            shown[(page.parent / target).resolve()] = words
    made = {(ROOT / "docs" / name).resolve() for name in PICTURES}
    assert {path for path in shown if path.suffix == ".svg"} == made
    assert {path for path in (ROOT / "docs").rglob("*.svg") if "site" not in path.parts} == made
    assert [path for path, words in shown.items() if len(words) < 60] == []


@pytest.mark.parametrize("name", sorted(PICTURES))
def test_a_picture_is_drawn_on_white_with_a_title_and_no_words_beyond_its_edge(name: str) -> None:
    space = "{http://www.w3.org/2000/svg}"
    root = ElementTree.fromstring((ROOT / "docs" / name).read_text(encoding="utf-8"))
    wide = float(root.attrib["viewBox"].split()[2])
    title = root.find(f"{space}title")
    background = root.find(f"{space}rect")
    assert title is not None
    assert title.text
    assert background is not None
    assert background.attrib["fill"] == "#fff"
    for each in root.iter(f"{space}text"):
        if each.attrib["text-anchor"] == "start":
            # Bold characters are a tenth wider.
            character = CHARACTER * (1.1 if "font-weight" in each.attrib else 1.0)
            assert float(each.attrib["x"]) + character * len(each.text or "") <= wide, each.text


def test_the_pages_numbers_of_the_example_are_the_simulated_ones() -> None:
    page = " ".join((ROOT / "docs" / "explanation" / "a-srpt.md").read_text(encoding="utf-8").split())
    sums = {
        name: sum(outcome.jct_s for outcome in simulated(policy, **options)) / 60.0
        for name, policy, options in (
            ("fifo", "fifo", {}),
            ("never", "asrpt", {"preemption": "never"}),
            ("guided", "asrpt", {"preemption": "guided"}),
        )
    }
    assert f"The times from arrival to end sum to {sums['never']:g} minutes" in page
    assert f"the times sum to {sums['fifo']:g} minutes. Guided:" in page
    assert f"ends at 37; the times sum to {sums['guided']:g} minutes" in page
    _, done = virtual_schedule()
    assert f"The **virtual completion** times are C {done['C']:g}, B {done['B']:g}, A {done['A']:g}," in page
