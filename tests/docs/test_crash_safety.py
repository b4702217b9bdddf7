"""Every promise about crashes names a test that exists."""

import ast
import re

from service.engine.crash_points import CrashPoint
from tests.docs.markdown import ROOT

PAGE = (ROOT / "docs" / "measurements" / "crash-tests.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


def test_every_named_test_exists() -> None:
    named = set(NAMED.findall(PAGE))
    assert len(named) > 20
    for path, name in sorted(named):
        file = ROOT / path
        assert file.is_file(), path
        if name:
            functions = {
                node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)
            }
            assert name in functions, f"{path} has no {name}"


def test_every_promise_names_a_test() -> None:
    table = PAGE.partition("## Promises")[2].partition("## ")[0]
    promises = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(promises) > 20
    assert not [line for line in promises if not NAMED.search(line)]


def test_every_crash_point_is_passed_somewhere() -> None:
    """One that nobody reaches would be a promise that nobody tests."""
    sources = [path for path in (ROOT / "service").rglob("*.py") if path.name != "crash_points.py"]
    code = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    tests = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests" / "crash").glob("*.py"))
    for point in CrashPoint:
        assert f"reached(CrashPoint.{point.name})" in code, point
        assert f"CrashPoint.{point.name}" in tests, point
