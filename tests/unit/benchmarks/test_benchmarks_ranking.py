"""The benchmark of ranking by estimates: its arithmetic, and that it runs and prints what it promises."""

import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import ranking
from benchmarks.workloads import load_of, servers_for
from policies.model.estimate import Estimate, Unit
from service.sim.jobs import SimJobs, prepare
from service.sim.workloads.generate import generate
from service.sim.workloads.table import write_workload

WORKLOAD = generate(3, 60, gpus=16, load=0.5, communication=False)


def test_jobs_come_faster_only_where_there_are_too_few_of_them() -> None:
    servers = servers_for(WORKLOAD, 0.4)
    hastened = ranking.hastened(WORKLOAD, servers, 1.5)
    assert load_of(hastened, 8 * servers) == pytest.approx(1.5)
    assert [replace(job, submit_time_s=0.0) for job in hastened.jobs] == [
        replace(job, submit_time_s=0.0) for job in WORKLOAD.jobs
    ]
    ratio = hastened.jobs[-1].submit_time_s / WORKLOAD.jobs[-1].submit_time_s
    assert hastened.jobs[20].submit_time_s == pytest.approx(ratio * WORKLOAD.jobs[20].submit_time_s)
    assert ranking.hastened(WORKLOAD, servers, 0.01) is WORKLOAD


def test_the_truth_stands_in_for_the_chosen_jobs_alone() -> None:
    jobs = prepare(WORKLOAD, ranking.cluster_of(2, 100.0))
    said = {
        job.id: ranking.Said(Estimate((4.1 * job.row.duration_s,), Unit.SERVICE_S, "s", trusted=False), number % 4)
        for number, job in enumerate(jobs.jobs[:8])
    }
    swaps = ranking._swaps()
    for name, expected in (
        ("nothing", 0), ("truth of 1-4 runs", 2), ("truth of > 2x", 8), ("truth of > 4x", 8), ("truth of < 1/2", 0)
    ):  # fmt: skip
        swapped: SimJobs = ranking._swapped(jobs, said, swaps[name])
        truths = [job for job in swapped.jobs if job.predicted is not None and job.predicted.trusted]
        assert len(truths) == expected, name
        assert all(job.predicted is not None and job.predicted.points == (job.row.duration_s,) for job in truths)
        assert [job.predicted for job in swapped.jobs[8:]] == [None] * (len(jobs.jobs) - 8)
    first = jobs.jobs[0]
    assert said[first.id].log_error(first) == pytest.approx(math.log(4.1))


@pytest.mark.slow
def test_every_row_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_workload(WORKLOAD, tmp_path / "w.csv")
    monkeypatch.setattr(sys, "argv", ["ranking", "--trace", str(tmp_path / "w.csv"), "--load", "1.2", "--bounds"])
    ranking.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("w.csv: 60 jobs on ")
    assert lines[0].endswith(", load 1.20")
    rows = {line[:34].strip(): line[34:].split() for line in lines[2:] if line[0] != " "}
    assert set(rows) >= {"asrpt, oracle", "las", "asrpt, none", "asrpt, trained", "as said, nothing"}
    assert rows["las"][2] == "nan" or float(rows["las"][1]) > 0.0
    assert rows["as said, nothing"][:3] == rows["asrpt, trained"][:3], "replayed as it was, it is the same run"
    assert float(rows["asrpt, trained"][2]) == pytest.approx(
        float(rows["asrpt, trained"][0].replace(",", "")) / float(rows["las"][0].replace(",", "")), abs=2e-3
    )
    assert any("past runs" in line for line in lines)
