"""Sweeps that are interrupted go on where they ended, and never take a run for another one."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from policies.model.cluster import Cluster, Server
from service.sim.faults import FaultPlan
from service.simulations import kept
from service.simulations.kept import PARTIAL, RECORD, keys_of, read_kept
from service.simulations.runs import Finished, Plan, Setting
from service.simulations.sweep import Failed, Keeping, sweep
from tests.unit.service.simulations.sweep_runs import SETTING, plans

_ROOT = Path(__file__).parents[4]
_FILES = ("result.json", "jobs.csv", "batsim_jobs.csv", RECORD)


def program(what: str, root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.unit.service.simulations.sweep_runs", what, str(root)]
    # The libraries' threads would keep it from forking.
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, cwd=_ROOT, env=environment, timeout=120.0)


def told(what: str, root: Path) -> Any:
    done = program(what, root)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[float], Path]:
    """The mean completion times of all runs, and their files, of one process."""
    root = tmp_path_factory.mktemp("undisturbed")
    outcomes = sweep(SETTING, plans(root), 1, Keeping(root))
    return [each.result.mean_jct_s for each in outcomes if isinstance(each, Finished)], root


def same_files(root: Path, other: Path) -> None:
    for one, two in zip(plans(root), plans(other), strict=True):
        assert one.folder is not None
        assert two.folder is not None
        assert {path.name for path in one.folder.iterdir()} == set(_FILES)
        for name in ("jobs.csv", "batsim_jobs.csv"):
            assert (one.folder / name).read_bytes() == (two.folder / name).read_bytes()


def test_a_sweep_goes_on_after_its_process_was_killed(undisturbed: tuple[list[float], Path], tmp_path: Path) -> None:
    assert program("parent", tmp_path).returncode == -9
    assert not (tmp_path / "comparison.json").exists()
    found = told("go on", tmp_path)
    assert found["method"] == "fork" or sys.platform != "linux"
    # The two workers may have written one run more each.
    assert 3 <= found["taken_over"][0] <= 5
    assert found["runs"] == undisturbed[0]
    same_files(tmp_path, undisturbed[1])
    assert not (tmp_path / PARTIAL).exists()
    assert told("go on", tmp_path)["taken_over"] == [8]


@pytest.mark.parametrize(
    ("what", "error"),
    [("worker", "its worker process was killed, probably for lack of memory"), ("stuck", "it is stuck")],
)
def test_a_lost_worker_costs_its_run_alone(
    what: str, error: str, undisturbed: tuple[list[float], Path], tmp_path: Path
) -> None:
    found = told(what, tmp_path)
    assert found["runs"] == [*undisturbed[0][:4], error, error, *undisturbed[0][6:]]
    assert not (tmp_path / PARTIAL).exists()
    found = told("go on", tmp_path)
    assert found == {**found, "taken_over": [6], "runs": undisturbed[0]}
    same_files(tmp_path, undisturbed[1])


def test_the_same_bytes_whatever_the_number_of_workers(undisturbed: tuple[list[float], Path], tmp_path: Path) -> None:
    # This process has threads, so these workers are started anew.
    outcomes = sweep(SETTING, plans(tmp_path), 3, Keeping(tmp_path))
    assert [each.result.mean_jct_s for each in outcomes if isinstance(each, Finished)] == undisturbed[0]
    same_files(tmp_path, undisturbed[1])


PLAN = Plan("las", "las", {}, "noisy:1", None)

CHANGES: dict[str, Callable[[Setting, Plan], tuple[Setting, Plan]]] = {
    "a job": lambda setting, plan: (
        replace(
            setting,
            workload=replace(
                setting.workload,
                jobs=(*setting.workload.jobs[:-1], replace(setting.workload.jobs[-1], gpus=1, user="x")),
            ),
        ),
        plan,
    ),
    "fewer jobs": lambda setting, plan: (
        replace(setting, workload=replace(setting.workload, jobs=setting.workload.jobs[:-1])),
        plan,
    ),
    "a server": lambda setting, plan: (
        replace(setting, cluster=Cluster("c", (Server("s1", 8), Server("s2", 16)))),
        plan,
    ),
    "a cost": lambda setting, plan: (replace(setting, options=replace(setting.options, restart_s=61.0)), plan),
    "a fault": lambda setting, plan: (replace(setting, options=replace(setting.options, faults=FaultPlan(1e6))), plan),
    "the seed": lambda setting, plan: (replace(setting, options=replace(setting.options, seed=9)), plan),
    "the seed of the run": lambda setting, plan: (setting, replace(plan, seed=9)),
    "the policy": lambda setting, plan: (setting, replace(plan, policy="sjf")),
    "an option": lambda setting, plan: (setting, replace(plan, options={"preemption": "never"})),
    "the predictor": lambda setting, plan: (setting, replace(plan, predictor="noisy:2")),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_whatever_changes_makes_another_run(change: Callable[[Setting, Plan], tuple[Setting, Plan]]) -> None:
    setting, plan = change(SETTING, PLAN)
    (before,), (after,) = keys_of(SETTING, [PLAN]), keys_of(setting, [plan])
    assert before != after


def test_the_key_holds_the_code_and_nothing_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    (before,) = keys_of(SETTING, [PLAN])
    # Where the files go and whether they are drawn changes no result.
    elsewhere = replace(PLAN, folder=Path("elsewhere"))
    drawn = replace(SETTING, draw=True, options=replace(SETTING.options, keep_spans=True))
    assert keys_of(drawn, [elsewhere]) == [before]
    script = "from tests.unit.service.simulations.test_sweep import *; print(*keys_of(SETTING, [PLAN]))"
    environment = {**os.environ, "PYTHONHASHSEED": "77"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=_ROOT, env=environment, timeout=120.0
    )
    assert done.stdout.split() == [before], done.stderr
    monkeypatch.setattr(kept, "_sources", lambda package: "other code")
    assert keys_of(SETTING, [PLAN]) != [before]


def test_figures_and_faults_are_kept(tmp_path: Path) -> None:
    faulty = FaultPlan(mtbf_s=40_000.0, mttr_s=900.0, crash_mtbf_s=60_000.0)
    setting = replace(SETTING, draw=True, options=replace(SETTING.options, keep_spans=True, faults=faulty))
    plan = replace(PLAN, folder=tmp_path / "las")
    (made,) = sweep(setting, [plan], 1, Keeping(tmp_path))
    assert isinstance(made, Finished)
    assert made.figures is not None
    assert made.figures.bars
    assert made.faults is not None
    (again,) = sweep(setting, [plan], 1, Keeping(tmp_path))
    assert again == made
    (key,) = keys_of(setting, [plan])
    record = tmp_path / "las" / RECORD
    document = json.loads(record.read_text())
    record.write_text(json.dumps({**document, "figures": None}))
    assert read_kept(tmp_path / "las", key, draw=True) is None
    assert read_kept(tmp_path / "las", key, draw=False) == replace(made, figures=None)


@pytest.mark.parametrize("damage", ["{", "[]", '{"schema": "sooner.sim.run/1"}', ""])
def test_a_damaged_record_counts_for_nothing(damage: str, tmp_path: Path) -> None:
    plan = replace(PLAN, folder=tmp_path / "las")
    (key,) = keys_of(SETTING, [plan])
    sweep(SETTING, [plan], 1, Keeping(tmp_path))
    assert read_kept(tmp_path / "las", key, draw=False) is not None
    (tmp_path / "las" / RECORD).write_text(damage)
    assert read_kept(tmp_path / "las", key, draw=False) is None


def test_a_run_without_all_its_files_is_made_again(tmp_path: Path) -> None:
    plan = replace(PLAN, folder=tmp_path / "las")
    (key,) = keys_of(SETTING, [plan])
    sweep(SETTING, [plan], 1, Keeping(tmp_path))
    (tmp_path / "las" / "jobs.csv").unlink()
    assert read_kept(tmp_path / "las", key, draw=False) is None


@pytest.mark.parametrize("renamed", range(4))
def test_files_of_two_runs_are_never_taken_for_one(
    renamed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = replace(PLAN, folder=tmp_path / "run")
    after = replace(before, predictor="noisy:2")
    sweep(SETTING, [before], 1, Keeping(tmp_path))
    left, rename = renamed, Path.replace

    def ends(path: Path, target: Path) -> Path:
        nonlocal left
        if left == 0:
            raise KeyboardInterrupt
        left -= 1
        return rename(path, target)

    monkeypatch.setattr(Path, "replace", ends)
    with pytest.raises(KeyboardInterrupt):
        sweep(SETTING, [after], 1, Keeping(tmp_path))
    monkeypatch.undo()
    keys = keys_of(SETTING, [before, after])
    assert [read_kept(tmp_path / "run", key, draw=False) for key in keys] == [None, None]
    found: list[int] = []
    for plan in (before, after):
        sweep(SETTING, [plan], 1, Keeping(tmp_path), taken_over=found.append)
    assert found == [0, 0]
    assert not (tmp_path / PARTIAL).exists()


def test_an_error_of_the_disk_ends_all_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def full(*_: object) -> None:
        made.append(1)
        raise OSError(28, "No space left on device", "jobs.csv")

    monkeypatch.setattr(kept, "write_simulation", full)
    with pytest.raises(OSError, match="No space left"):
        sweep(SETTING, plans(tmp_path), 1, Keeping(tmp_path))
    assert len(made) == 1


def test_a_failed_run_is_in_its_place(tmp_path: Path) -> None:
    missing: Any = None
    outcomes = sweep(replace(SETTING, cluster=missing), [replace(PLAN, seed=seed) for seed in (1, 2)], 1)
    assert [type(each) for each in outcomes] == [Failed, Failed]
    assert isinstance(outcomes[1], Failed)
    assert outcomes[1].plan.seed == 2
