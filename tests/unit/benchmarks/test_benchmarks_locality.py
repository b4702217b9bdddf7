"""The benchmark of locality: what it derives from profiles, and that it runs."""

from pathlib import Path

import pytest

from benchmarks import locality


def test_each_model_of_the_profiles_weighs_the_same(tmp_path: Path) -> None:
    """One model is not slowed at three batch sizes, another takes four times as long at one; other GPUs do not count."""
    header = "model,gpu_type,source,nodes,gpus,placement,local_bsz,step_s,sync_s"
    rows = [f"a,t4,placement,{len(p)},4,{p},{batch},2.0,0" for batch in (1, 2, 3) for p in ("4", "22")]
    rows += ["b,t4,placement,1,4,4,1,0.5,0", "b,t4,placement,4,4,1111,1,2.0,0"]
    rows += ["b,a100,placement,1,4,4,1,0.5,0", "b,a100,placement,4,4,1111,1,9.0,0", "b,t4,scalability,2,4,,1,9.0,0"]
    path = tmp_path / "profiles.csv"
    path.write_text("\n".join([header, *rows]), encoding="utf-8")
    assert locality.profile_lines(path).splitlines() == [
        "4 placements of 2 models",
        "deciles   1.000 1.000 1.000 1.000 1.000 1.000 4.000 4.000 4.000 4.000 4.000",
        "mean log  0.693",
    ]


def test_it_prints_a_line_for_each_policy_and_seed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = "locality --first 60 --servers 4 --seeds 0,1 --policies fifo_backfill"
    monkeypatch.setattr("sys.argv", given.split())
    locality.main()
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split()[:7] == ["policy", "seed", "jobs", "load", "blind", "learnt", "known"]
    assert [line.split()[:4] for line in lines] == [["fifo_backfill", seed, "60", "0.95"] for seed in "01"]


def test_rows_of_a_table_without_names_get_programs(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    rows = "".join(f"j{number},{number * 10},8,100\n" for number in range(200))
    path.write_text(f"job_id,submit_time_s,gpus,duration_s\n{rows}", encoding="utf-8")
    workload, cluster = locality.setting(path, 200, 0, 0.95, 3)
    names = [job.name for job in workload.jobs]
    assert set(names) == {f"program-{number}" for number in range(8)}
    assert names.count("program-0") > names.count("program-7")
    assert len({server.rack for server in cluster.servers}) == -(-len(cluster.servers) // locality.SERVERS_A_RACK)
