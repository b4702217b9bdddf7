"""The check of the servers through an engine: real check programs on this machine."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from service.engine.events import ReportKind
from service.executors.cluster import checks as module
from service.executors.cluster.checks import NodeChecks
from service.executors.cluster.driver import EngineEnd, EngineJobState, NodeState
from service.executors.cluster.runtime import CHECKS, check_program, install_runtime
from tests.cluster_engine import NODES, ProcessEngine
from tests.cluster_house import process_house
from tests.faulty_driver import Fault, Faults, FaultyDriver
from tests.local_executor import launch, python, wait_for


@pytest.fixture
def engine() -> Iterator[ProcessEngine]:
    made = ProcessEngine()
    yield made
    made.close()


class Checked:
    """Checks over an engine, with a clock that tests set. The servers see the shared folder under ``mounted``."""

    def __init__(self, folder: Path, engine: ProcessEngine) -> None:
        self.folder = folder / "shared"
        self.folder.mkdir()
        self.mounted = folder / "mounted"
        self.mounted.symlink_to(self.folder)
        self.faults = Faults()
        self.driver = FaultyDriver(engine.driver(), self.faults)
        self.now_s = 0.0
        program = partial(check_program, sys.executable, self.mounted, install_runtime(self.folder))
        self.checks = NodeChecks(self.driver, self.folder, program, lambda: self.now_s)
        self.look()

    def look(self) -> dict[str, tuple[NodeState, str]]:
        """The servers as the service sees them."""
        nodes = self.checks.overlaid(self.driver.nodes())
        return {node.server.name: (node.state, node.detail) for node in nodes}

    def unchecked(self) -> set[str]:
        """The servers that count as down because they were not checked."""
        return {name for name, seen in self.look().items() if seen == (NodeState.DOWN, "not checked yet")}

    def restart(self) -> None:
        """Another service checks the servers, from the same folder."""
        self.checks = NodeChecks(self.driver, self.folder, self.checks._program, lambda: self.now_s)

    def drained(self) -> dict[str, str]:
        """The reasons of the drained servers."""
        return {name: detail for name, (state, detail) in self.look().items() if state is NodeState.DRAINED}

    def finish(self) -> None:
        """Step until no check runs."""

        def over() -> bool:
            self.now_s += 1.0
            self.checks.step()
            return not self.checks._waiting

        wait_for(over, "the checks")


@pytest.fixture
def checked(tmp_path: Path, engine: ProcessEngine) -> Checked:
    return Checked(tmp_path, engine)


def submitted(engine: ProcessEngine) -> list[str]:
    """The servers of all checks, in order."""
    return [job.servers[0] for job in engine.jobs() if job.attempt.startswith("0.")]


def test_each_server_once(checked: Checked, engine: ProcessEngine) -> None:
    checked.checks.step()
    assert sorted(submitted(engine)) == sorted(NODES)
    checked.finish()
    assert checked.drained() == {}
    assert list((checked.folder / CHECKS).iterdir()) == []
    checked.now_s += 1000.0
    checked.finish()
    assert len(submitted(engine)) == len(NODES)


def test_a_server_is_down_until_it_has_passed_a_check_once(checked: Checked, engine: ProcessEngine) -> None:
    engine.nodes["node2"] = NodeState.DRAINED
    assert checked.unchecked() == {"node1", "node3", "node4"}
    checked.finish()
    assert checked.unchecked() == set()
    engine.nodes["node2"] = NodeState.UP
    assert checked.unchecked() == {"node2"}
    checked.restart()
    assert checked.unchecked() == {"node2"}, "what an earlier service has found still holds"
    checked.finish()
    assert checked.unchecked() == set()
    assert submitted(engine).count("node1") == 2, "it is checked again all the same"


def test_a_server_with_a_problem_is_down_for_the_next_service(checked: Checked, engine: ProcessEngine) -> None:
    checked.finish()
    checked.mounted.unlink()
    checked.restart()
    checked.look()
    checked.finish()
    checked.restart()
    assert checked.unchecked() == set(NODES)


def test_a_folder_that_is_not_mounted_drains_until_it_is(checked: Checked, engine: ProcessEngine) -> None:
    checked.mounted.unlink()
    checked.finish()
    found = checked.drained()
    assert set(found) == set(NODES)
    assert found["node1"].startswith(
        "the check of the server left no answer in the shared folder: a program ended with"
    )
    checked.finish()
    assert len(submitted(engine)) == len(NODES)
    checked.mounted.symlink_to(checked.folder)
    checked.now_s += 100.0
    checked.finish()
    assert checked.drained() == {}
    assert list((checked.folder / CHECKS).iterdir()) == []


def test_a_check_that_runs_out_of_memory_drains_its_server(
    checked: Checked, engine: ProcessEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checked.checks, "_program", lambda check: (sys.executable, "-c", "raise SystemExit(137)"))
    engine_jobs = checked.driver.jobs
    killed = EngineEnd.OUT_OF_MEMORY
    monkeypatch.setattr(checked.driver, "jobs", lambda: [replace(job, end=job.end and killed) for job in engine_jobs()])
    checked.finish()
    assert set(checked.drained()) == set(NODES)


def test_one_server_with_another_folder(checked: Checked, engine: ProcessEngine) -> None:
    real = checked.checks._program

    def elsewhere(check: module.Check) -> tuple[str, ...]:
        arguments = real(check)
        (Path(arguments[-1]) / "nonce").write_text("another")
        return arguments

    checked.checks._program = elsewhere
    engine.nodes = {"node1": NodeState.UP}
    checked.look()
    checked.finish()
    assert checked.drained()["node1"].endswith("is another folder than that of the service")


def test_a_server_that_is_down_is_checked_when_it_is_up(checked: Checked, engine: ProcessEngine) -> None:
    engine.nodes["node2"] = NodeState.DOWN
    checked.look()
    checked.finish()
    assert "node2" not in submitted(engine)
    engine.nodes["node2"] = NodeState.UP
    checked.look()
    checked.finish()
    assert submitted(engine).count("node2") == 1


def test_a_check_that_the_engine_never_starts_keeps_no_jobs_away(
    checked: Checked, engine: ProcessEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.nodes = dict.fromkeys(NODES, NodeState.DRAINED)  # the checks wait in the engine
    checked.checks.step()
    engine_jobs = checked.driver.jobs
    monkeypatch.setattr(checked.driver, "jobs", lambda: [replace(job, stuck="no such QOS") for job in engine_jobs()])
    checked.now_s += 14.9
    checked.checks.step()
    assert {job.state for job in engine.jobs()} == {EngineJobState.PENDING}
    checked.now_s += 1.1
    checked.checks.step()
    assert {job.state for job in engine.jobs()} == {EngineJobState.ENDED}
    engine.nodes = dict.fromkeys(NODES, NodeState.UP)
    assert (checked.drained(), checked.unchecked()) == ({}, set())


@pytest.mark.parametrize("fault", [Fault.TIMES_OUT, Fault.ANSWER_LOST, Fault.REFUSED])
def test_an_engine_that_does_not_take_a_check(checked: Checked, engine: ProcessEngine, fault: Fault) -> None:
    checked.faults.next("submit", fault)
    checked.finish()
    assert checked.drained() == {}
    assert ("node1" in checked.unchecked()) is (fault is not Fault.REFUSED), "what is refused cannot be checked at all"
    checked.now_s += 100.0
    checked.finish()
    assert checked.unchecked() == set()
    assert set(submitted(engine)) == set(NODES)
    assert checked.drained() == {}


def test_a_check_that_the_engine_ends_says_nothing(checked: Checked, engine: ProcessEngine) -> None:
    engine.nodes = dict.fromkeys(NODES, NodeState.DRAINED)  # the checks wait in the engine
    checked.checks.step()
    for job in engine.jobs():
        engine.cancel([job.id])
    checked.finish()
    assert all(state is NodeState.DRAINED and "is drained" in why for state, why in checked.look().values())


def test_a_check_that_one_answer_of_the_engine_left_out_goes_on(
    checked: Checked, engine: ProcessEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.nodes = dict.fromkeys(NODES, NodeState.DRAINED)  # the checks wait in the engine
    with monkeypatch.context() as once:
        once.setattr(checked.driver, "jobs", list)
        checked.checks.step()
    checked.now_s += 10.0
    checked.checks.step()
    assert all(checked.checks.owns(job.attempt) for job in engine.jobs())
    engine.nodes = dict.fromkeys(NODES, NodeState.UP)
    checked.finish()
    assert sorted(submitted(engine)) == sorted(NODES)


def test_a_busy_server_is_not_waited_for_for_ever(checked: Checked, engine: ProcessEngine) -> None:
    engine.nodes = dict.fromkeys(NODES, NodeState.DRAINED)
    checked.checks.step()
    assert len(engine.jobs()) == len(NODES)
    assert all(checked.checks.owns(job.attempt) for job in engine.jobs())
    checked.now_s += 1000.0
    checked.finish()
    assert all(job.end is not None and job.end.value == "cancelled" for job in engine.jobs())


def test_a_check_that_hangs_drains_its_server_and_is_cancelled(
    checked: Checked, engine: ProcessEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = (sys.executable, "-c", "import signal; signal.pause()")
    with monkeypatch.context() as once:
        once.setattr(checked.checks, "_program", lambda check: hangs)
        checked.checks.step()
    checked.now_s += 119.0
    checked.checks.step()
    assert checked.unchecked() == set(NODES), "it may still end"
    checked.now_s += 2.0
    checked.checks.step()
    assert checked.drained() == dict.fromkeys(NODES, "the check of the server did not end within 120 s")
    wait_for(lambda: {job.state for job in engine.jobs()} == {EngineJobState.ENDED}, "the checks to be cancelled")
    checked.now_s += 100.0
    checked.finish()
    assert (checked.drained(), checked.unchecked()) == ({}, set()), "a later check passes"


def test_the_time_of_a_check_begins_when_it_runs(checked: Checked, engine: ProcessEngine) -> None:
    engine.nodes = dict.fromkeys(NODES, NodeState.DRAINED)
    checked.checks.step()
    checked.now_s += 300.0
    checked.checks.step()
    engine.nodes = dict.fromkeys(NODES, NodeState.UP)
    checked.finish()
    assert (checked.drained(), checked.unchecked()) == ({}, set())


def test_what_another_user_writes_into_the_folder_of_a_check_is_no_answer(
    checked: Checked, engine: ProcessEngine
) -> None:
    engine.nodes = dict.fromkeys(NODES, NodeState.DRAINED)  # the checks wait in the engine
    checked.checks.step()
    (folder,) = (checked.folder / CHECKS).iterdir()
    (folder / "node1.json").write_text('{"problems": ["forged"]}')
    (folder / "node2.json").write_text('{"problems": []}')
    checked.checks.step()
    engine.nodes = dict.fromkeys(NODES, NodeState.UP)
    assert (checked.drained(), checked.unchecked()) == ({}, set(NODES))
    checked.finish()
    assert (checked.drained(), checked.unchecked()) == ({}, set())


def test_the_executor_reports_a_server_with_a_problem(tmp_path: Path, engine: ProcessEngine) -> None:
    folder, mounted = tmp_path / "shared", tmp_path / "mounted"
    house = process_house(folder, engine, checks_servers=True, shared_dir_on_nodes=mounted)
    try:
        report = house.wait_report(ReportKind.SERVER_DRAINED, attempt=None)
        assert report.detail.startswith("the check of the server left no answer")
        mounted.symlink_to(folder)
        # A restarted service checks all servers again, and runs jobs as ever.
        former = set((folder / CHECKS).iterdir())
        house.restart()
        house.executor.send([launch(python("print('ran')"))])
        assert house.wait_end().exit_code == 0
        wait_for(lambda: set((folder / CHECKS).iterdir()) == former, "the checks to end")
    finally:
        house.close()


def test_a_full_server_that_was_never_checked_is_up_while_an_attempt_runs_on_it(
    tmp_path: Path, engine: ProcessEngine
) -> None:
    house = process_house(tmp_path / "shared", engine)
    try:
        waits = "import signal\nwhile True: signal.sigtimedwait([], 0.05)"
        house.executor.send([launch(python(waits), gpus=(4,))])
        house.wait_started()
        house.restart(checks_servers=True)
        house.until(lambda: not any(server.down for server in house.executor.find_servers()), "all servers to be up")
        assert EngineJobState.RUNNING in engine.states("1.1")
        assert not (house.folder / module.CHECKED / "node1").exists(), "its check waits for a GPU"
    finally:
        house.close()


def test_the_executor_takes_servers_as_up_as_soon_as_they_are_checked(
    tmp_path: Path, engine: ProcessEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_IDLE_S", 3600.0)
    house = process_house(tmp_path / "shared", engine, checks_servers=True, poll_s=3600.0)
    try:
        assert {(server.down, server.detail) for server in house.executor.find_servers()} == {(True, "not checked yet")}
        for server in range(len(NODES)):
            house.until(
                lambda server=server: (ReportKind.SERVER_UP, server) in {(r.kind, r.server) for r in house.reports},
                "it to be up, without another poll of the engine",
            )
    finally:
        house.close()
