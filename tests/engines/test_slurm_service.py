"""The whole service over HTTP with a real Slurm: gangs, preemption, and many jobs while everything else fails."""

import random
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import ROOT, TERMINAL, write_history
from tests.e2e.test_crashes import assert_sound
from tests.e2e.test_several_servers import until_leads
from tests.engines.slurm_cluster import SlurmCluster
from tests.engines.slurm_service import POLL_S, Accounts, SlurmService

pytestmark = pytest.mark.slow

FAMILIES = {("long", 8): (300, 0.1), ("short", 8): (20, 0.1)}
SEED = 20261123
JOBS = 200
BUSY_S = 6.0
"""What a machine that starts processes for everything may add to a poll."""

Make = Callable[..., SlurmService]


@pytest.fixture
def make(slurm_cluster: SlurmCluster, tmp_path: Path) -> Iterator[Make]:
    """Makes services that share one folder, and ends them."""
    made: list[SlurmService] = []

    def make(**settings: str) -> SlurmService:
        service = SlurmService(tmp_path / f"service{len(made)}", slurm_cluster, tmp_path / "shared", **settings)
        made.append(service)
        return service

    yield make
    for service in made:
        service.close()


def _train(service: SlurmService, name: str, iterations: int) -> int:
    """A gang of eight processes on two nodes, which sum their gradients in every iteration."""
    program = str(ROOT / "examples" / "train_ddp_sockets.py")
    steps = ["--iterations", str(iterations), "--step-seconds-min", "0.1", "--checkpoint-every", "10"]
    return service.submit(name=name, gpus=8, launch="gpu", command=[sys.executable, program, *steps])


def _attempt_log(service: SlurmService, job: int, attempt: int) -> str:
    return service.request("GET", f"/v1/jobs/{job}/logs?attempt={attempt}").text


def test_a_short_gang_preempts_a_long_one_which_resumes_on_other_nodes(make: Make, slurm_cluster: SlurmCluster) -> None:
    service = make()
    write_history(f"sqlite:///{service.data_dir / 'sooner.db'}", FAMILIES, runs=120)
    for node in ("node3", "node4"):
        slurm_cluster.drain(node, "not yet")
    service.start()
    service.until(lambda: service.states()["node4"] == "drained", 20, "the drains are seen")
    with Accounts(service) as accounts:
        long = _train(service, "long", 300)
        service.until(lambda: (service.job(long)["iterations_done"] or 0) > 20, 60, "the long gang has made progress")
        assert service.servers_of(long) == {"node1", "node2"}
        (first,) = service.attempts(long)
        assert [sorted(part["gpu_ids"]) for part in first["placement"]] == [[0, 1, 2, 3]] * 2
        short = _train(service, "short", 20)
        service.until(lambda: service.job(short)["state"] == "running", 60, "the short gang runs")
        # The short gang may end before the other nodes are seen.
        assert service.request("POST", f"/v1/jobs/{long}/hold").status_code == 202
        for node, back in (("node1", "node3"), ("node2", "node4")):
            slurm_cluster.drain(node, "enough")
            slurm_cluster.resume(back)
        there = _states(node1="drained", node2="drained")
        service.until(lambda: service.states() == there, 60, "the drains and the returns are seen")
        assert service.request("POST", f"/v1/jobs/{long}/release").status_code == 202
        service.until(lambda: service.servers_of(long) == {"node3", "node4"}, 60, "the long gang resumes elsewhere")
        service.until_state(short, "succeeded", timeout_s=60)
        done = service.until_state(long, "succeeded", timeout_s=120)
    for node in ("node1", "node2"):
        slurm_cluster.resume(node)
    assert (done["attempts"], done["preemptions"], done["iterations_done"]) == (2, 1, 300)
    resumed = _attempt_log(service, long, 2)
    begun = int(resumed.partition("from iteration ")[2].split()[0])
    assert begun > 20 and f"checkpointed iteration {begun} of 300" in _attempt_log(service, long, 1)
    assert service.used() == accounts.in_slurm() == {}
    print(f"GPUs in use: {accounts.looks} comparisons, longest disagreement {accounts.longest_s:.2f} s")
    assert accounts.looks > 20
    assert accounts.longest_s < POLL_S + BUSY_S, accounts.story


def test_two_hundred_jobs_while_nodes_and_services_die(make: Make, slurm_cluster: SlurmCluster, tmp_path: Path) -> None:
    """Nothing is lost and nothing runs twice: a slurmd and the leader are killed under load, and nodes drain and return."""
    database = {"DATABASE_URL": f"sqlite:///{tmp_path / 'shared.db'}"}
    first, second = make(**database), make(**database)
    first.start()
    second.start()
    dice = random.Random(SEED)
    sizes = [dice.choice((1, 1, 1, 2, 4, 8)) for _ in range(JOBS)]
    jobs = [first.train(10, 0.02, name=f"short-{gpus}", gpus=gpus, checkpoint_every=2) for gpus in sizes]

    def done(service: SlurmService) -> int:
        return sum(service.job(job)["state"] in TERMINAL for job in jobs[:: JOBS // 20]) * JOBS // 20

    first.until(lambda: done(first) >= 20, 120, "the first jobs are done")
    slurm_cluster.kill_node("node4")
    slurm_cluster.drain("node2", "fan")
    first.until(lambda: first.states() == _states(node2="drained", node4="down"), 60, "both are seen")
    first.kill()
    until_leads(second)
    slurm_cluster.start_node("node4")
    slurm_cluster.resume("node2")
    second.until(lambda: second.states() == _states(), 60, "both are back")
    first.start()
    slurm_cluster.stop_controller(signal.SIGKILL)
    slurm_cluster.start_controller()
    second.stop()
    until_leads(first)
    for job in jobs:
        first.until_state(job, "succeeded", timeout_s=300)
    for job, gpus in zip(jobs, sizes, strict=True):
        assert_sound(first, job, 10, ranks=2 if gpus == 8 else 1)
    first.until(lambda: first.used() == Accounts(first).in_slurm() == {}, 20, "all GPUs are free")
    retried = sum(first.job(job)["attempts"] > 1 for job in jobs)
    print(f"{JOBS} jobs succeeded; {retried} of them needed more than one attempt")
    assert all(job.state != "RUNNING" for job in slurm_cluster.slurm.jobs("sooner:"))


def _states(**others: str) -> dict[str, str]:
    return {f"node{number}": "up" for number in range(1, 5)} | others


def test_a_service_without_slurm_or_a_shared_folder_says_so(make: Make, tmp_path: Path) -> None:
    service = make(SHARED_DIR=str(tmp_path / "nowhere"))
    service.launch()
    assert service.process is not None
    assert service.process.wait(60) != 0
    assert "shared_dir (SOONER_SHARED_DIR)" in service.tail()
