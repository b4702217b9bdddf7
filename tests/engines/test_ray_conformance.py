"""The contracts of an executor over a real Ray, with its faults. They are the same as for every other engine."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from policies.model.cluster import Cluster, Server
from tests.cluster_house import ClusterBench, ClusterHouse
from tests.conformance.cluster_suite import ClusterFaultsContract
from tests.conformance.executor_suite import ExecutorContract
from tests.conformance.live_executor_suite import LiveExecutorContract
from tests.engines.ray_cluster import GPUS, NODES, RayBench, RayCluster

_REMOVE = """
import sys, ray
from ray.util.placement_group import get_placement_group, remove_placement_group
ray.init(sys.argv[1], namespace="sooner", log_to_driver=False, logging_level="CRITICAL")
remove_placement_group(get_placement_group(sys.argv[2]))
"""


class RayControls:
    """What an operator and an accident do to Ray."""

    def __init__(self, bench: RayBench) -> None:
        self.bench = bench
        self.cluster = bench.cluster

    def cancel_behind(self, attempt: str) -> None:
        """Remove the placement group."""
        environment = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self.cluster.token_file)}
        command = [sys.executable, "-c", _REMOVE, self.cluster.address, f"sooner/{self.bench.id}/{attempt}"]
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=60.0)

    def lose_node(self, server: str) -> None:
        """The server loses its power."""
        self.cluster.lose_node(server)

    def return_node(self, server: str) -> None:
        """It is started again."""
        self.cluster.start_nodes([server])

    def restart(self) -> None:
        """All of Ray."""
        self.cluster.restart()


@pytest.fixture
def controls(ray_cluster: RayCluster, tmp_path: Path) -> Iterator[RayControls]:
    bench = RayBench(ray_cluster, tmp_path, kill_wait_s=5.0)
    yield RayControls(bench)
    bench.close()


@pytest.fixture
def house(controls: RayControls, tmp_path: Path) -> Iterator[ClusterHouse]:
    servers = tuple(Server(name, GPUS) for name in NODES)
    house = ClusterHouse(tmp_path / "shared", Cluster("ray", servers), lambda: controls.bench.driver, lease_s=20.0)
    yield house
    house.close()


class TestClusterExecutorOverRay(ExecutorContract, LiveExecutorContract):
    swarm_seeds = 1
    swarm_steps = 15

    @pytest.fixture
    def bench(self, house: ClusterHouse) -> ClusterBench:
        return ClusterBench(house)


class TestFaultsOverRay(ClusterFaultsContract):
    """Calls, servers, the engine and the service fail."""
