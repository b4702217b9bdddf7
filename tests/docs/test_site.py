"""The documentation site is built strictly and the same every time, says what the pages say, and loads nothing from elsewhere."""

import hashlib
import os
import re
import shutil
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from docs.site.build import SiteError, build
from docs.site.sources import PROJECT_PAGES, sources, target
from service.api.site import content_security_policy
from tests.docs.markdown import ROOT, pages

pytestmark = pytest.mark.slow

STRUCTURE = ("li", "ul", "ol", "pre", "table", "tr", "th", "td", "blockquote", "code", "strong", "em")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole site."""
    out = tmp_path_factory.mktemp("built") / "site"
    build(out)
    return out


class Page(HTMLParser):
    """The elements of a page: what it ``loads``, ``odd`` ones that a strict policy forbids, and the ``counts`` in its article."""

    def __init__(self, text: str, *, whole: bool = False) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.odd: list[str] = []
        self.counts: Counter[str] = Counter()
        self._inside = whole
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self._inside = self._inside or tag == "article"
        if self._inside and tag in STRUCTURE:
            self.counts[tag] += 1
        named = ("src", "srcset", "data", "poster") + (("href",) if tag == "link" else ())
        self.loads += [given[name] for name in named if name in given]
        self.odd += [f"{tag} {name}" for name in given if name == "style" or name.startswith("on")]
        self.odd += [f"{tag} {value}" for value in given.values() if value.lower().startswith("javascript:")]

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside and tag != "article"


@pytest.fixture(scope="module")
def html(site: Path) -> dict[str, tuple[str, Page]]:
    """Path in the site -> the text of the page and its elements."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(site.rglob("*.html"))}
    assert len(texts) == len(pages())
    return {path.relative_to(site).as_posix(): (text, Page(text)) for path, text in texts.items()}


def test_every_page_and_example_is_in_the_site(site: Path) -> None:
    assert {target(path.relative_to(ROOT).as_posix()) for path in sources()} - {
        path.relative_to(site).as_posix() for path in site.rglob("*")
    } == set()
    assert {path.relative_to(ROOT).as_posix() for path in pages()} <= {
        path.relative_to(ROOT).as_posix() for path in sources()
    }
    assert not [path for path in site.rglob("*") if path.suffix in (".py", ".pyc", ".map")]


def test_nothing_comes_from_another_host(site: Path, html: dict[str, tuple[str, Page]]) -> None:
    for path, (_, page) in html.items():
        assert not [each for each in page.loads if re.match(r"(?:[a-z]+:)?//|/", each)], path
    for sheet in site.rglob("*.css"):
        assert not re.search(r"@import|url\(['\"]?(?:https?:)?//", sheet.read_text(encoding="utf-8")), sheet


def test_the_policy_leaves_every_page_whole(html: dict[str, tuple[str, Page]]) -> None:
    """No style and no handler in an element, which hashes do not cover, and few scripts in a page."""
    for path, (text, page) in html.items():
        assert page.odd == [], path
        policy = content_security_policy(text)
        assert "unsafe" not in policy
        assert 1 <= policy.count("'sha256-") <= 6, path


def test_the_site_has_the_structure_that_commonmark_gives_a_page(html: dict[str, tuple[str, Page]]) -> None:
    """mkdocs reads Markdown by other rules than GitHub: a list without an empty line before it, or with less indentation."""
    markdown = MarkdownIt("commonmark").enable("table")
    for path in pages():
        _, built = html[target(path.relative_to(ROOT).as_posix())]
        assert built.counts == Page(markdown.render(path.read_text(encoding="utf-8")), whole=True).counts, path


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A checkout with few pages."""
    root = tmp_path / "project"
    shutil.copytree(ROOT / "docs" / "site", root / "docs" / "site")
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[0]
    (root / "mkdocs.yml").write_text(f"{config}\nnav: [docs/index.md, {', '.join(PROJECT_PAGES)}]\n", encoding="utf-8")
    for name in ("docs/index.md", *PROJECT_PAGES):
        (root / name).write_text(f"# {name}\n\n## There\n", encoding="utf-8")
    return root


def _digests(site: Path) -> dict[str, str]:
    files = [path for path in site.rglob("*") if path.is_file()]
    return {path.relative_to(site).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_a_small_project_is_built_the_same_twice(project: Path, tmp_path: Path) -> None:
    (project / "docs" / "index.md").write_text("# Home\n\n[a](../ARCHITECTURE.md#there)\n")
    out = tmp_path / "site"
    build(out, project)
    assert 'href="project/ARCHITECTURE.html#there"' in (out / "index.html").read_text()
    first = _digests(out)
    for path in project.rglob("*.md"):
        os.utime(path, (1, 1))
    build(out, project)
    assert _digests(out) == first


def test_what_is_broken_fails_and_leaves_the_site_as_it_is(project: Path, tmp_path: Path) -> None:
    out = tmp_path / "site"
    out.mkdir()
    (out / "kept").touch()
    (project / "docs" / "orphan.md").write_text("# In no navigation\n")
    bad = "[a](nothing.md) [b](../README.md#nowhere) ![c](nothing.svg) [d](/docs/index.md) [e](nothing.html)"
    (project / "docs" / "index.md").write_text(f"# Home\n\n{bad}\n")
    with pytest.raises(SiteError) as caught:
        build(out, project)
    for message in (
        "docs/orphan.md",
        "'nothing.md'",
        "anchor '#nowhere'",
        "'nothing.svg'",
        "absolute link",
        "'nothing.html'",
    ):
        assert message in str(caught.value)
    assert str(caught.value).count("WARNING") == 6
    assert [path.name for path in tmp_path.iterdir() if path != project] == ["site"]
    assert [path.name for path in out.iterdir()] == ["kept"]
