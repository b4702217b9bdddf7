"""A service that is told to end, whenever that is, ends in good order."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

_TOLD_AT_ONCE = """
import builtins, os, signal, socket, sys
say = builtins.print
def told(*words, **options):
    say(*words, **options)
    if "listening" in words[0]:
        address = words[0].split()[4].removeprefix("http://").rpartition(":")
        socket.create_connection((address[0], int(address[2])), timeout=60.0).close()
        os.kill(os.getpid(), signal.{signal})
builtins.print = told
from service.cli.main import main
sys.argv = ["sooner", "serve", "--port", "0", "--executor", "fake"]
main()
"""
"""It has just said that it listens: somebody connects, and tells it to end."""


@pytest.mark.parametrize("signal", ["SIGTERM", "SIGINT"])
def test_whoever_reads_that_it_listens_can_connect_and_tell_it_to_end(tmp_path: Path, signal: str) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SOONER_")}
    command = [sys.executable, "-c", _TOLD_AT_ONCE.format(signal=signal)]
    environ = kept | {"SOONER_DATA_DIR": str(tmp_path / "data")}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    assert "Sooner is listening on " in done.stderr
    assert "Traceback" not in done.stderr
