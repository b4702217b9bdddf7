"""What a job finds around it: nothing of the service that started it, and nothing that keeps it from being stopped."""

import errno
import json
import os
import shutil
import signal
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from policies.model.ids import AttemptId
from service.engine.commands import Stop
from service.engine.events import ReportKind
from service.executors import folder as names
from service.executors import local
from service.executors.seal import Seal
from service.executors.starts import Starter, start
from service.executors.supervisor import record_end
from service.executors.timeout import TimeLimitedExecutor
from service.runtime.processes import is_running, process_info
from tests.local_executor import ENDS, House, house, launch, lives, python, wait_for

__all__ = ["house"]

WAIT = "import signal; print('ready', flush=True); signal.pause()"

# What a shell, a terminal or a service manager may have told the service to ignore.
IGNORED = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGALRM})

# Signals 32 and 33, which posix_spawn of glibc lets its children ignore, and no program can set.
OF_THE_C_LIBRARY = 0b11 << 31


def processes_of(house: House) -> tuple[int, int]:
    """The numbers of the attempt's supervisor and of its first rank."""
    supervisor = json.loads((house.folder() / names.SUPERVISOR).read_text())["pid"]
    return supervisor, json.loads((house.folder() / names.RANKS).read_text())["ranks"][0][0]


def suspend_both(house: House) -> int:
    """Suspend the attempt's supervisor and its keeper, which would continue it; returns the keeper's number."""
    record = json.loads((house.folder() / names.SUPERVISOR).read_text())
    for pid in (record["keeper"][0], record["pid"]):
        os.kill(pid, signal.SIGSTOP)
    return int(record["keeper"][0])


def continue_both(*pids: int) -> None:
    """Continue those that still run."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@pytest.fixture
def deaf() -> Iterator[None]:
    """This process, which starts the supervisors, ignores and blocks all that it can."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in IGNORED}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def test_a_job_begins_with_default_signals_and_none_blocked(house: House, deaf: None) -> None:
    house.run(("cat", "/proc/self/status"))
    status = dict(line.split(":\t", 1) for line in house.output().splitlines() if ":\t" in line)
    blocked, ignored, caught = (int(status[name], 16) for name in ("SigBlk", "SigIgn", "SigCgt"))
    assert (blocked, ignored & ~OF_THE_C_LIBRARY, caught) == (0, 0, 0)


def test_a_job_can_be_stopped_though_the_service_ignores_all_signals(house: House, deaf: None) -> None:
    house.executor.send([launch(python(WAIT))])
    house.wait_output("ready")
    house.stop(grace_s=600.0)
    assert house.wait_end().exit_code == 128 + signal.SIGTERM


def descriptors_of(pid: int) -> list[str]:
    """What the process has open; a file that it closes meanwhile is left out."""
    found = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(str(link.readlink()))
    return found


def test_descriptors_that_the_service_inherited_stay_with_it(house: House, tmp_path: Path) -> None:
    """Of whoever started it, such as the lock of flock(1): a job that outlives the service must not hold it."""
    lent = os.open(tmp_path / "lent", os.O_RDWR | os.O_CREAT)
    os.set_inheritable(lent, True)
    try:
        house.executor.send([launch(python(WAIT))])
        house.wait_output("ready")
    finally:
        os.close(lent)
    supervisor, rank = processes_of(house)
    held = {pid: descriptors_of(pid) for pid in (supervisor, rank)}
    assert len(held[rank]) == len(("in", "out", "error"))
    assert str(tmp_path / "lent") not in held[supervisor]


def test_a_program_whose_main_thread_has_ended_can_be_stopped(house: House) -> None:
    """To /proc it looks like a zombie while its other threads run on."""
    code = (
        "import _thread, ctypes, os, signal, time\n"
        "def work():\n"
        "    while not os.path.exists('/proc/self/task') or open(f'/proc/{os.getpid()}/stat').read().split()[2] != 'Z':\n"
        "        time.sleep(0.01)\n"
        "    os.write(1, b'ready')\n"
        "    time.sleep(600)\n"
        "_thread.start_new_thread(work, ())\n"
        "ctypes.CDLL(None).pthread_exit(None)"
    )
    house.executor.send([launch(("python3", "-c", code))])
    house.wait_output("ready")
    info = process_info(processes_of(house)[1])
    assert info is not None
    assert not info.zombie
    house.stop(grace_s=600.0)
    assert house.wait_end().stop_signalled


def test_a_child_without_environment_and_session_does_not_outlive_the_supervisor(house: House) -> None:
    code = (
        "import os, signal\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    print('ready', os.getpid(), flush=True)\n"
        "    os.execve('/bin/sleep', ['sleep', '600'], {})\n"
        "signal.pause()"
    )
    house.executor.send([launch(python(code))])
    child = int(house.wait_output("ready").split()[1])
    wait_for(lambda: Path(f"/proc/{child}/environ").read_bytes() == b"", "its new program")
    os.kill(processes_of(house)[0], signal.SIGKILL)
    assert house.wait_end().kind is ReportKind.LOST
    assert not lives(child)


class TestFolderGone:
    """Somebody has deleted the folder of an attempt that runs."""

    def begun(self, house: House) -> tuple[int, int]:
        house.executor.send([launch(python(WAIT))])
        house.wait_output("ready")
        house.wait_report(ReportKind.STARTED)
        return processes_of(house)

    def test_its_supervisor_ends_it_and_itself(self, house: House) -> None:
        supervisor, rank = self.begun(house)
        shutil.rmtree(house.folder())
        wait_for(lambda: not lives(rank) and not lives(supervisor), "both ends")
        assert house.wait_end().kind is ReportKind.LOST

    @pytest.mark.parametrize("name", [names.EXIT, names.ACKNOWLEDGED])
    def test_its_supervisor_keeps_the_end_that_was_told_meanwhile(self, tmp_path: Path, name: str) -> None:
        folder, seal = tmp_path / "1.1", Seal("key")
        folder.mkdir()
        (folder / names.LOCK).touch()
        lock = names.lock_number(folder)
        folder.rename(tmp_path / "deleted")
        told = names.end_record("lost", 2.0, detail="its folder was deleted", stop_signalled=True)
        names.write_tombstone(tmp_path, AttemptId("1.1"), told, seal)
        (folder / names.EXIT).rename(folder / name)
        record_end(folder, lock, seal.sealed(names.EXIT, names.end_record("lost", 3.0, detail="no folder")))
        assert names.read_end(folder, seal, name) == told
        assert [each for each in (names.EXIT, names.ACKNOWLEDGED) if names.has(folder, each)] == [name]

    @pytest.mark.parametrize("restarted", [False, True])
    @pytest.mark.parametrize("stopped", [False, True])
    def test_its_end_is_told_when_nothing_runs_any_more(self, house: House, restarted: bool, stopped: bool) -> None:
        supervisor, rank = self.begun(house)
        keeper = suspend_both(house)
        try:
            if restarted:
                house.new_executor().poll()
            shutil.rmtree(house.folder())
            if stopped:
                house.stop()
            end = house.wait_end()
            assert not lives(rank)
            assert (end.kind, end.stop_signalled) == (ReportKind.LOST, stopped)
            house.executor.acknowledge([end])
            assert house.executor.observed() == {}
        finally:
            continue_both(keeper, supervisor)
        wait_for(lambda: not lives(supervisor), "the supervisor's end")

    def test_a_service_that_never_saw_the_folder_ends_what_runs_before_it_says_so(self, house: House) -> None:
        supervisor, rank = self.begun(house)
        keeper = suspend_both(house)
        try:
            shutil.rmtree(house.folder())
            house.new_executor()
            house.stop()
            house.wait_end()
            assert not lives(rank)
        finally:
            continue_both(keeper, supervisor)


def is_strange(path: Path) -> bool:
    """Whether something other than a regular file is there."""
    try:
        return not stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("trick", ["os.mkfifo(name)", "os.symlink(name, name)"])
@pytest.mark.parametrize("name", [names.LOCK, names.EXIT, names.STOP, names.SUPERVISOR, names.RANKS, names.RESERVED])
def test_whatever_a_job_puts_in_place_of_a_record_others_are_looked_after(house: House, name: str, trick: str) -> None:
    """A FIFO, say, that nobody writes into: opening it would wait for ever."""
    code = (
        f"import os; os.chdir(os.path.dirname(os.environ['SOONER_PROGRESS_FILE'])); name = {name!r}\n"
        f"if os.path.exists(name): os.unlink(name)\n{trick}\n{WAIT}"
    )
    house.executor.send([launch(python(code))])
    # A job that replaces its lock is ended, perhaps before it prints.
    wait_for(lambda: "ready" in house.output() or is_strange(house.folder() / name), "the trick")
    ranks = house.processes()
    bounded = TimeLimitedExecutor(house.executor, 60.0)
    bounded.send([launch(python("pass"), job=2)])

    seen: set[str] = set()

    def both_ended() -> bool:
        bounded.send([Stop(AttemptId("1.1"), graceful=False, warning_signal=None, grace_s=5.0)])
        seen.update(str(report.attempt) for report in bounded.poll() if report.kind in ENDS)
        return bounded.timeouts > 0 or {"1.1", "2.1"} <= seen

    wait_for(both_ended, "both ends")
    assert bounded.timeouts == 0
    assert not any(is_running(rank) for rank in ranks)


def test_a_folder_that_cannot_be_looked_at_holds_up_no_other(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One that a job has locked against its own user, or whose disk has a bad block."""
    house.executor.send([launch(python("pass")), launch(python("pass"), job=2)])
    for attempt in ("1.1", "2.1"):
        wait_for(lambda attempt=attempt: house.has_ended(attempt), "its end")
    read_end = names.read_end

    def denied(folder: Path, *given: Any) -> dict[str, Any] | None:
        if folder.name == "1.1":
            raise PermissionError(errno.EACCES, "denied", str(folder))
        return read_end(folder, *given)

    monkeypatch.setattr(names, "read_end", denied)
    assert house.wait_end("2.1").exit_code == 0
    assert not any(report.attempt == "1.1" for _ in range(3) for report in house.poll())
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "the folder of attempt 1.1 cannot be read"
    ]
    monkeypatch.setattr(names, "read_end", read_end)
    assert house.wait_end("1.1").exit_code == 0


@pytest.mark.parametrize("failure", [errno.EMFILE, errno.ENOSPC])
def test_a_stop_that_can_leave_no_tombstone_is_not_told_as_an_end(
    house: House, monkeypatch: pytest.MonkeyPatch, failure: int
) -> None:
    """The supervisor is on its way, and has descriptors and perhaps room when it gets there."""
    with pytest.MonkeyPatch.context() as patched:
        held: list[dict[str, Any]] = []
        absent = os.posix_spawn("/bin/sleep", ["sleep", "600"], {})

        def start_later(plans: Sequence[dict[str, Any]]) -> Starter:
            held.extend(plans)
            return Starter(absent)

        patched.setattr(local, "start", start_later)
        house.executor.send([launch(python(WAIT))])
    try:
        write_tombstone = names.write_tombstone
        monkeypatch.setattr(names, "write_tombstone", lambda *_: (_ for _ in ()).throw(OSError(failure, "none")))
        house.stop()
        assert house.poll() == []
        # It gets there.
        begun = start(held)
        wait_for((house.folder() / names.STARTED).exists, "its start")
        monkeypatch.setattr(names, "write_tombstone", write_tombstone)
        assert not [report for report in house.poll() if report.kind in ENDS]
        # As reconciling does with whatever is to be stopped.
        house.stop()
        end = house.wait_end()
        assert (end.kind, end.exit_code, house.processes()) == (ReportKind.EXITED, 143, [])
        wait_for(lambda: not begun.look(), "the end of its keeper")
    finally:
        os.kill(absent, signal.SIGKILL)
        os.waitpid(absent, 0)


def test_a_stop_that_could_leave_no_tombstone_at_first_is_told_when_there_is_one(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tombstone, failures = names.write_tombstone, [OSError(errno.EMFILE, "none")]

    def once(*given: Any) -> None:
        if failures:
            raise failures.pop()
        write_tombstone(*given)

    monkeypatch.setattr(names, "write_tombstone", once)
    house.stop()
    assert house.executor.observed() == {"1.1": "stopping"}
    end = house.wait_end()
    assert (end.kind, end.detail, end.stop_signalled) == (ReportKind.EXITED, names.STOPPED_FIRST, True)


def test_an_attempt_lives_no_longer_than_the_lease_that_it_was_started_under(house: House) -> None:
    """Whoever leads elsewhere counts from the service's last sign of life, not from the start of its last attempt."""
    lease_s = 600.0
    house.new_executor(lease_s=lease_s, renews_alone=False)
    names.write_lease(house.data_dir / "lease", names.boot_time_s() - 0.5 * names.START_SLACK_S)
    house.executor.send([launch(python(WAIT))])
    end = house.wait_end()
    assert (end.kind, end.stop_signalled, "lease" in end.detail) == (ReportKind.LOST, True, True)


@pytest.mark.parametrize(
    ("left_s", "used_s"), [(60.0, 0.0), (45.0, 15.0), (90.0, 0.0), (-3.0, 60.0), (float("nan"), 0.0)]
)
def test_what_of_a_lease_has_gone(tmp_path: Path, left_s: float, used_s: float) -> None:
    names.write_lease(tmp_path / "lease", names.boot_time_s() + left_s)
    assert names.lease_used_s(tmp_path / "lease", 60.0) == pytest.approx(used_s, abs=5.0)
    assert names.lease_used_s(tmp_path / "none", 60.0) == 0.0
