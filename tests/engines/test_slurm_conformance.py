"""The contracts of a driver and of an executor over a real Slurm. They are the same as for every other engine."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from policies.model.cluster import Cluster, Server
from service.executors.cluster.slurm import SlurmDriver, SlurmOptions
from tests.cluster_house import ClusterBench, ClusterHouse
from tests.conformance.cluster_suite import ClusterFaultsContract
from tests.conformance.driver_suite import DriverContract
from tests.conformance.executor_suite import ExecutorContract
from tests.conformance.live_executor_suite import (
    AttemptFilesContract,
    AttemptLogsContract,
    LiveExecutorContract,
    ProgressInputContract,
)
from tests.engines.slurm_cluster import GPUS, SlurmCluster

pytestmark = pytest.mark.slow


class SlurmBench:
    """Drivers of one executor's attempts."""

    def __init__(self, cluster: SlurmCluster, folder: Path, options: SlurmOptions) -> None:
        self.folder = folder
        self.servers = cluster.names
        self._cluster = cluster
        self._options = options
        self._id = uuid.uuid4().hex[:16]
        self.driver = self.another_driver()

    def another_driver(self) -> SlurmDriver:
        return SlurmDriver(self._cluster.slurm, self._id, self._options)


class TestSlurmDriver(DriverContract):
    @pytest.fixture
    def bench(self, slurm_cluster: SlurmCluster, tmp_path: Path) -> SlurmBench:
        return SlurmBench(slurm_cluster, tmp_path, SlurmOptions())

    def test_it_knows_how_long_a_cancelled_one_may_go_on(self, bench: SlurmBench) -> None:
        bench.driver.check()
        assert bench.driver.kill_wait_s == 2.0


class TestSlurmDriverWithUnevenGangs(DriverContract):
    @pytest.fixture
    def bench(self, slurm_cluster: SlurmCluster, tmp_path: Path) -> SlurmBench:
        return SlurmBench(slurm_cluster, tmp_path, SlurmOptions(uneven_gangs=True))


def slurm_house(cluster: SlurmCluster, folder: Path, **options: object) -> ClusterHouse:
    """A shared folder with executors on it over the emulated cluster."""
    servers = tuple(Server(name, GPUS, gpu_type="a100") for name in cluster.names)
    bench = SlurmBench(cluster, folder, SlurmOptions())
    # Each poll is a command of Slurm, which takes more of a processor than the programs of the tests.
    return ClusterHouse(folder, Cluster("emulated", servers), bench.another_driver, poll_s=0.3, **options)  # type: ignore[arg-type]


class TestClusterExecutorOverSlurm(
    ExecutorContract, LiveExecutorContract, AttemptLogsContract, AttemptFilesContract, ProgressInputContract
):
    swarm_seeds = 1
    swarm_steps = 15

    @pytest.fixture
    def bench(self, slurm_cluster: SlurmCluster, tmp_path: Path) -> Iterator[ClusterBench]:
        house = slurm_house(slurm_cluster, tmp_path / "shared")
        yield ClusterBench(house)
        house.close()


class SlurmControls:
    """Makes the emulated cluster fail."""

    def __init__(self, cluster: SlurmCluster) -> None:
        self._cluster = cluster

    def cancel_behind(self, attempt: str) -> None:
        jobs = [job for job in self._cluster.slurm.jobs() if job.comment.endswith(f":{attempt}") and not job.ended]
        self._cluster.commands.run("scancel", *(str(job.id) for job in jobs))

    def lose_node(self, server: str) -> None:
        self._cluster.lose_node(server)

    def return_node(self, server: str) -> None:
        self._cluster.start_node(server)

    def restart(self) -> None:
        self._cluster.stop_controller()
        self._cluster.start_controller(forgetful=True)
        self._cluster.wait_until_idle()


class TestClusterFaultsOverSlurm(ClusterFaultsContract):
    @pytest.fixture
    def controls(self, slurm_cluster: SlurmCluster) -> SlurmControls:
        return SlurmControls(slurm_cluster)

    @pytest.fixture
    def house(self, slurm_cluster: SlurmCluster, tmp_path: Path) -> Iterator[ClusterHouse]:
        house = slurm_house(slurm_cluster, tmp_path / "shared", lease_s=20.0)
        yield house
        house.close()
