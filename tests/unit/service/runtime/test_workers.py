"""Runs in worker processes, whether they are forked or started anew."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from service.runtime.workers import Watch, best_method, cores, run_each
from tests.local_executor import wait_for

METHODS = pytest.mark.parametrize("method", ["fork", "spawn"])
_DEADLINE_S = 60.0
_PROGRAM = [sys.executable, "-m", "tests.unit.service.runtime.worker_runs"]
_ROOT = Path(__file__).parents[4]


def told(*arguments: str) -> Any:
    done = subprocess.run([*_PROGRAM, *arguments], capture_output=True, text=True, cwd=_ROOT, timeout=_DEADLINE_S)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


@METHODS
def test_a_run_that_fails_or_is_killed_loses_no_other(method: str) -> None:
    found = told("runs", method)
    assert found["values"] == {str(run): run * run for run in (0, 1, 6, 7, 8, 9)}
    assert found["errors"] == {
        "2": ["ValueError", "two", "a note", "True"],
        "3": ["WorkerLost", "its worker process was killed, probably for lack of memory", "False"],
        "4": ["RuntimeError", "Awkward: ok", "True"],
        "5": ["WorkerLost", "its worker process ended with exit code 7", "False"],
    }
    assert found["began"] == list(range(9, -1, -1)), "in the order of the watch"
    assert not found["here"]
    assert found["workers"] <= 5, "three, and one for each that was lost"


@METHODS
def test_an_exception_of_the_watch_ends_all_runs(method: str) -> None:
    message, parent = told("strict", method)
    assert message == "two"
    assert not psutil.pid_exists(parent)


@METHODS
def test_workers_end_with_a_parent_that_was_killed(method: str, tmp_path: Path) -> None:
    command = [*_PROGRAM, "wait", method, str(tmp_path)]
    with subprocess.Popen(command, cwd=_ROOT, start_new_session=True) as running:
        workers = wait_for(lambda: _two(tmp_path), "two workers", _DEADLINE_S)
        assert all(psutil.pid_exists(worker) for worker in workers)
        running.kill()
    wait_for(lambda: not any(_alive(worker) for worker in workers) or None, "the end of the workers", _DEADLINE_S)


def _two(folder: Path) -> list[int] | None:
    found = [int(each.name) for each in folder.iterdir()]
    return found if len(found) == 2 else None


def _alive(number: int) -> bool:
    try:
        return psutil.Process(number).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_process_with_threads_is_not_forked() -> None:
    assert told("best", "") == ("fork" if sys.platform == "linux" else "spawn")
    ready, done = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: (ready.set(), done.wait()))
    thread.start()
    try:
        assert ready.wait(_DEADLINE_S)
        assert best_method() == "spawn"
    finally:
        done.set()
        thread.join()


def test_one_worker_is_this_process() -> None:
    where: list[int] = []
    shares: list[tuple[int, float]] = []

    def task(run: int, note: Callable[[float], None]) -> int:
        note(0.5)
        return os.getpid()

    class Here(Watch[int]):
        def moved(self, run: int, share: float) -> None:
            shares.append((run, share))

        def ended(self, run: int, value: int) -> None:
            where.append(value)

    run_each(task, [4, 7], 1, Here())
    assert where == [os.getpid()] * 2
    assert shares == [(4, 0.5), (7, 0.5)]


def test_sigterm_is_handled_as_before_afterwards() -> None:
    before = signal.getsignal(signal.SIGTERM)

    def task(run: int, note: Callable[[float], None]) -> int:
        return run

    with pytest.raises(AttributeError, match="pickle"):
        run_each(task, [1, 2], 2, Watch(), "spawn")
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, 99),
        ({"": "max 100000", "a/b": "max 100000"}, 99),
        ({"a": "150000 100000"}, 2),
        ({"a": "300000 100000", "a/b": "50000 100000"}, 1),
        ({"": "300000 100000", "a/b": "700000 100000", "a/other": "1000 100000"}, 3),
    ],
)
def test_cores_are_limited_by_the_control_groups_above(
    limits: dict[str, str], expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(99)))
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    proc.mkdir()
    (proc / "cgroup").write_text("12:cpu:/elsewhere\n0::/a/b\n")
    (groups / "a" / "b").mkdir(parents=True)
    (groups / "a" / "other").mkdir()
    for folder, text in limits.items():
        (groups / folder / "cpu.max").write_text(text + "\n")
    assert cores(proc, groups) == expected
    assert cores(tmp_path / "none", groups) == 99
