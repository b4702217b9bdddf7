"""What if: other policies on a snapshot by hand, and every command from a database or a recorded cycle to its table."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import update

from policies.lifecycle import JobState
from policies.model.ids import JobId
from policies.registry import make_policy
from service.config.cluster_file import load_cluster
from service.db.recorded_jobs import recorded_jobs
from service.db.specs import spec_document
from service.db.tables import JOBS
from service.forecast.forecast import ForecastOptions, NoForecast, Spread
from service.forecast.whatif import Candidate, outlooks
from service.sim.workloads.table import read_workload
from tests.unit.service.cli.cli_world import CliWorld, cli_world
from tests.unit.service.forecast.test_forecast import NOW_S, job, running, snapshot
from tests.unit.service.history.test_own_history import live, rows
from tests.unit.service.history.test_replay import recorded, snapshots

# From now on, by hand.

FIFO, SJF = Candidate("fifo", make_policy("fifo")), Candidate("sjf", make_policy("sjf"))


def test_shortest_job_first_computed_by_hand() -> None:
    """One GPU; 60 s of job 1 are left, then a job of 100 s that came at -98 and one of 10 s that came at -97."""
    found = outlooks(
        snapshot(running(job(1, (100.0,)), 40.0), job(2, (100.0,)), job(3, (10.0,))), [FIFO, SJF], ForecastOptions(8)
    )
    first, second = found.outlooks
    waited_s = 99.0 + 98.0 + 97.0
    assert first.mean_jct_s == pytest.approx((waited_s + 60.0 + 160.0 + 170.0) / 3)
    assert second.mean_jct_s == pytest.approx((waited_s + 60.0 + 170.0 + 70.0) / 3)
    assert (first.better_in, second.better_in, found.samples) == (0, 8, 8)
    assert second.finishes[JobId(3)] == Spread(*[NOW_S + 70.0] * 3)
    assert second.mean_jct_spread_s.p10_s == pytest.approx(second.mean_jct_s)


def test_all_policies_get_the_same_futures() -> None:
    """Two names of one policy: not one future differs, whatever the totals are."""
    again = replace(FIFO, label="again")
    found = outlooks(snapshot(job(1, (10.0, 500.0)), job(2, (5.0, 50.0, 900.0))), [FIFO, again], ForecastOptions(16))
    first, second = found.outlooks
    assert first.finishes == second.finishes
    assert second.better_in == 0
    assert first.finishes[JobId(2)].p10_s < first.finishes[JobId(2)].p90_s


def test_the_means_exclude_ended_jobs_and_jobs_that_never_end() -> None:
    ended = job(4, (5.0,))
    ended.state = JobState.SUCCEEDED
    found = outlooks(snapshot(job(1, (5.0,)), job(2, (50.0,), held=True), ended), [FIFO, SJF], ForecastOptions(8))
    assert (found.jobs, found.unfinished) == ([1], 2)
    assert {each.mean_jct_s for each in found.outlooks} == {99.0 + 5.0}
    with pytest.raises(NoForecast, match="All jobs are finished"):
        outlooks(snapshot(ended), [FIFO])
    with pytest.raises(NoForecast, match="No job ends"):
        outlooks(snapshot(job(2, (50.0,), held=True)), [FIFO])


# The commands.


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CliWorld]:
    with cli_world(tmp_path, monkeypatch) as made:
        kept = snapshots(recorded([(0, 4, 60), (0, 2, 60), (1, 4, 500), (2, 4, 50)], "fifo"))
        made.world.snapshots = {each.cycle: each for each in kept}
        monkeypatch.chdir(tmp_path)
        yield made


def test_the_present_queue_under_another_policy(cli: CliWorld) -> None:
    cli.run("sim", "snapshot", "--out", "c.json")
    result = cli.run("sim", "what-if", "--snapshot", "c.json", "--policies", "current,sjf,fifo:tau=2")
    assert result.exit_code == 0, result.output
    assert "current policy: fifo" in result.stderr
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[0][:3] == ["POLICY", "MEAN", "JCT"]
    assert [line[0] for line in lines[1:4]] == ["current", "sjf", "fifo:tau=2"]
    assert lines[2][-4:] == ["0", "of", "16", "futures"]
    assert lines[5][:4] == ["JOB", "NAME", "GPUS", "END"]
    document = json.loads(cli.run("sim", "what-if", "--snapshot", "c.json", "--policies", "sjf", "--json").stdout)
    assert document["schema"] == "sooner.sim.outlook/1"
    assert [each["policy"] for each in document["policies"]] == ["current", "sjf"], "the one in force is always told"
    assert document["samples"] == 16
    finishes = document["policies"][0]["finishes"]
    assert document["jobs"] == len(finishes) == document["unfinished"]
    assert all(each["p10_s"] <= each["p50_s"] <= each["p90_s"] for each in finishes)


@pytest.fixture
def lived(cli: CliWorld) -> CliWorld:
    """A service that has run twelve jobs under fifo."""
    with cli.world.database.writing() as session:
        for name in ("job_events", "facts", "jobs", "servers"):
            session.connection().exec_driver_sql(f"DELETE FROM {name}")
    live(cli.world.database, "fifo", rows())
    return cli


def test_the_past_under_other_policies_and_the_actual_results(lived: CliWorld) -> None:
    arguments = ("sim", "what-if", "--policies", "fifo,srtf", "--json")
    told = lived.run(*arguments)
    assert told.exit_code == 0, told.output
    document = json.loads(told.stdout)
    assert (document["schema"], document["jobs"], document["carried"]) == ("sooner.sim.whatif/1", 12, 0)
    assert (document["servers"], document["gpus"], document["left_out"]) == (2, 8, {})
    first, second = document["runs"]
    assert (first["policy"], first["predictor"]) == ("fifo", "recorded")
    # The story was lived with restarts of 20 s and preempts nobody, so the settings' 60 s change nothing.
    assert first["mean_jct_s"] == pytest.approx(document["actual"]["mean_jct_s"], rel=1e-4)
    assert second["mean_jct_s"] < first["mean_jct_s"]

    more = json.loads(lived.run(*arguments, "--servers", "+2").stdout)
    assert (more["servers"], more["gpus"]) == (4, 16)
    assert more["runs"][0]["mean_jct_s"] < first["mean_jct_s"]
    assert more["actual"] == document["actual"]

    table = lived.run("sim", "what-if", "--policies", "current,fifo", "--predictor", "oracle")
    assert "12 jobs from 1970-01-01" in table.stderr
    assert table.stdout.splitlines()[0].split() == ["policy", "actual", "current", "fifo"]
    late = lived.run("sim", "what-if", "--policies", "fifo", "--since", "1970-01-01T00:05")
    assert "of them submitted earlier" in late.stderr


def test_jobs_that_are_simulated_without_their_hold_are_counted(lived: CliWorld) -> None:
    database = lived.world.database
    assert "hold" not in lived.run("sim", "what-if", "--policies", "fifo").stderr
    for past in recorded_jobs(database, None, None)[:2]:
        held = spec_document(replace(past.record.spec, hold=True))
        database.execute(update(JOBS).where(JOBS.c.id == past.record.id).values(spec=held))
    told = lived.run("sim", "what-if", "--policies", "fifo")
    assert told.exit_code == 0, told.output
    assert "submitted with hold, but simulated without it: 2 jobs\n" in told.stderr


def test_exported_files_are_valid_for_other_commands(lived: CliWorld, tmp_path: Path) -> None:
    result = lived.run("workload", "export", "--out", "past.csv", "--cluster-out", "own.yaml", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert (document["schema"], document["jobs"], document["own_graphs"]) == ("sooner.workload.export/1", 12, 0)
    assert len(read_workload(tmp_path / "past.csv").jobs) == 12
    assert [server.name for server in load_cluster(tmp_path / "own.yaml").servers] == ["a", "b"]
    run = lived.run("sim", "run", "--workload", "past.csv", "--cluster", "own.yaml", "--policy", "fifo", "--json")
    assert json.loads(run.stdout)["finished"] == 12
    assert lived.run("cluster", "export", "--out", "again.yaml").exit_code == 0
    assert (tmp_path / "again.yaml").read_text() == (tmp_path / "own.yaml").read_text()
    part = lived.run(
        "workload", "export", "--out", "part.csv", "--since", "1970-01-01T00:05", "--until", "1970-01-01T00:07"
    )
    assert "was submitted before the window" in part.stderr
    assert [each.submit_time_s for each in read_workload(tmp_path / "part.csv").jobs] == [20.0, 60.0, 100.0]
    carried = lived.run("workload", "export", "--out", "part.csv", "--since", "1970-01-01T00:05", "--carry")
    assert carried.exit_code == 0
    assert read_workload(tmp_path / "part.csv").jobs[0].submit_time_s == 0.0


@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        (
            ("sim", "what-if", "--policies", "fifo", "--snapshot", "c.json", "--servers", "+1"),
            "combined with --since",
            2,
        ),
        (("sim", "what-if", "--policies", "fifo", "--snapshot", "c.json"), "No such file", 2),
        (("sim", "what-if", "--policies", "raffle"), "unknown policy", 2),
        (("sim", "what-if", "--policies", "current,current"), "a name twice", 2),
        (("sim", "what-if", "--policies", "fifo"), "no job that was submitted in this period", 1),
        (("sim", "what-if", "--policies", "fifo", "--since", "yesterday"), "neither a time", 2),
        (("sim", "what-if", "--policies", "fifo", "--since", "1d", "--until", "2d"), "must be before", 2),
        (("workload", "export", "--out", "x.csv"), "no job that was submitted in this period", 1),
        (
            ("workload", "export", "--out", "x.csv", "--database-url", "sqlite:///none.db"),
            "there is no database at none.db",
            2,
        ),
        (("cluster", "export", "--out", "no/such/folder.yaml"), "No such file", 2),
    ],
)
def test_an_error_is_one_line(arguments: tuple[str, ...], said: str, code: int, cli: CliWorld) -> None:
    result = cli.run(*arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_cluster_too_small_for_the_past_is_an_error(lived: CliWorld, tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text("schema: sooner.cluster/1\nservers: [{gpus: 2}]\n")
    result = lived.run("sim", "what-if", "--policies", "fifo", "--servers", "tiny.yaml")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "needs 4 GPUs" in result.stderr
    assert lived.run("sim", "what-if", "--policies", "fifo", "--servers", "none.yaml").exit_code == 2
    for servers in ("+100000", "+x"):
        result = lived.run("sim", "what-if", "--policies", "fifo", "--servers", servers)
        told = f"error: --servers {servers!r} is neither +N with N from 0 to 99999 nor a cluster file\n"
        assert (result.exit_code, result.stderr) == (2, told)
    assert lived.run("sim", "what-if", "--policies", "fifo", "--predictor", "guess").exit_code == 2
