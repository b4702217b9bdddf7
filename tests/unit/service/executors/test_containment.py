"""What a job leaves when its supervisor, the keeper of that or both are killed or suspended: with control groups and without."""

import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from policies.model.ids import AttemptId
from policies.model.reasons import Reason
from service.engine.events import ReportKind
from service.executors import folder as names
from service.executors import supervision, watched
from service.executors.seal import Seal
from service.runtime import cgroups, remains
from service.runtime.cgroups import Cgroup, CgroupsUnavailable
from service.runtime.processes import is_running, process_info
from tests.local_executor import ENDS, House, house, launch, lives, python, wait_for

__all__ = ["house"]

# Each process of the job holds a shared lock on `alive`, which its children inherit. The lock is free when none of them runs.
BEGIN = """
import fcntl, os, signal, sys, time
folder = os.environ['SOONER_CHECKPOINT_DIR']
alive = os.open(folder + '/alive', os.O_RDWR | os.O_CREAT)
fcntl.flock(alive, fcntl.LOCK_SH)
os.set_inheritable(alive, True)
def escape(code):
    if os.fork():
        os.wait()
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    os.chdir('/')
    nothing = os.open('/dev/null', os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    code = 'import os, signal, time\\nready = %r\\n' % (folder + '/ready') + code
    os.execve(sys.executable, [sys.executable, '-I', '-S', '-c', code], {})
"""
READY = "open(ready, 'w').close()\n"
REST = "time.sleep(600)\n"
DAEMON = f"{BEGIN}escape({READY + REST!r})\n{REST}"
"""A daemon with a session, an output, a folder and an environment of its own."""
HOPPER = f"""{BEGIN}escape('''{READY}
while True:
    if os.fork():
        os._exit(0)
    os.setsid()
''')
{REST}"""
"""A daemon that is another process, and another session, some thousand times a second."""
BREEDER = f"""{BEGIN}escape('''
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for _ in range(3):
    os.fork()
{READY}
while True:
    if os.fork() == 0:
        time.sleep(0.02)
        os._exit(0)
    time.sleep(0.002)
''')
{REST}"""
"""Eight processes with about ten children each, which are replaced all the time."""

SUSPENDER = f"""{BEGIN}
signal.signal(signal.SIGTERM, signal.SIG_IGN)
supervisor = os.getppid()
keeper = int(open(f'/proc/{{supervisor}}/stat').read().rpartition(')')[2].split()[1])
open(folder + '/ready', 'w').close()
while not os.path.exists(folder + '/go'):
    time.sleep(0.01)
while True:
    for pid in (keeper, supervisor):
        try:
            os.kill(pid, signal.SIGSTOP)
        except ProcessLookupError:
            pass
"""
"""It suspends its supervisor and the keeper again and again."""


def cgroup_parent() -> Path | None:
    try:
        return cgroups.usable_parent()
    except CgroupsUnavailable:
        return None


@pytest.fixture(params=["cgroup", "subreaper"])
def contained(request: pytest.FixtureRequest, house: House) -> Iterator[House]:
    """A house whose executor uses control groups, where the machine lets it, and one whose executor does not."""
    parent = cgroup_parent() if request.param == "cgroup" else None
    if request.param == "cgroup" and parent is None:
        pytest.skip("control groups cannot be made here")
    house.new_executor(cgroups=parent, term_grace_s=1.0)
    yield house
    house.close()
    assert groups_of(house, parent) == []


def groups_of(house: House, parent: Path | None) -> list[Path]:
    """The control groups of attempt 1.1."""
    group = house.executor._keys.identity("1.1").group
    return list(parent.glob(f"{group}*")) if parent is not None else []


def supervisors(house: House, attempt: str = "1.1") -> tuple[int, int]:
    """The numbers of the supervisor and of its keeper."""
    record = json.loads((house.folder(attempt) / names.SUPERVISOR).read_text())
    return record["pid"], record["keeper"][0]


def family_lives(house: House) -> bool:
    """Whether any process of job 1 runs."""
    descriptor = os.open(house.data_dir / "checkpoints/1/alive", os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def begin(house: House, code: str) -> None:
    """Launch, and wait until the program has made what it leaves."""
    house.executor.send([launch(python(code))])
    ready = house.data_dir / "checkpoints/1/ready"
    wait_for(lambda: house.poll() is not None and ready.exists(), "the program's processes")
    house.wait_report(ReportKind.STARTED)


def kill(*pids: int) -> None:
    """Kill all of them before any can act on the end of another."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            os.kill(pid, number)


@pytest.mark.parametrize("code", [DAEMON, HOPPER, BREEDER], ids=["daemon", "hopper", "breeder"])
@pytest.mark.parametrize("killed", ["supervisor", "keeper", "both"])
class TestKilled:
    def test_the_loss_is_reported_when_nothing_is_left(self, contained: House, code: str, killed: str) -> None:
        begin(contained, code)
        supervisor, keeper = supervisors(contained)
        kill(*{"supervisor": [supervisor], "keeper": [keeper], "both": [keeper, supervisor]}[killed])
        end = contained.wait_end()
        assert not family_lives(contained)
        assert end.kind is ReportKind.LOST
        wait_for(lambda: not lives(supervisor) and not lives(keeper), "the end of the other one")


def test_the_keeper_needs_no_service(contained: House) -> None:
    begin(contained, HOPPER)
    kill(supervisors(contained)[0])
    wait_for(lambda: not family_lives(contained), "the end of all processes")


def test_a_service_that_starts_later_finds_what_is_left(contained: House) -> None:
    begin(contained, DAEMON)
    supervisor, keeper = supervisors(contained)
    kill(keeper, supervisor)
    contained.new_executor()
    assert contained.wait_end().kind is ReportKind.LOST
    assert not family_lives(contained)


def test_a_program_that_keeps_forking_is_stopped(contained: House) -> None:
    begin(contained, HOPPER)
    contained.stop(grace_s=0.1)
    contained.wait_end()
    assert not family_lives(contained)


class TestSuspended:
    """Jobs that suspend what supervises them."""

    @pytest.fixture(autouse=True)
    def soon(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(supervision, "STALL_S", 1.0)

    @pytest.mark.parametrize("target", ["supervisor", "keeper"])
    def test_the_other_continues_it(self, contained: House, target: str) -> None:
        begin(contained, DAEMON)
        pid = supervisors(contained)[target == "keeper"]
        os.kill(pid, signal.SIGSTOP)
        wait_for(lambda: state_of(pid) == "S", "its continuation")
        contained.stop()
        assert contained.wait_end().stop_signalled

    def test_both_are_continued_by_a_stop(self, contained: House) -> None:
        begin(contained, DAEMON)
        supervisor, keeper = supervisors(contained)
        for pid in (keeper, supervisor):
            os.kill(pid, signal.SIGSTOP)
        contained.stop()
        end = contained.wait_end()
        assert (end.kind, end.exit_code, end.stop_signalled) == (ReportKind.EXITED, 143, True)

    def test_a_job_that_suspends_both_all_the_time_is_stopped(self, contained: House) -> None:
        begin(contained, SUSPENDER)
        (contained.data_dir / "checkpoints/1/go").touch()
        wait_for(lambda: {state_of(pid) for pid in supervisors(contained)} == {"T"}, "both to be suspended")
        contained.stop(grace_s=0.1)
        end = contained.wait_end()
        assert not family_lives(contained)
        assert end.kind is ReportKind.LOST
        assert not any(lives(pid) for pid in supervisors(contained))

    def test_a_keeper_that_hangs_alone_is_ended(self, contained: House) -> None:
        begin(contained, DAEMON)
        supervisor, keeper = supervisors(contained)
        os.kill(keeper, signal.SIGSTOP)
        kill(supervisor)
        assert contained.wait_end().kind is ReportKind.LOST
        assert not family_lives(contained)


def state_of(pid: int) -> str:
    """The letter of the process' state, as in proc(5)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


class TestNotKnown:
    """The attempt is not reported as ended while its processes run, or may run."""

    def leave_daemon(self, house: House) -> None:
        begin(house, DAEMON)
        supervisor, keeper = supervisors(house)
        kill(keeper, supervisor)
        wait_for(lambda: not names.is_supervised(house.folder()), "the end of both")

    def polls(self, house: House) -> list[ReportKind]:
        return [report.kind for _ in range(3) for report in house.poll() if report.kind in ENDS]

    def test_a_process_that_cannot_be_killed(
        self, contained: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(watched, "STALL_S", 0.0)
            patched.setattr(remains, "signal_process", lambda *_: False)
            patched.setattr(Cgroup, "kill", lambda _: None)
            self.leave_daemon(contained)
            assert self.polls(contained) == []
            assert contained.executor.observed() == {"1.1": "running"}
            (line,) = [record.getMessage() for record in caplog.records if "cannot be ended" in record.getMessage()]
            assert "attempt 1.1" in line
            (pid,) = {int(word) for word in line.rpartition(": ")[2].split(", ")}
            assert lives(pid)
        assert contained.wait_end().kind is ReportKind.LOST
        assert not family_lives(contained)

    def test_a_group_that_cannot_be_read(self, contained: House, monkeypatch: pytest.MonkeyPatch) -> None:
        def unreadable(*_: object) -> bool:
            raise OSError(errno.EIO, "input/output error")

        with monkeypatch.context() as patched:
            patched.setattr(Cgroup, "is_empty", unreadable)
            patched.setattr(remains, "has_mark", unreadable)
            self.leave_daemon(contained)
            assert self.polls(contained) == []
        assert contained.wait_end().kind is ReportKind.LOST

    def test_processes_too_fast_to_be_looked_at(self, contained: House, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each listing shows another number, and the process has ended when it is looked at."""
        fast = iter(range(1 << 28, 1 << 29))
        with monkeypatch.context() as patched:
            listed = remains.process_numbers
            patched.setattr(remains, "process_numbers", lambda: listed() | {next(fast)})
            patched.setattr(remains, "_BUDGET_S", 0.01)
            self.leave_daemon(contained)
            assert self.polls(contained) == []
        assert contained.wait_end().kind is ReportKind.LOST


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process that belongs to no attempt."""
    process = subprocess.Popen(["/bin/sleep", "600"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def forge(house: House, **fields: object) -> None:
    """Change the record of the supervisor, with a right seal."""
    record = names.read_record(house.folder(), names.SUPERVISOR, house.seal())
    assert record is not None
    house.write_record(names.SUPERVISOR, record | fields)


class TestForgedRecords:
    """A job runs as the user of the service: it can write its folder, and can read the key of the seals."""

    def test_another_process_is_neither_signalled_nor_taken_for_the_supervisor(
        self, contained: House, stranger: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(supervision, "STALL_S", 0.5)
        begin(contained, DAEMON)
        supervisor, keeper = supervisors(contained)
        info = process_info(stranger.pid)
        assert info is not None
        forge(contained, pid=stranger.pid, start_ticks=info.id.start_ticks, keeper=list(info.id))
        contained.new_executor()
        for pid in (keeper, supervisor):
            os.kill(pid, signal.SIGSTOP)
        contained.stop(grace_s=0.1)
        contained.wait_end()
        assert not family_lives(contained)
        assert is_running(info.id)

    @pytest.mark.parametrize("path", ["/", "/sys/fs/cgroup", "/tmp/none", "../..", 7, None])
    def test_another_group_is_not_killed(self, contained: House, path: object) -> None:
        begin(contained, DAEMON)
        supervisor, keeper = supervisors(contained)
        forge(contained, cgroup=path, boot_id="another")
        kill(keeper, supervisor)
        assert contained.wait_end().kind is ReportKind.LOST
        assert not family_lives(contained)


def test_nothing_is_searched_for_after_a_restart_of_the_machine(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand attempts may have ended with it."""
    begin(house, DAEMON)
    supervisor, keeper = supervisors(house)
    kill(supervisor)
    wait_for(lambda: not lives(keeper), "the end of the keeper")
    forge(house, boot_id="another")
    searches: list[object] = []
    monkeypatch.setattr(watched, "end_remains", lambda evidence: searches.append(evidence))
    monkeypatch.setattr(watched.processes, "boot_time_s", lambda: -60.0)
    end = house.wait_end()
    assert (end.kind, searches) == (ReportKind.LOST, [])
    assert "restarted" in end.detail


def test_a_supervisor_of_the_last_release_is_left_alone(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no keeper and no seal, and the id of its attempt as its argument."""
    monkeypatch.setattr(supervision, "STALL_S", 0.0)
    begin(house, DAEMON)
    folder = house.folder()
    argument = Path(folder.name)
    moved = supervision.Supervision(folder, Seal(house.seal().key, required=False))
    monkeypatch.setattr(supervision, "command_line", lambda _: ["python", "_supervise.py", str(argument)])
    file = folder / names.SUPERVISOR
    record = json.loads(file.read_text())
    del record["keeper"], record["seal"]
    file.write_text(json.dumps(record))
    assert moved.is_held()
    assert moved.is_held()
    assert family_lives(house)


def test_a_second_launch_does_not_harm_the_first(contained: House) -> None:
    begin(contained, DAEMON)
    contained.new_executor(cgroups=cgroup_parent())
    contained.executor._live.clear()
    contained.executor.send([launch(python(DAEMON))])
    second = contained.executor._live[AttemptId("1.1")]
    assert second.child is not None
    wait_for(lambda: contained.poll() is not None and second.child is None, "the end of the second supervisor's keeper")
    assert family_lives(contained)
    assert contained.executor.observed() == {"1.1": "running"}


def test_the_keeper_holds_nothing_of_the_service_and_no_plan(contained: House) -> None:
    begin(contained, DAEMON)
    folder = Path(f"/proc/{supervisors(contained)[1]}/fd")
    if os.geteuid() != 0:
        with pytest.raises(PermissionError):
            list(folder.iterdir())
        return
    held = {str(link.readlink()) for link in folder.iterdir()}
    assert held == {"/dev/null", str(contained.folder() / names.LOCK)}


def test_a_job_is_killed_before_its_supervisor_when_memory_is_short(contained: House) -> None:
    begin(contained, DAEMON)
    pids = (json.loads((contained.folder() / names.RANKS).read_text())["ranks"][0][0], *supervisors(contained))
    rank, supervisor, keeper = (int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in pids)
    assert rank >= 500
    assert rank > supervisor == keeper


def test_all_ranks_are_in_the_group(contained: House) -> None:
    if contained.executor._site.cgroups is None:
        pytest.skip("without control groups")
    contained.executor.send([launch(python(f"{BEGIN}{REST}"), gpus=(2, 1))])
    contained.wait_report(ReportKind.STARTED)
    group = Path(json.loads((contained.folder() / names.SUPERVISOR).read_text())["cgroup"])
    ranks = {rank for rank, _ in json.loads((contained.folder() / names.RANKS).read_text())["ranks"]}
    assert {int(line) for line in (group / "cgroup.procs").read_text().split()} == ranks
    assert len(ranks) == 2


def test_a_group_that_cannot_be_made_fails_the_launch(house: House, tmp_path: Path) -> None:
    house.new_executor(cgroups=tmp_path / "none")
    end = house.run(python("print('ran')"))
    assert (end.kind, "control group" in end.detail) == (ReportKind.LAUNCH_FAILED, True)
    assert house.output() == ""


@pytest.mark.parametrize("ended_by", ["supervisor", "keeper"])
def test_a_group_that_cannot_be_killed_keeps_no_process_alive(house: House, tmp_path: Path, ended_by: str) -> None:
    parent = tmp_path / "groups"
    parent.mkdir()
    house.new_executor(cgroups=parent, term_grace_s=0.1)
    begin(house, BEGIN + "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + DAEMON.removeprefix(BEGIN))
    (group,) = groups_of(house, parent)
    for name in ("cgroup.kill", "cgroup.events"):
        (group / name).mkdir()
    if ended_by == "supervisor":
        house.stop(grace_s=0.1)
        assert house.wait_end().kind is ReportKind.EXITED
        assert not family_lives(house)
    else:
        kill(supervisors(house)[0])
        wait_for(lambda: not family_lives(house), "the end of the job")

        def removed() -> bool:
            # The keeper removes groups in it at the same time.
            shutil.rmtree(parent, ignore_errors=True)
            return not parent.exists()

        wait_for(removed, "the end of the groups")
        assert house.wait_end().kind is ReportKind.LOST


def test_a_group_that_the_job_has_filled_with_groups_is_removed(house: House) -> None:
    parent = cgroup_parent()
    if parent is None or os.geteuid() != 0:
        pytest.skip("the job may not make control groups")
    house.new_executor(cgroups=parent)
    code = (
        "import os\nown = [line[3:].strip() for line in open('/proc/self/cgroup') if line.startswith('0::')][0]\n"
        f"os.makedirs({str(cgroups._cgroup2_mount()[1])!r} + own + '/a/b')"  # type: ignore[index]
    )
    end = house.run(python(code))
    assert (end.exit_code, house.output()) == (0, "")
    assert groups_of(house, parent) == []


UNUSABLE: dict[str, Callable[[Path], object]] = {
    "no cgroup2 file system is mounted": lambda proc: (proc / "mountinfo").write_text(""),
    "does not show": lambda proc: (proc / "cgroup").write_text("0::/../elsewhere\n"),
    "may not be written": lambda proc: (proc / "cgroup").write_text("0::/no-such-group\n"),
}


@pytest.mark.parametrize("reason", UNUSABLE)
def test_why_groups_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    (tmp_path / "mountinfo").write_text("41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n")
    UNUSABLE[reason](tmp_path)
    monkeypatch.setattr(cgroups, "_PROC_SELF", tmp_path)
    with pytest.raises(CgroupsUnavailable, match=reason):
        cgroups.usable_parent()


def test_an_attempt_gets_what_its_job_asks_for_and_no_memory_is_a_reason(house: House, tmp_path: Path) -> None:
    """The tree of groups is a plain folder: the program writes what the kernel would."""
    tree = tmp_path / "groups"
    tree.mkdir()
    house.new_executor(cgroups=tree, limits=frozenset({"cpu", "memory"}))
    starve = (
        "import glob, os, sys, signal; folder = glob.glob(sys.argv[1] + '/*')[0]; "
        "open(folder + '/memory.events', 'w').write('oom 1\\noom_kill 1\\n'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    end = house.run((*python(starve), str(tree)), gpus=(2, 1), cpus=4, memory_gib=0.5)
    assert (end.exit_code, end.reason) == (137, Reason.OUT_OF_MEMORY)
    (group,) = tree.iterdir()
    # Two of three GPUs are on one server, one on the other: ceil(8/3) + ceil(4/3) CPUs, and as much of 512 MiB.
    assert (group / "cpu.max").read_text() == "500000 100000"
    assert (group / "memory.max").read_text() == str((342 + 171) << 20)


@pytest.mark.parametrize(
    ("limits", "files"), [(set(), set()), ({"cpu"}, {"cpu.max"}), ({"memory"}, {"memory.max", "memory.oom.group"})]
)
def test_only_what_can_be_enforced_is_limited(house: House, tmp_path: Path, limits: set[str], files: set[str]) -> None:
    tree = tmp_path / "groups"
    tree.mkdir()
    house.new_executor(cgroups=tree, limits=frozenset(limits))
    end = house.run(python("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"), cpus=4, memory_gib=0.5)
    assert (end.exit_code, end.reason) == (137, None)
    (group,) = tree.iterdir()
    assert {path.name for path in group.iterdir()} - {"cgroup.procs", "cgroup.kill", "memory.swap.max"} == files
