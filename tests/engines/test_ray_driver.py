"""The Ray driver on a real Ray cluster: faults of nodes, actors, the head and the client."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from policies.model.ids import AttemptId
from service.executors.cluster import ray
from service.executors.cluster.driver import (
    EngineEnd,
    EngineJob,
    EngineJobState,
    EngineNode,
    EngineRefused,
    EngineUnavailable,
    NodeLaunch,
    NodeShare,
    NodeState,
)
from service.executors.cluster.ray import RayDriver
from tests.conformance.driver_suite import DriverContract
from tests.engines.ray_cluster import GPUS, RayBench, RayCluster, wait_until

_PROGRAM = """
import json, os, pathlib, signal, subprocess, sys, time
folder = pathlib.Path(sys.argv[1])
asked = json.load(sys.stdin)
node = os.environ["SOONER_NODE"]
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
if asked.get("polite"):
    signal.signal(signal.SIGTERM, lambda *_: (child.kill(), sys.exit(0)))
names = ("SOONER_NODE", "SOONER_LAUNCH", "CUDA_VISIBLE_DEVICES")
found = {name: os.environ[name] for name in names}
found |= {"pid": os.getpid(), "child": child.pid, "secrets": [name for name in os.environ if name.startswith("RAY_")]}
draft = folder / f"draft-{node}-{os.getpid()}"
draft.write_text(json.dumps(found))
draft.rename(folder / f"ran-{node}-{os.getpid()}.json")
while not (folder / "finish").exists():
    time.sleep(0.05)
child.kill()
sys.stderr.write(asked.get("says", ""))
sys.exit(asked.get("code", {}).get(node, 0))
"""


class Runs:
    """Submits the program of these tests, and reads what it wrote."""

    def __init__(self, driver: RayDriver, folder: Path) -> None:
        self.driver = driver
        self.folder = folder
        self.program = ("/usr/bin/env", "python3", "-c", _PROGRAM, str(folder))

    def launch(self, attempt: str, *shares: tuple[str, int], **asked: object) -> NodeLaunch:
        """A launch of an attempt on servers with so many GPUs each."""
        wanted = tuple(NodeShare(server, gpus) for server, gpus in shares)
        return NodeLaunch(AttemptId(attempt), wanted, self.program, json.dumps(asked).encode())

    def wait(self, attempt: str, condition: Callable[[EngineJob], bool], what: str) -> EngineJob:
        """Wait until the submission meets a condition."""
        found: list[EngineJob] = []

        def met() -> bool:
            with suppress(EngineUnavailable):
                found[:] = [job for job in self.driver.jobs() if job.attempt == attempt]
            return bool(found) and condition(found[0])

        wait_until(met, f"{attempt} {what}")
        return found[0]

    def wait_ended(self, attempt: str) -> EngineJob:
        """Wait until the submission has ended."""
        return self.wait(attempt, lambda job: job.state is EngineJobState.ENDED, "has ended")

    def wait_ran(self, count: int) -> list[dict[str, object]]:
        """Wait until so many programs run. Returns what each wrote, in the order of the servers."""
        wait_until(lambda: len(list(self.folder.glob("ran-*.json"))) >= count, f"{count} programs run")
        return [json.loads(path.read_text()) for path in sorted(self.folder.glob("ran-*.json"))]

    def finish(self) -> None:
        """Let all programs end by themselves."""
        (self.folder / "finish").touch()

    def node(self, name: str) -> EngineNode:
        """The server as Ray has it now."""
        return next(node for node in self.driver.nodes() if node.server.name == name)

    def wait_state(self, name: str, state: NodeState) -> None:
        """Wait until a server is in a state."""

        def met() -> bool:
            with suppress(EngineUnavailable, StopIteration):
                return self.node(name).state is state
            return False

        wait_until(met, f"{name} is {state}")


def _lives(pid: object) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def bench(ray_cluster: RayCluster, tmp_path: Path) -> Iterator[RayBench]:
    bench = RayBench(ray_cluster, tmp_path)
    yield bench
    bench.close()


class TestRayDriver(DriverContract):
    """The contract of all drivers."""


@pytest.fixture
def runs(bench: RayBench) -> Iterator[Runs]:
    runs = Runs(bench.driver, bench.folder)
    yield runs
    runs.finish()


def test_a_submission_runs_once_on_each_of_its_servers_with_the_gpus_that_ray_gives(runs: Runs) -> None:
    identity = runs.driver.submit(runs.launch("gang", ("node2", 1), ("node1", 3)))
    running = runs.wait("gang", lambda job: len(job.gpu_ids) == 2, "runs on both servers")
    first, second = runs.wait_ran(2)
    assert running.id == identity
    assert running.state is EngineJobState.RUNNING
    assert running.servers == ("node2", "node1")
    assert (first["SOONER_NODE"], second["SOONER_NODE"]) == ("node1", "node2")
    assert first["SOONER_LAUNCH"] == second["SOONER_LAUNCH"]
    assert first["CUDA_VISIBLE_DEVICES"] == ",".join(map(str, running.gpu_ids["node1"]))
    assert [len(running.gpu_ids["node1"]), len(running.gpu_ids["node2"])] == [3, 1]
    assert first["secrets"] == second["secrets"] == []
    runs.finish()
    ended = runs.wait_ended("gang")
    assert (ended.end, ended.detail, ended.gpu_ids) == (EngineEnd.COMPLETED, "", running.gpu_ids)
    assert not any(_lives(run[key]) for run in (first, second) for key in ("pid", "child"))


def test_a_repeated_submission_starts_nothing_twice(runs: Runs, bench: RayBench) -> None:
    other = bench.another_driver()
    try:
        launch = runs.launch("once", ("node1", 1))
        identities = {runs.driver.submit(launch), other.submit(launch), runs.driver.submit(launch)}
        runs.wait_ran(1)
        runs.finish()
        runs.wait_ended("once")
        identities.add(other.submit(launch))
        assert [job.end for job in other.jobs() if job.attempt == "once"] == [EngineEnd.COMPLETED]
    finally:
        other.close()
    assert len(identities) == 1
    assert len(list(runs.folder.glob("ran-*.json"))) == 1


def test_cancelling_frees_the_gpus_only_when_all_processes_are_gone(runs: Runs) -> None:
    runs.driver.submit(runs.launch("rude", ("node1", 2), ("node2", 2)))
    ran = runs.wait_ran(2)
    held = int(str(ran[0]["child"]))
    runs.driver.cancel(["rude"])
    ended = runs.wait_ended("rude")
    assert not _lives(held)
    assert not any(_lives(run[key]) for run in ran for key in ("pid", "child"))
    assert (ended.end, ended.failed_servers) == (EngineEnd.CANCELLED, ())


def test_a_program_that_fails_on_one_server_ends_those_on_the_others(runs: Runs) -> None:
    runs.driver.submit(runs.launch("fails", ("node1", 1), code={"node1": 5}, says="no shared folder"))
    runs.driver.submit(runs.launch("pair", ("node1", 1), ("node2", 1), polite=True))
    ran = runs.wait_ran(3)
    pair = next(
        run for run in ran if run["SOONER_NODE"] == "node1" and run["SOONER_LAUNCH"] == ran[-1]["SOONER_LAUNCH"]
    )
    os.kill(int(str(pair["pid"])), signal.SIGKILL)
    ended = runs.wait_ended("pair")
    assert ended.end is EngineEnd.COMPLETED
    assert "node1: exit code -9" in ended.detail
    assert not any(_lives(run["pid"]) for run in ran if run["SOONER_LAUNCH"] == pair["SOONER_LAUNCH"])
    assert not _lives(pair["child"])
    runs.finish()
    assert runs.wait_ended("fails").detail == "node1: exit code 5: no shared folder"


def test_a_program_that_is_not_there_is_named(runs: Runs) -> None:
    runs.driver.submit(NodeLaunch(AttemptId("absent"), (NodeShare("node1", 1),), ("/no/such/python",), b"{}"))
    ended = runs.wait_ended("absent")
    assert (ended.end, ended.detail) == (EngineEnd.NOT_STARTED, "node1: program /no/such/python not found")


@pytest.mark.parametrize(
    ("share", "message"),
    [
        (("node9", 1), "server node9: no node of Ray with GPUs has the label sooner/node=node9"),
        (("node1", 5), "server node1: 5 GPUs wanted, it has 4"),
    ],
)
def test_what_can_never_start_is_refused(runs: Runs, share: tuple[str, int], message: str) -> None:
    with pytest.raises(EngineRefused, match=message):
        runs.driver.submit(runs.launch("never", share))
    assert "never" not in [job.attempt for job in runs.driver.jobs()]


def test_an_actor_killed_behind_our_back_is_a_failure_and_its_program_ends(runs: Runs) -> None:
    runs.driver.submit(runs.launch("orphan", ("node1", 1), ("node2", 1), polite=True))
    ran = runs.wait_ran(2)
    worker = int(Path(f"/proc/{ran[0]['pid']}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(worker, signal.SIGKILL)
    ended = runs.wait_ended("orphan")
    assert (ended.end, ended.failed_servers) == (EngineEnd.NODE_FAILED, ())
    assert ended.detail.startswith("node1: ")
    wait_until(lambda: not any(_lives(run["pid"]) for run in ran), "the programs have ended")


@pytest.mark.parametrize("harm", [signal.SIGKILL, signal.SIGSTOP])
def test_a_client_that_is_killed_or_hangs_is_replaced(runs: Runs, harm: int, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = f"survives-{harm}"
    runs.driver.submit(runs.launch(attempt, ("node1", 1)))
    runs.wait_ran(1)
    os.kill(_client(runs.driver), harm)
    if harm == signal.SIGSTOP:
        with monkeypatch.context() as patch:
            patch.setattr(ray, "CALL_S", 0.5)
            with pytest.raises(EngineUnavailable, match=r"no answer to jobs in 0\.5 s"):
                runs.driver.jobs()
    assert runs.wait(attempt, lambda job: True, "is there").state is EngineJobState.RUNNING


def _client(driver: RayDriver) -> int:
    process = driver._child._process
    assert process is not None
    return process.pid


def test_a_killed_node_is_down_and_ends_the_submissions_on_it(runs: Runs, ray_cluster: RayCluster) -> None:
    runs.driver.submit(runs.launch("spans", ("node1", 1), ("node2", 1), polite=True))
    runs.driver.submit(runs.launch("beside", ("node1", 1)))
    ran = runs.wait_ran(3)
    ray_cluster.kill_node("node2")
    runs.wait_state("node2", NodeState.DOWN)
    ended = runs.wait_ended("spans")
    assert (ended.end, ended.failed_servers) == (EngineEnd.NODE_FAILED, ("node2",))
    assert runs.wait("beside", lambda job: True, "is there").state is EngineJobState.RUNNING
    wait_until(
        lambda: not any(_lives(run["pid"]) for run in ran if run["SOONER_NODE"] == "node2"), "its program has ended"
    )
    assert runs.node("node1").state is NodeState.UP
    ray_cluster.end_nodes(["node2"])
    ray_cluster.start_nodes(["node2"])
    runs.wait_state("node2", NodeState.UP)
    runs.driver.submit(runs.launch("again", ("node2", GPUS)))
    runs.wait_ran(4)


def test_a_submission_for_a_server_that_ray_has_lost_waits_until_it_is_back(
    runs: Runs, ray_cluster: RayCluster
) -> None:
    """A head that was restarted, too, knows no server for a while: what is submitted then must not fail."""
    assert runs.node("node2").state is NodeState.UP
    ray_cluster.lose_node("node2")
    wait_until(lambda: "node2" not in [node.server.name for node in runs.driver.nodes()], "Ray has no such server")
    runs.driver.submit(runs.launch("waits", ("node2", 1)))
    assert runs.wait("waits", lambda job: True, "is there").state is EngineJobState.PENDING
    ray_cluster.start_nodes(["node2"])
    runs.wait_ran(1)
