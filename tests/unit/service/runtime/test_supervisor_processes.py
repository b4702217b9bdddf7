"""Processes named so that a recycled number is never taken for an old friend."""

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.runtime import processes
from service.runtime.cgroups import Cgroup
from service.runtime.processes import (
    ProcessId,
    all_processes,
    carries,
    catches,
    descendants,
    is_running,
    process_info,
    signal_process,
)
from service.runtime.remains import Evidence, end_remains, remains_of
from tests.local_executor import wait_for

MARK = f"MARK={secrets.token_hex(8)}".encode()

NO_MARK = secrets.randbits(60)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process of ours with a marker, in a session of its own."""
    process = subprocess.Popen(
        ["/bin/sleep", "600"], env={"MARK": MARK.decode().partition("=")[2]}, start_new_session=True
    )
    wait_for(lambda: carries(process.pid, MARK), "its environment")
    yield process
    process.kill()
    process.wait()


def identity(process: subprocess.Popen[bytes]) -> ProcessId:
    info = process_info(process.pid)
    assert info is not None
    return info.id


def test_a_signal_reaches_exactly_the_process_that_is_meant(sleeper: subprocess.Popen[bytes]) -> None:
    me = identity(sleeper)
    assert not signal_process(ProcessId(me.pid, me.start_ticks - 1), signal.SIGKILL)
    assert is_running(me)
    assert not is_running(ProcessId(me.pid, me.start_ticks + 1))
    assert signal_process(me, signal.SIGKILL)
    assert sleeper.wait(timeout=60) == -signal.SIGKILL
    assert not signal_process(me, signal.SIGKILL)
    assert process_info(sleeper.pid) is None


def test_a_zombie_is_not_running(sleeper: subprocess.Popen[bytes]) -> None:
    me = identity(sleeper)
    os.kill(sleeper.pid, signal.SIGKILL)
    wait_for(lambda: not is_running(me), "its death")
    info = process_info(sleeper.pid)
    assert info is not None
    assert info.zombie
    assert me not in {found.id for found in descendants(os.getpid())}


def test_a_name_may_hold_anything() -> None:
    code = "import sys; open('/proc/self/comm', 'w').write(') S 1 (x'); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        info = process_info(process.pid)
        assert info is not None
        assert (info.parent, info.session) == (os.getpid(), os.getsid(0))
        process.communicate(timeout=60)


def test_remains_are_found_by_marker_by_identity_and_by_nothing_else(sleeper: subprocess.Popen[bytes]) -> None:
    me = identity(sleeper)
    recycled = ProcessId(me.pid, me.start_ticks - 1)

    def found(marker: bytes, *ranks: ProcessId) -> list[ProcessId]:
        return remains_of(Evidence(marker, NO_MARK, ranks), all_processes())

    assert found(MARK) == [me]
    assert found(b"MARK=no", me) == [me]
    assert found(b"MARK=no", recycled) == []
    assert found(MARK[:-1]) == []


def test_remains_are_killed_before_an_unreadable_group_is_reported(
    sleeper: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    (tmp_path / "cgroup.events").mkdir()
    with pytest.raises(IsADirectoryError):
        end_remains(Evidence(MARK, NO_MARK, cgroups=[Cgroup(tmp_path)]))
    assert sleeper.wait(timeout=60) == -signal.SIGKILL


def test_a_process_that_proc_hides_may_be_left(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def hiding(path: str | Path, *args: Any, **options: Any) -> int:
        if f"/proc/{sleeper.pid}/" in str(path):
            raise PermissionError(path)
        return real(path, *args, **options)

    monkeypatch.setattr(os, "open", hiding)
    assert process_info(sleeper.pid) is None
    assert all_processes()
    assert end_remains(Evidence(b"NO=marker", NO_MARK))


@pytest.mark.parametrize(
    ("options", "user", "hides"),
    [
        (["rw"], 7, False),
        (["rw,gid=4,hidepid=invisible"], 7, True),
        (["rw,hidepid=1"], 7, True),
        (["rw,hidepid=0"], 7, False),
        (["rw,hidepid=off"], 7, False),
        (["rw,hidepid=2"], 0, False),
        (["rw,hidepid=2", "rw"], 7, False),
        (["rw", "rw,hidepid=ptraceable"], 7, True),
    ],
)
def test_whether_proc_hides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], user: int, hides: bool
) -> None:
    (tmp_path / "self").mkdir()
    lines = [f"22 28 0:21 / /proc rw,nosuid shared:14 - proc proc {each}\n" for each in options]
    other = "23 28 0:22 / /srv/proc rw shared:15 - proc proc rw,hidepid=4\n"
    (tmp_path / "self/mountinfo").write_text("".join(lines) + other)
    monkeypatch.setattr(processes, "PROC", tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert processes.proc_hides() is hides


def test_the_session_of_a_living_rank_belongs_to_it() -> None:
    # The child clears its environment and is given to another parent; only the session is left to tell.
    code = (
        "import os, signal\nif os.fork() == 0:\n"
        "    if os.fork() == 0: os.execve('/bin/sleep', ['sleep', '600'], {})\n"
        "    os._exit(0)\nos.wait()\nprint(flush=True)\nsignal.pause()"
    )
    leader = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert leader.stdout is not None
        leader.stdout.readline()
        found = remains_of(Evidence(b"NO=marker", NO_MARK, [identity(leader)]), all_processes())
        assert len(found) == 2
        assert identity(leader) in found
    finally:
        os.killpg(leader.pid, signal.SIGKILL)
        leader.communicate(timeout=60)


def test_who_catches_a_signal() -> None:
    code = "import signal; signal.signal(signal.SIGUSR1, lambda *_: None); print(flush=True); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert catches(process.pid, signal.SIGUSR1)
        assert not catches(process.pid, signal.SIGUSR2)
        process.kill()
    assert not catches(process.pid, signal.SIGUSR1)
