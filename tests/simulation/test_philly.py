"""The Philly trace (Microsoft 2017, CC BY 4.0): the first 20,000 jobs by submission on 50 servers of 8 GPUs.

It names neither users nor programs, so nothing here is about prediction: only about order and placement.
"""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

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
    cluster.write_text("schema: sooner.cluster/1\nname: fifty\nservers: [{count: 50, gpus: 8}]\n")
    return ["--workload", str(table), "--cluster", str(cluster), "--first", "20000", "--json"]


def test_the_whole_trace_is_imported(files: list[str]) -> None:
    with Path(files[1]).open() as stream:
        assert sum(1 for _ in stream) == 1 + 82_247


def test_lower_bound(files: list[str]) -> None:
    bounds = json.loads(RUNNER.invoke(sim, ["bounds", *files]).stdout)
    assert (bounds["jobs"], bounds["gpus"]) == (20_000, 400)
    assert bounds["lower_bound_mean_jct_s"] == pytest.approx(16_350, abs=0.5)


def test_guided_asrpt_with_perfect_estimates_comes_within_two_fifths_of_the_bound(files: list[str]) -> None:
    result = RUNNER.invoke(sim, ["run", *files, "--policy", "asrpt", "--preemption", "guided", "--predictor", "oracle"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["finished"] == 20_000
    assert 1.0 <= document["ratio_to_lower_bound"] <= 1.40
    assert document["wall_s"] < 60.0


def test_strict_first_in_first_out_is_far_from_it(files: list[str]) -> None:
    """The anchor of the other end: on pooled GPUs it is 48.9 times the bound."""
    document = json.loads(RUNNER.invoke(sim, ["run", *files, "--policy", "fifo"]).stdout)
    assert document["ratio_to_lower_bound"] == pytest.approx(48.9, rel=0.02)
