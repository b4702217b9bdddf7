"""``model evaluate``: the exact document, odd workloads, and the numbers on a real trace."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from predictor.baselines import NAMES as BASELINE_NAMES
from predictor.experts import EMPIRICAL
from predictor.training import ESTIMATORS
from service.cli.main import app
from service.sim.evaluate import EvaluationError, evaluate, rows_of
from service.sim.workloads.generate import generate, make_families
from service.sim.workloads.importers import import_trace
from service.sim.workloads.model import Workload, WorkloadJob
from service.sim.workloads.table import write_workload
from tests.simulation.traces import trace

METRICS = {
    "mae_s",
    "median_ape",
    "r2_log",
    "within_2x",
    "under_4x",
    "kendall_tau",
    "concordance",
    "pinball_log",
    "coverage_80",
    "fit_s",
    "predict_ms",
}
MODELS = {"random_forest", "xgboost", "quantile_forest", "raw_quantile_forest"}


def _workload(jobs: int = 300) -> Workload:
    return generate(7, jobs, make_families(7, 8, 3), gpus=64, load=0.5)


def _strip(value: Any) -> Any:
    """The document without what depends on the machine."""
    if isinstance(value, dict):
        return {key: _strip(each) for key, each in value.items() if key not in ("fit_s", "predict_ms")}
    return value


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return evaluate(_workload(), chunks=3).document


def test_the_document_is_the_documented_one(document: dict[str, Any]) -> None:
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert document["schema"] == "sooner.prediction.evaluation/1"
    assert (document["workload"], document["test_jobs"], document["retrains"]) == ("synthetic, seed 7", 120, 3)
    assert set(document["models"]) == {*BASELINE_NAMES, *EMPIRICAL, *MODELS, "declared", "served"}
    assert document["models"]["declared"] == document["models"]["recurrence_median20"]
    assert {
        "global_median",
        "user_mean",
        "user_last",
        "user_last2",
        "recurrence_last",
        "recurrence_median20",
        "recurrence_ewma",
        "recurrence_arguments",
    } == set(BASELINE_NAMES)
    for measured in document["models"].values():
        assert set(measured) >= METRICS
        assert set(measured["seen"]) >= METRICS
        assert set(measured["cold"]) >= METRICS
        assert measured["seen"]["jobs"] + measured["cold"]["jobs"] == measured["jobs"] == 120
        assert set(measured["deduplicated"]) >= METRICS
        assert 1 < measured["deduplicated"]["jobs"] <= 120
        assert set(measured["macro_by_user"]) == METRICS - {"r2_log", "kendall_tau", "concordance"} | {"users"}


def test_what_is_served_costs_as_much_as_all_models(document: dict[str, Any]) -> None:
    models = document["models"]
    assert models["recurrence_median20"]["fit_s"] == 0.0
    assert all(models[name]["fit_s"] > 0.0 and models[name]["predict_ms"] > 0.0 for name in MODELS)
    assert models["served"]["fit_s"] == pytest.approx(sum(models[name]["fit_s"] for name in MODELS), abs=1e-5)


def test_history_beats_the_global_median_on_recurring_programs(document: dict[str, Any]) -> None:
    models = document["models"]
    assert models["recurrence_median20"]["within_2x"] > models["global_median"]["within_2x"] + 0.1
    assert models["served"]["pinball_log"] < models["global_median"]["pinball_log"]


def test_equal_seeds_give_equal_documents() -> None:
    workload, kinds = _workload(150), ["xgboost"]
    one = _strip(evaluate(workload, kinds, chunks=2, seed=3).document)
    assert _strip(evaluate(workload, kinds, chunks=2, seed=3).document) == one
    assert _strip(evaluate(workload, kinds, chunks=2, seed=4).document) != one


def test_models_are_trained_by_name_and_baselines_always_scored() -> None:
    without = evaluate(_workload(150), ["recurrence_median20"], chunks=2).document
    assert set(without["models"]) == {*BASELINE_NAMES, *EMPIRICAL, "declared", "served"}
    both = evaluate(_workload(150), ["quantile_forest", "xgboost"], chunks=2).document
    assert set(both["models"]) == {*BASELINE_NAMES, *EMPIRICAL, "declared", "xgboost", "quantile_forest", "served"}
    with pytest.raises(EvaluationError, match="unknown model 'oracle'; the models are ") as refusal:
        evaluate(_workload(150), ["oracle"])
    to_train, scored = str(refusal.value).split("; the models are ")[1].split("; ")
    assert set(to_train.split(", ")) == set(ESTIMATORS)
    always = {*without["models"]} - {"served"}
    assert set(scored.removesuffix(" need no training and are always scored").split(", ")) == always


def test_a_label_counts_from_the_end_in_the_log() -> None:
    jobs = (WorkloadJob("a", 5.0, 1, 10.0), WorkloadJob("b", 6.0, 1, 10.0, end_time_s=99.0))
    assert [row.ended_at_s for row in rows_of(jobs)] == [15.0, 99.0]
    assert [row.service_s for row in rows_of(jobs)] == [10.0, 10.0]


def test_labels_after_the_last_submission_are_not_used() -> None:
    """With every end moved past the last submission but those of 50 odd jobs, only the odd jobs are learnt from."""
    early = tuple(WorkloadJob(f"e{i}", float(i), 1, 7.0, user="u", name="p") for i in range(50))
    late = tuple(WorkloadJob(f"l{i}", 100.0 + i, 1, 1000.0, user="u", name="p", end_time_s=1e6) for i in range(100))
    models = evaluate(Workload("w", early + late), [], chunks=2).document["models"]
    assert models["recurrence_median20"]["mae_s"] == pytest.approx(993.0)
    soon = tuple(replace(job, end_time_s=job.submit_time_s) for job in late)
    models = evaluate(Workload("w", early + soon), [], chunks=2).document["models"]
    assert models["recurrence_median20"]["mae_s"] == pytest.approx(0.0)


def _all_that_was_said(workload: Workload, kinds: list[str], chunks: int) -> dict[str, list[object]]:
    """By job everything that was answered, by every expert and the aggregation, and what it rested on."""
    evaluation = evaluate(workload, kinds, chunks=chunks)
    run, served, first = evaluation.run, evaluation.served, evaluation.run.test_start
    return {
        job.job_id: [
            run.examples[first + row].features.tolist(),  # type: ignore[attr-defined]
            np.nan_to_num(run.quantiles[first + row], nan=-1e9).tolist(),
            served.quantiles[first + row].tolist(),
        ]
        for row, job in enumerate(evaluation.test_jobs)
    }


def _says_the_same(kinds: list[str], chunks: int, victim: int, factor: float) -> int:
    """Jobs submitted before either end of a job whose duration changed; all of them were answered alike."""
    workload = _workload(150)
    job = workload.jobs[victim]
    changed = replace(job, duration_s=factor * job.duration_s, end_time_s=None)
    other = Workload(workload.name, (*workload.jobs[:victim], changed, *workload.jobs[victim + 1 :]))
    ends_s = [each.submit_time_s + each.duration_s for each in (job, changed)]
    before, after = _all_that_was_said(workload, kinds, chunks), _all_that_was_said(other, kinds, chunks)
    earlier = [each.job_id for each in workload.jobs if each.submit_time_s < min(ends_s) and each.job_id in before]
    assert [before[job_id] for job_id in earlier] == [after[job_id] for job_id in earlier]
    return len(earlier)


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(victim=st.integers(40, 149), factor=st.floats(0.01, 100.0), chunks=st.integers(1, 5))
def test_a_changed_duration_changes_no_answer_to_a_job_submitted_before_its_end(
    victim: int, factor: float, chunks: int
) -> None:
    _says_the_same([], chunks, victim, factor)


@pytest.mark.slow
@pytest.mark.parametrize(("victim", "factor"), [(60, 50.0), (100, 0.02), (120, 1_000.0), (145, 3.0)])
def test_a_changed_duration_changes_no_model_prediction_before_its_end(victim: int, factor: float) -> None:
    """Fits, weights and calibration included."""
    _says_the_same(["xgboost", "quantile_forest"], 3, victim, factor)


# Odd workloads


def _alike(jobs: int, **changed: Any) -> Workload:
    base = WorkloadJob("", 0.0, 1, 60.0, user="u", name="p")
    return Workload(
        "alike", tuple(replace(base, job_id=str(i), submit_time_s=100.0 * i, **changed) for i in range(jobs))
    )


def test_constant_labels_are_predicted_and_undefined_metrics_are_null() -> None:
    document = evaluate(_alike(120), chunks=2).document
    served = document["models"]["served"]
    assert served["mae_s"] == pytest.approx(0.0, abs=1e-6)
    assert served["within_2x"] == 1.0
    assert served["kendall_tau"] is served["r2_log"] is served["concordance"] is None
    json.dumps(document, allow_nan=False)


def test_without_users_and_names_every_job_is_cold() -> None:
    document = evaluate(_alike(120, user="", name=""), chunks=2).document
    served = document["models"]["served"]
    assert (served["cold"]["jobs"], served["seen"]["jobs"]) == (48, 0)
    assert served["seen"]["mae_s"] is None
    json.dumps(document, allow_nan=False)


@pytest.mark.parametrize("jobs", [0, 1, 49])
def test_too_few_jobs_are_an_error_with_the_required_number(jobs: int) -> None:
    with pytest.raises(EvaluationError, match=rf"an evaluation needs at least 50 jobs \(got {jobs}\)"):
        evaluate(_alike(jobs))


def test_fifty_jobs_and_more_chunks_than_jobs_are_evaluated() -> None:
    assert evaluate(_alike(50), chunks=1000).document["test_jobs"] == 20


def test_a_workload_in_which_nothing_ends_in_time_is_an_error() -> None:
    with pytest.raises(EvaluationError, match="no job ended before"):
        evaluate(_alike(60, end_time_s=1e9))


@settings(max_examples=25, deadline=None)
@given(
    durations_s=st.lists(st.floats(1.0, 1e3) | st.floats(1e-9, 1e15), min_size=50, max_size=70),
    gaps_s=st.floats(0.0, 1e4),
    users=st.integers(0, 4),
    walltime_s=st.none() | st.floats(1e-3, 1e13),
    kinds=st.sampled_from([[], ["xgboost"], ["quantile_forest"]]),
    chunks=st.integers(1, 4),
)
def test_any_valid_workload_gives_a_document_or_an_error(
    durations_s: list[float], gaps_s: float, users: int, walltime_s: float | None, kinds: list[str], chunks: int
) -> None:
    jobs = tuple(
        WorkloadJob(
            str(i),
            i * gaps_s,
            1 + i % 3,
            duration_s,
            user=str(i % users) if users else "",
            declared_iterations=i + 1,
            iterations=i + 1,
            walltime_s=walltime_s,
        )
        for i, duration_s in enumerate(durations_s)
    )
    try:
        document = evaluate(Workload("any", jobs), kinds, chunks=chunks).document
    except EvaluationError as error:
        if "there is no training data" not in str(error):
            raise
        return
    json.dumps(document, allow_nan=False)
    assert 0 < document["models"]["served"]["jobs"] == document["test_jobs"]


# The command


def _invoke(*words: str) -> Any:
    return CliRunner().invoke(app, ["model", "evaluate", *words])


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "w.csv"
    write_workload(_workload(150), path)
    return path


def test_json_is_the_only_output_and_out_has_every_prediction(table: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "folder"
    result = _invoke("--workload", str(table), "--models", "xgboost", "--chunks", "2", "--json", "--out", str(out))
    assert (result.exit_code, result.stderr) == (0, "")
    document = json.loads(result.stdout)
    assert json.loads((out / "evaluation.json").read_text()) == document
    header, *rows = (out / "predictions.csv").read_text().splitlines()
    assert header.startswith(
        "job_id,submit_time_s,duration_s,runs_known,served_s,p10_s,p90_s,first_runs_s,global_median_s,"
    )
    assert len(rows) == document["test_jobs"] == 60
    job_id, _, duration_s, _, served_s, p10_s, p90_s, *_ = rows[0].split(",")
    assert job_id == _workload(150).jobs[90].job_id
    assert float(duration_s) == _workload(150).jobs[90].duration_s
    assert 1.0 <= float(p10_s) <= float(p90_s)
    assert float(served_s) > 0.0


def test_the_printed_table_begins_with_the_served_model(table: Path) -> None:
    result = _invoke("--workload", str(table), "--models", "xgboost", "--chunks", "1")
    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert lines[0].split()[:3] == ["MODEL", "MAE", "MEDIAN_APE"]
    assert lines[1].split()[0] == "served"
    assert len(lines) == 1 + 1 + 1 + 1 + len(BASELINE_NAMES) + len(EMPIRICAL)
    assert "60 test jobs of w.csv; served: " in result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--models", "oracle"], "unknown model 'oracle'"),
        (["--models", ""], "unknown model ''"),
        (["--chunks", "0"], "--chunks"),
        (["--first", "20"], "at least 50 jobs (got 20)"),
        (["--seed", "-1"], "--seed"),
    ],
)
def test_wrong_usage_exits_with_2_and_a_message(table: Path, words: list[str], message: str) -> None:
    result = _invoke("--workload", str(table), *words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_a_missing_or_invalid_workload_exits_with_2(tmp_path: Path) -> None:
    assert _invoke("--workload", str(tmp_path / "no.csv")).exit_code == 2
    (tmp_path / "bad.csv").write_text("job_id,submit_time_s,gpus,duration_s\na,0,0,5\n")
    result = _invoke("--workload", str(tmp_path / "bad.csv"))
    assert result.exit_code == 2
    assert "bad.csv:2: gpus: " in result.stderr


def test_a_folder_that_cannot_be_created_is_an_error_before_the_run(table: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = _invoke("--workload", str(table), "--out", str(tmp_path / "file" / "sub"))
    assert result.exit_code == 2
    assert "--out" in result.stderr


def test_other_commands_do_not_import_the_learning_libraries() -> None:
    code = (
        "import sys, service.cli.main; print([m for m in ('numpy', 'sklearn', 'xgboost', 'scipy') if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


# A real trace


@pytest.mark.traces
@pytest.mark.slow
def test_the_served_model_on_nasa_beats_the_recurrence_median() -> None:
    """NASA iPSC/860 1993: acknowledge Bill Nitzberg and the Parallel Workloads Archive. Processors stand for GPUs."""
    workload = import_trace("swf", trace("nasa-ipsc-1993.swf.gz"))
    document = evaluate(workload, ["xgboost", "quantile_forest"], chunks=4).document
    served, median = document["models"]["served"], document["models"]["recurrence_median20"]
    assert document["test_jobs"] == 7_226
    assert median["pinball_log"] == pytest.approx(0.277, abs=0.003)
    assert served["pinball_log"] <= 0.85 * median["pinball_log"]
    assert served["mae_s"] <= 0.97 * median["mae_s"]
    assert served["seen"]["within_2x"] >= median["seen"]["within_2x"] - 0.01
    assert served["seen"]["kendall_tau"] >= median["seen"]["kendall_tau"] - 0.01
    assert 0.75 <= served["coverage_80"] <= 0.87
