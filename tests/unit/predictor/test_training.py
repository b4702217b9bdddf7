"""Training: it learns what baselines cannot, streams, and runs in a separate process."""

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from policies.model.estimate import Unit
from predictor import artifacts, prequential, train_process, training
from predictor.aggregation import AGGREGATION, WITHOUT_MODELS
from predictor.artifacts import ModelState, load_version
from predictor.dataset import Example, Knowledge, replay
from predictor.errors import TrainingError
from predictor.experts import BASIC
from predictor.forest import QuantileForest
from predictor.intervals import LEVELS, Array
from predictor.rows import (
    RowError,
    ended_row,
    newest_by_submission,
    read_jsonl,
    row_from_dict,
    row_to_dict,
    rows_to_jsonl,
)
from predictor.serving import LivePredictor
from predictor.training import ESTIMATORS, train, train_head
from tests.unit.predictor.predictor_history import ended, recurring_history, request, small_model


def test_every_model_beats_the_global_median_on_a_recurring_history() -> None:
    (head,) = small_model().heads.values()
    assert head.unit is Unit.SERVICE_S
    bar = head.metrics["global_median"]
    for kind in (*ESTIMATORS, AGGREGATION):
        scores = head.metrics[kind]
        assert scores["jobs"] == 96
        assert scores["pinball_log"] < 0.5 * bar["pinball_log"]
        assert scores["mae"] < bar["mae"]
        assert scores["kendall_tau"] > bar["kendall_tau"] + 0.3
    assert 0.6 <= head.metrics[AGGREGATION]["coverage_80"] <= 0.97
    assert set(head.metrics) == {*BASIC, *ESTIMATORS, AGGREGATION, WITHOUT_MODELS}
    assert set(head.estimators) == set(ESTIMATORS)
    assert head.aggregation.experts == (*BASIC, *ESTIMATORS)
    assert sum(head.aggregation.labels) > 96, "the aggregation has learnt from the test, and from the warm-up before it"


def test_training_is_deterministic() -> None:
    rows = [ended_row(label) for label in recurring_history(110, reports=False)]
    first, second = train(rows, seed=5), train(rows, seed=5)
    assert first.version == second.version
    assert artifacts.metrics_json(first) == artifacts.metrics_json(second)
    assert train(rows[:-1], seed=5).version != first.version


def test_constant_labels_train_without_a_warning_and_no_model_passes() -> None:
    rows = [ended_row(ended(job, None, submitted_at_s=job * 1e4, service_s=100.0)) for job in range(120)]
    (head,) = train(rows, seed=0).heads.values()
    assert not head.verdict.passed
    assert head.metrics["quantile_forest"]["mae"] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.slow
def test_a_past_of_strangers_alone_trains_and_serves_strangers() -> None:
    """Every job is another user's first run of another program, one in twenty with a label that is no number."""
    rng = np.random.default_rng(0)
    past = []
    for job in range(2_000):
        service_s = math.nan if job % 20 == 0 else float(np.exp(6.0 + rng.normal()))
        past.append(ended(job, None, submitted_at_s=job * 60.0, service_s=service_s, name=f"p{job}", user=f"u{job}"))
    past = [
        label if label.service_s == label.service_s else replace(label, ended_at_s=label.submitted_at_s)
        for label in past
    ]
    model = train([ended_row(label) for label in past], seed=0)
    (head,) = model.heads.values()
    assert head.rows <= 1_900, "of a label that is no number nothing is learnt"
    predictor = LivePredictor(model)
    predictor.warm(past)
    (answer,) = predictor.predict(0.0, [request(10_000, name="new", user="new")])
    assert answer is not None
    assert 100.0 < answer.estimate.median < 1_500.0
    assert answer.estimate.source.startswith("cold start")


@pytest.mark.slow
def test_one_user_is_enough_to_learn_from() -> None:
    rows = [
        ended_row(replace(label, spec=replace(label.spec, user="ada")))
        for label in recurring_history(150, reports=False)
    ]
    (head,) = train(rows, seed=0).heads.values()
    assert head.metrics["quantile_forest"]["pinball_log"] < 0.7 * head.metrics["user_mean"]["pinball_log"]


def test_too_few_jobs_say_how_many_it_takes() -> None:
    rows = [ended_row(label) for label in recurring_history(99)]
    with pytest.raises(TrainingError, match=r"a training needs at least 100 labelled jobs \(got 99\)"):
        train(rows, seed=0)


def test_jobs_that_all_came_before_the_first_end_teach_no_model() -> None:
    """An array that was submitted at once, and nothing before it."""
    rows = [ended_row(ended(job, None, service_s=100.0 + job)) for job in range(150)]
    with pytest.raises(TrainingError, match=r"submitted after the end of another one \(got 0 of 150\)"):
        train(rows, seed=0)


def test_a_first_array_with_progress_does_not_keep_the_other_head_from_its_training() -> None:
    past = recurring_history(120, reports=False)
    first = [ended(job, 1_000.0 + job, submitted_at_s=past[-1].submitted_at_s) for job in range(200, 320)]
    model = train(map(ended_row, [*past, *first]), seed=0)
    assert list(model.heads) == [Unit.SERVICE_S]


class Spy(QuantileForest):
    """Notes from how many jobs it is fitted, and predicts nothing."""

    def __init__(self, seen: list[int]) -> None:
        super().__init__()
        self._seen = seen

    def fit(self, features: Array, residuals: Array, seed: int) -> None:
        self._seen.append(len(residuals))

    def predict_quantiles(self, features: Array) -> Array:
        return np.zeros((len(features), len(LEVELS)))


def _seconds_examples(jobs: int) -> list[Example]:
    rows = [ended_row(label) for label in recurring_history(jobs, reports=False)]
    return [found[Unit.SERVICE_S] for _, found in replay(rows, Knowledge())]


def test_the_protocol_scores_only_what_was_known() -> None:
    """Each fit sees the jobs that had ended when its chunk opened, and no other."""
    examples = _seconds_examples(200)
    seen: list[int] = []
    outcome = prequential.run(examples, {"spy": lambda: Spy(seen)}, test_start=120, chunks=2, seed=0)
    usable = [e for e in examples if e.base == e.base]
    dropped = len(examples) - len(usable)
    starts = [(120 - dropped) // 2, 120 - dropped, 120 - dropped + 40]
    expected = [sum(e.ended_at_s <= usable[s].submission.submitted_at_s for e in usable[:s]) for s in starts]
    assert seen == expected
    assert seen[-1] < starts[-1], "some jobs are still running when a chunk opens"
    assert len(outcome.labels) == 80


def test_walltimes_limit_what_is_tested_in_seconds_and_never_iterations() -> None:
    """Each job runs 60 s of the 100 s that it may, and 6,000 iterations in that time."""
    jobs = [ended(n, 6_000.0, submitted_at_s=1e3 * n, service_s=60.0, walltime_s=100.0) for n in range(100)]
    found: dict[Unit, list[Example]] = {unit: [] for unit in Unit}
    for _, examples in replay(map(ended_row, jobs), Knowledge()):
        for unit, example in examples.items():
            found[unit].append(example)
    most = {}
    for unit, examples in found.items():
        run = prequential.run(examples, {}, test_start=60, chunks=1, seed=0)
        # An expert that knows nothing of walltimes: from a tenth of the total to ten times as much.
        run.quantiles[:] = run.labels[0] + np.linspace(-math.log(10.0), math.log(10.0), len(LEVELS))
        most[unit] = np.exp(prequential.serve(run).tested(run)[-1].max())
    assert most[Unit.SERVICE_S] == pytest.approx(100.0)
    assert most[Unit.ITERATIONS] > 20_000.0


def test_what_is_tested_takes_at_least_a_second_as_what_is_served() -> None:
    jobs = [ended(n, None, submitted_at_s=1e3 * n, service_s=0.4, walltime_s=0.5) for n in range(100)]
    examples = [each[Unit.SERVICE_S] for _, each in replay(map(ended_row, jobs), Knowledge())]
    run = prequential.run(examples, {}, test_start=60, chunks=1, seed=0)
    assert (prequential.serve(run).tested(run) == 0.0).all(), "log seconds"


@pytest.mark.parametrize(("jobs", "fits"), [(400, 3), (900, 2)])
def test_a_test_that_is_short_against_the_history_fits_once(
    monkeypatch: pytest.MonkeyPatch, jobs: int, fits: int
) -> None:
    """Once before the warm-up; a longer test once more at its start. The last fit is of the model that serves."""
    seen: list[int] = []
    monkeypatch.setattr(training, "ESTIMATORS", {"spy": lambda: Spy(seen)})
    monkeypatch.setattr(training, "TEST_ROWS_MAX", 60)
    examples = _seconds_examples(jobs)
    head = train_head(Unit.SERVICE_S, examples, seed=0)
    assert len(seen) == fits
    assert seen[-1] == head.rows
    assert seen[0] < len(examples) - 120, "the models know neither the warm-up nor the test"


def test_rows_survive_the_trip_through_a_file(tmp_path: Path) -> None:
    labels = [
        *recurring_history(5),
        ended(77, None, submitted_at_s=1e7, declared_iterations=300, walltime_s=60.0, gpu_type="A100", model="vit"),
    ]
    for name in ("rows.jsonl", "rows.jsonl.gz"):
        assert rows_to_jsonl(tmp_path / name, labels) == 6
        assert list(read_jsonl(tmp_path / name)) == [ended_row(label) for label in labels]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gpus": 0}, "gpus: 0 is not at least 1"),
        ({"gpus": None}, "gpus: None is not a finite number"),
        ({"service_s": float("nan")}, "service_s: nan is not a finite number"),
        ({"ended_at_s": -1.0}, "ended_at_s: before submitted_at_s"),
        ({"user": 7}, "user: 7 is not text"),
        ({"gpu": 2}, "gpu: unknown field"),
    ],
)
def test_a_bad_row_names_its_field(change: dict, message: str) -> None:
    with pytest.raises(RowError, match=message.replace("(", r"\(")):
        row_from_dict({**row_to_dict(ended_row(ended(1))), **change})


def test_a_job_that_ended_before_its_submission_by_another_clock_is_read_back(tmp_path: Path) -> None:
    """The clock of the service that took it was ahead of the leader's."""
    early = replace(ended(1, submitted_at_s=1_000.0, service_s=2.0), ended_at_s=997.5)
    rows_to_jsonl(tmp_path / "rows.jsonl", [early])
    (row,) = read_jsonl(tmp_path / "rows.jsonl")
    assert (row.submission.submitted_at_s, row.ended_at_s, row.service_s) == (1_000.0, 1_000.0, 2.0)


def test_the_newest_rows_come_back_sorted_by_submission() -> None:
    rows = [ended_row(label) for label in recurring_history(50)]
    kept = newest_by_submission(iter(rows[::-1]), 30)
    assert [row.submission.job for row in kept] == sorted(row.submission.job for row in kept)
    assert min(row.ended_at_s for row in kept) > sorted(row.ended_at_s for row in rows)[19]
    with pytest.raises(ValueError, match="sorted by submission"):
        list(replay(rows[::-1], Knowledge()))


def test_a_missing_field_and_a_bad_file_name_the_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    row = row_to_dict(ended_row(ended(1, submitted_at_s=50.0)))
    header = json.dumps({"schema": "sooner.ended-jobs/1"})
    cases = {
        "{}\n": "rows.jsonl:1: schema: must be",
        f"{header}\n{{\n": "rows.jsonl:2: ",
        f"{header}\n[]\n": "rows.jsonl:2: not an object",
        f"{header}\n{json.dumps({k: v for k, v in row.items() if k != 'job'})}\n": "rows.jsonl:2: job: missing",
    }
    for text, message in cases.items():
        path.write_text(text, encoding="utf-8")
        with pytest.raises(RowError, match=message):
            list(read_jsonl(path))


@pytest.mark.slow
def test_a_training_process_leaves_a_folder_that_serves(tmp_path: Path) -> None:
    rows_to_jsonl(tmp_path / "rows.jsonl.gz", recurring_history(200, reports=False))
    out = tmp_path / "models" / "one"
    command = [
        sys.executable,
        "-W",
        "error",
        "-m",
        "predictor.train_process",
        "--input",
        str(tmp_path / "rows.jsonl.gz"),
    ]
    run = subprocess.run([*command, "--out", str(out), "--seed", "1"], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    said = json.loads(run.stdout)
    version = train_process.load_result(out)
    assert version.id == said["version"]
    assert version.sha256 == said["sha256"]
    assert version.promotable == said["promotable"]
    assert version.state is ModelState.CANDIDATE
    assert version.kind.startswith("service_s: ")
    assert version.metrics["service_s"]["models"]["xgboost"]["jobs"] == 80
    assert load_version(version).version == version.id
    assert json.loads((out / "metrics.json").read_text())["rows"] == 200
    assert [path.name for path in out.parent.iterdir()] == ["one"], "no draft stays behind"


def test_the_process_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, out = tmp_path / "rows.jsonl", tmp_path / "out"
    assert train_process.main(["--input", str(rows), "--out", str(out)]) == 2
    assert "No such file" in capsys.readouterr().err
    rows_to_jsonl(rows, recurring_history(20))
    assert train_process.main(["--input", str(rows), "--out", str(out)]) == train_process.EXIT_TOO_FEW
    assert "needs at least 100 labelled jobs (got 20)" in capsys.readouterr().err
    assert not out.exists()
    out.mkdir()
    (out / "precious").touch()
    assert train_process.main(["--input", str(rows), "--out", str(out)]) == 2
    assert "not an empty folder" in capsys.readouterr().err
