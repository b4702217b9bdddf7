"""Marked code blocks of the documentation work as they stand: simulations in a folder, first jobs on a real service."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.markdown import ROOT, Snippet, pages, snippets

pytestmark = pytest.mark.slow

TIMEOUT_S = 600.0
START_DEADLINE_S = 180.0

RUN = [page for page in pages() if any(each.how == "run" for each in snippets(page))]
LIVE = [page for page in pages() if any(each.how == "live" for each in snippets(page))]


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A user with an empty home and our commands first in the path."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SOONER_", "XDG_"))}
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    return kept | {
        "HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "NO_COLOR": "1",
    }


def _execute(snippet: Snippet, folder: Path, environ: dict[str, str]) -> str:
    """What it printed; fails unless it ends with 0."""
    if snippet.file:
        (folder / snippet.file).write_text(snippet.code, encoding="utf-8")
        return ""
    command = {
        "bash": ["bash", "-euo", "pipefail", "-c", snippet.code],
        "python": [sys.executable, "-W", "error", "-c", snippet.code],
    }[snippet.language]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, f"{snippet.code}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("page", RUN, ids=_name)
def test_snippets_run_in_order(page: Path, tmp_path: Path, environ: dict[str, str]) -> None:
    for snippet in snippets(page):
        if snippet.how == "run":
            _execute(snippet, tmp_path, environ)


@pytest.fixture
def service(tmp_path: Path, environ: dict[str, str]) -> Iterator[str]:
    """The address of a service with default settings, but for the port."""
    log = tmp_path / "service.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            ["sooner", "serve", "--port", "0"], cwd=tmp_path, env=environ, stdout=stream, stderr=stream
        )
    try:
        deadline_s = time.monotonic() + START_DEADLINE_S
        while not (found := re.search(r"listening on (http://\S+)", log.read_text())):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline_s, log.read_text()
            time.sleep(0.05)
        yield found[1]
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=START_DEADLINE_S) == 0, log.read_text()


@pytest.mark.parametrize("page", LIVE, ids=_name)
def test_first_jobs_on_a_real_service(page: Path, tmp_path: Path, environ: dict[str, str], service: str) -> None:
    environ = environ | {"SOONER_URL": service}
    said = ""
    for snippet in snippets(page):
        if snippet.how == "live":
            code = snippet.code.replace("http://127.0.0.1:8765", service)
            said += _execute(snippet._replace(code=code), tmp_path, environ)
    assert "succeeded" in said
    for failure in ("failed", "cancelled", "never-fits"):
        assert failure not in said
