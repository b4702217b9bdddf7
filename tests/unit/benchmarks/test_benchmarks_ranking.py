"""The benchmark of ranking by estimates: its arithmetic, and that it runs and prints what it promises."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import ranking
from benchmarks.workloads import load_of, servers_for
from predictor import dataset
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


@pytest.mark.slow
def test_every_row_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # A replay has what was said first of each job. So here nothing more is said of any.
    monkeypatch.setattr(dataset, "TELLING_RUNS", frozenset())
    monkeypatch.setattr(dataset, "FIRST_ENDS", frozenset())
    write_workload(WORKLOAD, tmp_path / "w.csv")
    monkeypatch.setattr(sys, "argv", ["ranking", "--trace", str(tmp_path / "w.csv"), "--load", "1.2", "--bounds"])
    ranking.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("w.csv: 60 jobs on ")
    assert lines[0].endswith(", load 1.20")
    rows = {line[:34].strip(): line[34:].split() for line in lines[2:] if line[0] != " "}
    assert set(rows) >= {"asrpt, oracle", "las", "asrpt, none", "asrpt, trained", "as said", "truth for 1-4 past runs"}
    assert rows["las"][2] == "nan" or float(rows["las"][1]) > 0.0
    assert rows["as said"][:3] == rows["asrpt, trained"][:3], "replayed as it was, it is the same run"
    assert float(rows["asrpt, trained"][2]) == pytest.approx(
        float(rows["asrpt, trained"][0].replace(",", "")) / float(rows["las"][0].replace(",", "")), abs=2e-3
    )
    assert any("past runs" in line for line in lines)
