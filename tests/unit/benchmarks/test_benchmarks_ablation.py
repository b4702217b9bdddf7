"""The ablation and the run of every policy print what they promise; their sizes here are tiny and their figures mean little."""

import sys
from pathlib import Path

import pytest

from benchmarks import ablation, policies
from benchmarks.workloads import cluster_of, load_of, servers_for, with_models
from policies.registry import BUILT_IN
from service.sim.workloads.generate import generate
from service.sim.workloads.table import write_workload


def _table(printed: str, title: str) -> list[list[str]]:
    """The cells of the rows under a title."""
    lines = printed[printed.index(title) :].split("\n\n")[1].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.mark.slow
def test_the_six_settings_and_what_the_parts_are_worth(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    markdown = tmp_path / "ablation.md"
    arguments = ["ablation", "--jobs", "12", "--seeds", "1", "--workers", "1", "--markdown", str(markdown)]
    monkeypatch.setattr(sys, "argv", arguments)
    monkeypatch.setattr(ablation, "LOADS", (2.0,))
    ablation.main()
    printed = capsys.readouterr().out
    assert markdown.read_text() == printed
    for group, ours in (("without preemption", "asrpt never"), ("with preemption", "asrpt guided")):
        rows = _table(printed, f"Mean JCT over that of {ours}, {group}")
        assert [row[:3] for row in rows] == [["generated", "2.0", nic] for nic in ("25", "200")]
        for row in rows:
            others = [float(cell) for cell in row[4 : 4 + len(ablation.GROUPS[group]) - 1]]
            assert min(others) > 0.0
            wins = sum(ratio >= ablation.CLEAR_WIN for ratio in others)
            assert row[4 + len(others)] == f"{wins} of {len(others)}"
    assert len(_table(printed, "Mean JCT under Heavy-Edge")) == 1
    assert all(float(row[2]) >= 0.99 for row in _table(printed, "with models at 25 Gb/s"))


@pytest.mark.slow
def test_every_policy_over_a_whole_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    table = tmp_path / "small.csv"
    write_workload(generate(1, 8, gpus=16, communication=False), table)
    monkeypatch.setattr(
        sys, "argv", ["policies", "--trace", str(table), "--servers", "2", "--policies", "fifo,nonsense"]
    )
    policies.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[3:6] for line in lines[2:]] == [["fifo", "8", "0"], ["nonsense", "not finished", "-"]]
    assert {*policies._labels(None)} == {*BUILT_IN, "asrpt never"} - {*policies.ALIASES}


def test_models_by_seed_suit_the_gang_and_servers_make_the_load() -> None:
    workload = generate(3, 200, gpus=128, load=0.7)
    given = with_models(workload, 1)
    assert given == with_models(workload, 1) != with_models(workload, 2)
    assert {job.model for job in given.jobs if job.gpus >= 4} > {"gpt2_xl"}
    assert not {job.model for job in given.jobs if job.gpus < 4} & {"gpt2_xl", "moe_mixtral_8x7b", ""}
    assert load_of(workload, 128) == pytest.approx(0.7, rel=0.02)
    assert servers_for(workload, 0.7) == 16
    assert servers_for(workload, 1e9) * 8 >= max(job.gpus for job in workload.jobs)
    assert cluster_of(2, 25).servers[0].share_bytes_s == pytest.approx(25e9 / 64)
