"""Programs that may take so much and no more. They are real processes: Python's own ``timeit`` runs what each test needs."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from service.runtime.limited_process import Closed, LimitedRunner, ResourceLimits
from service.runtime.processes import process_info

AMPLE = ResourceLimits(wall_s=60.0, cpu_s=60.0, memory_bytes=1 << 30)
MIB = 1 << 20


def once(statement: str) -> list[str]:
    """Arguments of ``timeit`` that run a statement once."""
    return ["-n", "1", "-r", "1", statement]


def test_a_program_ends_as_it_ended() -> None:
    runner = LimitedRunner()
    assert runner.run("timeit", once("pass"), AMPLE).code == 0
    failed = runner.run("timeit", once("raise ValueError('odd')"), AMPLE)
    assert (failed.code, failed.last_line, failed.limit) == (1, "ValueError: odd", "")


def test_it_is_nicer_than_whoever_asked_and_has_none_of_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOONER_PORT", "1")
    statement = "import os; raise ValueError(os.nice(0), os.environ.get('SOONER_PORT'), os.environ['OMP_NUM_THREADS'])"
    said = LimitedRunner().run("timeit", once(statement), AMPLE)
    assert said.last_line == f"ValueError: ({min(19, os.nice(0) + 10)}, None, '1')"


def test_memory_above_the_bound_is_refused() -> None:
    ended = LimitedRunner().run("timeit", once(f"bytearray({2048 * MIB})"), AMPLE)
    assert ended.code == 1
    assert ended.limit == "exceeded its memory (retrain_memory_bytes_max)"
    assert not ended.timed_out
    assert LimitedRunner().run("timeit", once(f"bytearray({64 * MIB})"), AMPLE).code == 0


def test_real_time_above_the_bound_ends_it() -> None:
    ended = LimitedRunner().run("timeit", once("while True: pass"), ResourceLimits(0.2, 60.0, AMPLE.memory_bytes))
    assert (ended.code, ended.limit) == (-signal.SIGKILL, "stopped after 0 s (retrain_timeout_s)")
    assert ended.timed_out


@pytest.mark.slow
def test_processor_time_above_the_bound_ends_it() -> None:
    ended = LimitedRunner().run("timeit", once("while True: pass"), ResourceLimits(600.0, 1.0, AMPLE.memory_bytes))
    assert (ended.code, ended.timed_out) == (-signal.SIGXCPU, True)


def test_one_that_somebody_kills_says_so_and_names_no_limit() -> None:
    runner = LimitedRunner()
    pid = runner.start("timeit", once("while True: pass"), AMPLE)
    os.kill(pid, signal.SIGKILL)
    ended = runner.wait(60.0)
    assert (ended.last_line, ended.limit, ended.timed_out) == ("ended by signal 9", "", False)


def test_closing_ends_what_runs_and_nothing_starts_afterwards() -> None:
    runner = LimitedRunner()
    runner.start("timeit", once("while True: pass"), AMPLE)
    threading.Thread(target=runner.close).start()
    with pytest.raises(Closed):
        runner.wait(60.0)
    with pytest.raises(Closed):
        runner.start("timeit", once("pass"), AMPLE)


def test_without_the_one_who_asked_it_does_not_begin() -> None:
    """The parent may die before the child has asked to be told."""
    command = [
        sys.executable,
        "-m",
        "service.runtime.limited_process",
        "1",
        "60",
        str(AMPLE.memory_bytes),
        "timeit",
        *once("pass"),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr.strip()) == (1, "the parent process has ended")


def test_it_dies_with_whoever_asked() -> None:
    script = (
        "from service.runtime.limited_process import *; import sys\n"
        "runner = LimitedRunner()\n"
        "limits = ResourceLimits(60, 60, 1 << 30)\n"
        "print(runner.start('timeit', ['-s', 'print(1, flush=True)', 'while True: pass'], limits), flush=True)\n"
        "runner.wait(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        # Its niceness is set after it has asked for the signal; only then is the story the one that is told here.
        _until(lambda: os.getpriority(os.PRIO_PROCESS, child) >= min(19, os.nice(0) + 10))
        parent.kill()
    _until(lambda: (info := process_info(child)) is None or info.zombie)


def _until(condition: object) -> None:
    assert callable(condition)
    deadline_s = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < deadline_s
        os.sched_yield()
