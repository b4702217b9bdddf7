"""The way from the previous release and back, by the commands of docs/how-to/operate.md."""

import lzma
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from service.client import Client
from tests.docs.markdown import snippets
from tests.e2e.conftest import MakeService
from tests.e2e.harness import ROOT, TERMINAL, LiveService
from tests.migrations.test_release_database import FIXTURE

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs" / "how-to" / "operate.md"


def _run(service: LiveService, how: str, folder: Path) -> str:
    """What the page's commands print, in a shell that ends at the first failure."""
    [snippet] = [each for each in snippets(PAGE) if each.how == how]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = ["bash", "-euo", "pipefail", "-c", snippet.code]
    done = subprocess.run(
        command, cwd=folder, env=service.environ | {"PATH": path}, capture_output=True, text=True, timeout=300.0
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _states(service: LiveService) -> dict[int, str]:
    """Every job's state, as the API lists them."""
    with Client(service.url, (service.data_dir / "token").read_text().strip()) as client:
        return {job["id"]: job["state"] for job in client.jobs.list()}


def _ended(states: dict[int, str]) -> dict[int, str]:
    return {job: state for job, state in states.items() if state in TERMINAL}


def test_upgrade_and_return_to_the_backup(make_service: MakeService, tmp_path: Path) -> None:
    service = make_service(EXECUTOR="fake")
    file = service.data_dir / "sooner.db"
    file.write_bytes(lzma.decompress(FIXTURE.read_bytes()))
    with closing(sqlite3.connect(file)) as connection:
        before: dict[int, str] = dict(connection.execute("SELECT id, state FROM jobs"))
    service.launch()
    assert service.process is not None
    assert service.process.wait(120.0) != 0
    assert "sooner db upgrade" in service.tail()

    printed = _run(service, "upgrade", tmp_path)
    assert "now has this program's schema" in printed
    assert f", {len(before)} jobs, " in printed.splitlines()[-1]
    service.start()
    found = _states(service)
    assert found.keys() == before.keys()
    assert _ended(before).items() <= _ended(found).items()
    new = service.submit(name="after", gpus=1, command=["true"])
    assert service.stop() == 0

    printed = _run(service, "rollback", tmp_path)
    assert f", {len(before)} jobs, " in printed.splitlines()[-1]
    service.start()
    found = _states(service)
    assert found.keys() == before.keys()
    assert _ended(before).items() <= _ended(found).items()
    assert service.request("GET", f"/v1/jobs/{new}").status_code == 404
    assert service.submit(name="again", gpus=1, command=["true"]) > new
    assert service.stop() == 0
