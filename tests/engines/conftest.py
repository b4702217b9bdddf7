"""Fixtures of real engines. Without them the tests are skipped, except under ``make test-engines``, where they fail."""

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.ray_cluster import RayCluster
from tests.engines.run import REQUIRED
from tests.engines.slurm_cluster import SlurmCluster, alone_on_network, missing


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test of this folder runs in the phase of its own."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("engines")


@pytest.fixture(scope="session")
def emulated_slurm() -> Iterator[SlurmCluster]:
    """One emulated cluster for all tests of the session. Use ``slurm_cluster``, which begins with an idle one."""
    lacking = missing() or ("" if alone_on_network() else "the tests with engines run by make test-engines")
    if lacking and not os.environ.get(REQUIRED):
        pytest.skip(lacking)
    cluster = SlurmCluster()
    yield cluster
    cluster.close()


@pytest.fixture
def slurm_cluster(emulated_slurm: SlurmCluster) -> Iterator[SlurmCluster]:
    """The emulated cluster: four nodes with four GPUs each, idle before and after the test."""
    emulated_slurm.cancel_all()
    yield emulated_slurm
    emulated_slurm.cancel_all()


@pytest.fixture(scope="session")
def emulated_ray() -> Iterator[RayCluster]:
    """One cluster for all tests of the session. Use ``ray_cluster``, which begins with a complete one."""
    lacking = "" if importlib.util.find_spec("ray") is not None else "the package ray is not installed"
    lacking = lacking or ("" if alone_on_network() else "the tests with engines run by make test-engines")
    if lacking and not os.environ.get(REQUIRED):
        pytest.skip(lacking)
    assert not lacking, lacking
    with RayCluster() as cluster:
        yield cluster.start()


@pytest.fixture
def ray_cluster(emulated_ray: RayCluster) -> Iterator[RayCluster]:
    """A head and two nodes of Ray with four GPUs each; those that a test has killed are started again."""
    yield emulated_ray
    emulated_ray.heal()
