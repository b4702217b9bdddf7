"""The drivers of engines against their contract. Those of real engines are in ``tests/engines``."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster_engine import NODES, ProcessDriver, ProcessEngine
from tests.conformance.driver_suite import DriverContract


class ProcessBench:
    """The engine of the tests itself."""

    servers = NODES

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.engine = ProcessEngine(kill_wait_s=1.0)
        self.driver = self.engine.driver()

    def another_driver(self) -> ProcessDriver:
        return self.engine.driver()


class TestProcessEngine(DriverContract):
    @pytest.fixture
    def bench(self, tmp_path: Path) -> Iterator[ProcessBench]:
        bench = ProcessBench(tmp_path)
        yield bench
        bench.engine.close()
