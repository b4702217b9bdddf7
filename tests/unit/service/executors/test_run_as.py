"""Jobs that run as their users: real processes of a real system user, which only root can start."""

import grp
import os
import pwd
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from policies.model.ids import JobId
from policies.model.reasons import Reason
from service.engine.events import Report, ReportKind
from service.executors import folder as names
from tests.local_executor import House, launch

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root starts jobs as other users")

USER = pwd.getpwnam("nobody")
OTHER = next(entry for entry in pwd.getpwall() if entry.pw_uid not in (0, USER.pw_uid) and entry.pw_gid != USER.pw_gid)


def shell(text: str) -> tuple[str, ...]:
    """A command that everybody can execute: the interpreter of the tests may lie in a private folder."""
    return ("/bin/sh", "-c", text)


@pytest.fixture
def apart() -> Iterator[House]:
    """A house whose jobs run as their users, in a folder that every user can pass through, unlike those of pytest."""
    root = Path(tempfile.mkdtemp(prefix="sooner-test-"))
    root.chmod(0o711)
    house = House(root / "data")
    for folder in (house.data_dir, house.data_dir / "attempts"):
        folder.chmod(0o711)
    (house.data_dir / "checkpoints").mkdir(mode=0o711)
    house.new_executor(run_as_users={"tester": USER.pw_name, "other": OTHER.pw_name})
    yield house
    house.close()
    shutil.rmtree(root)


def run(house: House, text: str, user: str = "tester", job: int = 1, **options: Any) -> Report:
    """Run a shell command as a user and wait for its end."""
    order = launch(shell(text), job=job, **options)
    house.executor.send([replace(order, spec=replace(order.spec, user=user))])
    return house.wait_end(order.attempt)


def test_user_groups_umask_and_environment(apart: House) -> None:
    assert run(apart, 'id -u; id -g; id -G; umask; echo "$HOME $USER $LOGNAME"; pwd').exit_code == 0
    uid, gid, groups, umask, home, folder = apart.output().splitlines()
    assert (int(uid), int(gid)) == (USER.pw_uid, USER.pw_gid)
    assert {int(group) for group in groups.split()} == set(os.getgrouplist(USER.pw_name, USER.pw_gid))
    assert umask == "0022"
    assert home == f"{USER.pw_dir} {USER.pw_name} {USER.pw_name}"
    assert folder == str(apart.folder() / "work")


def test_supplementary_groups_are_those_of_the_user(apart: House, monkeypatch: pytest.MonkeyPatch) -> None:
    extra = next(group.gr_gid for group in grp.getgrall() if group.gr_gid not in (0, USER.pw_gid))
    monkeypatch.setattr(os, "getgrouplist", lambda *_: [USER.pw_gid, extra])
    run(apart, "id -G")
    assert {int(group) for group in apart.output().split()} == {USER.pw_gid, extra}


def test_it_can_do_its_work(apart: House) -> None:
    text = (
        "set -e; touch file; echo checkpoint > $SOONER_CHECKPOINT_DIR/weights; echo to-device > /dev/stdout\n"
        "echo '{\"iteration\": 7}' >> $SOONER_PROGRESS_FILE"
    )
    end = run(apart, text)
    assert (end.exit_code, end.iteration, apart.output()) == (0, 7.0, "to-device\n")
    second = run(apart, "cat $SOONER_CHECKPOINT_DIR/weights", number=2)
    assert (second.exit_code, apart.output()) == (0, "checkpoint\n")
    for each in (end, second):
        apart.executor.acknowledge([each])
    assert apart.executor.prune([JobId(1)]) == 2
    assert not (apart.data_dir / "checkpoints/1").exists()


@pytest.mark.parametrize(
    "text",
    [
        "ls {data}",
        "ls {data}/attempts",
        "ls {data}/checkpoints",
        "cat {data}/executor.key",
        "cat {data}/lease",
        "ls {attempt}",
        "cat {attempt}/supervisor.json",
        "cat {attempt}/supervisor.log",
        "ls {attempt}/output",
        "cat {attempt}/output/0",
        "rm {attempt}/lock",
        "echo x > {attempt}/exit.json",
        "rm -f {attempt}/progress.jsonl",
        "mv {attempt}/work {attempt}/moved",
        "echo x > {attempt}/wake",
        "kill -9 $PPID",
        "cat /proc/$PPID/environ",
        "ls /proc/$PPID/fd/",
    ],
)
def test_what_it_cannot_reach_of_the_service(apart: House, text: str) -> None:
    command = text.format(data=apart.data_dir, attempt=apart.folder())
    end = run(apart, f"echo begin; if {command}; then exit 5; else exit 6; fi")
    assert end.exit_code == 6, apart.output()
    assert "begin" in apart.output()


def test_what_it_cannot_reach_of_another_user(apart: House) -> None:
    text = "echo $$; echo secret > file; echo weights > $SOONER_CHECKPOINT_DIR/weights; sleep 600 & echo ready; wait"
    order = launch(shell(text))
    apart.executor.send([replace(order, spec=replace(order.spec, env={"KEY": "hidden"}))])
    apart.wait_output("ready")
    folder, pid = apart.folder(), int(apart.output().splitlines()[0])
    tries = (
        f"cat {folder / names.WORK}/file",
        f"ls {folder / names.WORK}",
        f"cat {folder}/progress.jsonl",
        f"cat {apart.data_dir}/checkpoints/1/weights",
        f"cat /proc/{pid}/environ",
        f"kill {pid}",
    )
    end = run(apart, "; ".join(f"if {text}; then exit 5; fi" for text in tries), user="other", job=2)
    assert end.exit_code == 0, apart.output(2)
    apart.stop()
    assert apart.wait_end().exit_code == 143


def test_it_is_stopped_and_nothing_is_left(apart: House) -> None:
    apart.executor.send([launch(shell("trap '' TERM; sleep 600 & echo ready; wait; sleep 600"))])
    apart.wait_output("ready")
    apart.stop(grace_s=0.2)
    assert apart.wait_end().exit_code in (137, 143)
    assert apart.processes() == []


def test_it_dies_with_its_supervisor(apart: House) -> None:
    apart.executor.send([launch(shell("echo ready; exec sleep 600"))])
    apart.wait_output("ready")
    record = names.read_record(apart.folder(), names.SUPERVISOR, apart.seal())
    assert record is not None
    os.kill(record["pid"], 9)
    assert apart.wait_end().kind is ReportKind.LOST
    assert apart.processes() == []


@pytest.mark.parametrize(("user", "reason"), [("no-such-user-here", "no system user"), ("root", "none runs as root")])
def test_a_user_that_does_not_exist(apart: House, user: str, reason: str) -> None:
    end = run(apart, "true", user=user)
    assert (end.kind, end.reason) == (ReportKind.LAUNCH_FAILED, Reason.LAUNCH_FAILED)
    assert reason in end.detail


def test_a_working_folder_that_the_user_cannot_enter(apart: House) -> None:
    private = apart.data_dir.parent / "private"
    private.mkdir(mode=0o700)
    end = run(apart, "true", working_dir=str(private))
    assert (end.kind, end.reason) == (ReportKind.LAUNCH_FAILED, Reason.WORKING_DIR_NOT_FOUND)
    assert f"cannot be entered by user {USER.pw_name}" in end.detail
    private.chmod(0o755)
    assert run(apart, "pwd", working_dir=str(private), number=2).exit_code == 0
    assert apart.output() == f"{private}\n"


def test_a_checkpoint_folder_of_another_user(apart: House) -> None:
    folder = apart.data_dir / "checkpoints/1"
    folder.mkdir()
    os.chown(folder, OTHER.pw_uid, OTHER.pw_gid)
    end = run(apart, "true")
    assert (end.kind, end.reason) == (ReportKind.LAUNCH_FAILED, Reason.CHECKPOINT_UNREADABLE)
    assert f"belongs to user {OTHER.pw_uid}, not to {USER.pw_name}" in end.detail
