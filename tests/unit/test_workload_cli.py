"""``sooner workload``: what lands in the file, on standard output and on standard error, and how it ends."""

import json
from pathlib import Path

from typer.testing import CliRunner

from service.cli.workload import app
from service.sim.workloads.importers import IMPORTERS
from service.sim.workloads.table import read_workload

RUNNER = CliRunner()


def test_import_writes_the_table_and_names_the_skipped_rows(tmp_path: Path) -> None:
    trace = tmp_path / "e.csv"
    trace.write_text("job_id,submission_time,duration,num_gpu\nb,20,5,64\na,10,7,1\nc,30,0,1\nd,30,-2,1\n")
    out = tmp_path / "w.csv"
    result = RUNNER.invoke(app, ["import", "--format", "elasticflow", str(trace), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    assert "e.csv:4: skipped: duration is not positive" in result.stderr
    assert "skipped 2 rows: duration is not positive" in result.stderr
    assert [job.job_id for job in read_workload(out).jobs] == ["a", "b"]


def test_import_of_an_unknown_format_says_which_exist(tmp_path: Path) -> None:
    result = RUNNER.invoke(app, ["import", "--format", "borg", "x", "--out", str(tmp_path / "w.csv")])
    assert result.exit_code == 2
    assert ", ".join(sorted(IMPORTERS)) in result.stderr


def test_import_without_a_single_job_fails(tmp_path: Path) -> None:
    trace = tmp_path / "log.swf"
    trace.write_text("; nothing here\n")
    out = tmp_path / "w.csv"
    result = RUNNER.invoke(app, ["import", "--format", "swf", str(trace), "--out", str(out)])
    assert (result.exit_code, out.exists()) == (2, False)


def test_describe_prints_json_alone(tmp_path: Path) -> None:
    table = tmp_path / "w.csv"
    table.write_text("job_id,submit_time_s,gpus,duration_s\na,0,1,10\nb,5,0,10\n")
    result = RUNNER.invoke(app, ["describe", str(table), "--json", "--skip-invalid"])
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert (document["schema"], document["jobs"], document["skipped"]) == ("sooner.workload.description/1", 1, 1)
    assert "w.csv:3: skipped: gpus" in result.stderr
    refused = RUNNER.invoke(app, ["describe", str(table)])
    assert refused.exit_code == 2
    assert "w.csv:3: gpus: " in refused.stderr
    first = RUNNER.invoke(app, ["describe", str(table), "--first", "1"])
    assert first.exit_code == 0
    assert "duration_median_s" in first.stdout


def test_generate_is_reproducible(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv"):
        result = RUNNER.invoke(app, ["generate", "--jobs", "50", "--seed", "3", "--out", str(tmp_path / name)])
        assert result.exit_code == 0, result.output
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    assert len(read_workload(tmp_path / "a.csv").jobs) == 50


def test_a_file_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    result = RUNNER.invoke(app, ["generate", "--jobs", "5", "--out", str(tmp_path / "missing" / "w.csv")])
    assert result.exit_code == 2
    assert "No such file or directory" in result.stderr
