"""``sooner model value``: a service's past that went through the real engine, predictor and database, and a table."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from policies.registry import make_policy
from predictor import dataset
from service.cli.main import app
from service.config.cluster_export import write_cluster
from service.db.migrate import upgrade
from service.db.recorded_jobs import ended_in
from service.db.servers import enroll
from service.db.session import open_database
from service.sim.experiment import SimulationOptions
from service.sim.jobs import prepare
from service.sim.workloads.generate import generate
from service.sim.workloads.table import write_workload
from tests.parity.test_stores import CLUSTER, SqlSimulator

RUNNER = CliRunner()
WORKLOAD = generate(7, 40, gpus=CLUSTER.gpus, programs=6, users=3, load=1.2, communication=False)
SINCE = ("--since", "1970-01-01")


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a database with 40 ended jobs, submitted in 1970."""
    url = f"sqlite:///{tmp_path_factory.mktemp('past') / 'own.db'}"
    upgrade(url)
    database = open_database(url)
    enroll(database, CLUSTER)
    simulator = SqlSimulator(
        prepare(WORKLOAD, CLUSTER).jobs, CLUSTER, make_policy("asrpt"), "trained", SimulationOptions()
    )
    simulator.use(database, "asrpt")
    with pytest.MonkeyPatch.context() as patch:
        # A replay has what was said first of each job. So here the first ends tell nothing about jobs of other programs.
        patch.setattr(dataset, "FIRST_ENDS", frozenset())
        simulator.run()
    database.close()
    return url


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, past: str) -> None:
    monkeypatch.setenv("SOONER_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("SOONER_DATABASE_URL", past)


def test_the_past_of_a_service(past: str) -> None:
    result = RUNNER.invoke(app, ["model", "value", *SINCE, "--workers", "1", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["schema"], found["jobs"], found["predicted"]) == ("sooner.model.value/1", 40, 39), (
        "of the first job nothing was known"
    )
    assert (found["policy"], found["gpus"], found["workload"], found["older_jobs"]) == ("asrpt", 8, None, 0)
    schedules = found["schedules"]
    assert set(schedules) == {"none", "served", "oracle", "actual"}
    # Nine levels of what was said are kept. On this workload no job changes places for that; on others the mean moves by
    # up to 9%.
    assert schedules["served"]["mean_jct_s"] == pytest.approx(schedules["actual"]["mean_jct_s"], rel=0.01)
    assert schedules["oracle"]["mean_jct_s"] < schedules["none"]["mean_jct_s"]
    for gain, before, after in (("worth", "none", "served"), ("loss", "served", "oracle")):
        for key, unit in (("mean_jct_s", "mean_jct_s"), ("waiting_hours",) * 2, ("gpu_hours", "wasted_gpu_hours")):
            assert found[gain][key] == pytest.approx(schedules[before][unit] - schedules[after][unit], abs=2e-3)
    experts = {each["name"]: each["jobs"] for each in found["experts"]}
    assert experts["recurrence_median20"] >= 35
    assert sum(part["jobs"] for part in found["parts"][:4]) == 39, "each has as many past runs as its features say"
    assert sum(each["jobs"] for each in found["accuracy"]) == 39


def test_the_newest_jobs_as_a_table_with_a_note_of_the_others() -> None:
    result = RUNNER.invoke(app, ["model", "value", *SINCE, "--jobs", "15", "--workers", "1", "--policy", "srsf"])
    assert result.exit_code == 0, result.output
    assert "older than the newest 15 (--jobs)" in result.stderr
    lines = result.stdout.splitlines()
    assert " jobs since 1970-01-" in lines[0]
    assert "policy srsf on 2 servers with 8 GPUs" in lines[0]
    names = [line.split()[0] for line in lines if line]
    assert names.index("none") < names.index("served") < names.index("oracle") < names.index("recurrence_median20")
    assert any(line.startswith("Saved by the predictions, against none: ") for line in lines)
    assert any(line.startswith("predicted below 1/2") for line in lines)


def test_how_many_jobs_of_a_window_ended(past: str) -> None:
    database = open_database(past)
    submitted_s = [job.submit_time_s for job in WORKLOAD.jobs]
    assert ended_in(database, None, None, 40) == (40, None)
    assert ended_in(database, None, None, 10) == (40, pytest.approx(submitted_s[-10]))
    assert ended_in(database, submitted_s[5], submitted_s[25], 3) == (20, pytest.approx(submitted_s[22]))
    database.close()


def test_a_table_is_predicted_again(tmp_path: Path) -> None:
    jobs = list(WORKLOAD.jobs)
    jobs[30] = replace(jobs[30], gpus=64)
    write_workload(replace(WORKLOAD, jobs=tuple(jobs)), tmp_path / "jobs.csv")
    write_cluster(CLUSTER, tmp_path / "cluster.yaml")
    files = ("--workload", str(tmp_path / "jobs.csv"), "--cluster", str(tmp_path / "cluster.yaml"))
    answers = [
        RUNNER.invoke(app, ["model", "value", *files, "--first", "38", "--jobs", "30", "--workers", "1", "--json"])
        for _ in range(2)
    ]
    assert answers[0].exit_code == 0, answers[0].output
    assert answers[0].stdout == answers[1].stdout
    found = json.loads(answers[0].stdout)
    assert (found["workload"], found["jobs"], found["older_jobs"], found["start_s"]) == ("jobs.csv", 29, 8, None)
    assert found["left_out"] == {"does not fit the servers as they are now": 1}
    assert set(found["schedules"]) == {"none", "served", "oracle"}


def test_a_table_without_jobs_is_wrong_input(tmp_path: Path) -> None:
    write_workload(replace(WORKLOAD, jobs=WORKLOAD.jobs[:0]), tmp_path / "jobs.csv")
    write_cluster(CLUSTER, tmp_path / "cluster.yaml")
    given = ("--workload", str(tmp_path / "jobs.csv"), "--cluster", str(tmp_path / "cluster.yaml"))
    result = RUNNER.invoke(app, ["model", "value", *given])
    assert (result.exit_code, result.stderr) == (2, "error: the workload holds no job that fits the cluster\n")


@pytest.mark.parametrize(
    ("options", "words", "code"),
    [
        (("--since", "3h", "--days", "2"), "--days and --since are both given", 2),
        ((), "no job that was submitted in this period has run and ended", 1),
        (("--workload", "jobs.csv"), "--workload needs --cluster", 2),
        (("--cluster", "cluster.yaml"), "--cluster and --first need --workload", 2),
        (("--workload", "jobs.csv", "--cluster", "c.yaml", "--days", "2"), "cannot be combined with --since", 2),
        (("--policy", "asprt"), "--policy: unknown policy 'asprt'", 2),
    ],
)
def test_wrong_options_end_with_one_line(options: tuple[str, ...], words: str, code: int) -> None:
    result = RUNNER.invoke(app, ["model", "value", *options])
    assert result.exit_code == code
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1
