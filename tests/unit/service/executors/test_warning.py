"""Warnings of a stop as real processes get them: launchers, workers, data loaders, late ones, and what is recorded."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.engine.events import ReportKind, Warned
from service.executors import folder as names
from service.executors.seal import Seal
from service.executors.warning import Warner
from service.runtime.processes import ProcessId, catches, children, process_info
from tests.local_executor import House, house, launch, python, wait_for

__all__ = ["house"]

# Each waits in small steps: a handler in Python that is due a moment before a pause would run only after it.
PARTS = """
import os, signal, sys, time
def say(text): os.write(1, text.encode() + b"\\n")
def handle(name, leave=True):
    def warned(*_):
        say(name + " warned")
        if leave: os._exit(75)
    signal.signal(signal.SIGUSR1, warned)
def live():
    while True: time.sleep(0.02)
def child(run):
    number = os.fork()
    if number == 0:
        try: run()
        finally: os._exit(1)
    return number
def go(): return os.path.exists(os.environ["SOONER_CHECKPOINT_DIR"] + "/go")
def wait_for_go():
    while not go(): time.sleep(0.01)
def worker(name):
    handle(name); say(name + " ready"); live()
"""


class TestWhoIsWarned:
    @staticmethod
    def start(house: House, code: str, ready: int) -> None:
        house.executor.send([launch(python(PARTS + code))])
        wait_for(lambda: (house.poll(), house.output().count("ready"))[1] == ready, f"{ready} ready processes")

    @staticmethod
    def stop(house: House, grace_s: float = 600.0) -> None:
        house.stop(warning="SIGUSR1", grace_s=grace_s)

    def recorded(self, house: House) -> Any:
        wait_for(house.has_ended, "the record of the end")
        return json.loads((house.folder() / names.EXIT).read_text())["warning"]

    def test_workers_below_a_launcher_that_has_no_handler(self, house: House) -> None:
        launcher = (
            "workers = [child(lambda: worker('first')), child(lambda: worker('second'))]\n"
            "codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in workers]\n"
            "say(f'codes {codes}'); sys.exit(1)"
        )
        self.start(house, launcher, 2)
        self.stop(house)
        assert self.recorded(house) == "delivered"
        end = house.wait_end()
        assert (end.exit_code, end.stop_signalled, end.warning) == (1, True, Warned.DELIVERED)
        assert sorted(house.output().splitlines()[2:]) == ["codes [75, 75]", "first warned", "second warned"]

    def test_a_launcher_below_a_launcher(self, house: House) -> None:
        self.start(
            house,
            "def inner(): child(lambda: worker('deep')); os.wait(); os._exit(1)\nchild(inner); os.wait(); sys.exit(1)",
            1,
        )
        self.stop(house)
        assert house.wait_end().exit_code == 1
        assert house.output() == "deep ready\ndeep warned\n"

    def test_data_loaders_that_inherited_the_handler_are_not_warned(self, house: House) -> None:
        """Neither at once nor as long as their parent goes on."""
        code = (
            "def train():\n"
            "    handle('someone', leave=False)\n"
            "    for _ in range(2): child(lambda: (say('loader ready'), live()))\n"
            "    say('worker ready'); live()\n"
            "child(train); os.wait(); sys.exit(1)"
        )
        self.start(house, code, 3)
        self.stop(house, grace_s=2.0)
        assert self.recorded(house) == "delivered"
        assert house.output().count("warned") == 1

    def test_what_has_no_handler_lives_on(self, house: House) -> None:
        """Neither the launcher nor a data loader dies of the signal: the launcher sees how each of them ends."""
        code = (
            "loader = child(lambda: (say('loader ready'), live()))\n"
            "trainer = child(lambda: worker('worker'))\n"
            "os.waitpid(trainer, 0)\n"
            "say('alone'); wait_for_go()\n"
            "say(f'loader {os.waitpid(loader, os.WNOHANG)}'); sys.exit(0)"
        )
        self.start(house, code, 2)
        self.stop(house)
        house.wait_output("alone")
        (house.data_dir / "checkpoints/1/go").touch()
        house.wait_end()
        assert house.output().splitlines()[-2:] == ["alone", "loader (0, 0)"]

    def test_a_handler_that_comes_late_and_a_process_that_comes_late(self, house: House) -> None:
        code = (
            "def late(): say('late ready'); wait_for_go(); worker('late')\n"
            "first, second = child(lambda: worker('prompt')), child(late)\n"
            "os.waitpid(first, 0); wait_for_go()\n"
            "third = child(lambda: worker('new'))\n"
            "os.waitpid(second, 0); os.waitpid(third, 0); sys.exit(75)"
        )
        self.start(house, code, 2)
        self.stop(house)
        house.wait_output("prompt warned")
        (house.data_dir / "checkpoints/1/go").touch()
        assert house.wait_end().exit_code == 75
        assert sorted(line for line in house.output().splitlines() if "warned" in line) == [
            "late warned",
            "new warned",
            "prompt warned",
        ]

    def test_each_process_once(self, house: House) -> None:
        code = "child(lambda: (handle('worker', leave=False), say('worker ready'), live())); os.wait()"
        self.start(house, code, 1)
        self.stop(house, grace_s=2.0)
        assert house.wait_end().exit_code == 143
        assert house.output() == "worker ready\nworker warned\n"

    def test_a_program_without_a_handler_got_no_warning(self, house: House) -> None:
        self.start(house, "child(lambda: (say('ready'), live())); live()", 1)
        self.stop(house, grace_s=0.1)
        assert self.recorded(house) == "not_delivered"
        assert house.wait_end().warning is Warned.NOT_DELIVERED

    def test_a_stop_without_a_warning_records_none(self, house: House) -> None:
        self.start(house, "worker('main')", 1)
        house.stop(warning=None)
        assert self.recorded(house) is None
        end = house.wait_end()
        assert (end.kind, end.warning) == (ReportKind.EXITED, None)


# A tree of processes is written as (has a handler, children). Each process has exactly the handlers that are asked for.
TREE = """
import json, os, signal, sys, time
count = [0]
def grow(node):
    number, catches, below = node
    signal.signal(signal.SIGUSR1, (lambda *_: os.write(1, b"%d\\n" % number)) if catches else signal.SIG_DFL)
    for each in below:
        if os.fork() == 0:
            grow(each)
    os.write(1, b"ready\\n")
    while True: time.sleep(0.02)
grow(json.loads(sys.argv[1]))
"""

Tree = tuple[bool, list[Any]]
trees = st.recursive(
    st.tuples(st.booleans(), st.just([])),
    lambda below: st.tuples(st.booleans(), st.lists(below, min_size=1, max_size=3)),
    max_leaves=4,
)


def numbered(tree: Tree, numbers: Iterator[int]) -> list[Any]:
    """The tree with a number in each process."""
    return [next(numbers), tree[0], [numbered(each, numbers) for each in tree[1]]]


def topmost(tree: list[Any]) -> set[int]:
    """The processes that should be warned."""
    number, catching, below = tree
    return {number} if catching else {found for each in below for found in topmost(each)}


def size(tree: list[Any]) -> int:
    """Processes of a tree."""
    return 1 + sum(size(each) for each in tree[2])


@contextmanager
def grown(tree: list[Any]) -> Iterator[tuple[subprocess.Popen[bytes], Iterator[bytes]]]:
    """A tree of running processes, and what they write."""
    command = [sys.executable, "-I", "-S", "-c", TREE, json.dumps(tree)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, b"")
        try:
            for _ in range(size(tree)):
                assert next(lines) == b"ready\n"
            yield process, lines
        finally:
            # The group of this process alone: it leads a session of its own.
            os.killpg(process.pid, signal.SIGKILL)


def identity(pid: int) -> ProcessId:
    """The identity of a running process."""
    info = process_info(pid)
    assert info is not None
    return info.id


@given(tree=trees)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_exactly_the_topmost_processes_with_a_handler_are_warned(tree: Tree) -> None:
    order: list[str] = []
    whole = numbered(tree, iter(range(100)))
    wanted = topmost(whole)
    with grown(whole) as (process, lines):
        warner = Warner(signal.SIGUSR1, lambda: order.append("marked"))
        warner.look([identity(process.pid)])
        assert {int(next(lines)) for _ in wanted} == wanted
        assert warner.outcome == ("delivered" if wanted else "not_delivered")
        assert order == ["marked"] * bool(wanted)
        wait_for(lambda: warner.pause_s == 0.0, "the next look")
        assert process.poll() is None
        assert len(running(process.pid)) == size(whole), "no process has died of the signal"


def running(root: int) -> list[int]:
    """The processes of a tree, found by their parents."""
    return [root, *(found for child in children(root) for found in running(child))]


def test_no_look_before_it_is_due_and_none_without_a_process() -> None:
    warner = Warner(signal.SIGUSR1, lambda: None)
    warner.look([])
    assert warner.outcome is None
    with grown([0, False, []]) as (process, _):
        rank = identity(process.pid)
        fresh = Warner(signal.SIGUSR1, lambda: None)
        fresh.look([rank])
        assert 0.0 < fresh.pause_s <= 0.05
        assert not catches(rank.pid, signal.SIGUSR1)
        assert fresh.outcome == "not_delivered"


class TestRecord:
    SEAL = Seal("key")

    def read(self, folder: Any, **changes: Any) -> Any:
        record = names.end_record("exited", 3.0, exit_code=75, stop_signalled=True, warning="delivered") | changes
        (folder / names.EXIT).write_text(json.dumps(self.SEAL.sealed(names.EXIT, record)))
        return names.read_end(folder, self.SEAL)

    def test_it_says_whether_the_warning_was_delivered(self, tmp_path: Any) -> None:
        assert self.read(tmp_path)["warning"] == "delivered"
        assert self.read(tmp_path, warning=None)["warning"] is None

    @pytest.mark.parametrize("wrong", ["yes", 1, ["delivered"]])
    def test_anything_else_is_no_record(self, tmp_path: Any, wrong: object) -> None:
        assert self.read(tmp_path, warning=wrong) is None

    def test_a_record_of_release_0_1_counts(self, tmp_path: Any) -> None:
        record = names.end_record("exited", 3.0, exit_code=0)
        del record["warning"]
        (tmp_path / names.EXIT).write_text(json.dumps(self.SEAL.sealed(names.EXIT, record)))
        assert names.read_end(tmp_path, self.SEAL) is not None
