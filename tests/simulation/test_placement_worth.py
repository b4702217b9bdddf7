"""What placement is worth, and what communication costs with it. Larger forms: `python -m benchmarks.ablation`."""

from dataclasses import replace

import pytest

from benchmarks.workloads import cluster_of, with_models
from policies.registry import make_policy
from service.sim.experiment import SimulationOptions, run
from service.sim.workloads.generate import generate
from service.sim.workloads.importers import import_trace
from service.sim.workloads.model import Workload
from tests.simulation.traces import trace

SERVERS = 8


def _mean_jct_s(workload: Workload, servers: int = SERVERS, **options: str) -> float:
    cluster = cluster_of(servers, 25.0)
    return run(
        workload, cluster, make_policy("asrpt", options), "oracle", SimulationOptions(skip_invalid=True)
    ).result.mean_jct_s


@pytest.mark.slow
@pytest.mark.parametrize("delay_factor", ["0", "1"])
def test_heavy_edge_takes_at_most_85_percent_of_the_time_under_random_placement(delay_factor: str) -> None:
    workload = generate(1, 120, gpus=8 * SERVERS, load=0.8, programs=30)
    near, far = (
        _mean_jct_s(workload, placement=placement, delay_factor=delay_factor) for placement in ("heavy_edge", "random")
    )
    assert near <= 0.85 * far


def _silent(workload: Workload) -> Workload:
    return replace(workload, jobs=tuple(replace(job, model="") for job in workload.jobs))


@pytest.mark.slow
def test_communication_costs_at_most_a_quarter() -> None:
    workload = generate(1, 300, gpus=8 * SERVERS, load=0.8, programs=30)
    told, untold = _mean_jct_s(workload), _mean_jct_s(_silent(workload))
    assert untold <= told <= 1.25 * untold


@pytest.mark.slow
@pytest.mark.traces
def test_communication_costs_at_most_a_quarter_on_philly() -> None:
    whole = import_trace("philly", trace("philly.csv.gz"))
    workload = with_models(replace(whole, jobs=whole.jobs[:2_000]), 0)
    assert _mean_jct_s(workload, 50) <= 1.25 * _mean_jct_s(_silent(workload), 50)
