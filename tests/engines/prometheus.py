"""Debian's Prometheus and its ``promtool``: installed by :mod:`tests.engines.run` where they are missing."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx

PACKAGES: Final = ("prometheus",)


def missing() -> str:
    """What is missing on this machine, in one sentence; "" if nothing is."""
    absent = [command for command in ("promtool", "prometheus") if shutil.which(command) is None]
    return f"{' and '.join(absent)} not found: apt-get install {' '.join(PACKAGES)}" if absent else ""


def promtool(folder: Path, *arguments: str) -> None:
    """Fails unless promtool, run in the folder, ends with 0."""
    done = subprocess.run(["promtool", *arguments], cwd=folder, capture_output=True, text=True, timeout=300.0)
    assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def prometheus(folder: Path, port: int) -> Iterator[httpx.Client]:
    """A server with the folder's ``prometheus.yml``, and a client of its API. It ends with the block."""
    with (folder / "prometheus.log").open("wb") as log:
        options = ("--config.file=prometheus.yml", "--storage.tsdb.path=data", f"--web.listen-address=127.0.0.1:{port}")
        process = subprocess.Popen(["prometheus", *options], cwd=folder, stdout=log, stderr=log)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1/", timeout=30.0) as client:
            yield client
    finally:
        process.kill()
        process.wait()


def query(client: httpx.Client, expression: str) -> list[Any]:
    """The samples that an expression gives now; fails unless Prometheus accepts it."""
    answer = client.get("query", params={"query": expression}).json()
    assert answer["status"] == "success", f"{expression}: {answer}"
    found: list[Any] = answer["data"]["result"]
    return found
