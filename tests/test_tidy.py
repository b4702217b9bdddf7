"""The repository as a whole: one idea per module, nothing left for later, nothing about one machine."""

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LINES_HINT = 600
"""A longer module should be looked at: does it hold more than one idea?"""

LONGER_FOR_A_REASON: dict[str, str] = {
    "service/db/tables.py": "one schema: a declaration of each table and nothing else",
}
"""Module -> why it is one idea although it is longer."""

TEXT = {".py", ".md", ".toml", ".yaml", ".yml", ".lock", ".mako", ""}


@cache
def tracked() -> tuple[Path, ...]:
    """The files under version control that are there now; without a checkout, none."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    names = [name for name in listed.stdout.decode().split("\0") if name]
    if listed.returncode != 0 or not names:
        pytest.skip("not a git checkout")
    return tuple(path for name in names if (path := ROOT / name).is_file())


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_long_modules_are_one_idea() -> None:
    """A module above the hint is either split or listed with its reason; an entry that is no longer needed goes."""
    lengths = {_name(path): len(_text(path).splitlines()) for path in tracked() if path.suffix == ".py"}
    long = {
        name for name, count in lengths.items() if count > LINES_HINT and not name.startswith("migrations/versions/")
    }
    assert long == set(LONGER_FOR_A_REASON)


def test_every_module_says_what_it_is_for() -> None:
    for path in tracked():
        if path.suffix == ".py" and path.name != "__init__.py" and _name(path) != "tests/test_tidy.py":
            assert _text(path).lstrip().startswith(('"""', 'r"""')), _name(path)


def test_nothing_is_left_for_later() -> None:
    words = re.compile(r"\b(?:" + "|".join(("TO" + "DO", "FIX" + "ME", "X" * 3)) + r")\b")
    found = [_name(path) for path in tracked() if path.suffix in TEXT and words.search(_text(path))]
    assert found == []


def test_nothing_names_a_machines_own_path() -> None:
    paths = re.compile(r"(?<![\w.])/(?:work|root|Users)/\w|(?<![\w.])/home/(?!user\b)\w")
    found = [
        (_name(path), line)
        for path in tracked()
        if path.suffix in TEXT and path.name != "test_tidy.py"
        for line in _text(path).splitlines()
        if paths.search(line)
    ]
    assert found == []


def test_nothing_names_a_package_index() -> None:
    index = re.compile(
        r"--(?:extra-)?index-url|--find-links|--trusted-host|https?://\S*(?:pypi|/simple\b)", re.IGNORECASE
    )
    found = [
        (_name(path), line)
        for path in tracked()
        if path.suffix in TEXT and path.name not in ("test_tidy.py", "Makefile", "test_pages.py", "test_project.py")
        for line in _text(path).splitlines()
        if index.search(line)
    ]
    assert found == []


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    """Add a page to `nav` in mkdocs.yml: `make docs`, and building a wheel, fail without."""
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    written = re.findall(r"(?:^|\s)([\w/.-]+\.md)$", navigation, re.MULTILINE)
    pages = [_name(path) for path in tracked() if path.suffix == ".md" and _name(path).startswith("docs/")]
    assert sorted(pages) == sorted(name for name in written if name.startswith("docs/"))


def test_nothing_large_is_kept() -> None:
    assert {_name(path): path.stat().st_size for path in tracked() if path.stat().st_size > 300_000} == {}
