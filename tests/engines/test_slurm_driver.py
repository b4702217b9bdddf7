"""The driver of Slurm on the emulated cluster: what reaches the programs, and how ends and servers are seen."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from policies.model.ids import AttemptId
from service.executors.cluster.driver import (
    EngineEnd,
    EngineJob,
    EngineJobState,
    EngineRefused,
    EngineUnavailable,
    NodeLaunch,
    NodeShare,
    NodeState,
)
from service.executors.cluster.slurm import SlurmDriver, SlurmOptions
from service.slurm.cluster import Slurm
from service.slurm.commands import SlurmCommands
from tests.engines.slurm_cluster import SlurmCluster, wait_for

REPORT = """
import json, os, sys
name = os.environ["SOONER_NODE"]
plan = sys.stdin.read()
seen = {"gpus": os.environ.get("CUDA_VISIBLE_DEVICES"), "launch": os.environ["SOONER_LAUNCH"], "plan": plan, "pid": os.getpid(),
        "slurm_node": os.environ["SLURMD_NODENAME"], "arguments": sys.argv[2:], "uid": os.getuid(),
        "cpus": os.environ.get("SLURM_CPUS_PER_TASK"), "environ": sorted(os.environ)}
draft = os.path.join(sys.argv[1], f"{name}-{os.getpid()}.draft")
with open(draft, "w") as file:
    json.dump(seen, file)
os.rename(draft, os.path.join(sys.argv[1], name + ".json"))
exec(plan.splitlines()[0])
"""
"""A program that writes what it got into a folder, and then does what the first line of its plan says.

The draft is its own: several may run on one node.
"""


def _program(folder: Path, *more: str) -> tuple[str, ...]:
    return ("/usr/bin/python3", "-I", "-c", REPORT, str(folder), *more)


def _launch(
    folder: Path, *shares: tuple[str, int], attempt: str = "7.1", plan: str = "pass", user: str | None = None
) -> NodeLaunch:
    nodes = tuple(NodeShare(server, gpus) for server, gpus in shares)
    return NodeLaunch(AttemptId(attempt), nodes, _program(folder), plan.encode(), user)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def driver(slurm_cluster: SlurmCluster) -> Iterator[SlurmDriver]:
    driver = SlurmDriver(slurm_cluster.slurm, "c1")
    driver.check()
    yield driver
    driver.close()


def _job(driver: SlurmDriver, job: str) -> EngineJob | None:
    return next((found for found in driver.jobs() if found.id == job), None)


def _wait(driver: SlurmDriver, job: str, state: EngineJobState) -> EngineJob:
    def found() -> EngineJob | None:
        now = _job(driver, job)
        return now if now is not None and now.state is state else None

    return wait_for(found, f"job {job} is {state.value}; it is {_job(driver, job)}")  # type: ignore[return-value]


def _seen(folder: Path, name: str) -> dict[str, object]:
    seen: dict[str, object] = json.loads(wait_for(lambda: _text(folder / f"{name}.json"), f"{name} has reported"))
    return seen


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def test_a_gang_runs_once_on_each_of_its_nodes(driver: SlurmDriver, folder: Path) -> None:
    plan = "import time; time.sleep(600)\n" + "x" * 200_000 + "'\"$(id)`\\\n"
    job = driver.submit(_launch(folder, ("node3", 2), ("node2", 2), plan=plan))
    running = _wait(driver, job, EngineJobState.RUNNING)
    first, second = _seen(folder, "node2"), _seen(folder, "node3")
    assert running.attempt == "7.1" and running.servers == ("node2", "node3") and running.end is None
    assert running.gpu_ids == {"node2": (0, 1), "node3": (0, 1)}
    assert first["gpus"] == "0,1" and second["gpus"] == "0,1"
    assert first["launch"] == second["launch"] and first["launch"]
    assert first["plan"] == second["plan"] == plan
    names = first["environ"]
    assert isinstance(names, list)
    assert "PYTEST_CURRENT_TEST" in os.environ and not {"PYTEST_CURRENT_TEST", "HOME", "USER"} & set(names)
    assert not _processes_that_show("x" * 100)
    driver.cancel([job])
    ended = _wait(driver, job, EngineJobState.ENDED)
    assert (ended.end, ended.detail) == (EngineEnd.CANCELLED, "the Slurm job was cancelled")
    wait_for(lambda: not _alive(first["pid"]) and not _alive(second["pid"]), "the processes have ended")


def _processes_that_show(text: str) -> list[str]:
    lines = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if text.encode() in command:
                lines.append(command.decode())
    return lines


def _alive(pid: object) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_other_submissions_have_another_word(driver: SlurmDriver, folder: Path) -> None:
    for attempt, node in (("7.1", "node1"), ("7.1", "node2")):
        driver.submit(_launch(folder, (node, 1), attempt=attempt))
    assert _seen(folder, "node1")["launch"] != _seen(folder, "node2")["launch"]


def test_memory_and_processors_are_shared_by_gpus(
    driver: SlurmDriver, slurm_cluster: SlurmCluster, folder: Path
) -> None:
    """Four jobs of one GPU each fit on one node."""
    jobs = [
        driver.submit(_launch(folder, ("node1", 1), attempt=f"{n}.1", plan="import time; time.sleep(600)"))
        for n in range(4)
    ]
    running = [_wait(driver, job, EngineJobState.RUNNING) for job in jobs]
    assert sorted(ids for job in running for ids in job.gpu_ids["node1"]) == [0, 1, 2, 3]
    fifth = driver.submit(_launch(folder, ("node1", 1), attempt="9.1"))
    waiting = wait_for(lambda: _waits(driver, fifth), "the fifth waits for resources")
    assert waiting.servers == ("node1",)
    driver.cancel([fifth])
    assert _wait(driver, fifth, EngineJobState.ENDED).end is EngineEnd.CANCELLED


def _waits(driver: SlurmDriver, job: str) -> EngineJob:
    found = _job(driver, job)
    assert found is not None and found.state is EngineJobState.PENDING
    return found


@pytest.mark.parametrize(
    ("plan", "end", "detail"),
    [
        ("sys.exit(0)", EngineEnd.COMPLETED, ""),
        ("sys.exit(3)", EngineEnd.COMPLETED, "the batch script of the Slurm job ended with exit code 3"),
    ],
)
def test_programs_that_end_by_themselves(
    driver: SlurmDriver, folder: Path, plan: str, end: EngineEnd, detail: str
) -> None:
    job = driver.submit(_launch(folder, ("node1", 1), plan=plan))
    ended = _wait(driver, job, EngineJobState.ENDED)
    assert (ended.end, ended.detail, ended.failed_servers) == (end, detail, ())


def test_a_program_that_is_not_there(driver: SlurmDriver) -> None:
    launch = NodeLaunch(AttemptId("7.1"), (NodeShare("node1", 1),), ("/nowhere/python3", "x"), b"{}")
    ended = _wait(driver, driver.submit(launch), EngineJobState.ENDED)
    assert ended.end is EngineEnd.COMPLETED and "exit code 127" in ended.detail


def test_a_node_that_dies_is_named_and_returns(driver: SlurmDriver, slurm_cluster: SlurmCluster, folder: Path) -> None:
    job = driver.submit(_launch(folder, ("node1", 1), ("node4", 1), plan="import time; time.sleep(600)"))
    _wait(driver, job, EngineJobState.RUNNING)
    _seen(folder, "node4")
    slurm_cluster.kill_node("node4")
    ended = _wait(driver, job, EngineJobState.ENDED)
    assert (ended.end, ended.failed_servers) == (EngineEnd.NODE_FAILED, ("node4",))
    assert {node.server.name: node.state for node in driver.nodes()}["node4"] is NodeState.DOWN
    slurm_cluster.start_node("node4")
    wait_for(lambda: all(node.state is NodeState.UP for node in driver.nodes()), "node4 is back")
    assert _job(driver, job) == ended


def test_nodes(driver: SlurmDriver, slurm_cluster: SlurmCluster) -> None:
    slurm_cluster.drain("node2", "fan 3")
    nodes = {node.server.name: node for node in driver.nodes()}
    assert list(nodes) == ["node1", "node2", "node3", "node4"]
    assert (nodes["node1"].server.gpus, nodes["node1"].server.gpu_type, nodes["node1"].address) == (
        4,
        "a100",
        "127.0.0.1",
    )
    assert (nodes["node2"].state, nodes["node2"].detail) == (NodeState.DRAINED, "IDLE+DRAIN: fan 3")


def test_a_submission_on_a_drained_node_waits_and_can_be_cancelled(
    driver: SlurmDriver, slurm_cluster: SlurmCluster, folder: Path
) -> None:
    slurm_cluster.drain("node2")
    job = driver.submit(_launch(folder, ("node2", 1)))
    wait_for(lambda: "ReqNodeNotAvail" in _waits(driver, job).detail, "the reason is shown")
    driver.cancel([job])
    assert _wait(driver, job, EngineJobState.ENDED).end is EngineEnd.CANCELLED


def test_uneven_gangs(driver: SlurmDriver, slurm_cluster: SlurmCluster, folder: Path) -> None:
    launch = _launch(folder, ("node1", 1), ("node4", 3), ("node2", 1), plan="import time; time.sleep(600)")
    with pytest.raises(EngineRefused, match=r"node1: 1, node4: 3, node2: 1\) need slurm_uneven_gangs"):
        driver.submit(launch)
    uneven = SlurmDriver(slurm_cluster.slurm, "c1", SlurmOptions(uneven_gangs=True))
    assert uneven.abilities.uneven_shares and not driver.abilities.uneven_shares
    job = uneven.submit(launch)
    running = _wait(uneven, job, EngineJobState.RUNNING)
    assert {name: len(ids) for name, ids in running.gpu_ids.items()} == {"node1": 1, "node2": 1, "node4": 3}
    seen = {name: _seen(folder, name) for name in ("node1", "node2", "node4")}
    assert len({report["launch"] for report in seen.values()}) == 1
    assert {report["plan"] for report in seen.values()} == {"import time; time.sleep(600)\n"}
    assert [len(str(seen[name]["gpus"]).split(",")) for name in ("node1", "node2", "node4")] == [1, 1, 3]
    assert [each.id for each in uneven.jobs() if each.state is not EngineJobState.ENDED] == [job]
    uneven.cancel([job])
    assert _wait(uneven, job, EngineJobState.ENDED).end is EngineEnd.CANCELLED


def test_a_failure_in_one_part_of_an_uneven_gang_ends_the_others(slurm_cluster: SlurmCluster, folder: Path) -> None:
    driver = SlurmDriver(slurm_cluster.slurm, "c1", SlurmOptions(uneven_gangs=True))
    plan = "import time; time.sleep(600) if name == 'node1' else sys.exit(9)"
    job = driver.submit(_launch(folder, ("node1", 1), ("node4", 3), plan=plan))
    ended = _wait(driver, job, EngineJobState.ENDED)
    assert ended.end is EngineEnd.COMPLETED and "exit code" in ended.detail
    first = _seen(folder, "node1")
    wait_for(lambda: not _alive(first["pid"]), "the other part has ended")


def test_each_executor_sees_its_own_jobs(driver: SlurmDriver, slurm_cluster: SlurmCluster, folder: Path) -> None:
    other = SlurmDriver(slurm_cluster.slurm, "c2")
    job = driver.submit(_launch(folder, ("node1", 1), plan="import time; time.sleep(600)"))
    _wait(driver, job, EngineJobState.RUNNING)
    assert other.jobs() == [] or all(found.id != job for found in other.jobs())
    restarted = SlurmDriver(slurm_cluster.slurm, "c1")
    assert _job(restarted, job) is not None
    restarted.cancel([job, "999999"])
    assert _wait(restarted, job, EngineJobState.ENDED).end is EngineEnd.CANCELLED


def test_a_comment_says_nothing_of_another_job(driver: SlurmDriver, slurm_cluster: SlurmCluster, folder: Path) -> None:
    """Slurm keeps line ends in comments. Whoever may submit jobs could otherwise end those of others for Sooner."""
    job = driver.submit(_launch(folder, ("node1", 1), plan="import time; time.sleep(600)"))
    _wait(driver, job, EngineJobState.RUNNING)
    entry = f"{job}|{job}|COMPLETED|node1|{os.geteuid()}|root|None|sooner:c1:7.1"
    comment = f"x\n{entry}\x0b{entry}\u2028{entry}\nx|sooner:c1:\n"
    slurm_cluster.commands.run(
        "sbatch", "--hold", "--output=/dev/null", f"--comment={comment}", input=b"#!/bin/sh\nexit\n"
    )
    assert comment in [found.comment for found in slurm_cluster.slurm.jobs()]
    lines = slurm_cluster.slurm.job_lines("sooner:c1:")
    assert lines[int(job)].state == "RUNNING"
    assert lines.keys() == {found.id for found in slurm_cluster.slurm.jobs("sooner:c1:")}
    assert _wait(driver, job, EngineJobState.RUNNING).servers == ("node1",)


def test_a_refusal_has_slurms_message(driver: SlurmDriver, slurm_cluster: SlurmCluster, folder: Path) -> None:
    with pytest.raises(EngineRefused, match="the node 'node9', which is not known to Slurm"):
        driver.submit(_launch(folder, ("node9", 1)))
    with pytest.raises(EngineRefused, match="9 GPUs are wanted on the node 'node1', which has 4 GPUs"):
        driver.submit(_launch(folder, ("node1", 9)))
    odd = SlurmDriver(slurm_cluster.slurm, "c1", SlurmOptions(extra_args=("--constraint=odd",)))
    with pytest.raises(EngineRefused, match=r"sbatch: .*Invalid feature specification"):
        odd.submit(_launch(folder, ("node1", 1)))
    with pytest.raises(EngineUnavailable, match="slurm_partition: Slurm has no partition 'nix'; its partitions: main"):
        SlurmDriver(slurm_cluster.slurm, "c1", SlurmOptions(partition="nix")).nodes()


def test_extra_arguments_replace_those_of_the_driver(slurm_cluster: SlurmCluster, folder: Path) -> None:
    options = SlurmOptions(partition="main", extra_args=("--mem=123M", f"--output={folder}/out"))
    driver = SlurmDriver(slurm_cluster.slurm, "c3", options)
    job = driver.submit(_launch(folder, ("node1", 2), plan="print('said', flush=True)"))
    _wait(driver, job, EngineJobState.ENDED)
    assert (folder / "out").read_text() == "said\n"
    assert next(one for one in slurm_cluster.slurm.jobs() if str(one.id) == job).tres["mem"] == "123M"


def test_jobs_start_before_a_reservation_and_end_when_it_begins(
    driver: SlurmDriver, slurm_cluster: SlurmCluster, folder: Path
) -> None:
    """Without a limit Slurm would let them wait until it is over."""
    run = slurm_cluster.commands.run

    def reserve(name: str, node: str, minutes: int) -> None:
        start = f"starttime=now+{minutes}minutes"
        run("scontrol", "create", "reservation", f"ReservationName={name}", start, "duration=60", "users=root",
            "flags=maint", f"nodes={node}")  # fmt: skip

    reserve("fans", "node1", 20)
    reserve("soon", "node2", 5)
    try:
        nodes = {node.server.name: node for node in driver.nodes()}
        assert (nodes["node1"].state, nodes["node2"].state) == (NodeState.UP, NodeState.DRAINED)
        assert nodes["node2"].detail.startswith("Slurm's reservation 'soon' begins at ")
        job = driver.submit(_launch(folder, ("node1", 1), plan="import time; time.sleep(600)"))
        _wait(driver, job, EngineJobState.RUNNING)
        (found,) = [one for one in slurm_cluster.slurm.jobs() if str(one.id) == job]
        assert found.time_limit_s == 19 * 60.0
    finally:
        run("scontrol", "delete", "ReservationName=soon")
        slurm_cluster.commands.run("scancel", "--user=root")
        wait_for(lambda: not _busy(driver), "no job runs")
        run("scontrol", "delete", "ReservationName=fans")


def _busy(driver: SlurmDriver) -> bool:
    return any(job.state is not EngineJobState.ENDED for job in driver.jobs())


def test_a_controller_that_is_away(driver: SlurmDriver, slurm_cluster: SlurmCluster, folder: Path) -> None:
    job = driver.submit(_launch(folder, ("node1", 1), plan="import time; time.sleep(600)"))
    _seen(folder, "node1")
    hasty = SlurmDriver(Slurm(SlurmCommands(conf=slurm_cluster.conf, timeout_s=2.0)), "c1")
    slurm_cluster.stop_controller()
    try:
        for call in (
            hasty.jobs,
            hasty.nodes,
            lambda: hasty.cancel([job]),
            lambda: hasty.submit(_launch(folder, ("node1", 1))),
        ):
            with pytest.raises(EngineUnavailable):
                call()
    finally:
        slurm_cluster.start_controller()
    assert _wait(driver, job, EngineJobState.RUNNING).servers == ("node1",)


def test_what_an_operator_should_know(driver: SlurmDriver, slurm_cluster: SlurmCluster) -> None:
    assert SlurmDriver(slurm_cluster.slurm, "c1").kill_wait_s == 30.0
    assert driver.check() == []
    assert driver.kill_wait_s == 2.0
    assert driver.name == "Slurm 22.05.8"
    slurm_cluster.commands.run("sbatch", "--hold", "--output=/dev/null", input=b"#!/bin/sh\nexit\n")
    assert driver.check() == [
        "1 job that is not Sooner's waits or runs in the partition 'main': jobs of Sooner that meet them on a node wait in Slurm"
    ]
