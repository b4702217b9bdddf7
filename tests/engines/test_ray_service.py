"""The whole service over HTTP with a real Ray: gangs, preemption, and what survives the death of nodes, service and head."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import ROOT, write_history
from tests.e2e.test_crashes import assert_sound
from tests.engines.ray_cluster import GPUS, RayCluster
from tests.engines.ray_service import RayService

pytestmark = pytest.mark.slow

Make = Callable[..., RayService]
FAMILIES = {("long", 8): (300, 0.1), ("short", 8): (20, 0.1)}


@pytest.fixture
def make(ray_cluster: RayCluster, tmp_path: Path) -> Iterator[Make]:
    """Makes services that share one folder, and ends them."""
    made: list[RayService] = []

    def make(**settings: str) -> RayService:
        service = RayService(tmp_path / f"service{len(made)}", ray_cluster, tmp_path / "shared", **settings)
        made.append(service)
        return service

    yield make
    for service in made:
        service.close()


def _train(service: RayService, name: str, iterations: int) -> int:
    """A gang of eight processes on two nodes, which sum their gradients in every iteration."""
    program = str(ROOT / "examples" / "train_ddp_sockets.py")
    steps = ["--iterations", str(iterations), "--step-seconds-min", "0.1", "--checkpoint-every", "10"]
    return service.submit(name=name, gpus=2 * GPUS, launch="gpu", command=[sys.executable, program, *steps])


def test_a_short_gang_preempts_a_long_one_which_resumes(make: Make) -> None:
    service = make()
    write_history(f"sqlite:///{service.data_dir / 'sooner.db'}", FAMILIES, runs=120)
    service.start()
    service.until(lambda: service.states() == {"node1": "up", "node2": "up"}, 30, "Ray's nodes are seen")
    long = _train(service, "long", 300)
    service.until(lambda: (service.job(long)["iterations_done"] or 0) > 20, 60, "the long gang has made progress")
    (first,) = service.attempts(long)
    assert [sorted(part["gpu_ids"]) for part in first["placement"]] == [[0, 1, 2, 3]] * 2
    short = _train(service, "short", 20)
    service.until_state(short, "succeeded", timeout_s=60)
    done = service.until_state(long, "succeeded", timeout_s=120)
    assert (done["attempts"], done["preemptions"], done["iterations_done"]) == (2, 1, 300)
    log = service.request("GET", f"/v1/jobs/{long}/logs?attempt=2").text
    assert int(log.partition("from iteration ")[2].split()[0]) > 20
    service.until(lambda: not service.used(), 20, "all GPUs are free")


def test_jobs_survive_the_death_of_a_node_of_the_service_and_of_the_head(make: Make, ray_cluster: RayCluster) -> None:
    service = make(POLICY="fifo", ATTEMPT_DURATION_S_MIN="")  # FIFO has no such option
    service.start()
    service.until(lambda: service.states() == {"node1": "up", "node2": "up"}, 30, "Ray's nodes are seen")
    gang = service.train(100_000, 0.1, name="gang", gpus=GPUS + 2, checkpoint_every=2)
    shorts = [service.train(15, 0.1, name="short", gpus=1 + number % 2, checkpoint_every=2) for number in range(6)]

    def starts() -> int:
        """Of both programs of the gang."""
        return sum(line["event"] == "start" for line in service.story(gang))

    service.until(lambda: starts() == 2, 60, "the gang runs")
    ray_cluster.kill_node("node2")
    service.kill()
    service.start()
    service.until(lambda: service.states()["node2"] == "down", 30, "the death of the node is seen")
    service.until(lambda: not service.job(gang)["servers"], 60, "the gang has ended")
    ray_cluster.end_nodes(["node2"])
    ray_cluster.start_nodes(["node2"])
    service.until(lambda: service.states()["node2"] == "up", 30, "the node is back")
    service.until(lambda: starts() == 4, 60, "the gang resumes")

    ray_cluster.kill_head()
    service.until(lambda: "does not answer" in service.log.read_text(), 30, "the silence of the head is seen")
    ray_cluster.start_head()
    ray_cluster.end_nodes(["node1", "node2"])
    ray_cluster.start_nodes(["node1", "node2"])
    service.until(lambda: starts() == 6, 120, "the gang resumes on the new nodes")
    for job in shorts:
        service.until_state(job, "succeeded", timeout_s=60)
        assert_sound(service, job, 15)
    begun = [line["iteration"] for line in service.story(gang) if line["event"] == "start" and line["rank"] == 0]
    assert begun == sorted(begun) and begun[0] == 0 < begun[-1]
    assert not [line for line in service.story(gang) if line["event"] == "overlap"]
    assert service.job(gang)["attempts"] == 3
    assert service.request("POST", f"/v1/jobs/{gang}/cancel").status_code == 202
    service.until_state(gang, "cancelled", timeout_s=60)
    service.until(lambda: not service.used(), 20, "all GPUs are free")


def test_a_service_without_an_address_says_so(make: Make) -> None:
    service = make()
    del service.environ["SOONER_RAY_ADDRESS"]
    service.launch()
    assert service.process is not None
    assert service.process.wait(60) != 0
    assert "executor=ray needs ray_address (SOONER_RAY_ADDRESS)" in service.tail()
