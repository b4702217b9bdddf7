"""``sooner workload``: what lands in the file, on standard output and on standard error, and how it ends."""

import gzip
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from service.sim.workloads.importers import IMPORTERS
from service.sim.workloads.table import read_workload
from tests.unit.service.cli.cli_world import app_of_group

app = app_of_group("workload")

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


def test_import_names_ten_skipped_rows_of_a_reason_and_counts_all(tmp_path: Path) -> None:
    trace = tmp_path / "e.csv"
    none, negative = "".join(f"c{i},30,0,1\n" for i in range(1_200)), "d,30,5,0\n"
    trace.write_text(f"job_id,submission_time,duration,num_gpu\nb,20,5,64\n{none}{negative}")
    result = RUNNER.invoke(app, ["import", "--format", "elasticflow", str(trace), "--out", str(tmp_path / "w.csv")])
    assert result.exit_code == 0, result.output
    *named, counted, last, last_counted, written = result.stderr.splitlines()
    assert named == [f"e.csv:{line}: skipped: duration is not positive" for line in range(3, 13)]
    assert counted == "skipped 1,200 rows: duration is not positive"
    assert last.startswith("e.csv:1203: skipped: ")
    assert last_counted.startswith("skipped 1 row: ")
    assert written.startswith("wrote 1 job to ")


def test_describe_tells_twenty_reasons_of_skipped_rows_and_counts_the_others(tmp_path: Path) -> None:
    table = tmp_path / "w.csv"
    wrong = "".join(f"b{i},5,x{i},10\n" for i in range(23))
    table.write_text(f"job_id,submit_time_s,gpus,duration_s\na,0,1,10\n{wrong}")
    result = RUNNER.invoke(app, ["describe", str(table), "--skip-invalid"])
    assert result.exit_code == 0, result.output
    *told, others = result.stderr.splitlines()
    assert [line.startswith("skipped 1 row: gpus: ") for line in told] == [False, True] * 20
    assert others == "skipped 3 more rows for 3 other reasons"


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


def test_a_workload_for_batsim(tmp_path: Path) -> None:
    """Its fields are those of Batsim's documentation ("Workload")."""
    table, out = tmp_path / "w.csv", tmp_path / "w.json"
    table.write_text(
        "job_id,submit_time_s,gpus,duration_s,walltime_s,user,name\n"
        'a,0,8,10.5,60,ada,"say ""hi"""\nb,5,1,20,10,,\nc,5,2,20,,,\n'
    )
    result = RUNNER.invoke(app, ["import", "--format", "sooner", str(table), "--out", str(out)])
    assert result.exit_code == 0, result.output
    document = json.loads(out.read_text())
    assert document["nb_res"] == 8
    first, second, third = document["jobs"]
    assert json.loads(first.pop("extra_data")) == {"user": "ada", "name": 'say "hi"'}
    assert first == {"id": "a", "subtime": 0.0, "res": 8, "profile": "a", "walltime": 60.0}
    # It ran longer than its limit, which Batsim would enforce.
    assert second == {"id": "b", "subtime": 5.0, "res": 1, "profile": "b"}
    assert third == {"id": "c", "subtime": 5.0, "res": 2, "profile": "c"}
    assert document["profiles"] == {
        job: {"type": "delay", "delay": delay} for job, delay in (("a", 10.5), ("b", 20.0), ("c", 20.0))
    }
    again = tmp_path / "again.json.gz"
    assert RUNNER.invoke(app, ["generate", "--jobs", "1", "--out", str(again)]).exit_code == 0
    assert len(json.loads(gzip.decompress(again.read_bytes()))["jobs"]) == 1


def test_a_file_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    result = RUNNER.invoke(app, ["generate", "--jobs", "5", "--out", str(tmp_path / "missing" / "w.csv")])
    assert result.exit_code == 2
    assert "No such file or directory" in result.stderr


def test_describe_against_a_cluster_and_as_a_page(tmp_path: Path) -> None:
    table, page, cluster = tmp_path / "<w>.csv", tmp_path / "page.html", tmp_path / "c.yaml"
    cluster.write_text("schema: sooner.cluster/1\nname: few\nservers: [{count: 8, gpus: 8}]\n")
    made = RUNNER.invoke(app, ["generate", "--jobs", "300", "--gpus", "64", "--load", "0.8", "--out", str(table)])
    assert made.exit_code == 0, made.output
    result = RUNNER.invoke(app, ["describe", str(table), "--cluster", str(cluster), "--json", "--html", str(page)])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert (document["cluster"], document["cluster_gpus"]) == ("few", 64)
    assert abs(document["load_ratio"] - 0.8) < 0.01
    text = page.read_text()
    tree = ElementTree.fromstring(text.replace("<!doctype html>", ""))
    sections = [section.get("id") for section in tree.iter("section")]
    assert sections == [
        *("durations", "gang-sizes", "offered", "rhythm", "users", "recurrence", "new-programs", "repeats"),
    ]
    assert "http" not in text
    assert "<w>" not in text
    assert "Synthetic" in text
    assert f"{document['load_ratio']:,.6g}" in text
    refused = RUNNER.invoke(app, ["describe", str(table), "--cluster", str(tmp_path / "none.yaml")])
    assert refused.exit_code == 2
    refused = RUNNER.invoke(app, ["describe", str(table), "--html", str(tmp_path / "none" / "page.html")])
    assert refused.exit_code == 1


def test_a_page_of_a_workload_that_tells_little(tmp_path: Path) -> None:
    table, page = tmp_path / "w.csv", tmp_path / "page.html"
    table.write_text("job_id,submit_time_s,gpus,duration_s\na,0,1,10\n")
    result = RUNNER.invoke(app, ["describe", str(table), "--html", str(page)])
    assert result.exit_code == 0, result.output
    tree = ElementTree.fromstring(page.read_text().replace("<!doctype html>", ""))
    assert [section.get("id") for section in tree.iter("section")] == ["durations", "gang-sizes"]


def test_generated_jobs_name_models_unless_told_otherwise(tmp_path: Path) -> None:
    for flags, expected in (([], False), (["--no-communication"], True)):
        out = tmp_path / "w.csv"
        assert RUNNER.invoke(app, ["generate", "--jobs", "20", *flags, "--out", str(out)]).exit_code == 0
        assert all(job.model == "" for job in read_workload(out).jobs) is expected


@pytest.mark.parametrize("name", ["a.txt", "a", "a.gz", "a.csv.bz2"])
def test_a_file_of_another_ending_is_refused_before_anything_is_made(tmp_path: Path, name: str) -> None:
    result = RUNNER.invoke(app, ["generate", "--jobs", "5", "--out", str(tmp_path / name)])
    assert result.exit_code == 2
    assert ".csv, .csv.gz, .parquet, .json, .json.gz" in " ".join(result.stderr.replace("│", " ").split())
    assert list(tmp_path.iterdir()) == []


def test_shares_and_means_of_nothing_are_not_described_as_zeros(tmp_path: Path) -> None:
    table = tmp_path / "w.csv"
    head = "job_id,submit_time_s,gpus,duration_s,user,name\n"

    def described(rows: str) -> dict[str, str]:
        table.write_text(head + rows)
        lines = RUNNER.invoke(app, ["describe", str(table)]).stdout.splitlines()
        return {line[:30].strip(): line[30:] for line in lines}

    none, one = described(""), described("a,0,2,100,,train\n")
    counted = {"skipped", "jobs", "users", "projects", "recurrence_keys", "gpu_hours"}
    counted |= {key for key in none if key.startswith("with_")}
    assert {key for key, value in none.items() if value == "0"} == counted
    unknown = {"busiest_hour_ratio", "quietest_hour_ratio", "busiest_day_ratio", "quietest_day_ratio"}
    unknown |= {"repeats_off_2x_ratio", "top_user_jobs_ratio", "top_tenth_of_users_jobs_ratio"}
    assert {key for key, value in one.items() if value == "-"} == unknown | {"mean_gpus_busy", "jobs_per_day"}
    assert (one["recurring_jobs_ratio"], one["duration_median_s"]) == ("0", "100 (1 min 40 s)")
    last = "".join(f"{job},{job},2,100,,train\n" for job in range(5))
    assert described(last)["repeats_off_2x_ratio"] == "0"
    assert RUNNER.invoke(app, ["describe", str(table), "--json"]).stdout.count("null") == 4
