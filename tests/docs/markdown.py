"""Reading Markdown: the pages of the project, their links, anchors and marked code blocks."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]

_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_MARKED = re.compile(r"<!-- test: (\w+)(?: file=([\w.]+))? -->\n+( *)```(\w+)\n(.*?)^\3```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


class Snippet(NamedTuple):
    """A code block that the tests execute. ``how``: ``run`` by itself, ``live`` against a service. ``file``: save it so."""

    how: str
    file: str
    language: str
    code: str


def pages() -> list[Path]:
    """Every page, in a stable order."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def snippets(page: Path) -> list[Snippet]:
    """The marked code blocks of a page, without their indentation."""
    found = []
    for how, file, indent, language, code in _MARKED.findall(page.read_text(encoding="utf-8")):
        lines = [line.removeprefix(indent) for line in code.splitlines()]
        found.append(Snippet(how, file, language, "\n".join(lines) + "\n"))
    return found


def marks(page: Path) -> int:
    """How many marks a page has: as many as it has snippets, unless one is malformed."""
    return page.read_text(encoding="utf-8").count("<!-- test:")


def prose(page: Path) -> str:
    """The page without its code blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def links(page: Path) -> Iterator[str]:
    """The targets of all links outside code blocks."""
    yield from _LINK.findall(prose(page))


def anchors(page: Path) -> set[str]:
    """What a link may point at within a page, as Markdown viewers name headings."""
    return {_anchor(heading) for heading in re.findall(r"^#+ +(.+)$", prose(page), re.MULTILINE)}


def _anchor(heading: str) -> str:
    kept = re.sub(r"[^\w\- ]", "", heading.lower())
    return kept.replace(" ", "-")
