"""Whole simulations on a cluster that is busy with gangs whose traffic wants to stay local."""

import pytest

from policies.model.cluster import Cluster, Server
from policies.registry import make_policy
from service.sim.experiment import run
from service.sim.workloads.generate import generate


@pytest.mark.slow
def test_moves_for_the_sake_of_traffic_do_not_undo_each_other_for_ever() -> None:
    """Here a gang made room, whoever moved displaced a third job, and that one made room in turn, all at one instant."""
    workload = generate(1, 500, gpus=64, load=1.5, programs=40)
    cluster = Cluster("slow", tuple(Server(f"s{m}", 8, nic_bytes_s=25e9 / 8, intra_bytes_s=120e9) for m in range(8)))
    result = run(workload, cluster, make_policy("asrpt")).result
    assert result.finished == 500
    assert result.preemptions < 5 * 500
