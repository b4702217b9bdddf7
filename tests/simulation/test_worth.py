"""The past of a real machine as Slurm's accounting would have it, replayed from a file with the output of sacct."""

from dataclasses import replace
from pathlib import Path

import pytest

from policies.model.cluster import Cluster, Server
from service.advice.accounting import read_file
from service.advice.history import GpuTypes, past_of
from service.advice.worth import worth
from service.sim.experiment import SimulationOptions
from service.sim.workloads.importers import import_trace
from tests.simulation.traces import trace
from tests.unit.service.advice.past_jobs import accounted, sacct_text

NASA = Cluster("nasa", tuple(Server(f"node{number}", 8, "A100") for number in range(16)))


@pytest.mark.compiled
@pytest.mark.slow
@pytest.mark.traces
def test_nasas_recurring_programs_gain(tmp_path: Path) -> None:
    """Real users and programs; arrivals five times as dense, so that jobs wait, and time limits of twice the run time."""
    jobs = import_trace("swf", trace("nasa-ipsc-1993.swf.gz")).jobs[:1500]
    rows = [
        replace(
            job,
            submit_time_s=float(round(job.submit_time_s / 5.0)),
            walltime_s=60.0 * (1 + int(2.0 * job.duration_s / 60.0)),
        )
        for job in jobs
    ]
    file = tmp_path / "jobs.txt"
    file.write_text(sacct_text(accounted(rows, NASA)))
    read, left_out = read_file(file)
    assert len(read) == 1500
    assert not left_out
    found = worth(past_of(read, NASA, GpuTypes(NASA, {})), NASA, SimulationOptions())
    assert found["replay"]["verdict"] == "good"
    assert found["schedules"]["slurm"]["mean_wait_s"] > 300.0
    assert found["gains"]["asrpt"]["mean_jct_change"] < -0.1
