"""Comparisons in parallel: the same results whatever the number of workers, in the order that was asked for."""

import csv
import gc
import io
import json
import sys
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from policies.model.cluster import Cluster, Server
from service.cli import comparison_files, sim
from service.cli.compare import compare
from service.sim.drive import SimulationStuck
from service.sim.experiment import SimulationOptions
from service.sim.predictors import PredictorNameError
from service.sim.workloads.files import WorkloadError
from service.sim.workloads.generate import generate
from service.sim.workloads.model import Workload, WorkloadJob
from service.simulations.runs import Plan, Setting
from tests.unit.service.cli.cli_world import app_of_group

app = app_of_group("sim")

RUNNER = CliRunner()
CLUSTER = Cluster("c", (Server("s1", 8), Server("s2", 8)))
PLANS = [
    Plan("slow first", "fifo", {}, "oracle"),
    Plan("asrpt", "asrpt", {"preemption": "guided"}, "noisy:1"),
    Plan("las", "las", {}, "none"),
]


def _noted(error: Exception) -> Exception:
    error.add_note("in the run of las")
    return error


def _setting(jobs: int = 60) -> Setting:
    return Setting(generate(2, jobs, gpus=16, load=0.9), CLUSTER, SimulationOptions(keep_spans=True), draw=True)


def test_processes_change_nothing(tmp_path: Path) -> None:
    here = compare(_setting(), [replace(plan, folder=tmp_path / "a" / plan.policy) for plan in PLANS], 1)
    there = compare(_setting(), [replace(plan, folder=tmp_path / "b" / plan.policy) for plan in PLANS], 2)
    assert [found.result.policy for found in there] == ["slow first", "asrpt", "las"]
    for one, other in zip(here, there, strict=True):
        assert replace(one.result, wall_s=0.0) == replace(other.result, wall_s=0.0)
        assert one.figures is not None
        assert other.figures is not None
        assert replace(one.figures, result=other.result) == other.figures
    for plan in PLANS:
        for name in ("jobs.csv", "batsim_jobs.csv"):
            assert (tmp_path / "a" / plan.policy / name).read_bytes() == (
                tmp_path / "b" / plan.policy / name
            ).read_bytes()


def test_the_collector_of_garbage_is_left_as_it_was() -> None:
    before = gc.get_threshold()
    compare(_setting(), PLANS[:1], 1)
    with pytest.raises(PredictorNameError):
        compare(_setting(), [replace(PLANS[0], predictor="crystal")], 1)
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)


def test_an_error_in_a_worker_is_told_as_if_there_were_none() -> None:
    setting = replace(_setting(), workload=Workload("big", (WorkloadJob("huge", 0.0, 99, 1.0),)))
    for workers in (1, 2):
        with pytest.raises(WorkloadError, match="job 'huge' needs 99 GPUs"):
            compare(setting, PLANS, workers)


def test_what_nobody_foresaw_names_its_run() -> None:
    missing: Any = None
    broken = replace(_setting(), cluster=missing)
    for workers in (1, 2):
        with pytest.raises(AttributeError) as caught:
            compare(broken, PLANS, workers)
        assert caught.value.__notes__ == ["in the run of slow first with predictor oracle"]


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    (tmp_path / "w.csv").write_text("job_id,submit_time_s,gpus,duration_s\na,0,4,100\nb,10,2,50\nd,30,1,5\n")
    (tmp_path / "c.yaml").write_text("schema: sooner.cluster/1\nservers: [{gpus: 4}]\n")
    return ["--workload", str(tmp_path / "w.csv"), "--cluster", str(tmp_path / "c.yaml")]


def test_policies_with_options_of_their_own_and_several_predictors(files: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ["--policies", "asrpt:preemption=never, asrpt,sjf", "--predictors", "oracle,noisy:1", "--out", str(out)]
    arguments += ["--restart-s", "0"]
    result = RUNNER.invoke(app, ["compare", *files, *arguments, "--json"])
    assert result.exit_code == 0, result.output
    runs = json.loads(result.stdout)["runs"]
    assert [(run["policy"], run["predictor"]) for run in runs] == [
        (policy, predictor)
        for policy in ("asrpt:preemption=never", "asrpt", "sjf")
        for predictor in ("oracle", "noisy:1")
    ]
    assert (runs[0]["preemptions"], runs[2]["preemptions"] > 0) == (0, True)
    assert (out / "asrpt-preemption=never" / "noisy-1" / "jobs.csv").exists()
    assert json.loads((out / "comparison.json").read_text())["runs"] == runs
    with (out / "comparison.csv").open() as stream:
        assert [float(row["mean_jct_s"]) for row in csv.DictReader(stream)] == [run["mean_jct_s"] for run in runs]
    many = RUNNER.invoke(app, ["compare", *files, *arguments[:3], "oracle,noisy:1,none"])
    assert many.exit_code == 0, many.output
    assert len(many.stdout.splitlines()) == 1 + 9, "many runs are told one a line"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--policies", "fifo,fifo"], "contains a name twice"),
        (["--policies", "fifo", "--predictors", "none,none"], "contains a name twice"),
        (["--policies", "asrpt:preemption"], "is not NAME=VALUE"),
        (["--policies", "asrpt:colour=red"], "colour"),
        (["--policies", "fifo", "--predictors", "oracle,crystal"], "unknown predictor 'crystal'"),
        (["--policies", "asrpt:preemption=never", "--preemption", "always"], "both given"),
    ],
)
def test_mistakes_are_told_before_anything_runs(files: list[str], arguments: list[str], said: str) -> None:
    result = RUNNER.invoke(app, ["compare", *files, *arguments])
    assert result.exit_code == 2
    assert said in result.stderr


def test_a_report_that_cannot_be_written_is_told_before_anything_runs(
    files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sim, "compare", lambda *arguments: pytest.fail("it runs"))
    result = RUNNER.invoke(app, ["compare", *files, "--policies", "fifo", "--html", str(tmp_path / "no" / "r.html")])
    assert result.exit_code == 2
    assert "--html" in result.stderr
    assert "r.html: No such file or directory" in result.stderr
    monkeypatch.undo()
    page = tmp_path / "r.html"
    assert RUNNER.invoke(app, ["compare", *files, "--policies", "fifo,nobody", "--html", str(page)]).exit_code == 2
    assert not page.exists()
    assert RUNNER.invoke(app, ["compare", *files, "--policies", "fifo", "--html", str(page)]).exit_code == 0
    assert page.read_text().startswith("<!doctype html>")


def test_pictures_as_png(files: list[str], tmp_path: Path) -> None:
    pytest.importorskip("resvg_py", reason="PNG files need the extra 'png'")
    result = RUNNER.invoke(app, ["compare", *files, "--policies", "fifo,las", "--png", str(tmp_path / "png")])
    assert result.exit_code == 0, result.output
    pictures = {path.name: path.read_bytes() for path in (tmp_path / "png").iterdir()}
    assert {"jct-cdf.png", "gantt-1.png", "utilization.png"} <= set(pictures)
    assert all(content.startswith(b"\x89PNG\r\n") for content in pictures.values())


def test_png_without_its_package_says_what_to_install(
    files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(comparison_files, "import_module", missing)
    result = RUNNER.invoke(app, ["compare", *files, "--policies", "fifo", "--png", str(tmp_path / "png")])
    assert result.exit_code == 2
    assert "pip install 'sooner[png]'" in result.stderr


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (BrokenProcessPool("terminated abruptly"), "fewer --workers"),
        (_noted(SimulationStuck("it asks for cycle after cycle")), "cycle after cycle in the run of las"),
        (OSError(28, "No space left on device", "out/fifo/jobs.csv"), "out/fifo/jobs.csv: No space left on device"),
    ],
)
def test_what_ends_a_comparison_is_one_line(
    files: list[str], monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    def broken(*arguments: object) -> None:
        raise error

    monkeypatch.setattr(sim, "compare", broken)
    result = RUNNER.invoke(app, ["compare", *files, "--policies", "fifo,las"])
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1].startswith("error: ")
    assert said in result.stderr


def test_progress_is_drawn_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream, drawn in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stream)
        compare(replace(_setting(), draw=False), PLANS[:2], 1)
        assert ("slow first" in stream.getvalue() and "60/60" in stream.getvalue()) is drawn
        assert stream.getvalue() == "" or drawn
