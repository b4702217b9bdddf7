"""Attempts that are started together: by one process, and each of them as safely as one that is started alone."""

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from policies.model.ids import AttemptId
from policies.model.reasons import Reason
from service.engine.commands import Command, Launch, Stop
from service.engine.events import Report, ReportKind
from service.executors import folder as names
from service.executors import local, starts
from service.executors.launch_plan import build_plan
from service.executors.starter import head_of
from service.executors.starts import TOGETHER_MAX, UNKNOWN, Starter, start
from service.executors.supervision import Supervision
from service.executors.supervisor import EXIT_ERRNO, EXIT_TAKEN
from service.runtime.processes import command_line, process_info
from tests.local_executor import DEADLINE_S, ENDS, House, house, launch, python, wait_for

__all__ = ["house"]

COUNT = "import os; open(os.environ['SOONER_CHECKPOINT_DIR'] + '/runs', 'a').write('run\\n')"
WAIT = "import signal; print('ready', flush=True); signal.pause()"
JOBS = (1, 22, 333_333)
ATTEMPTS = tuple(f"{job}.1" for job in JOBS)


def launches(code: str, **spec: Any) -> list[Launch]:
    """One of each job, whose numbers differ in length."""
    return [launch(python(code), job=job, **spec) for job in JOBS]


def plans_of(house: House, orders: Sequence[Launch]) -> list[dict[str, Any]]:
    """What the supervisors of these launches read."""
    keys, site = house.executor._keys, house.executor._site
    return [build_plan(order, site, keys.identity(order.attempt), 20_000, 0.0) | {"clock_s": None} for order in orders]


def runs(house: House, job: int) -> int:
    """How often a job's program ran."""
    file = house.data_dir / "checkpoints" / str(job) / "runs"
    return len(file.read_text().splitlines()) if file.exists() else 0


def wait_ends(house: House) -> dict[str, Report]:
    """The ends of all attempts, none of which is told twice."""
    found: dict[str, Report] = {}

    def look() -> bool:
        for report in house.poll():
            if report.kind in ENDS:
                assert report.attempt not in found
                found[str(report.attempt)] = report
                house.executor.acknowledge([report])
        return len(found) == len(JOBS)

    wait_for(look, "all ends")
    return found


def pair(house: House, attempt: str) -> tuple[int, int]:
    """The numbers of an attempt's supervisor and of its keeper."""
    record = json.loads((house.folder(attempt) / names.SUPERVISOR).read_text())
    return record["pid"], record["keeper"][0]


def begin(house: House) -> None:
    """Start attempts that wait."""
    house.executor.send(launches(WAIT))
    for attempt in ATTEMPTS:
        house.wait_report(ReportKind.STARTED, attempt=attempt)


@pytest.fixture
def spawned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Gets the number of each process that the executor starts."""
    found: list[int] = []
    real = os.posix_spawn

    def posix_spawn(*given: Any, **options: Any) -> int:
        found.append(real(*given, **options))
        return found[-1]

    monkeypatch.setattr(os, "posix_spawn", posix_spawn)
    return found


def test_launches_in_a_row_cost_the_service_one_process(house: House, spawned: list[int]) -> None:
    house.executor.send(launches(f"{COUNT}; print(os.environ['SOONER_ATTEMPT'])"))
    assert {end.exit_code for end in wait_ends(house).values()} == {0}
    assert len(spawned) == 1
    assert [(runs(house, job), house.output(job)) for job in JOBS] == [(1, f"{attempt}\n") for attempt in ATTEMPTS]


def test_what_is_started_together(house: House) -> None:
    def stop(job: int) -> Stop:
        return Stop(AttemptId(f"{job}.1"), graceful=False)

    row: list[Command] = [launch(("true",), job=job) for job in range(1, TOGETHER_MAX + 2)]
    commands = [*row, stop(1), stop(2), *row[:2], stop(3), row[2]]
    groups = list(local._groups(commands))
    assert [command for group in groups for command in group] == commands
    assert [len(group) for group in groups] == [TOGETHER_MAX, 1, 1, 1, 2, 1, 1]


def test_no_process_is_left_unwaited_for(house: House, spawned: list[int]) -> None:
    house.executor.send(launches("pass"))
    wait_ends(house)
    wait_for(lambda: house.poll() == [] and process_info(spawned[0]) is None, "the end of what started them")
    assert house.executor._starters == []


def test_a_launch_alone_needs_no_process_besides_keeper_and_supervisor(house: House, spawned: list[int]) -> None:
    house.executor.send([launch(python(WAIT))])
    house.wait_report(ReportKind.STARTED)
    assert [pair(house, "1.1")[1]] == spawned


def test_the_keeper_and_the_supervisor_of_each_are_found_by_its_folder(house: House) -> None:
    begin(house)
    for attempt in ATTEMPTS:
        folder, both = house.folder(attempt), pair(house, attempt)
        assert [command_line(pid)[-1] for pid in both] == [str(folder)] * 2
        (folder / names.SUPERVISOR).unlink()
        assert tuple(process.pid for process in Supervision(folder, house.seal(attempt))._find()) == both


def test_a_stop_finds_a_supervisor_whose_record_is_gone_and_that_is_suspended(house: House) -> None:
    begin(house)
    for attempt in ATTEMPTS:
        both = pair(house, attempt)
        (house.folder(attempt) / names.SUPERVISOR).unlink()
        for pid in reversed(both):
            os.kill(pid, signal.SIGSTOP)
        house.stop(attempt)
    assert {end.exit_code for end in wait_ends(house).values()} == {128 + signal.SIGTERM}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root reads the memory of a supervisor")
def test_no_process_of_an_attempt_holds_the_secrets_of_another(house: House) -> None:
    orders = [launch(python(WAIT), job=job, env={"SECRET": f"swordfish-{job}"}) for job in JOBS]
    house.executor.send(orders)
    for job, attempt in zip(JOBS, ATTEMPTS, strict=True):
        house.wait_report(ReportKind.STARTED, attempt=attempt)
        memory = b"".join(memory_of(pair(house, attempt)[0]))
        assert [f"swordfish-{other}".encode() in memory for other in JOBS] == [other == job for other in JOBS]


def memory_of(pid: int) -> Iterator[bytes]:
    """What a process has written into its memory."""
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            place, rights, *_ = line.split()
            if rights.startswith("rw"):
                first, last = (int(end, 16) for end in place.split("-"))
                memory.seek(first)
                yield memory.read(last - first)


def test_the_code_of_each_that_cannot_begin(house: House) -> None:
    plans = plans_of(house, launches(COUNT))
    plans[1]["attempts_dir"] += "/absent"
    (house.folder(ATTEMPTS[2]) / "taken").mkdir(parents=True)
    starter = start(plans)
    wait_for(lambda: not starter.look(), "the end of the process that starts them")
    assert [starter.exit_code(position) for position in range(3)] == [0, EXIT_ERRNO + errno.ENOENT, EXIT_TAKEN]
    assert [runs(house, job) for job in JOBS] == [1, 0, 0]


def test_one_that_cannot_begin_is_told_and_the_others_run(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    def start_badly(plans: Sequence[dict[str, Any]]) -> Starter:
        del plans[1]["attempts_dir"]
        return start(plans)

    monkeypatch.setattr(local, "start", start_badly)
    house.executor.send(launches(COUNT))
    ends = wait_ends(house)
    assert [ends[attempt].kind for attempt in ATTEMPTS] == [
        ReportKind.EXITED,
        ReportKind.LAUNCH_FAILED,
        ReportKind.EXITED,
    ]
    assert "ended with 1 before it began" in ends[ATTEMPTS[1]].detail


@pytest.mark.parametrize("count", [1, len(JOBS)])
def test_why_their_folders_cannot_be_made(house: House, count: int) -> None:
    (house.data_dir / "attempts").rmdir()
    house.executor.send(launches(COUNT)[:count])
    for attempt in ATTEMPTS[:count]:
        end = house.wait_end(attempt)
        assert (end.kind, end.reason) == (ReportKind.LAUNCH_FAILED, Reason.LAUNCH_FAILED)
        assert end.detail == "the folder of the attempt could not be made: No such file or directory"
    (house.data_dir / "attempts").mkdir()


def test_they_outlive_the_process_that_has_started_them(house: House, spawned: list[int]) -> None:
    begin(house)
    os.kill(spawned[0], signal.SIGKILL)
    wait_for(lambda: house.poll() is not None and process_info(spawned[0]) is None, "its end")
    assert set(house.executor.observed().values()) == {"running"}
    for attempt in ATTEMPTS:
        house.stop(attempt)
    assert {end.exit_code for end in wait_ends(house).values()} == {128 + signal.SIGTERM}


def test_what_was_not_begun_when_that_process_was_killed_never_runs(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have forked the keepers of some, which are on their way."""
    held: list[dict[str, Any]] = []

    def start_and_die(plans: Sequence[dict[str, Any]]) -> Starter:
        held.extend(plans)
        codes, told = os.pipe()
        os.close(told)
        return Starter(os.posix_spawn("/bin/false", ["false"], {}), codes)

    monkeypatch.setattr(local, "start", start_and_die)
    house.executor.send(launches(COUNT))
    ends = [house.wait_end(attempt) for attempt in ATTEMPTS]
    assert {(end.kind, end.reason) for end in ends} == {(ReportKind.LAUNCH_FAILED, Reason.LAUNCH_FAILED)}
    assert {end.detail for end in ends} == {"the process that was to start it was killed"}
    late = start(held)
    wait_for(lambda: not late.look(), "the end of all keepers")
    assert [late.exit_code(position) for position in range(3)] == [EXIT_TAKEN] * 3
    assert [runs(house, job) for job in JOBS] == [0, 0, 0]


def test_a_process_that_somebody_else_has_waited_for_says_nothing_of_the_keepers() -> None:
    pid = os.posix_spawn("/bin/false", ["false"], {})
    starter = Starter(pid)
    os.waitpid(pid, 0)
    assert not starter.look()
    assert starter.exit_code(0) == UNKNOWN


def test_it_goes_on_when_it_was_suspended_before_it_had_started_all(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = starts._spawn

    def spawn(*given: Any) -> int:
        pid = real(*given)
        os.kill(pid, signal.SIGSTOP)
        return pid

    monkeypatch.setattr(starts, "_spawn", spawn)
    house.executor.send(launches(COUNT))
    assert {end.exit_code for end in wait_ends(house).values()} == {0}


def test_stopped_at_once(house: House) -> None:
    house.executor.send([*launches(f"{COUNT}\n{WAIT}"), *(Stop(AttemptId(each), graceful=False) for each in ATTEMPTS)])
    assert all(end.stop_signalled for end in wait_ends(house).values())
    assert house.processes() == []
    assert all(runs(house, job) <= 1 for job in JOBS)


def test_a_service_that_comes_back_while_they_start_runs_each_once(house: House, spawned: list[int]) -> None:
    orders = launches(COUNT)
    house.executor.send(orders)
    for _ in range(3):
        house.new_executor().send(orders)
    assert {end.exit_code for end in wait_ends(house).values()} == {0}
    for pid in spawned:
        wait_for(lambda pid=pid: process_info(pid) is None or os.waitpid(pid, os.WNOHANG)[0] == pid, "its end")
    assert [runs(house, job) for job in JOBS] == [1, 1, 1]


DRIVER = """
import os, runpy, sys, types
def refuse(*given):
    raise OSError("no")
program, folder = sys.argv[1:]
sys.argv = [program, "--several", folder]
names = runpy.run_path(program)
from service.executors import starter
starter.name_attempt = refuse
code = names["main"]()
os._exit(code)
"""


def test_where_the_arguments_of_a_process_cannot_be_replaced_each_has_an_interpreter(house: House) -> None:
    documents = [json.dumps(plan).encode() for plan in plans_of(house, launches(f"{COUNT}; print(os.umask(0))"))]
    file = os.memfd_create("plans")
    os.write(file, b"".join((head_of(documents), *documents)))
    arguments = [sys.executable, "-I", "-S", "-c", DRIVER, starts._PROGRAM, str(house.data_dir / "attempts")]
    umask = os.umask(0o027)
    try:
        done = subprocess.run(arguments, stdin=file, capture_output=True, timeout=DEADLINE_S, check=True)
    finally:
        os.umask(umask)
        os.close(file)
    assert sorted(done.stdout.splitlines()) == [b"0 0", b"1 0", b"2 0"]
    assert [(runs(house, job), house.output(job)) for job in JOBS] == [(1, f"{0o027}\n")] * 3
