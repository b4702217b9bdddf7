"""Comparisons in parallel: the same results whatever the number of workers, in the order that was asked for."""

import csv
import fcntl
import gc
import io
import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from policies.model.cluster import Cluster, Server
from service.cli import comparison_files, sim
from service.cli.compare import LINE_EVERY_S, compare, lines, progress
from service.runtime.garbage import let_go
from service.runtime.workers import WorkerLost
from service.sim.drive import SimulationStuck
from service.sim.experiment import SimulationOptions
from service.sim.predictors import PredictorNameError
from service.sim.workloads.files import WorkloadError
from service.sim.workloads.generate import generate
from service.sim.workloads.model import Workload, WorkloadJob
from service.simulations import runs
from service.simulations import sweep as sweeps
from service.simulations.course import Course, Kind
from service.simulations.runs import Finished, Plan, Setting
from service.simulations.sweep import Failed, Keeping
from tests.unit.service.cli.cli_world import app_of_group

app = app_of_group("sim")

RUNNER = CliRunner()
CLUSTER = Cluster("c", (Server("s1", 8), Server("s2", 8)))
PLANS = [
    Plan("slow first", "fifo", {}, "oracle"),
    Plan("asrpt", "asrpt", {"preemption": "guided"}, "noisy:1"),
    Plan("las", "las", {}, "none"),
]


def _finished(outcomes: list[Finished | Failed]) -> list[Finished]:
    assert all(isinstance(each, Finished) for each in outcomes)
    return [each for each in outcomes if isinstance(each, Finished)]


def _setting(jobs: int = 60) -> Setting:
    return Setting(generate(2, jobs, gpus=16, load=0.9), CLUSTER, SimulationOptions(keep_spans=True), draw=True)


def test_processes_change_nothing(tmp_path: Path) -> None:
    here, there = (
        _finished(
            compare(
                _setting(),
                [replace(plan, folder=tmp_path / name / plan.policy) for plan in PLANS],
                workers,
                Keeping(tmp_path / name),
            )
        )
        for name, workers in (("a", 1), ("b", 2))
    )
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
    let_go()
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
        first, *others = compare(broken, PLANS, workers)
        assert isinstance(first, Failed)
        assert isinstance(first.error, AttributeError)
        assert first.error.__notes__ == ["in the run of slow first with predictor oracle"]
        assert "Traceback" in first.trace
        assert "in the run of slow first" in first.trace
        assert all(isinstance(each, Failed) for each in others)


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
        (["--policies", ","], "--policies: ',' has a comma without a name on each side"),
        (["--policies", "fifo,"], "--policies: 'fifo,' has a comma without a name on each side"),
        (["--policies", ""], "--policies: names nothing"),
        (["--policies", "fifo:"], "--policies: 'fifo:': '' is not NAME=VALUE"),
        (["--policies", "asrpt:tau"], "--policies: 'asrpt:tau': 'tau' is not NAME=VALUE"),
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


def test_a_full_disk_ends_a_comparison_with_one_line(files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device", "out/fifo/jobs.csv")

    monkeypatch.setattr(sim, "compare", broken)
    result = RUNNER.invoke(app, ["compare", *files, "--policies", "fifo,las"])
    assert result.exit_code == 1
    assert result.stderr == "error: out/fifo/jobs.csv: No space left on device\n"


@pytest.mark.parametrize(
    ("error", "trace", "said"),
    [
        (
            WorkerLost(-signal.SIGKILL),
            "",
            "las: its worker process was killed, probably for lack of memory; use fewer --workers",
        ),
        (SimulationStuck("it asks for cycle after cycle"), "a trace", "las: it asks for cycle after cycle"),
        (KeyError("gpus"), "a trace", "las: KeyError: 'gpus'"),
    ],
)
def test_a_run_that_fails_is_named_and_loses_no_other(
    files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, trace: str, said: str
) -> None:
    def partly(setting: Setting, plans: list[Plan], *arguments: Any, **options: Any) -> list[Finished | Failed]:
        return [*compare(setting, [plans[0]], *arguments, **options), Failed(plans[1], error, trace)]

    monkeypatch.setattr(sim, "compare", partly)
    out, page = tmp_path / "out", tmp_path / "page.html"
    arguments = ["compare", *files, "--policies", "fifo,las", "--out", str(out), "--html", str(page), "--json"]
    result = RUNNER.invoke(app, arguments)
    assert result.exit_code == 1
    assert result.stderr.endswith(f"error: 1 of 2 runs failed\n  {said}\n")
    assert ("a trace" in result.stderr) is isinstance(error, KeyError)
    assert [run["policy"] for run in json.loads(result.stdout)["runs"]] == ["fifo"]
    assert [run["policy"] for run in json.loads((out / "comparison.json").read_text())["runs"]] == ["fifo"]
    assert page.exists()


def _row(text: str, label: str) -> list[str]:
    [row] = [line.split()[1:] for line in text.splitlines() if line.split()[0] == label]
    return row


def _made(result: Any) -> str:
    assert result.exit_code == 0, result.output
    return str(result.stderr)


def test_the_same_command_takes_finished_runs_over(files: list[str], tmp_path: Path) -> None:
    out, page = tmp_path / "out", tmp_path / "page.html"
    arguments = ["compare", *files, "--policies", "fifo,las", "--predictors", "oracle,noisy:1", "--out", str(out)]
    first = RUNNER.invoke(app, [*arguments, "--seeds", "1,3-4", "--json"])
    assert _made(first) == ""
    again = RUNNER.invoke(app, [*arguments, "--seeds", "1,3-4", "--json"])
    assert _made(again) == f"12 of 12 runs taken over from {out}\n"
    assert again.stdout == first.stdout, "wall times too"
    assert (out / "las" / "noisy-1" / "seed-3" / "jobs.csv").exists()
    more = RUNNER.invoke(app, [*arguments, "--seeds", "1-4"])
    assert _made(more) == f"12 of 16 runs taken over from {out}\n"
    assert _row(more.stdout, "seeds") == ["4"] * 4
    assert _row(more.stdout, "policy") == ["fifo", "fifo", "las", "las"]
    assert _made(RUNNER.invoke(app, [*arguments, "--seeds", "1-4", "--restart-s", "5"])) == "", "other costs"
    assert _made(RUNNER.invoke(app, [*arguments, "--seeds", "1-4", "--restart-s", "5", "--again"])) == ""
    assert _made(RUNNER.invoke(app, [*arguments, "--seeds", "1-4", "--restart-s", "5", "--quiet"])) == ""
    pages = []
    for told in ("", f"16 of 16 runs taken over from {out}\n"):
        drawn = RUNNER.invoke(app, [*arguments, "--seeds", "1-4", "--restart-s", "5", "--html", str(page)])
        # The runs of the first seed had no figures.
        assert _made(drawn) == (told or f"12 of 16 runs taken over from {out}\n")
        pages.append(page.read_bytes())
    assert pages[0] == pages[1]
    assert b"seed 1." in pages[0]


def test_a_changed_workload_is_run_again(files: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ["compare", *files, "--policies", "fifo", "--out", str(out)]
    assert _made(RUNNER.invoke(app, arguments)) == ""
    table = Path(files[1])
    text = table.read_text()
    table.write_text(text.replace("d,30,1,5", "d,30,1,6"))
    assert _made(RUNNER.invoke(app, arguments)) == ""
    assert json.loads((out / "fifo" / "result.json").read_text())["makespan_s"] == pytest.approx(150.0)
    assert _made(RUNNER.invoke(app, arguments)) == f"1 of 1 run taken over from {out}\n"


def test_a_run_is_not_taken_for_one_of_a_comparison(files: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    compared = ["compare", *files, "--policies", "fifo", "--out", str(out)]
    assert _made(RUNNER.invoke(app, compared)) == ""
    other = ["run", *files, "--policy", "las", "--out", str(out / "fifo")]
    assert _made(RUNNER.invoke(app, other)) == ""
    assert _made(RUNNER.invoke(app, compared)) == "", "its files belong to another run now"
    assert json.loads((out / "fifo" / "result.json").read_text())["policy"] == "fifo"


def test_two_commands_do_not_share_a_folder(files: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    held = os.open(out, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        result = RUNNER.invoke(app, ["compare", *files, "--policies", "fifo,las", "--out", str(out)])
    finally:
        os.close(held)
    assert (result.exit_code, list(out.iterdir())) == (1, [])
    assert result.stderr == f"error: --out {out}: another command writes its results there\n"


@pytest.mark.parametrize(
    ("seeds", "said"),
    [
        ("1,x", "'x' is neither"),
        ("1-3,2", "a seed twice"),
        ("3-1", "ends before"),
        ("1-99999", "at most 10000"),
        ("", "''"),
    ],
)
def test_seeds_are_numbers_and_ranges(files: list[str], seeds: str, said: str) -> None:
    result = RUNNER.invoke(app, ["compare", *files, "--policies", "fifo", "--seeds", seeds])
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


@pytest.mark.parametrize("kept", [True, False])
def test_ctrl_c_says_how_to_continue(
    files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, kept: bool
) -> None:
    out = tmp_path / "out"
    arguments = ["compare", *files, "--policies", "fifo,las,sjf", "--workers", "1"]
    arguments += ["--out", str(out)] if kept else []

    def finish(setting: Setting, plan: Plan, *arguments: Any) -> Any:
        if plan.policy == "fifo":
            raise KeyboardInterrupt
        return runs.finish(setting, plan, *arguments)

    monkeypatch.setattr(sweeps, "finish", finish)
    result = RUNNER.invoke(app, arguments)
    assert (result.exit_code, result.stdout) == (130, "")
    if not kept:
        assert result.stderr == "error: interrupted after 1 of 3 runs; none is kept (--out keeps them)\n"
        return
    assert result.stderr == (
        f"error: interrupted: 1 of 3 runs are kept in {out}; repeat the command to make only the others\n"
    )
    assert sorted(path.name for path in out.iterdir()) == ["las"], "the longest is the first"
    monkeypatch.undo()
    assert _made(RUNNER.invoke(app, arguments)) == f"1 of 3 runs taken over from {out}\n"


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_bars_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, now_s = _Terminal(), 0.0
    monkeypatch.setattr(sys, "stderr", stream)
    course = Course([Kind("a", 1.0)] * 2, 1, lambda: now_s)
    plans = [replace(PLANS[0], seed=seed) for seed in (1, 2)]
    with progress(plans, 60, clock=lambda: now_s) as show:
        course.began(0)
        now_s += 4.0
        course.moved(0, 0.5)
        show(course)
        drawn = stream.getvalue()
        assert "slow first (seed 1)" in drawn
        assert "30 of 60 jobs" in drawn
        assert "0 of 2 runs after 4 s, about 12 s left" in drawn
        course.moved(0, 0.9)
        show(course)
        assert stream.getvalue() == drawn, "not more often than the eye sees"
        course.ended(0)
        course.began(1)
        now_s += 4.0
        course.ended(1)
        show(course)
    assert "2 of 2 runs after 8 s" in stream.getvalue()
    assert "left" not in stream.getvalue()[len(drawn) :]


def test_progress_is_drawn_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream, quiet, drawn in ((_Terminal(), False, True), (_Terminal(), True, False), (io.StringIO(), False, False)):
        monkeypatch.setattr(sys, "stderr", stream)
        compare(replace(_setting(), draw=False), PLANS[:2], 1, quiet=quiet)
        assert ("2 of 2 runs" in stream.getvalue()) is drawn
        assert stream.getvalue() == "" or drawn


def test_lines_come_at_a_moderate_pace(capsys: pytest.CaptureFixture[str]) -> None:
    now_s = 0.0

    def clock() -> float:
        return now_s

    course = Course([Kind("a", 1.0)] * 4, 1, clock)
    show = lines(clock)
    for run in range(3):
        course.began(run)
        now_s += 20.0
        course.ended(run)
        show(course)
        show(course)
    assert LINE_EVERY_S == 30.0
    assert capsys.readouterr().err == "2 of 4 runs after 40 s, about 40 s left\n"
    now_s += 10.0
    show(course)
    assert capsys.readouterr().err == "3 of 4 runs after 1 min 10 s, about 20 s left\n"
