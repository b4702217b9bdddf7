"""The lock of a data folder: who may start there, and what another service can tell of it."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from service.runtime.processes import boot_id
from service.server import folder_lock
from service.server.folder_lock import LOCK_FILE, exclusive, has_ended
from service.server.startup import StartError, host_of

_HOLD = """
import sys
from pathlib import Path
from service.server.folder_lock import exclusive
with exclusive(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_process_that_was_killed_has_ended_and_one_that_runs_has_not(tmp_path: Path) -> None:
    host = host_of(tmp_path).id
    assert not has_ended(tmp_path, host), "none has ever run"
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert not has_ended(tmp_path, host)
        with pytest.raises(StartError, match="a service is running on"), exclusive(tmp_path):
            raise AssertionError("two at once")
        assert not has_ended(tmp_path, host), "a start that was refused changes nothing"
        process.kill()
        process.wait(60.0)
    assert has_ended(tmp_path, host)
    assert not has_ended(tmp_path, "another"), "the folder is that of another service"
    with exclusive(tmp_path):
        assert not has_ended(tmp_path, host), "the next one runs"
    assert has_ended(tmp_path, host)


@pytest.mark.parametrize("written", ["", "0b6c9a0e-1111-2222-3333-444455556666"])
def test_a_lock_of_another_machine_or_boot_or_release_says_nothing(tmp_path: Path, written: str) -> None:
    host = host_of(tmp_path).id
    (tmp_path / LOCK_FILE).write_text(written)
    assert not has_ended(tmp_path, host)
    (tmp_path / LOCK_FILE).write_text(boot_id())
    assert has_ended(tmp_path, host)


def test_what_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    host = host_of(tmp_path).id
    os.mkfifo(tmp_path / LOCK_FILE)
    assert not has_ended(tmp_path, host)
    assert not has_ended(tmp_path / "none", host)


def test_a_start_waits_for_one_that_looks_at_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looking = os.open(tmp_path / LOCK_FILE, os.O_RDWR | os.O_CREAT)
    fcntl.flock(looking, fcntl.LOCK_SH)
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            os.close(looking)

    monkeypatch.setattr(folder_lock.time, "sleep", pause)
    with exclusive(tmp_path):
        assert pauses == [0.0, folder_lock.LOOK_S]
