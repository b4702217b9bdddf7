"""The cluster executor against the contracts, over an engine that runs real node programs on this machine."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster_engine import ProcessEngine
from tests.cluster_house import ClusterBench, ClusterHouse, LeasedClusterBench, process_house
from tests.conformance.cluster_suite import ClusterFaultsContract
from tests.conformance.executor_suite import ExecutorContract, Watcher
from tests.conformance.live_executor_suite import (
    AttemptFilesContract,
    AttemptLeasesContract,
    AttemptLogsContract,
    LiveExecutorContract,
    ProgressInputContract,
)


class TestClusterExecutor(
    ExecutorContract, LiveExecutorContract, AttemptLogsContract, AttemptFilesContract, ProgressInputContract
):
    swarm_seeds = 2
    swarm_steps = 20

    @pytest.fixture
    def bench(self, tmp_path: Path) -> Iterator[ClusterBench]:
        engine = ProcessEngine()
        house = process_house(tmp_path / "shared", engine)
        yield ClusterBench(house)
        house.close()
        engine.close()


class TestClusterLeases(AttemptLeasesContract):
    @pytest.fixture
    def bench(self, tmp_path: Path) -> Iterator[LeasedClusterBench]:
        engine = ProcessEngine()
        house = process_house(tmp_path / "shared", engine, lease_s=LeasedClusterBench.lease_s)
        yield LeasedClusterBench(house)
        house.close()
        engine.close()

    @pytest.fixture
    def watcher(self, bench: LeasedClusterBench) -> Watcher:
        return Watcher(bench)


class TestClusterFaults(ClusterFaultsContract):
    @pytest.fixture
    def controls(self) -> Iterator[ProcessEngine]:
        engine = ProcessEngine(kill_wait_s=5.0)
        yield engine
        engine.close()

    @pytest.fixture
    def house(self, tmp_path: Path, controls: ProcessEngine) -> Iterator[ClusterHouse]:
        house = process_house(tmp_path / "shared", controls)
        yield house
        house.close()
