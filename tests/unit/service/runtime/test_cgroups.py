"""Control groups whose files a job of the same user has closed."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.runtime.cgroups import Cgroup

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


@pytest.mark.parametrize("closed", ["cgroup.procs", "cgroup.kill", "cgroup.events", "."])
def test_a_group_that_a_job_has_closed_is_opened_again(group: Cgroup, closed: str) -> None:
    (group.path / closed).chmod(0)
    group.add(7)
    group.kill()
    assert not group.is_empty()
    assert (group.path / "cgroup.procs").read_text() == "7"
    assert (group.path / "cgroup.kill").read_text() == "1"
