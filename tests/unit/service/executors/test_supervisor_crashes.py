"""Kill -9 of a supervisor at every instant that matters, doubled launches, expired leases, restarted machines.

What must hold: a command runs at most once, its end is told exactly as it was, and "lost" is told only of what is dead.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from policies.model.job import Launch as LaunchMode
from policies.model.job import PreemptionSignal
from policies.model.reasons import Reason
from service.engine.events import ReportKind
from service.executors import folder as names
from service.executors.launch_plan import build_plan
from service.executors.local import LocalExecutor
from service.runtime.processes import process_info
from tests.local_executor import CLUSTER, DEADLINE_S, House, WallClock, house, launch, lives, python, wait_for

__all__ = ["house"]

# Each run of the command leaves a line here, so that doubled runs are seen.
COUNT = "import os; open(os.environ['SOONER_CHECKPOINT_DIR'] + '/runs', 'a').write('run\\n');"
WAIT = "import signal; print('ready', flush=True); signal.pause()"

DRIVER = """
import os, signal, sys, types
from pathlib import Path
here = Path({package!r})
for name, folder in (("service", here.parent), ("service.executors", here)):
    package = types.ModuleType(name)
    package.__path__ = [str(folder)]
    sys.modules[name] = package
from service.executors import supervisor, folder, ranks
point, when, victims = {point!r}, {when!r}, {victims!r}
first = os.getpid()
def die(*_, **__):
    keeper = os.getppid()
    if victims != "supervisor" and keeper == first:
        os.kill(keeper, signal.SIGKILL)
        while os.getppid() == keeper:
            pass
    if victims != "keeper":
        os.kill(os.getpid(), signal.SIGKILL)
def dying(real, matches=lambda *_: True):
    def call(*a, **k):
        if matches(*a) and when == "before":
            die()
        result = real(*a, **k)
        if matches(*a):
            die()
        return result
    return call
if point in ("ranks.json", "started.json", "exit.json"):
    supervisor.write_json = dying(supervisor.write_json, lambda path, *_: path.name == point)
elif point == "name":
    folder.publish = dying(folder.publish)
elif point == "stop":
    publish = folder.publish
    def publish_and_stop(*a):
        published = publish(*a)
        folder.write_stop(published, None, 5.0, folder.Seal({seal!r}))
        return published
    folder.publish = publish_and_stop
elif point == "gate":
    supervisor.open_gate = dying(supervisor.open_gate)
elif point == "printed":
    open_gate = supervisor.open_gate
    def open_and_listen(gate, ranks):
        failure = open_gate(gate, ranks)
        supervisor.select.select([rank.output for rank in ranks], [], [])
        die()
        return failure
    supervisor.open_gate = open_and_listen
elif point == "fork":
    supervisor.fork_rank = dying(supervisor.fork_rank)
sys.exit(supervisor.main())
"""


def plan_of(house: House, command: tuple[str, ...], **options: Any) -> dict[str, Any]:
    """The plan that the house's executor would hand to a supervisor."""
    executor = house.executor
    order = launch(command, **options)
    return build_plan(order, executor._site, executor._keys.identity(order.attempt), 20001, 1e9)


def run_supervisor(plan: dict[str, Any], point: str, when: str = "", victims: str = "supervisor") -> int:
    """Run a supervisor in which something happens at ``point`` until it ends; returns how."""
    package = str(Path(names.__file__).parent)
    code = DRIVER.format(package=package, point=point, when=when, victims=victims, seal=plan["seal"])
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code],
        input=json.dumps(plan).encode(),
        capture_output=True,
        timeout=DEADLINE_S,
    )
    return done.returncode


def run_dying_supervisor(plan: dict[str, Any], point: str, when: str, victims: str = "supervisor") -> None:
    """Run a supervisor that is killed at ``point``, or whose keeper is, or with its keeper."""
    code = 128 + signal.SIGKILL if victims == "supervisor" else -signal.SIGKILL
    assert run_supervisor(plan, point, when, victims) == code


def runs(house: House) -> int:
    """How often the command ran."""
    file = house.data_dir / "checkpoints/1/runs"
    return len(file.read_text().splitlines()) if file.exists() else 0


class TestKilledSupervisor:
    @pytest.mark.parametrize("victims", ["supervisor", "both"])
    def test_before_the_folder_has_its_name_nothing_has_begun(self, house: House, victims: str) -> None:
        command = python(COUNT)
        run_dying_supervisor(plan_of(house, command), "name", "before", victims)
        fresh = house.new_executor()
        assert fresh.observed() == {}
        # The engine repeats the launch, and only then it runs.
        end = house.run(command)
        assert (end.kind, end.exit_code, runs(house)) == (ReportKind.EXITED, 0, 1)

    def test_what_a_program_has_printed_is_in_its_log_though_its_attempt_is_given_up(self, house: House) -> None:
        """The supervisor sees that its keeper is gone before it has looked at the output."""
        run_dying_supervisor(plan_of(house, python(f"{COUNT}{WAIT}")), "printed", "", "keeper")
        house.new_executor()
        assert house.wait_end().kind is ReportKind.LOST
        assert (house.output(), runs(house)) == ("ready\n", 1)

    @pytest.mark.parametrize(
        ("point", "when", "victims"),
        [
            (*instant, victims)
            for instant in (("name", "after"), ("fork", "after"), ("ranks.json", "before"), ("ranks.json", "after"))
            for victims in ("supervisor", "keeper", "both")
        ]
        + [("gate", "before", "supervisor"), ("gate", "before", "both")],
    )
    def test_before_the_gate_opens_the_command_never_runs(
        self, house: House, point: str, when: str, victims: str
    ) -> None:
        command = python(COUNT)
        run_dying_supervisor(plan_of(house, command), point, when, victims)
        house.new_executor()
        house.executor.send([launch(command)])
        end = house.wait_end()
        assert (end.kind, end.reason, end.stop_signalled) == (ReportKind.LOST, Reason.NODE_LOST, False)
        assert runs(house) == 0
        assert house.processes() == []

    @pytest.mark.parametrize("victims", ["supervisor", "keeper", "both"])
    @pytest.mark.parametrize(
        ("point", "when"), [("gate", "after"), ("started.json", "before"), ("started.json", "after")]
    )
    def test_after_the_gate_the_job_dies_and_lost_is_told_afterwards(
        self, house: House, point: str, when: str, victims: str
    ) -> None:
        command = python(COUNT + WAIT)
        run_dying_supervisor(plan_of(house, command), point, when, victims)
        house.new_executor()
        house.executor.send([launch(command)])
        end = house.wait_end()
        assert end.kind is ReportKind.LOST
        assert house.processes() == []
        assert runs(house) <= 1

    def test_between_exit_and_report_the_exit_is_lost_but_told_as_lost(self, house: House) -> None:
        run_dying_supervisor(plan_of(house, python(COUNT + "raise SystemExit(3)")), "exit.json", "before")
        house.new_executor()
        end = house.wait_end()
        assert (end.kind, end.exit_code, runs(house)) == (ReportKind.LOST, None, 1)

    def test_after_the_report_nothing_is_lost(self, house: House) -> None:
        run_dying_supervisor(plan_of(house, python(COUNT + "raise SystemExit(3)")), "exit.json", "after")
        house.new_executor()
        end = house.wait_end()
        assert (end.kind, end.exit_code, runs(house)) == (ReportKind.EXITED, 3, 1)

    def test_while_it_runs_all_that_it_left_is_killed_first(self, house: House) -> None:
        code = (
            "import os, signal\n"
            "reading, writing = os.pipe()\n"
            "if os.fork() == 0:\n"
            "    os.setsid()\n"
            "    for n in (1, 15): signal.signal(n, signal.SIG_IGN)\n"
            "    print('ready', os.getpid(), flush=True)\n"
            "    while True: signal.sigtimedwait([], 0.05)\n"
            "signal.pause()"
        )
        house.executor.send([launch(python(code), gpus=(2,), mode=LaunchMode.GPU)])
        wait_for(lambda: house.poll() is not None and house.output().count("ready") == 2, "both ranks")
        pids = [int(line.split()[2]) for line in house.output().splitlines()]
        os.kill(json.loads((house.folder() / names.SUPERVISOR).read_text())["pid"], signal.SIGKILL)
        end = house.wait_end()
        assert end.kind is ReportKind.LOST
        assert not any(lives(pid) for pid in pids)
        assert house.processes() == []

    def test_its_ranks_die_with_it_even_if_no_service_looks(self, house: House) -> None:
        house.executor.send([launch(python(WAIT))])
        house.wait_output("ready")
        ranks = json.loads((house.folder() / names.RANKS).read_text())["ranks"]
        os.kill(json.loads((house.folder() / names.SUPERVISOR).read_text())["pid"], signal.SIGKILL)
        wait_for(lambda: not lives(ranks[0][0]), "its end")

    def test_killed_while_stopping_says_that_the_signal_was_sent(self, house: House) -> None:
        code = (
            "import os, signal; signal.signal(15, lambda *_: os.write(1, b'got it\\n')); print('ready', flush=True)\n"
        )
        house.executor.send([launch(python(code + "while True: signal.sigtimedwait([], 0.05)"))])
        house.wait_output("ready")
        house.stop(grace_s=600.0)
        house.wait_output("got it")
        os.kill(json.loads((house.folder() / names.SUPERVISOR).read_text())["pid"], signal.SIGKILL)
        end = house.wait_end()
        assert (end.kind, end.stop_signalled) == (ReportKind.LOST, True)


def test_a_stop_between_the_folder_and_the_start_wins(house: House) -> None:
    assert run_supervisor(plan_of(house, python(COUNT)), "stop") == 0
    house.new_executor()
    end = house.wait_end()
    assert (end.kind, end.exit_code, end.stop_signalled) == (ReportKind.EXITED, None, True)
    assert runs(house) == 0


class TestStrangers:
    """A number in an old record may belong to somebody else by now."""

    def attempt_of_dead_supervisor(self, house: House, **identity: Any) -> None:
        run_dying_supervisor(plan_of(house, python("pass"), gpus=(0, 1)), "name", "after")
        folder = house.folder()
        known = json.loads((folder / names.SUPERVISOR).read_text())
        del known["seal"]
        house.write_record(names.SUPERVISOR, known | identity)

    def test_a_recycled_number_is_not_killed(self, house: House) -> None:
        self.attempt_of_dead_supervisor(house)
        stranger = subprocess.Popen(["/bin/sleep", "600"], start_new_session=True)
        try:
            info = process_info(stranger.pid)
            assert info is not None
            house.write_record(names.RANKS, {"ranks": [[stranger.pid, info.id.start_ticks - 1]]})
            house.new_executor()
            end = house.wait_end()
            assert (end.kind, end.server) == (ReportKind.LOST, None), "the program may have killed its supervisor"
            assert stranger.poll() is None
        finally:
            stranger.kill()
            stranger.wait()

    def test_after_a_restart_of_the_machine_nobody_is_killed(self, house: House) -> None:
        self.attempt_of_dead_supervisor(house, boot_id="another-boot")
        stranger = subprocess.Popen(["/bin/sleep", "600"], start_new_session=True)
        try:
            info = process_info(stranger.pid)
            assert info is not None
            house.write_record(names.RANKS, {"ranks": [list(info.id)]})
            house.new_executor()
            end = house.wait_end()
            assert (end.kind, end.reason) == (ReportKind.LOST, Reason.NODE_LOST)
            assert (end.server, "restarted" in end.detail) == (1, True), "lost with its server, so it uses up no retry"
            assert stranger.poll() is None
        finally:
            stranger.kill()
            stranger.wait()

    def test_a_record_without_a_server_names_none(self, house: House) -> None:
        """An attempt that a former release has started."""
        self.attempt_of_dead_supervisor(house, boot_id="another-boot", server=None)
        house.new_executor()
        assert house.wait_end().server is None


class TestDoubledLaunches:
    def test_racing_supervisors_run_the_command_once(self, house: House) -> None:
        plan = json.dumps(plan_of(house, python(COUNT))).encode()
        program = str(Path(names.__file__).with_name("_supervise.py"))
        racers = [
            subprocess.Popen([sys.executable, "-I", "-S", program, "1.1"], stdin=subprocess.PIPE) for _ in range(6)
        ]
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write(plan)
        for racer in racers:  # all are ready to read: the end of their input is the starting gun
            assert racer.stdin is not None
            racer.stdin.close()
        assert sorted(racer.wait(timeout=DEADLINE_S) for racer in racers) == [0, 3, 3, 3, 3, 3]
        house.new_executor()
        assert house.wait_end().exit_code == 0
        assert runs(house) == 1
        assert [path.name for path in (house.data_dir / "attempts").iterdir()] == ["1.1"]

    def test_two_executors_on_one_folder(self, house: House) -> None:
        order = launch(python(COUNT))
        other = LocalExecutor(house.data_dir, CLUSTER, clock=WallClock(), environ={})
        for _ in range(2):
            house.executor.send([order, order])
            other.send([order])
        assert house.wait_end().exit_code == 0
        wait_for(lambda: [r for r in other.poll() if r.kind is ReportKind.EXITED], "the other's view")
        assert runs(house) == 1
        other.close()

    def test_cut_off_plan_begins_nothing(self, house: House) -> None:
        plan = json.dumps(plan_of(house, python(COUNT))).encode()
        program = str(Path(names.__file__).with_name("_supervise.py"))
        done = subprocess.run(
            [sys.executable, "-I", "-S", program, "1.1"], input=plan[:-20], capture_output=True, timeout=DEADLINE_S
        )
        assert done.returncode not in (0, 3)
        assert list((house.data_dir / "attempts").iterdir()) == []


class TestLease:
    def test_without_a_service_an_attempt_stops_itself(self, house: House) -> None:
        house.new_executor(lease_s=0.3)
        house.executor.send([launch(python(WAIT), gpus=(0, 1))])
        wait_for((house.folder() / names.EXIT).exists, "the end by lease")
        end = house.wait_end()
        assert (end.kind, end.stop_signalled) == (ReportKind.LOST, True)
        assert (end.server, "lease" in end.detail) == (1, True), "lost with its server, so it uses up no retry"

    def test_it_is_warned_first_if_it_asked_for_that(self, house: House) -> None:
        house.new_executor(lease_s=0.3)
        code = (
            "import signal, os; signal.signal(10, lambda *_: os._exit(75))\nwhile True: signal.sigtimedwait([], 0.05)"
        )
        house.executor.send([launch(python(code), preemption=PreemptionSignal("SIGUSR1", 30.0))])
        wait_for((house.folder() / names.EXIT).exists, "the end by lease")
        end = house.wait_end()
        assert (end.kind, end.exit_code) == (ReportKind.EXITED, 75)

    def test_polling_renews_it(self, house: House) -> None:
        house.new_executor(lease_s=1.2)
        house.executor.send([launch(python(WAIT))])
        end = time.monotonic() + 1.8
        wait_for(lambda: house.poll() is not None and time.monotonic() > end, "a lease and a half")
        assert not (house.folder() / names.EXIT).exists()

    def test_nothing_starts_after_its_end(self, house: House) -> None:
        """The service stood still between its decision and this; whoever leads now may have started the job elsewhere."""
        house.new_executor(renews_alone=False)
        over_s = names.boot_time_s() - names.START_SLACK_S
        names.write_lease(house.data_dir / "lease", over_s - 1.0)
        house.executor.send([launch(python(COUNT))])
        end = house.wait_end()
        assert (end.kind, "lease" in end.detail) == (ReportKind.LAUNCH_FAILED, True)
        assert runs(house) == 0
        names.write_lease(house.data_dir / "lease", over_s + 3600.0)
        house.executor.send([launch(python(COUNT), number=2)])
        assert house.wait_end("1.2").kind is ReportKind.EXITED

    @pytest.mark.parametrize("content", [b"", b"soon", b"nan"])
    def test_a_lease_that_does_not_say_when_it_ends_forbids_nothing(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "lease").write_bytes(content)
        assert not names.lease_is_over(tmp_path / "lease")
        assert not names.lease_is_over(tmp_path / "none")


@pytest.mark.skipif(shutil.which("mount") is None or os.geteuid() != 0, reason="needs to mount a small disk")
class TestFullDisk:
    @pytest.fixture
    def small(self, tmp_path: Path) -> Any:
        disk = tmp_path / "disk"
        disk.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "none", str(disk)], capture_output=True)
        if mounted.returncode != 0:
            pytest.skip("may not mount")
        try:
            made = House(disk / "data")
            yield made
            (disk / "ballast").unlink(missing_ok=True)
            made.close()
        finally:
            subprocess.run(["umount", "-l", str(disk)], check=True)

    @staticmethod
    def fill(house: House) -> None:
        with (house.data_dir.parent / "ballast").open("ab", buffering=0) as stream:
            try:
                while True:
                    stream.write(b"x" * 4096)
            except OSError:
                pass

    def test_no_room_to_launch(self, small: House) -> None:
        self.fill(small)
        end = small.run(python("print('ran')"))
        assert (end.kind, end.reason) == (ReportKind.LAUNCH_FAILED, Reason.DISK_FULL)
        small.executor.acknowledge([end])
        small.executor.send([launch(python("print('ran')"))])
        assert small.poll() == []

    def test_full_while_it_runs(self, small: House) -> None:
        code = (
            "import os, sys\nprint('ready', flush=True)\n"
            "while not os.path.exists(os.environ['SOONER_CHECKPOINT_DIR'] + '/go'): pass\n"
            "open(os.environ['SOONER_CHECKPOINT_DIR'] + '/big', 'w').write('x' * 1000000)"
        )
        small.executor.send([launch(python(code))])
        small.wait_output("ready")
        (small.data_dir / "checkpoints/1/go").touch()
        end = small.wait_end()
        assert (end.kind, end.exit_code, end.reason) == (ReportKind.EXITED, 1, Reason.DISK_FULL)
        assert not (small.folder() / names.RESERVED).exists()
        small.new_executor()  # a service can be started on a full disk, too

    def test_a_stop_works_on_a_full_disk(self, small: House) -> None:
        small.executor.send([launch(python(WAIT))])
        small.wait_output("ready")
        self.fill(small)
        small.stop(grace_s=5.0)
        end = small.wait_end()
        assert (end.exit_code, end.stop_signalled) == (143, True)
        small.executor.acknowledge([end])
        assert small.executor.observed() == {}
