"""The cluster executor against the contracts, over an engine that runs real node programs on this machine."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster_house import ClusterBench, ClusterHouse, LeasedClusterBench
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
        house = ClusterHouse(tmp_path / "shared")
        yield ClusterBench(house)
        house.close()


class TestClusterLeases(AttemptLeasesContract):
    @pytest.fixture
    def bench(self, tmp_path: Path) -> Iterator[LeasedClusterBench]:
        bench = LeasedClusterBench(tmp_path / "shared")
        yield bench
        bench.house.close()

    @pytest.fixture
    def watcher(self, bench: LeasedClusterBench) -> Watcher:
        return Watcher(bench)
