"""Control groups whose files a job of the same user has closed."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.runtime.cgroups import CONTROLLERS, Cgroup, CgroupsUnavailable, limits_below, usable_parent

_UNPRIVILEGED = 65534


@pytest.fixture
def group() -> Iterator[Cgroup]:
    """A folder with the files of a group, which belong to this process' user; root can open every file and becomes another."""
    folder = Path(tempfile.mkdtemp())
    for name in ("cgroup.procs", "cgroup.kill", "cgroup.events"):
        (folder / name).touch()
    (folder / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    user = os.geteuid()
    if user == 0:
        for path in (folder, *folder.iterdir()):
            os.chown(path, _UNPRIVILEGED, -1)
        os.seteuid(_UNPRIVILEGED)
    yield Cgroup(folder)
    os.seteuid(user)
    folder.chmod(0o700)
    shutil.rmtree(folder)


def test_limits_are_written_and_memory_beyond_them_is_noticed(tmp_path: Path) -> None:
    group = Cgroup(tmp_path / "attempt")
    group.create()
    group.limit(None, None)
    assert list(group.path.iterdir()) == []
    group.limit(3, 512)
    written = {path.name: path.read_text() for path in group.path.iterdir()}
    assert written == {
        "cpu.max": "300000 100000",
        "memory.max": str(512 * 1024 * 1024),
        "memory.oom.group": "1",
        "memory.swap.max": "0",
    }
    assert not group.ran_out_of_memory()
    (group.path / "memory.events").write_text("low 0\nhigh 0\nmax 9\noom 1\noom_kill 0\noom_group_kill 0\n")
    assert not group.ran_out_of_memory()
    (group.path / "memory.events").write_text("low 0\nhigh 0\nmax 9\noom 1\noom_kill 2\noom_group_kill 1\n")
    assert group.ran_out_of_memory()


@pytest.mark.parametrize(
    ("had", "switched_on", "found", "absent"),
    [
        ("cpuset cpu io memory pids", "", {"cpu", "memory"}, ""),
        ("cpu memory", "cpu memory pids", {"cpu", "memory"}, ""),
        ("hugetlb", "", set(), "no controller cpu and memory"),
        ("cpu pids", "", {"cpu"}, "no controller memory"),
    ],
)
def test_which_limits_a_folder_passes_on(
    tmp_path: Path, had: str, switched_on: str, found: set[str], absent: str
) -> None:
    (tmp_path / "cgroup.controllers").write_text(had + "\n")
    (tmp_path / "cgroup.subtree_control").write_text(switched_on + "\n")
    limits, reason = limits_below(tmp_path)
    assert (limits, absent in reason, bool(reason)) == (found, True, bool(absent))


def test_a_group_with_processes_passes_no_limits_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    (tmp_path / "cgroup.subtree_control").write_text("\n")

    def busy(path: Path, text: str) -> int:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(path))

    monkeypatch.setattr(Path, "write_text", busy)
    limits, reason = limits_below(tmp_path)
    assert not limits and "DelegateSubgroup=sooner" in reason


def test_the_limits_of_the_groups_of_this_machine_hold() -> None:
    """Where this process may make groups with limits; elsewhere the reason is said."""
    try:
        parent = usable_parent()
    except CgroupsUnavailable as unavailable:
        pytest.skip(str(unavailable))
    limits, reason = limits_below(parent)
    assert set(limits) == set(CONTROLLERS) or reason
    group = Cgroup(parent / f"sooner-test-{os.getpid()}")
    group.create()
    try:
        group.limit(2 if "cpu" in limits else None, 64 if "memory" in limits else None)
        if "cpu" in limits:
            assert (group.path / "cpu.max").read_text() == "200000 100000\n"
        if "memory" in limits:
            hungry = "import time; time.sleep(0.2); hold = b'x' * (256 << 20)"
            child = subprocess.Popen([sys.executable, "-c", hungry])
            group.add(child.pid)
            assert child.wait() == -signal.SIGKILL
            assert group.ran_out_of_memory()
    finally:
        group.clear()


@pytest.mark.parametrize("closed", ["cgroup.procs", "cgroup.kill", "cgroup.events", "."])
def test_a_group_that_a_job_has_closed_is_opened_again(group: Cgroup, closed: str) -> None:
    (group.path / closed).chmod(0)
    group.add(7)
    group.kill()
    assert not group.is_empty()
    assert (group.path / "cgroup.procs").read_text() == "7"
    assert (group.path / "cgroup.kill").read_text() == "1"
