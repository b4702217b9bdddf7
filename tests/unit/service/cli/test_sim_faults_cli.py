"""Costs and faults on the command line of ``sooner sim``: what they change, and one clear line for each mistake."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from policies.model.cluster import Cluster, Server
from policies.model.ids import ServerIndex
from service.sim.faults import FaultPlan, Window
from service.sim.faults_file import FaultsError, load_faults, parse_drain
from tests.unit.service.cli.cli_world import app_of_group
from tests.unit.service.cli.test_sim_cli import RESULT_KEYS

app = app_of_group("sim")

RUNNER = CliRunner()
CLUSTER = Cluster("c", (Server("a", 4), Server("rack:7", 4)))
FAULTS = """schema: sooner.faults/1
mtbf_s: 5000
mttr_s: 60
shape: 0.8
crash_mtbf_s: 9000
drains: [{server: a, from_s: 0, to_s: 10}]
outages:
  - {server: "rack:7", from_s: 20}
"""


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    rows = "".join(f"j{n},{n * 10},{1 + n % 4},{200 + n}\n" for n in range(30))
    (tmp_path / "w.csv").write_text(f"job_id,submit_time_s,gpus,duration_s\n{rows}")
    (tmp_path / "c.yaml").write_text("schema: sooner.cluster/1\nname: c\nservers: [{count: 2, gpus: 4}]\n")
    return ["--workload", str(tmp_path / "w.csv"), "--cluster", str(tmp_path / "c.yaml")]


def told(*arguments: str) -> dict[str, Any]:
    result = RUNNER.invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def test_latencies_hold_gpus_and_do_no_work(files: list[str]) -> None:
    run = ["run", *files, "--policy", "sjf"]
    plain, launching = told(*run), told(*run, "--launch-latency-s", "7")
    assert launching["wasted_gpu_s"] - plain["wasted_gpu_s"] == 7 * sum(1 + n % 4 for n in range(30))
    preempting = ["run", *files, "--preemption", "guided", "--option", "guard_share=0", "--restart-s", "0"]
    slow = told(*preempting, "--stop-latency-s", "3")
    assert slow["preemptions"] > 0
    assert slow["mean_jct_s"] > told(*preempting)["mean_jct_s"]


def test_the_document_keeps_its_keys_and_the_table_tells_what_went_wrong(files: list[str]) -> None:
    faulty = ["run", *files, "--policy", "fifo_backfill", "--mtbf-s", "900", "--mttr-s", "50", "--crash-mtbf-s", "500"]
    document = told(*faulty)
    assert list(document) == RESULT_KEYS
    assert document["wasted_gpu_s"] > told("run", *files, "--policy", "fifo_backfill")["wasted_gpu_s"]
    assert told(*faulty) | {"wall_s": 0} == document | {"wall_s": 0}
    assert told(*faulty, "--seed", "1")["mean_jct_s"] != document["mean_jct_s"]
    table = RUNNER.invoke(app, faulty).stdout
    counts = {line[:24].strip(): line[24:].strip() for line in table.splitlines()}
    assert int(counts["server_failures"]) > 0
    assert int(counts["crashes"]) > 0
    assert counts["lost_gpu_time"] not in ("0 s", "")
    assert "server_failures" not in RUNNER.invoke(app, ["run", *files]).stdout


def test_compare_takes_them_all_and_does_not_depend_on_its_workers(files: list[str]) -> None:
    compare = [
        "compare",
        *files,
        "--policies",
        "asrpt,las,fifo",
        "--mtbf-s",
        "2000",
        "--mttr-s",
        "100",
        "--drain",
        "s0002:50:400",
    ]
    one, three = (told(*compare, "--workers", workers)["runs"] for workers in ("1", "3"))
    assert [run | {"wall_s": 0} for run in one] == [run | {"wall_s": 0} for run in three]
    assert [run["finished"] for run in one] == [30, 30, 30]
    table = RUNNER.invoke(app, compare).stdout
    assert len(next(line for line in table.splitlines() if line.startswith("server_failures")).split()) == 4


def test_jobs_that_are_left_behind_are_named_with_the_reason(files: list[str]) -> None:
    result = RUNNER.invoke(
        app, ["run", *files, "--policy", "fifo", "--drain", "s0001:0:", "--drain", "s0002:250:", "--json"]
    )
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    left = document["jobs"] - document["finished"]
    assert left > 5
    assert f"jobs that did not finish: fifo: {left} (j" in result.stderr
    assert result.stderr.count("no_such_servers") == 5
    assert "..." in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mtbf-s", "0.5"], "--mtbf-s"),
        (["--mtbf-s", "inf"], "--mtbf-s"),
        (["--mttr-s", "-1", "--mtbf-s", "10"], "--mttr-s"),
        (["--mttr-s", "60"], "--mttr-s and --failure-shape need --mtbf-s"),
        (["--failure-shape", "0"], "--failure-shape"),
        (["--crash-mtbf-s", "nan"], "--crash-mtbf-s"),
        (["--launch-latency-s", "-1"], "--launch-latency-s"),
        (["--stop-latency-s", "inf"], "--stop-latency-s"),
        (
            ["--drain", "s0003:0:10"],
            "--drain 's0003:0:10': cluster 'c' has no server 's0003'; its servers are s0001 to s0002",
        ),
        (["--drain", "s0001"], "--drain 's0001' is not SERVER:FROM_S:TO_S"),
        (["--drain", "s0001:a:b"], "--drain 's0001:a:b' is not SERVER:FROM_S:TO_S"),
        (["--drain", "s0001:10:10"], "--drain 's0001:10:10': FROM_S must be at least 0, and TO_S greater"),
        (["--drain", "s0001:-1:10"], "FROM_S must be at least 0"),
        (["--drain", "s0001:0:nan"], "FROM_S must be at least 0"),
        (["--faults", "nowhere.yaml"], "--faults nowhere.yaml: No such file"),
    ],
)
def test_a_mistake_is_named_and_ends_with_2(files: list[str], arguments: list[str], message: str) -> None:
    for command in (["run"], ["compare", "--policies", "fifo"]):
        result = RUNNER.invoke(app, [*command, *files, *arguments, "--json"], env={"COLUMNS": "200"})
        assert (result.exit_code, result.stdout) == (2, "")
        assert message in " ".join(result.stderr.split())


def test_a_faults_file_says_the_same_as_options(files: list[str], tmp_path: Path) -> None:
    path = tmp_path / "faults.yaml"
    path.write_text(
        "schema: sooner.faults/1\nmtbf_s: 2000\nmttr_s: 100\ndrains: [{server: s0002, from_s: 50, to_s: 400}]\n"
    )
    run = ["run", *files, "--policy", "sjf"]
    by_file = told(*run, "--faults", str(path))
    by_options = told(*run, "--mtbf-s", "2000", "--mttr-s", "100", "--drain", "s0002:50:400")
    assert by_file | {"wall_s": 0} == by_options | {"wall_s": 0}
    # An option goes before the file, and drains add up.
    mixed = told(*run, "--faults", str(path), "--mtbf-s", "1e9", "--drain", "s0001:10:90")
    drains = ["--drain", "s0002:50:400", "--drain", "s0001:10:90"]
    assert mixed | {"wall_s": 0} == told(*run, *drains) | {"wall_s": 0, "events": mixed["events"]}


def test_every_key_of_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "faults.yaml"
    path.write_text(FAULTS)
    a, other = ServerIndex(0), ServerIndex(1)
    assert load_faults(path, CLUSTER) == FaultPlan(
        5000.0, 60.0, 0.8, 9000.0, drains=(Window(a, 0.0, 10.0),), outages=(Window(other, 20.0),)
    )
    assert parse_drain("rack:7:1:2", CLUSTER) == Window(other, 1.0, 2.0)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (("faults/1", "faults/2"), "schema"),
        (("mtbf_s: 5000", "mtbf: 5000"), "mtbf"),
        (("mtbf_s: 5000", "mtbf_s: 0.1"), "mtbf_s"),
        (("mttr_s: 60", "mttr_s: -60"), "mttr_s"),
        (("shape: 0.8", "shape: 11"), "shape"),
        (("crash_mtbf_s: 9000", "crash_mtbf_s: .inf"), "crash_mtbf_s"),
        (("drains: [{server: a,", "drains: [{server: z,"), "drains[0].server"),
        (("to_s: 10}]", "to_s: 0}]"), "drains[0].to_s"),
        (("from_s: 20", "from_s: -20"), "outages[0].from_s"),
        (('server: "rack:7", ', ""), "outages[0].server"),
        (("from_s: 20", "until_s: 20"), "outages[0].until_s"),
        (("drains: [{server: a, from_s: 0, to_s: 10}]", "drains: 7"), "drains"),
        (("schema: sooner.faults/1", "- 1\nschema: x"), ""),
    ],
)
def test_a_mistake_in_a_file_is_named_by_its_key(tmp_path: Path, change: tuple[str, str], key: str) -> None:
    path = tmp_path / "faults.yaml"
    assert change[0] in FAULTS
    path.write_text(FAULTS.replace(*change))
    with pytest.raises(FaultsError) as caught:
        load_faults(path, CLUSTER)
    assert caught.value.key == key
    assert str(caught.value).startswith(f"{path}: {key}")
    assert "\n" not in str(caught.value)
