"""Calls of commands: each way in which one can fail has an error of its own, and none outlives its time."""

import json
import os
import pwd
import signal
import time
from pathlib import Path

import pytest

from service.slurm.commands import (
    SlurmAway,
    SlurmCommands,
    SlurmMissing,
    SlurmNotNow,
    SlurmRefused,
    SlurmTimeout,
    SlurmUnreadable,
    as_user,
)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    return tmp_path


def _install(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def _commands(folder: Path, **more: str) -> SlurmCommands:
    environ = {"PATH": f"{folder}:/usr/bin:/bin", "HOME": "/", **more}
    return SlurmCommands(environ=environ, timeout_s=20.0, output_bytes_max=1000)


def test_arguments_reach_the_command_unread_by_a_shell(installed: Path) -> None:
    _install(installed, "squeue", 'printf "%s|" "$@"')
    assert _commands(installed).run("squeue", "a b", "$(id)", ";", "*") == "a b|$(id)|;|*|"


def test_input_is_the_standard_input(installed: Path) -> None:
    _install(installed, "sbatch", "cat")
    assert _commands(installed).run("sbatch", input=b"x" * 900) == "x" * 900


def test_variables_of_the_caller_change_no_answer(installed: Path) -> None:
    _install(installed, "squeue", "env")
    answer = _commands(installed, SQUEUE_FORMAT="%i", SBATCH_PARTITION="x", SLURM_CONF="/c", LANG="de").run("squeue")
    names = {line.partition("=")[0] for line in answer.splitlines()}
    assert "SQUEUE_FORMAT" not in names and "SBATCH_PARTITION" not in names and "LANG" not in names
    assert "SLURM_CONF=/c" in answer and "LC_ALL=C" in answer and "SLURM_TIME_FORMAT=%s" in answer


def test_variables_of_a_call_are_its_own(installed: Path) -> None:
    _install(installed, "squeue", 'echo "$SQUEUE_FORMAT|$*|$LC_ALL"')
    commands = _commands(installed)
    assert commands.run("squeue", "-h", variables={"SQUEUE_FORMAT": "x%i"}) == "x%i|-h|C\n"
    assert commands.run("squeue", "-h") == "|-h|C\n"


def test_a_command_that_is_not_installed(installed: Path) -> None:
    with pytest.raises(SlurmMissing, match="squeue is not installed"):
        SlurmCommands(environ={"PATH": str(installed)}).run("squeue")


def test_a_command_that_hangs_is_killed_with_its_children(installed: Path) -> None:
    _install(installed, "squeue", f"sleep 300 & echo $! > {installed}/child; wait")
    with pytest.raises(SlurmTimeout, match=r"squeue did not end within 0\.5 s"):
        _commands(installed).run("squeue", timeout_s=0.5)
    child = int((installed / "child").read_text())
    deadline = time.monotonic() + 20.0
    while Path(f"/proc/{child}/stat").exists() and " Z " not in Path(f"/proc/{child}/stat").read_text():
        assert time.monotonic() < deadline, "the child of the killed command runs on"
        os.sched_yield()


def test_a_command_that_closes_its_output_and_hangs_is_killed(installed: Path) -> None:
    _install(installed, "squeue", "exec >&- 2>&-; sleep 300")
    with pytest.raises(SlurmTimeout):
        _commands(installed).run("squeue", timeout_s=0.5)


def test_a_process_that_may_not_be_killed_is_not_waited_for(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As sudo, which belongs to root."""

    def refuse(group: int, number: int) -> None:
        raise PermissionError

    _install(installed, "sbatch", f"echo $$ > {installed}/process; exec sleep 20")
    with monkeypatch.context() as patched:
        patched.setattr(os, "killpg", refuse)
        with pytest.raises(SlurmTimeout, match=r"sbatch did not end within 0\.5 s"):
            _commands(installed).run("sbatch", timeout_s=0.5)
    process = int((installed / "process").read_text())
    os.kill(process, signal.SIGKILL)  # it still runs
    deadline = time.monotonic() + 20.0
    while Path(f"/proc/{process}").exists():
        assert time.monotonic() < deadline, "the process is not reaped at its end"
        os.sched_yield()


def test_output_is_bounded(installed: Path) -> None:
    _install(installed, "squeue", "cat /dev/zero")
    with pytest.raises(SlurmUnreadable, match="more than 1000 bytes"):
        _commands(installed).run("squeue")


@pytest.mark.parametrize(
    ("message", "kind", "text"),
    [
        ("sbatch: error: invalid partition specified: nix", SlurmRefused, "sbatch: invalid partition specified: nix"),
        ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)", SlurmAway, "Unable to contact"),
        ("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", SlurmAway, "timed out"),
        ("", SlurmRefused, "sbatch: exit code 3"),
    ],
)
def test_failures_are_told_apart(installed: Path, message: str, kind: type[Exception], text: str) -> None:
    _install(installed, "sbatch", f"echo '{message}' >&2; exit 3")
    with pytest.raises(kind, match=text) as raised:
        _commands(installed).run("sbatch")
    assert type(raised.value) is kind


_POLICY = "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, ...)"


@pytest.mark.parametrize(
    ("message", "passes"),
    [
        (_POLICY, True),
        (f"sbatch: error: AssocMaxSubmitJobLimit\n{_POLICY}", True),
        (f"sbatch: error: MaxSubmitJobsPerAccount\n{_POLICY}", True),
        (f"sbatch: error: QOSMaxWallDurationPerJobLimit\n{_POLICY}", False),
        (f"sbatch: error: QOSMaxGRESPerUser\n{_POLICY}", False),
        ("sbatch: error: Batch job submission failed: Requested operation is presently disabled", True),
        ("sbatch: error: Batch job submission failed: Required partition not available (inactive or drain)", True),
        ("sbatch: error: Batch job submission failed: Requested node configuration is not available", False),
        ("sbatch: error: Batch job submission failed: Invalid qos specification", False),
    ],
)
def test_refusals_that_pass_are_told_from_those_for_good(installed: Path, message: str, passes: bool) -> None:
    _install(installed, "sbatch", f"echo '{message}' >&2; exit 1")
    with pytest.raises(SlurmRefused) as raised:
        _commands(installed).run("sbatch")
    assert type(raised.value) is (SlurmNotNow if passes else SlurmRefused)


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("kill -9 $$", "sbatch: ended by signal 9"),
        ("echo 'sbatch: error: invalid partition' >&2; kill -15 $$", "sbatch: ended by signal 15: invalid partition"),
        ("exit 137", "sbatch: ended by signal 9"),
    ],
    ids=["silent", "with a message", "as sudo and runuser report it"],
)
def test_whether_a_command_ended_by_a_signal_had_an_effect_is_unknown(installed: Path, script: str, text: str) -> None:
    _install(installed, "sbatch", script)
    with pytest.raises(SlurmAway) as raised:
        _commands(installed).run("sbatch")
    assert str(raised.value) == text


def test_another_user_needs_root_or_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    assert as_user(None) == ()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert as_user("ada") == ("runuser", "-u", "ada", "--")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert as_user("ada") == ("sudo", "-n", "-u", "ada", "--")


def test_a_variable_makes_no_process_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ada")
    assert as_user("ada") != ()
    assert as_user(pwd.getpwuid(os.geteuid()).pw_name) == ()


def test_an_answer_larger_than_a_pipe_is_read_whole(installed: Path) -> None:
    rows = json.dumps({"jobs": ["x" * 1000] * 300})
    (installed / "rows").write_text(rows)
    _install(installed, "squeue", f"cat {installed}/rows")
    commands = SlurmCommands(environ={"PATH": f"{installed}:/usr/bin:/bin"})
    assert commands.run("squeue") == rows
