"""Attempts as real processes: how they start, what they see, how they end, and how they are stopped."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from policies.model.ids import AttemptId, JobId
from policies.model.job import Launch as LaunchMode
from policies.model.job import PreemptionSignal
from policies.model.parallelism import ParallelismConfig
from policies.model.plan import TrainingPlan
from policies.model.reasons import Reason
from service.engine.events import ReportKind
from service.engine.ports import AttemptStatus
from service.executors import folder as names
from service.executors.ranks import Program, attempt_exit_code, fork_rank
from service.executors.seal import Seal
from service.executors.supervisor import CannotLaunch, StoppedFirst, Supervisor
from service.runtime.processes import descendants
from tests.local_executor import House, house, launch, lives, python, wait_for

__all__ = ["house"]

SEAL = Seal("key")
SHOW_ENVIRONMENT = python("import os, json; print(json.dumps(dict(os.environ)))")


def environments(house: House) -> list[dict[str, str]]:
    """The environment that each rank printed, in rank order."""
    lines = sorted(line for line in house.output().splitlines() if "{" in line)
    return [json.loads(line[line.index("{") :]) for line in lines]


class TestEnvironment:
    def test_a_rank_a_server(self, house: House) -> None:
        end = house.run(SHOW_ENVIRONMENT, gpus=(2, 3), resume_iteration=70, job=7, number=2, env={"LR": "0.1"})
        assert (end.kind, end.exit_code, end.stop_signalled) == (ReportKind.EXITED, 0, False)
        house.output(7)
        lines = sorted(house.output(7).splitlines())
        first, second = (json.loads(line[line.index("{") :]) for line in lines)
        port = first["MASTER_PORT"]
        expected = {
            "LR": "0.1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "NNODES": "2",
            "WORLD_SIZE": "5",
            "SOONER_JOB_ID": "7",
            "SOONER_ATTEMPT": "7.2",
            "SOONER_RESUME_ITERATION": "70",
            "SOONER_CHECKPOINT_DIR": str(house.data_dir / "checkpoints/7"),
            "SOONER_PROGRESS_FILE": str(house.data_dir / "attempts/7.2/progress.jsonl"),
        }
        assert 20000 <= int(port) < 30000
        for name, value in expected.items():
            assert first[name] == second[name] == value
        assert [(e["NODE_RANK"], e["SOONER_GPUS_ON_SERVER"], e["CUDA_VISIBLE_DEVICES"]) for e in (first, second)] == [
            ("0", "2", "0,1"),
            ("1", "3", "4,5,6"),  # both servers are this machine: no number names a GPU of two
        ]
        assert "RANK" not in first
        assert "LOCAL_RANK" not in first

    def test_a_rank_a_gpu(self, house: House) -> None:
        house.run(SHOW_ENVIRONMENT, gpus=(2, 1), mode=LaunchMode.GPU)
        names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "WORLD_SIZE")
        seen = environments(house)
        assert [[e[name] for name in names] for e in seen] == [
            ["0", "0", "2", "0", "0", "3"],
            ["1", "1", "2", "0", "0", "3"],
            ["2", "0", "1", "1", "1", "3"],
        ]
        assert all("SOONER_PLAN" not in e for e in seen), "there is no plan"

    def test_ranks_of_one_stage_are_adjacent_and_know_their_part(self, house: House) -> None:
        """Stage 1 on servers 0 and 1, stage 0 on servers 1 and 2: the servers are numbered from the last to the first."""
        house.run(
            SHOW_ENVIRONMENT,
            gpus=(2, 4, 2),
            mode=LaunchMode.GPU,
            replicas=((0, 2), (1, 2), (1, 0)),
            parallelism=ParallelismConfig((2, 4), (2, 1)),
        )
        seen = environments(house)
        assert [(e["RANK"], e["NODE_RANK"], e["LOCAL_RANK"], e["LOCAL_WORLD_SIZE"]) for e in seen] == [
            ("0", "0", "0", "2"), ("1", "0", "1", "2"), ("2", "1", "0", "4"), ("3", "1", "1", "4"),
            ("4", "1", "2", "4"), ("5", "1", "3", "4"), ("6", "2", "0", "2"), ("7", "2", "1", "2"),
        ]  # fmt: skip
        plans = [json.loads(e["SOONER_PLAN"]) for e in seen]
        assert [plan["places"] for plan in plans[2:5]] == [
            [{"rank": 2, "local_rank": 0, "stage": 0, "replica": 1, "tensor": 0}],
            [{"rank": 3, "local_rank": 1, "stage": 0, "replica": 1, "tensor": 1}],
            [{"rank": 4, "local_rank": 2, "stage": 1, "replica": 0, "tensor": 0}],
        ]
        assert plans[0]["plan"] is None
        assert (plans[0]["parallelism"]["replicas"], plans[0]["parallelism"]["tensor"]) == ([2, 4], [2, 1])

    def test_a_plan_and_the_places_of_a_server(self, house: House) -> None:
        plan = TrainingPlan(data=2, context=2, pipeline=1, micro_batch=2, global_batch=16, sequence=4096)
        house.run(SHOW_ENVIRONMENT, gpus=(2, 2), plan=plan, env={"SOONER_PLAN": "mine"})
        first, second = environments(house)
        assert (first["LOCAL_WORLD_SIZE"], first["GROUP_RANK"], second["GROUP_RANK"]) == ("2", "0", "1")
        found = [json.loads(e["SOONER_PLAN"]) for e in (first, second)]
        assert [(p["rank"], p["data"], p["context"]) for each in found for p in each["places"]] == [
            (0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1),
        ]  # fmt: skip
        stated = found[0]["plan"]
        assert (stated["gpus"], stated["micro_batches"], stated["sequence"], stated["precision"]) == (
            4,
            4,
            4096,
            "bf16",
        )

    def test_only_what_is_allowed_of_the_services_own(self, house: House) -> None:
        secret = {"SOONER_DATABASE_URL": "postgres://secret", "AWS_SECRET_ACCESS_KEY": "x", "PYTHONPATH": "/evil"}
        house.new_executor(environ={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "HOME": "/h", **secret})
        house.run(SHOW_ENVIRONMENT)
        (seen,) = environments(house)
        assert not set(secret) & set(seen)
        assert (seen["PATH"], seen["LC_ALL"], seen["HOME"]) == ("/usr/bin:/bin", "C.UTF-8", "/h")

    def test_a_job_cannot_pretend_to_be_another(self, house: House) -> None:
        house.run(SHOW_ENVIRONMENT, env={"SOONER_JOB_ID": "99", "SOONER_PROGRESS_TOKEN": "x", "PATH": "/mine"})
        (seen,) = environments(house)
        assert seen["SOONER_JOB_ID"] == "1"
        assert seen["SOONER_PROGRESS_TOKEN"] != "x"
        assert seen["PATH"] == "/mine"

    def test_progress_address_names_job_and_attempt(self, house: House) -> None:
        house.new_executor(progress_url="http://127.0.0.1:1/v1/jobs/{job}/attempts/{attempt}/progress")
        house.run(SHOW_ENVIRONMENT)
        (seen,) = environments(house)
        assert seen["SOONER_PROGRESS_URL"] == "http://127.0.0.1:1/v1/jobs/1/attempts/1.1/progress"

    def test_the_supervisor_itself_holds_no_secret(self, house: House) -> None:
        house.executor.send([launch(python("import signal; signal.pause()"), env={"SECRET": "swordfish"})])
        house.wait_report(ReportKind.STARTED)
        pid = json.loads((house.folder() / "supervisor.json").read_text())["pid"]
        assert b"swordfish" not in Path(f"/proc/{pid}/environ").read_bytes()
        assert b"swordfish" not in Path(f"/proc/{pid}/cmdline").read_bytes()
        for path in house.folder().rglob("*"):
            assert path.is_fifo() or path.is_dir() or b"swordfish" not in path.read_bytes()

    def test_no_shell_and_no_inherited_signals(self, house: House) -> None:
        code = (
            "import sys, signal as s; print(sys.argv[1:], [s.getsignal(n) == s.SIG_DFL for n in (s.SIGUSR1, s.SIGHUP)])"
        )
        house.run((*python(code), "$HOME", "a b", ";ls"))
        assert house.output() == "['$HOME', 'a b', ';ls'] [True, True]\n"

    def test_each_rank_leads_a_session_of_its_own(self, house: House) -> None:
        house.run(
            python("import os; print(os.getsid(0) == os.getpgid(0) == os.getpid())"), gpus=(2,), mode=LaunchMode.GPU
        )
        assert sorted(house.output().splitlines()) == ["[0] True", "[1] True"]

    def test_working_dir(self, house: House, tmp_path: Path) -> None:
        house.run(python("import os; print(os.getcwd())"), working_dir=str(tmp_path))
        assert house.output().strip() == str(tmp_path)


def test_the_supervisor_starts_without_modules_that_take_long_to_import() -> None:
    program = Path(names.__file__).with_name("_supervise.py")
    code = f"import runpy, sys; runpy.run_path({str(program)!r}); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "service.executors.supervisor" in loaded
    assert (
        loaded & {"asyncio", "dataclasses", "inspect", "logging", "shutil", "subprocess", "tempfile", "traceback"}
        == set()
    )


def test_a_rank_whose_gate_closes_never_executes(tmp_path: Path) -> None:
    gate = os.pipe()
    program = Program(["/bin/sh", "-c", "echo ran > ran"], {}, tmp_path, 0o022, 1, None)
    rank = fork_rank(0, program, gate)
    for descriptor in gate:
        os.close(descriptor)
    _, status = os.waitpid(rank.id.pid, 0)
    assert (os.waitstatus_to_exitcode(status), list(tmp_path.iterdir())) == (1, [])
    os.close(rank.output)
    os.close(rank.failure)


def let_lease_end(folder: Path) -> None:
    names.write_lease(folder / "lease", names.boot_time_s() - 60.0)


def ask_to_stop(folder: Path) -> None:
    names.write_stop(folder, None, 1.0, SEAL)


@pytest.mark.parametrize(("event", "error"), [(let_lease_end, CannotLaunch), (ask_to_stop, StoppedFirst)])
def test_nothing_runs_if_the_folders_answer_after_the_lease_or_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, event: Callable[[Path], None], error: type[Exception]
) -> None:
    (tmp_path / names.OUTPUT).mkdir()
    plan = {
        "account": None,
        "cgroup": None,
        "limits": {},
        "refusal": None,
        "checkpoint_dir": str(tmp_path / "checkpoints"),
        "clock_s": 0.0,
        "command": ["/bin/sh", "-c", "echo ran > ran"],
        "env": {},
        "grace_s": 1.0,
        "lease_file": str(tmp_path / "lease"),
        "lease_s": 60.0,
        "log_bytes_max": 4096,
        "mark": 1,
        "ranks": [{"NODE_RANK": "0"}],
        "seal": SEAL.key,
        "umask": 0o022,
        "working_dir": str(tmp_path),
    }
    supervisor = Supervisor(plan, tmp_path, os.getppid())
    open_checkpoints = supervisor._open_checkpoints

    def hang() -> None:
        open_checkpoints()
        event(tmp_path)

    monkeypatch.setattr(supervisor, "_open_checkpoints", hang)
    with pytest.raises(error):
        supervisor.launch()
    for rank in supervisor.ranks:
        os.kill(rank.id.pid, signal.SIGKILL)
        os.waitpid(rank.id.pid, 0)
        os.close(rank.failure)
    supervisor.output.finish(supervisor.ranks)
    assert len(supervisor.ranks) == 1
    assert not (tmp_path / "ran").exists()


class TestExitCodes:
    @pytest.mark.parametrize(
        ("codes", "expected"),
        [([0], 0), ([0, 0], 0), ([75], 75), ([0, 75, 0], 75), ([75, 1, 2], 1), ([0, 143, 9], 143), ([137, 75], 137)],
    )
    def test_rule(self, codes: list[int], expected: int) -> None:
        assert attempt_exit_code(codes) == expected

    @pytest.mark.parametrize(("code", "expected"), [("raise SystemExit(0)", 0), ("raise SystemExit(75)", 75)])
    def test_single(self, house: House, code: str, expected: int) -> None:
        end = house.run(python(code))
        assert (end.kind, end.exit_code, end.reason) == (ReportKind.EXITED, expected, None)

    def test_a_signal_is_128_and_its_number(self, house: House) -> None:
        end = house.run(python("import os; os.kill(os.getpid(), 9)"))
        assert (end.kind, end.exit_code, end.stop_signalled) == (ReportKind.EXITED, 137, False)

    def test_one_yields_and_the_rest_are_done(self, house: House) -> None:
        code = "import os; raise SystemExit(75 if os.environ['RANK'] == '1' else 0)"
        assert house.run(python(code), gpus=(2, 1), mode=LaunchMode.GPU).exit_code == 75

    def test_when_one_dies_the_rest_get_sigterm(self, house: House) -> None:
        code = (
            "import os, signal, sys\n"
            "if os.environ['RANK'] == '1': sys.exit(3)\n"
            "signal.signal(15, lambda *_: (os.write(1, b'terminated\\n'), os._exit(0)))\n"
            "while True: signal.sigtimedwait([], 0.05)"
        )
        end = house.run(python(code), gpus=(2, 1), mode=LaunchMode.GPU)
        assert (end.exit_code, end.stop_signalled) == (3, False)
        assert "rank 1: exit code 3" in end.detail

    def test_a_rank_that_is_done_does_not_end_the_others(self, house: House) -> None:
        code = (
            "import os, time\n"
            "if os.environ['RANK'] != '0':\n"
            "    while not os.path.exists(os.environ['SOONER_CHECKPOINT_DIR'] + '/go'): time.sleep(0.01)\n"
            "    print('worked on', flush=True)"
        )
        house.executor.send([launch(python(code), gpus=(2,), mode=LaunchMode.GPU)])
        house.wait_report(ReportKind.STARTED)
        pids = [pid for pid, _ in json.loads((house.folder() / "ranks.json").read_text())["ranks"]]
        wait_for(lambda: not lives(pids[0]), "rank 0 to be done")
        (house.data_dir / "checkpoints/1/go").touch()
        assert house.wait_end().exit_code == 0
        assert house.output() == "[1] worked on\n"


class TestCannotLaunch:
    def test_no_such_command(self, house: House) -> None:
        end = house.run(("no-such-program-anywhere", "x"))
        assert (end.kind, end.reason) == (ReportKind.LAUNCH_FAILED, Reason.COMMAND_NOT_FOUND)
        assert end.detail == "no-such-program-anywhere: No such file or directory"
        assert not any(report.kind is ReportKind.STARTED for report in house.reports)

    def test_not_executable(self, house: House, tmp_path: Path) -> None:
        (tmp_path / "script").write_text("#!/bin/sh\n")
        end = house.run((str(tmp_path / "script"),))
        assert (end.kind, end.reason) == (ReportKind.LAUNCH_FAILED, Reason.COMMAND_NOT_FOUND)

    @pytest.mark.parametrize("given", ["{folder}/script", "./script", "script"])
    def test_no_such_interpreter(self, house: House, tmp_path: Path, given: str) -> None:
        """The kernel says of the script itself that there is no such file."""
        script = tmp_path / "script"
        script.write_text("#!/no/such/shell\n")
        script.chmod(0o700)
        command = given.format(folder=tmp_path)
        end = house.run((command,), working_dir=str(tmp_path), env={"PATH": f"/absent:{tmp_path}"})
        assert (end.kind, end.reason) == (ReportKind.LAUNCH_FAILED, Reason.COMMAND_NOT_FOUND)
        assert end.detail == f"{command}: it exists, but the interpreter that it names (#!) does not"

    def test_relative_to_working_dir(self, house: House, tmp_path: Path) -> None:
        script = tmp_path / "script"
        script.write_text("#!/bin/sh\necho here\n")
        script.chmod(0o700)
        assert house.run(("./script",), working_dir=str(tmp_path)).exit_code == 0
        assert house.output() == "here\n"

    @pytest.mark.parametrize("folder", ["/no/such/folder", "relative", "/etc/passwd"])
    def test_bad_working_dir(self, house: House, folder: str) -> None:
        end = house.run(python("pass"), working_dir=folder)
        assert (end.kind, end.reason) == (ReportKind.LAUNCH_FAILED, Reason.WORKING_DIR_NOT_FOUND)
        assert "working_dir" in end.detail

    def test_unreadable_checkpoints(self, house: House) -> None:
        (house.data_dir / "checkpoints").mkdir()
        (house.data_dir / "checkpoints/1").write_text("in the way")
        end = house.run(python("print('ran')"))
        assert (end.kind, end.reason) == (ReportKind.LAUNCH_FAILED, Reason.CHECKPOINT_UNREADABLE)
        assert house.output() == ""

    def test_a_program_that_finds_the_disk_full(self, house: House) -> None:
        end = house.run(python("import os; raise OSError(28, os.strerror(28))"))
        assert (end.kind, end.exit_code, end.reason) == (ReportKind.EXITED, 1, Reason.DISK_FULL)


# Each waits in small steps: a handler in Python that is due a moment before `pause` would run only after it.
WARNED = (
    "import signal, sys, time, os\n"
    "signal.signal(signal.SIGUSR1, lambda *_: (os.write(1, b'warned\\n'), os._exit(75)))\n"
    "signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b'terminated\\n'), os._exit(9)))\n"
    "print('ready', flush=True)\n"
    "while True: signal.sigtimedwait([], 0.05)"
)
STUBBORN = (
    "import os, signal\n"
    "for n in (signal.SIGUSR1, signal.SIGTERM): signal.signal(n, lambda n, _: os.write(1, b'got %d\\n' % n))\n"
    "print('ready', flush=True)\n"
    "while True: signal.sigtimedwait([], 0.05)"
)


class TestStopRequest:
    """The file that carries a stop, and the bell that goes with it."""

    @staticmethod
    def wanted(folder: Path) -> object:
        return json.loads((folder / names.STOP).read_text())["warning_signal"]

    def test_a_soft_stop_never_replaces_a_hard_one(self, tmp_path: Path) -> None:
        names.write_stop(tmp_path, "SIGUSR1", 5.0, SEAL)
        assert self.wanted(tmp_path) == "SIGUSR1"
        names.write_stop(tmp_path, None, 5.0, SEAL)
        assert self.wanted(tmp_path) is None
        names.write_stop(tmp_path, "SIGUSR1", 5.0, SEAL)
        assert self.wanted(tmp_path) is None

    def test_it_rings(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / names.WAKE)
        bell = os.open(tmp_path / names.WAKE, os.O_RDWR | os.O_NONBLOCK)
        names.write_stop(tmp_path, None, 5.0, SEAL)
        assert os.read(bell, 10)
        os.close(bell)


class TestStopping:
    def start(self, house: House, code: str, **options: object) -> None:
        house.executor.send([launch(python(code), **options)])  # type: ignore[arg-type]
        house.wait_output("ready")

    def test_warned_first_if_it_wants_that(self, house: House) -> None:
        self.start(house, WARNED)
        house.stop(warning="SIGUSR1", grace_s=30.0)
        assert house.executor.observed() == {"1.1": AttemptStatus.STOPPING}
        end = house.wait_end()
        assert (end.exit_code, end.stop_signalled) == (75, True)
        assert house.output() == "ready\nwarned\n"

    def test_a_stop_shortens_the_grace_period_of_an_attempt_that_is_ending_already(self, house: House) -> None:
        """One rank has failed, and the other one ignores SIGTERM for as long as it may."""
        house.new_executor(term_grace_s=3600.0)
        failing = (
            "import os, sys, time\n"
            "while os.environ['RANK'] == '1':\n"
            "    if os.path.exists(os.environ['SOONER_CHECKPOINT_DIR'] + '/go'): sys.exit(3)\n"
            "    time.sleep(0.01)\n"
        )
        self.start(house, failing + STUBBORN, gpus=(2,), mode=LaunchMode.GPU)
        (house.data_dir / "checkpoints/1/go").touch()
        house.wait_output("got 15")
        house.stop(warning=None, grace_s=0.1)
        assert house.wait_end().exit_code == 3

    def test_never_warned_otherwise(self, house: House) -> None:
        self.start(house, WARNED)
        house.stop(warning=None)
        assert house.wait_end().exit_code == 9
        assert house.output() == "ready\nterminated\n"

    def test_a_program_that_is_still_starting_is_not_killed_by_the_warning(self, house: House) -> None:
        code = (
            "import os, time\nprint('ready', flush=True)\n"
            "while not os.path.exists(os.environ['SOONER_CHECKPOINT_DIR'] + '/go'): time.sleep(0.01)\n" + WARNED
        )
        self.start(house, code)
        house.stop(warning="SIGUSR1", grace_s=60.0)
        house.stop(warning="SIGUSR1", grace_s=60.0)
        (house.data_dir / "checkpoints/1/go").touch()
        end = house.wait_end()
        assert (end.exit_code, end.stop_signalled) == (75, True)

    def test_a_program_without_a_handler_gets_sigterm_after_the_grace(self, house: House) -> None:
        self.start(house, "import signal; print('ready', flush=True); signal.pause()")
        house.stop(warning="SIGUSR1", grace_s=0.1)
        end = house.wait_end()
        assert (end.exit_code, end.stop_signalled) == (143, True)

    def test_warning_then_term_then_kill(self, house: House) -> None:
        self.start(house, STUBBORN)
        house.stop(warning="SIGUSR1", grace_s=0.7)
        end = house.wait_end()
        assert (end.exit_code, end.stop_signalled) == (137, True)
        assert house.output() == "ready\ngot 10\ngot 15\n"

    def test_a_harder_stop_overtakes_a_soft_one_and_not_the_reverse(self, house: House) -> None:
        self.start(house, STUBBORN.replace("signal.SIGTERM)", "signal.SIGWINCH)"))
        house.stop(warning="SIGUSR1", grace_s=600.0)
        house.wait_output("got 10")
        house.stop(warning=None, grace_s=600.0)
        house.stop(warning="SIGUSR1", grace_s=600.0)
        assert house.wait_end().exit_code == 143
        assert house.output() == "ready\ngot 10\n"

    def test_a_stop_that_comes_too_late_was_not_signalled(self, house: House) -> None:
        house.executor.send([launch(python("raise SystemExit(4)"))])
        wait_for((house.folder() / "exit.json").exists, "the end")
        house.stop()
        end = house.wait_end()
        assert (end.exit_code, end.stop_signalled) == (4, False)

    def test_exit_zero_while_stopping(self, house: House) -> None:
        self.start(house, WARNED.replace("os._exit(9)", "os._exit(0)"))
        house.stop()
        end = house.wait_end()
        assert (end.exit_code, end.stop_signalled) == (0, True)

    def test_sigterm_to_the_supervisor_stops_the_attempt(self, house: House) -> None:
        self.start(house, WARNED, preemption=PreemptionSignal("SIGUSR1", 30.0))
        os.kill(json.loads((house.folder() / "supervisor.json").read_text())["pid"], signal.SIGTERM)
        end = house.wait_end()
        assert (end.kind, end.exit_code, end.stop_signalled) == (ReportKind.EXITED, 75, True)


ESCAPE = (
    "import os, signal, sys\n"
    "reading, writing = os.pipe()\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    if os.fork() == 0:\n"
    "        %s\n"
    "        print('escaped', os.getpid(), flush=True)\n"
    "        os.write(writing, b'!')\n"
    "        while True: signal.sigtimedwait([], 0.05)\n"
    "    os._exit(0)\n"
    "os.read(reading, 1)\n"
)


class TestNothingEscapes:
    @staticmethod
    def escaped(house: House) -> int:
        return int(house.wait_output("escaped").split()[1])

    def test_a_daemon_ends_with_the_main_process(self, house: House) -> None:
        assert house.run(python(ESCAPE % "pass" + "sys.exit(0)")).exit_code == 0
        assert not lives(self.escaped(house))

    @pytest.mark.slow
    def test_one_that_ignores_sigterm_and_has_no_environment_is_killed(self, house: House) -> None:
        deaf = "signal.signal(15, signal.SIG_IGN)"
        house.executor.send([launch(python(ESCAPE % deaf + "signal.pause()"))])
        pid = self.escaped(house)
        assert lives(pid)
        house.stop(grace_s=0.1)
        assert house.wait_end().exit_code == 143
        assert not lives(pid)

    def test_everything_runs_below_the_supervisor(self, house: House) -> None:
        house.executor.send([launch(python(ESCAPE % "pass" + "signal.pause()"))])
        pid = self.escaped(house)
        supervisor = json.loads((house.folder() / "supervisor.json").read_text())["pid"]
        assert pid in {info.id.pid for info in descendants(supervisor)}
        house.stop()
        house.wait_end()


class TestOutput:
    def test_head_and_tail_are_kept(self, house: House) -> None:
        house.new_executor(log_bytes_max=4000)
        house.run(python("for i in range(10000): print(f'{i:09d}')"))
        executor, job = house.executor, JobId(1)
        head = executor.read_logs(job, 1, 0, 1 << 20)
        assert head.size_bytes == 100_000
        assert head.data.decode().splitlines() == [f"{i:09d}" for i in range(200)]
        tail = executor.read_logs(job, 1, head.next_offset, 1 << 20)
        assert tail.cut_bytes > 90_000
        assert tail.offset == head.next_offset + tail.cut_bytes
        rest = tail.data
        while (chunk := executor.read_logs(job, 1, tail.next_offset, 300)).data:
            tail, rest = chunk, rest + chunk.data
        assert rest.decode().endswith("000009998\n000009999\n")
        assert 1000 <= len(rest) <= 2000
        assert sum(path.stat().st_size for path in (house.folder() / "output").iterdir()) <= 4000

    def test_unknown_attempt(self, house: House) -> None:
        with pytest.raises(KeyError):
            house.executor.read_logs(JobId(5), 1)

    def test_a_gang_is_told_apart_line_by_line(self, house: House) -> None:
        code = (
            "import os, sys; r = os.environ['RANK']; print('out', r); print('err', r, file=sys.stderr);"
            "print('no end', end='')"
        )
        house.run(python(code), gpus=(2,), mode=LaunchMode.GPU)
        expected = [f"[{r}] {text}" for r in "01" for text in (f"err {r}", "no end", f"out {r}")]
        assert sorted(house.output().splitlines()) == expected

    def test_a_line_without_end_is_broken(self, house: House) -> None:
        house.run(python("print('x' * 200000, end='', flush=True)"), gpus=(2,), mode=LaunchMode.GPU)
        lines = house.output().splitlines()
        assert len(lines) > 2
        assert sum(line.count("x") for line in lines) == 400000


def test_observed_statuses(house: House) -> None:
    house.executor.send([launch(python("import signal; signal.pause()"))])
    assert house.executor.observed()[AttemptId("1.1")] in (AttemptStatus.PENDING, AttemptStatus.RUNNING)
    house.wait_report(ReportKind.STARTED)
    assert house.executor.observed() == {"1.1": AttemptStatus.RUNNING}
    house.stop()
    assert house.executor.observed() == {"1.1": AttemptStatus.STOPPING}
    end = house.wait_end()
    assert house.executor.observed() == {"1.1": AttemptStatus.ENDED}
    house.executor.acknowledge([end])
    assert house.executor.observed() == {}
