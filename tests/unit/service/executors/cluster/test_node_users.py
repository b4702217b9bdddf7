"""Node programs that run as the users of their jobs, which only root can start here. An engine has its own ways."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.executors import folder as names
from service.executors.cluster import folder as shared
from service.executors.cluster.runtime import node_program
from tests.local_executor import wait_for
from tests.node_programs import Servers, code_of

SYSTEM_PYTHON = Path("/usr/bin/python3")
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root starts programs as other users"),
    pytest.mark.skipif(not SYSTEM_PYTHON.exists(), reason="the interpreter of the tests may lie in a private folder"),
]

USER = pwd.getpwnam("nobody")
SERVICE = next(
    entry for entry in pwd.getpwall() if entry.pw_uid not in (0, USER.pw_uid) and entry.pw_gid != USER.pw_gid
)
INBOX = "nodes-c0ffee"


class Apart(Servers):
    """Servers whose node programs run as another user than the service."""

    def inbox(self, attempt: str = "1.1") -> Path:
        return shared.make_inbox(self.site.attempts_dir, attempt, INBOX)

    def arguments(self) -> tuple[str, ...]:
        return node_program(str(SYSTEM_PYTHON), self.folder, self.digest)

    def start_as_user(self, plan: dict[str, Any]) -> subprocess.Popen[bytes]:
        """Start the program of a job on one server."""
        (program,) = self.start(plan, user=USER.pw_uid)
        return program


@pytest.fixture
def apart() -> Iterator[Apart]:
    """Servers with a folder that every user can pass through, unlike those of pytest."""
    root = Path(tempfile.mkdtemp(prefix="sooner-test-"))
    root.chmod(0o711)
    made = Apart(root / "shared")
    for folder in (made.folder, made.site.attempts_dir):
        folder.chmod(0o711)
    (made.folder / "checkpoints").mkdir()
    (made.folder / "checkpoints").chmod(0o1733)
    yield made
    made.close()
    shutil.rmtree(root)


def as_service(*command: str | Path) -> str:
    """What a command of a user that is neither root nor the job's writes. Raises CalledProcessError if it fails."""
    apart = {"user": SERVICE.pw_uid, "group": SERVICE.pw_gid, "extra_groups": []}
    return subprocess.run(command, capture_output=True, text=True, check=True, **apart).stdout  # type: ignore[call-overload, no-any-return]


def read_as_service(path: Path) -> str:
    """The content of a file, as a service that is not root reads it."""
    return as_service("cat", path)


def test_the_service_reads_what_it_needs_and_nothing_else(apart: Apart) -> None:
    command = ("/bin/sh", "-c", 'id -u; echo "$HOME"; echo private > private; echo saved > "$SOONER_CHECKPOINT_DIR/c"')
    assert code_of(apart.start_as_user(apart.plan(command, (1,), inbox=INBOX))) == 0
    folder = shared.node_folder(apart.inbox(), 0)
    for name in (names.SUPERVISOR, names.STARTED, names.RANKS, names.EXIT, names.PROGRESS, names.LOCK):
        read_as_service(folder / name)
    assert '"exit_code": 0' in read_as_service(folder / names.EXIT)
    assert read_as_service(folder / names.OUTPUT / "0") == f"{USER.pw_uid}\n{USER.pw_dir}\n"
    for private in (folder / names.WORK / "private", apart.folder / "checkpoints/1/c"):
        assert private.stat().st_uid == USER.pw_uid
        with pytest.raises(subprocess.CalledProcessError):
            read_as_service(private)
    # The folder of the nodes is found by its name alone.
    with pytest.raises(subprocess.CalledProcessError):
        as_service("ls", apart.inbox().parent)


def test_a_stop_of_the_service_arrives(apart: Apart) -> None:
    program = apart.start_as_user(apart.plan(("/bin/sh", "-c", "echo ready; exec sleep 1000"), (1,), inbox=INBOX))
    apart.wait_output("ready", 0)
    shared.write_stop(apart.inbox(), None, 5.0, apart.seal())
    assert code_of(program) == 0
    assert (apart.end(0)["exit_code"], apart.end(0)["stop_signalled"]) == (143, True)


def test_a_claim_of_the_service_keeps_it_from_running(apart: Apart) -> None:
    plan = apart.plan(("/bin/sh", "-c", "echo ran"), (1,), inbox=INBOX)
    shared.claim(apart.inbox(), shared.STOPPED)
    assert code_of(apart.start_as_user(plan)) == 3
    assert not apart.node(0).exists


@pytest.mark.parametrize("mode", [0o777, 0o700])
def test_checkpoints_in_a_folder_of_another_user_are_refused(apart: Apart, mode: int) -> None:
    foreign = apart.folder / "checkpoints/1"
    foreign.mkdir()
    foreign.chmod(mode)
    os.chown(foreign, SERVICE.pw_uid, SERVICE.pw_gid)
    assert code_of(apart.start_as_user(apart.plan(("/bin/sh", "-c", "echo ran"), (1,), inbox=INBOX))) == 0
    end = apart.end(0)
    assert (end["outcome"], end["reason"]) == ("launch_failed", "checkpoint_unreadable")
    assert end["detail"] == (
        f"{foreign}: belongs to user {SERVICE.pw_uid} ({SERVICE.pw_name}), not to {USER.pw_uid} ({USER.pw_name}); "
        "its owner or root has to delete it"
    )
    assert apart.output(0) == ""


def test_output_is_readable_while_it_grows(apart: Apart) -> None:
    apart.start_as_user(apart.plan(("/bin/sh", "-c", "echo ready; exec sleep 1000"), (1,), inbox=INBOX))
    apart.wait_output("ready", 0)
    segment = shared.node_folder(apart.inbox(), 0) / names.OUTPUT / "0"
    wait_for(lambda: segment.stat().st_mode & 0o044 == 0o044, "the output to be readable")
