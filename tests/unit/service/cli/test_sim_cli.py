"""``sooner sim``: documents on standard output, one clear line for each mistake, exit codes."""

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from service.domain.duration import words_of
from tests.unit.service.cli.cli_world import app_of_group

app = app_of_group("sim")


RUNNER = CliRunner()
RESULT_KEYS = [
    "schema",
    "policy",
    "predictor",
    "seed",
    "jobs",
    "skipped",
    "finished",
    "mean_jct_s",
    "median_jct_s",
    "p90_jct_s",
    "p99_jct_s",
    "mean_queueing_delay_s",
    "mean_slowdown",
    "makespan_s",
    "utilization_ratio",
    "preemptions",
    "wasted_gpu_s",
    "lower_bound_mean_jct_s",
    "ratio_to_lower_bound",
    "events",
    "wall_s",
    "promises",
    "promises_kept_ratio",
    "mean_lateness_s",
    "mean_promised_jct_s",
    "promised_jct_ratio",
]


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    (tmp_path / "w.csv").write_text("job_id,submit_time_s,gpus,duration_s\na,0,4,100\nb,10,2,50\nc,20,9,1\nd,30,1,5\n")
    (tmp_path / "c.yaml").write_text("schema: sooner.cluster/1\nservers: [{gpus: 4}]\n")
    return ["--workload", str(tmp_path / "w.csv"), "--cluster", str(tmp_path / "c.yaml")]


def test_run_prints_one_result_and_nothing_else(files: list[str]) -> None:
    result = RUNNER.invoke(app, ["run", *files, "--policy", "fifo", "--skip-invalid", "--seed", "4", "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert list(document) == RESULT_KEYS
    assert (document["schema"], document["policy"], document["seed"]) == ("sooner.sim.result/1", "fifo", 4)
    assert (document["jobs"], document["skipped"], document["finished"]) == (3, 1, 3)
    assert document["mean_jct_s"] == (100 + 140 + 75) / 3
    assert document["wall_s"] > 0


@pytest.mark.parametrize("command", [["run"], ["compare", "--policies", "fifo,sjf"], ["bounds"]])
def test_jobs_that_are_left_out_are_told_with_their_reason(files: list[str], command: list[str]) -> None:
    result = RUNNER.invoke(app, [*command, *files, "--skip-invalid", "--json"])
    assert result.exit_code == 0, result.output
    assert result.stderr.splitlines()[:2] == [
        "w.csv: skipped: job 'c' needs 9 GPUs, but cluster 'cluster' has 4",
        "skipped 1 job that the cluster cannot run",
    ]
    json.loads(result.stdout)


def test_first_leaves_later_rows_alone(files: list[str]) -> None:
    result = RUNNER.invoke(app, ["run", *files, "--first", "2", "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["jobs"] == 2


@pytest.mark.parametrize("network", ["reserved", "contended"])
def test_both_networks_are_known(files: list[str], network: str) -> None:
    for command in (["run"], ["compare", "--policies", "fifo,sjf"]):
        result = RUNNER.invoke(app, [*command, *files, "--skip-invalid", "--network", network, "--json"])
        assert result.exit_code == 0, result.output


def test_run_as_a_table(files: list[str], tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    result = RUNNER.invoke(app, ["run", *files, "--skip-invalid", "--out", str(out)])
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["mean_jct", "1", "min", "45", "s"] in rows
    assert sorted(path.name for path in out.iterdir()) == ["batsim_jobs.csv", "jobs.csv", "result.json"]
    assert list(json.loads((out / "result.json").read_text())) == RESULT_KEYS


def test_compare(files: list[str], tmp_path: Path) -> None:
    arguments = ["compare", *files, "--skip-invalid", "--policies", "asrpt,fifo", "--preemption", "never"]
    result = RUNNER.invoke(app, [*arguments, "--json", "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["schema"] == "sooner.sim.comparison/1"
    assert [run["policy"] for run in document["runs"]] == ["asrpt", "fifo"]
    assert list(document["runs"][1]) == RESULT_KEYS
    assert (tmp_path / "out" / "fifo" / "jobs.csv").exists()
    assert RUNNER.invoke(app, arguments).exit_code == 0


def test_promises_are_shown_where_a_policy_makes_some(files: list[str], tmp_path: Path) -> None:
    """Without experience d, which comes at 30 s for 5 s, is promised to end by 45 s; stopping a for it at 30 s does not pay."""
    arguments = ["compare", *files, "--skip-invalid", "--policies", "promise,fifo"]
    page = tmp_path / "report.html"
    result = RUNNER.invoke(app, [*arguments, "--json", "--html", str(page), "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    promised, plain = json.loads(result.stdout)["runs"]
    assert (promised["promises"], promised["promises_kept_ratio"], promised["mean_lateness_s"]) == (3, 2 / 3, 60 / 3)
    assert promised["mean_promised_jct_s"] > promised["mean_jct_s"]
    assert 0.0 < promised["promised_jct_ratio"] < 1.0, "d's counts as much as the longer ones"
    assert (plain["promises"], plain["promises_kept_ratio"], plain["promised_jct_ratio"]) == (0, None, None)
    text = page.read_text()
    assert "<td>66.7%</td>" in text
    assert text.count("Promises kept") == 1
    with (tmp_path / "out" / "promise" / "jobs.csv").open() as stream:
        assert [row.split(",")[-1] for row in stream.read().splitlines()][:2] == ["promised_end_s", "300.0"]
    table = RUNNER.invoke(app, arguments).stdout
    assert "promises_kept_ratio" in table
    assert "promises" not in RUNNER.invoke(app, ["run", *files, "--skip-invalid"]).stdout


def test_compare_as_a_page(files: list[str], tmp_path: Path) -> None:
    named = tmp_path / "<b>&.csv"
    Path(files[1]).rename(named)
    page = tmp_path / "report.html"
    arguments = ["compare", "--workload", str(named), *files[2:], "--skip-invalid", "--policies", "asrpt,fifo"]
    result = RUNNER.invoke(app, [*arguments, "--html", str(page), "--json"])
    assert result.exit_code == 0, result.output
    text = page.read_text()
    runs = json.loads(result.stdout)["runs"]
    for run in runs:
        assert f"<td>{run['ratio_to_lower_bound']:.3f}</td>" in text
        assert f'<td title="{run["mean_jct_s"]:,.1f} s">{words_of(run["mean_jct_s"])}</td>' in text
    # Well-formed, nothing from elsewhere, and a file name is text, never markup.
    tree = ElementTree.fromstring(text.replace("<!doctype html>", ""))
    assert [cell.text for cell in tree.iter("th")].count("fifo") == 1
    assert "http" not in text
    assert "&lt;b&gt;&amp;.csv" in text


def test_bounds(files: list[str]) -> None:
    result = RUNNER.invoke(app, ["bounds", *files, "--first", "2", "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert list(document) == [
        *("schema", "jobs", "gpus", "lower_bound_mean_jct_s", "srpt_mean_jct_s"),
        *("duration_mean_s", "mean_busy_mean_jct_s"),
    ]
    assert (document["schema"], document["jobs"], document["gpus"]) == ("sooner.sim.bounds/1", 2, 4)
    # One machine: b (25 s of work) interrupts a at 10 s, so a ends at 125.
    assert document["srpt_mean_jct_s"] == (125 + 25) / 2
    assert document["duration_mean_s"] == 75.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "magic"], "unknown policy 'magic'"),
        (["--option", "eta"], "--option 'eta' is not NAME=VALUE"),
        (["--option", "eta=2"], "option eta"),
        (["--option", "eta=0.5", "--option", "eta=0.6"], "--option eta is given twice"),
        (["--option", "preemption=never", "--preemption", "never"], "--preemption and --option"),
        (["--preemption", "sometimes"], "option preemption"),
        (["--policy", "fifo", "--preemption", "guided"], "fifo does not preempt"),
        (["--predictor", "noisy:x"], "--predictor"),
        (["--predictor", "foo"], "trained or none, or recorded for the service's own history"),
        (["--network", "wifi"], "'wifi' is unknown; use reserved, contended"),
        (["--network", "contended:xi3=1"], "'xi3=1' is not NAME=VALUE with one of the names xi1, a, xi2"),
        (["--checkpoint-s", "-1"], "--checkpoint-s"),
        (["--restart-s", "nan"], "--restart-s"),
        (["--restart-s", "inf"], "--restart-s"),
        (["--first", "0"], "--first"),
        ([], "job 'c' needs 9 GPUs, but cluster 'cluster' has 4"),
    ],
)
def test_a_mistake_is_named_and_ends_with_2(files: list[str], arguments: list[str], message: str) -> None:
    fits = ["--skip-invalid"] if arguments else []
    result = RUNNER.invoke(app, ["run", *files, *arguments, *fits, "--json"], env={"COLUMNS": "200"})
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in " ".join(result.stderr.split())


def test_wrong_files_are_named(files: list[str], tmp_path: Path) -> None:
    for position, name in ((1, "w.csv"), (3, "c.yaml")):
        wrong = [*files]
        wrong[position] = str(tmp_path / "none" / name)
        result = RUNNER.invoke(app, ["run", *wrong])
        assert result.exit_code == 2
        assert name in result.stderr
    (tmp_path / "c.yaml").write_text("schema: sooner.cluster/1\nservers: [{gpus: 4}, {gpus: 0}]\n")
    result = RUNNER.invoke(app, ["bounds", *files])
    assert result.exit_code == 2
    assert "servers[1].gpus: must be at least 1 (got 0)" in result.stderr


def test_an_output_folder_that_cannot_be_made_is_named_before_the_run(files: list[str], tmp_path: Path) -> None:
    result = RUNNER.invoke(app, ["run", *files, "--skip-invalid", "--out", str(tmp_path / "w.csv" / "out")])
    assert result.exit_code == 2
    assert "--out" in result.stderr


def test_a_simulation_imports_neither_learning_nor_web_nor_database() -> None:
    script = "import sys, service.cli.sim; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    heavy = {"sklearn", "xgboost", "fastapi", "sqlmodel", "sqlalchemy", "apscheduler", "scipy", "pandas", "pyarrow"}
    assert heavy.isdisjoint(loaded)


def test_bounds_of_no_jobs_are_not_shown_as_zeros(files: list[str]) -> None:
    Path(files[1]).write_text("job_id,submit_time_s,gpus,duration_s\n")
    lines = [line.split() for line in RUNNER.invoke(app, ["bounds", *files]).stdout.splitlines()]
    assert dict(lines[1:3]) == {"jobs": "0", "gpus": "4"}
    assert {value for _, value in lines[3:]} == {"-"}
