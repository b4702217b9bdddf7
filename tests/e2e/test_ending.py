"""A service that is told to end, whenever that is, ends in good order."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

_TOLD_AT_ONCE = """
import os, signal, sys, uvicorn
run = uvicorn.Server.run
def told(self, sockets=None):
    os.kill(os.getpid(), signal.{signal})
    return run(self, sockets)
uvicorn.Server.run = told
from service.cli.main import main
sys.argv = ["sooner", "serve", "--port", "0", "--executor", "fake"]
main()
"""
"""It has said that it listens, and the server has not yet begun to look for signals."""


@pytest.mark.parametrize("signal", ["SIGTERM", "SIGINT"])
def test_a_signal_between_the_first_line_and_the_first_request_ends_it(tmp_path: Path, signal: str) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SOONER_")}
    command = [sys.executable, "-c", _TOLD_AT_ONCE.format(signal=signal)]
    environ = kept | {"SOONER_DATA_DIR": str(tmp_path / "data")}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    assert "Sooner is listening on " in done.stderr
    assert "Traceback" not in done.stderr
