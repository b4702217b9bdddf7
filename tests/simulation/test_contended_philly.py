"""Philly's first 6,000 jobs (Microsoft 2017, CC BY 4.0) on 50 servers whose NICs they share, through the command line.

The trace names no networks; each job trains one of the catalogue, drawn from its id.
"""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.workloads import with_models
from service.sim.workloads.table import read_workload, write_workload
from tests.simulation.traces import trace
from tests.unit.service.cli.cli_world import app_of_group

sim = app_of_group("sim")
workload = app_of_group("workload")

pytestmark = [pytest.mark.traces, pytest.mark.slow, pytest.mark.compiled]

RUNNER = CliRunner()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("philly")
    table, cluster = folder / "philly.csv", folder / "cluster.yaml"
    source = trace("philly.csv.gz")
    result = RUNNER.invoke(workload, ["import", "--format", "philly", str(source), "--out", str(table)])
    assert result.exit_code == 0, result.output
    write_workload(with_models(read_workload(table, first=6000), 0), table)
    cluster.write_text("schema: sooner.cluster/1\nname: fifty\nservers: [{count: 50, gpus: 8, nic_gbps: 25}]\n")
    return ["--workload", str(table), "--cluster", str(cluster), "--skip-invalid", "--json"]


def simulate(files: list[str], policy: str, network: str, *options: str) -> dict[str, float]:
    name, _, preemption = policy.partition(":")
    options += ("--preemption", preemption) if preemption else ()
    result = RUNNER.invoke(sim, ["run", *files, "--policy", name, *options, "--network", network])
    assert result.exit_code == 0, result.output
    found: dict[str, float] = json.loads(result.stdout)
    return found


@pytest.mark.parametrize("policy", ["asrpt", "sjf", "las"])
def test_every_job_ends(files: list[str], policy: str) -> None:
    found = simulate(files, policy, "contended")
    assert (found["jobs"], found["finished"]) == (6000, 6000)
    assert found["ratio_to_lower_bound"] >= 1.0


def test_contention_costs_something(files: list[str]) -> None:
    """Without preemption and patience many gangs straddle; on the other network everyone has whole NICs."""
    hasty = ("--option", "delay_factor=0", "--option", "contention=ignore")
    found, lone = (simulate(files, "sjf", network, *hasty) for network in ("contended", "contended:xi1=0"))
    assert found["finished"] == lone["finished"] == 6000
    assert 1.02 <= found["mean_jct_s"] / lone["mean_jct_s"] <= 1.15
    foreseen = simulate(files, "sjf", "contended", "--option", "delay_factor=0")
    assert foreseen["mean_jct_s"] < 0.98 * found["mean_jct_s"]


def test_the_table_names_networks(files: list[str]) -> None:
    assert len({job.model for job in read_workload(Path(files[1])).jobs}) == 8
