"""The pages hang together: links resolve, nothing is orphaned, and no page speaks of one machine."""

import re
from pathlib import Path

import pytest

from docs.generate import PAGES
from service.api.problems import ProblemType
from tests.docs.markdown import ROOT, anchors, links, marks, pages, snippets


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", pages(), ids=_name)
def test_links_resolve(page: Path) -> None:
    for target in links(page):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{_name(page)}: {target}"
        if anchor:
            assert anchor in anchors(found), f"{_name(page)}: {target}"


def test_every_page_is_reached_from_the_readme() -> None:
    seen: set[Path] = set()
    todo = [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page in seen:
            continue
        seen.add(page)
        targets = [(page.parent / target.partition("#")[0]).resolve() for target in links(page)]
        todo += [target for target in targets if target.suffix == ".md" and target.exists()]
    assert {_name(page) for page in pages()} - {_name(page) for page in seen} == set()


@pytest.mark.parametrize("page", pages(), ids=_name)
def test_no_page_names_a_machines_own_path_or_an_index(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"/(?:work|root|home|Users)/", text)
    assert not re.search(r"https?://[^\s)]*(?:pypi|simple|artifactory|nexus)", text)


@pytest.mark.parametrize("page", pages(), ids=_name)
def test_marks_are_well_formed(page: Path) -> None:
    if _name(page) != "CONTRIBUTING.md":  # which explains the marks
        assert len(snippets(page)) == marks(page)


def test_files_that_the_code_refers_to_exist() -> None:
    sources = [path for folder in ("policies", "predictor", "service") for path in (ROOT / folder).rglob("*.py")]
    for source in [*sources, ROOT / "pyproject.toml"]:
        for name in re.findall(r"\bdocs/[\w/.-]+\.md", source.read_text(encoding="utf-8")):
            assert (ROOT / name).is_file(), f"{source.relative_to(ROOT)}: {name}"


def test_tests_and_modules_that_pages_name_exist() -> None:
    pattern = re.compile(r"`((?:tests|service|policies|predictor|examples|benchmarks|migrations)/[\w/.-]*)`")
    for page in pages():
        for name in pattern.findall(page.read_text(encoding="utf-8")):
            if "_migrations" not in name and "_examples" not in name:
                assert (ROOT / name).exists(), f"{_name(page)}: {name}"


def test_single_tests_that_pages_name_exist() -> None:
    written = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    for page in pages():
        for name in re.findall(r"`(test(?:_[a-z0-9]+){3,})`", page.read_text(encoding="utf-8")):
            assert f"def {name}(" in written, f"{_name(page)}: {name}"


def test_generated_pages_say_so_and_others_do_not() -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        generated = page.relative_to(ROOT / "docs").as_posix() in PAGES
        assert page.read_text(encoding="utf-8").startswith("<!-- Made by") == generated, _name(page)


def test_a_problems_uri_ends_with_the_anchor_of_its_heading() -> None:
    found = anchors(ROOT / "docs" / "reference" / "problems.md")
    assert {kind.uri.rpartition("/")[2] for kind in ProblemType} <= found


def test_no_page_quotes_the_papers_numbers() -> None:
    """What we say of the paper is what its abstract says, without its headline."""
    for page in pages():
        for paragraph in page.read_text(encoding="utf-8").split("\n\n"):
            if "[paper]" in paragraph or "2501.05563" in paragraph:
                assert not re.search(r"\d+(?:\.\d+)?\s?%", paragraph), f"{_name(page)}: {paragraph}"
