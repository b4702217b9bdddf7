"""The page of an evaluation: its numbers by hand, complete, and self-contained."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from policies.model.estimate import Unit
from predictor.aggregation import Aggregation
from predictor.conformal import SpreadCalibration
from predictor.dataset import Example
from predictor.experts import FIRST
from predictor.intervals import LEVELS, NORMAL_QUANTILES
from predictor.prequential import Chunk, Run, Served
from predictor.rows import Submission
from service.cli.main import app
from service.reports import evaluation_figures as figures
from service.reports.evaluation import evaluation_html, story
from service.reports.evaluation_charts import charts
from service.reports.plots import density_chart
from service.reports.svg import Axis
from service.sim.evaluate import Evaluation, evaluate
from service.sim.workloads.generate import generate, make_families
from service.sim.workloads.model import Workload, WorkloadJob
from service.sim.workloads.table import write_workload


def _workload(jobs: int = 240) -> Workload:
    return generate(7, jobs, make_families(7, 8, 3), gpus=64, load=0.5)


@pytest.fixture(scope="module")
def evaluation() -> Evaluation:
    return evaluate(_workload(), ["xgboost"], chunks=3)


def _of(actual_s: Sequence[float], predicted_s: Sequence[float], runs: int = 0) -> Evaluation:
    """Test jobs that took so long and were said to; job i is submitted at second 10 i. Two experts serve, in two chunks."""
    labels, predicted = np.log(np.array(actual_s)), np.log(np.array(predicted_s))
    examples = [
        Example(Submission(i, "u", "", "n", 1, 10.0 * i), Unit.SERVICE_S, (), runs, (), (), float(label), 10.0 * i)
        for i, label in enumerate(labels)
    ]
    quantiles = predicted[:, None] + NORMAL_QUANTILES
    names, half = (FIRST, "user_last", "past_runs"), len(labels) // 2
    chunks = [Chunk(0, half, 0.0), Chunk(half, len(labels), 10.0 * half)]
    run = Run(examples, 0, chunks, names, np.stack([quantiles] * 3, axis=1), {}, {})
    jobs = [WorkloadJob(f"j{i}", 10.0 * i, 1, took, user="u", name="n") for i, took in enumerate(actual_s)]
    shares = np.zeros((2, 4, 3))
    shares[0, :, 0], shares[1, :, 0] = 1.0, (0.2, 0.9, 0.9, 0.9)
    shares[1, :, 1], shares[1, :, 2] = (0.75, 0.05, 0.05, 0.05), 0.05
    served = Served(names, quantiles, quantiles, Aggregation(names), SpreadCalibration(), shares)
    return Evaluation({"models": {}}, jobs, run, served)


def test_calibration_computed_by_hand() -> None:
    """Of a uniform distribution on 0..1, truths at 0.05, 0.15, ... 0.95: as many below each level as it says."""
    labels = np.arange(10) / 10 + 0.05
    points = np.tile(LEVELS, (10, 1))
    levels = dict(zip(figures.NOMINAL_LEVELS, figures.calibration(labels, points), strict=True))
    assert [levels[level] for level in (0.1, 0.5, 0.9)] == pytest.approx([0.1, 0.5, 0.9])
    assert levels[0.05] == pytest.approx(0.05), "a truth exactly there counts half"
    assert figures.calibration(labels, points - 1.0) == [0.0] * len(levels)
    assert figures.calibration(labels, points + 1.0) == [1.0] * len(levels)


def test_a_constant_total_predicted_exactly_counts_half_at_each_level() -> None:
    assert set(figures.calibration(np.ones(5), np.ones((5, 25)))) == {0.5}


def test_each_test_job_is_in_one_group(evaluation: Evaluation) -> None:
    jobs = range(len(evaluation.test_jobs))
    for groups in (figures.buckets(evaluation), figures.gangs(evaluation), figures.users(evaluation)):
        assert sorted(row for group in groups for row in group.rows.tolist()) == list(jobs)
    assert [row for _, rows in figures.over_time(evaluation) for row in rows.tolist()] == list(jobs)


def test_groups_have_labels(evaluation: Evaluation) -> None:
    (alone,) = (group for group in figures.gangs(evaluation) if group.label == "1 GPU")
    assert {evaluation.test_jobs[row].gpus for row in alone.rows.tolist()} == {1}
    order = ["1 GPU", "2 GPUs", "3-4 GPUs", "5-8 GPUs", "9-16 GPUs", "17-32 GPUs", "33 GPUs or more"]
    labels = [group.label for group in figures.gangs(evaluation)]
    assert labels == [label for label in order if label in labels]
    runs = [example.runs for example in evaluation.run.examples[evaluation.run.test_start :]]
    (often,) = (group for group in figures.buckets(evaluation) if group.label == "20+ runs")
    assert often.rows.tolist() == [row for row, count in enumerate(runs) if count >= 20]


def test_the_busiest_users_are_shown_and_the_others_are_one_group() -> None:
    simple = _of([1.0] * 40, [1.0] * 40)
    names = [f"user{min(i, 20)}" for i in range(40)]
    jobs = [replace(job, user=name) for job, name in zip(simple.test_jobs, names, strict=True)]
    found = figures.users(replace(simple, test_jobs=jobs))
    assert (found[0].label, len(found[0].rows)) == ("user20", 20)
    assert len(found) == figures.USERS_SHOWN + 1
    assert (found[-1].label, len(found[-1].rows)) == ("9 others", 9)
    assert figures.users(replace(simple, test_jobs=[replace(job, user="") for job in jobs])) == []


def test_density_counts_each_job_in_its_cell() -> None:
    counts, edges = figures.density(_of([90.0, 90.0, 1.0], [9.0, 9.0, 90.0]))
    assert counts.sum() == 3
    (most,) = np.argwhere(counts == 2)
    took, said = most.tolist()
    assert edges[took] <= 90.0 <= edges[took + 1] * 1.0001
    assert edges[said] * 0.9999 <= 9.0 <= edges[said + 1] * 1.0001


def test_worst_cases_are_ordered() -> None:
    found = _of([1e4, 50.0, 100.0, 10.0], [5e3, 1.0, 100.0, 10.0])
    by_factor = figures.worst(found, lambda each: np.abs(each.log_factor))
    assert [case.job_id for case in by_factor][:2] == ["j1", "j0"]
    by_time = figures.worst(found, lambda each: each.error_s)
    assert [case.job_id for case in by_time][:2] == ["j0", "j1"]
    assert (by_time[0].actual_s, by_time[0].predicted_s) == pytest.approx((1e4, 5e3))
    assert math.log(by_time[0].high_s / 5e3) == pytest.approx(1.2816, abs=1e-4), (
        "the 90% quantile of a normal distribution"
    )
    assert by_time[0].low_s * by_time[0].high_s == pytest.approx(5e3**2)


def test_weights_are_those_at_the_opening_of_each_chunk_and_stand_until_the_end() -> None:
    """An expert that has 10% in one bucket at one time is drawn, one that never has is not; the heaviest comes first."""
    first, second = figures.weights(_of([1.0] * 4, [1.0] * 4))
    assert (first.name, second.name) == (FIRST, "user_last")
    assert list(first.at_s) == list(second.at_s) == [0.0, 20.0, 30.0]
    assert first.shares[:, 0].tolist() == [1.0, 0.2, 0.2]
    assert second.shares[:, 0].tolist() == [0.0, 0.75, 0.75]
    assert second.shares[:, 3].tolist() == [0.0, 0.05, 0.05]


def test_weights_of_a_run_are_shares(evaluation: Evaluation) -> None:
    found = figures.weights(evaluation)
    assert all(len(each.shares) == len(evaluation.run.chunks) + 1 for each in found)
    names, weights = evaluation.served.experts, evaluation.served.weights
    hidden = weights[..., [names.index(name) for name in names if name not in {each.name for each in found}]]
    assert hidden.max() < figures.WEIGHT_SHOWN_MIN
    total = np.sum([each.shares for each in found], axis=0)[:-1] + hidden.sum(axis=-1)
    assert total == pytest.approx(np.ones(total.shape))


def test_the_best_model_is_not_a_baseline(evaluation: Evaluation) -> None:
    assert figures.best_model(evaluation) == "xgboost"
    assert [each.name for each in figures.judged(evaluation)] == ["served", FIRST, "xgboost"]
    served, median, _ = figures.judged(evaluation)
    models = evaluation.document["models"]
    assert served.loss.mean() == pytest.approx(models["served"]["pinball_log"])
    assert median.error_s.mean() == pytest.approx(models[FIRST]["mae_s"])
    assert served.inside.mean() == pytest.approx(models["served"]["coverage_80"])
    without = evaluate(_workload(), [], chunks=2)
    assert figures.best_model(without) is None
    assert [each.name for each in figures.judged(without)] == ["served", FIRST]


def test_density_chart_opacity_and_ratio_lines() -> None:
    axis = Axis("s", "seconds", log=True, least=1.0, most=100.0)
    drawn = density_chart("t", axis, axis, [[0.0, 4.0], [1.0, 0.0]], [1.0, 10.0, 100.0])
    cells = re.findall(r'<rect x="([\d.]+)" y="([\d.]+)".*?fill-opacity="([\d.]+)"><title>(\d+)</title>', drawn)
    assert [count for *_, count in cells] == ["4", "1"]
    (x4, y4, dark, _), (x1, y1, faint, _) = cells
    assert float(dark) == 1.0 > float(faint) > 0.0
    assert float(x4) > float(x1), "columns are what was said, from left to right"
    assert float(y4) > float(y1), "rows are what it took, from the bottom up"
    assert drawn.count("stroke-dasharray") == 2


class _Tags(HTMLParser):
    """Every tag and where it points, with what is open."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [str(value) for key, value in attrs if key in ("src", "href", "data")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_self_contained(evaluation: Evaluation) -> None:
    page = evaluation_html(evaluation)
    tags = _Tags()
    tags.feed(page)
    assert tags.open == []
    assert tags.links == []
    assert not tags.tags & {"script", "link", "img", "iframe", "object"}
    assert "http" not in page
    slugs = [chart.slug for chart in charts(evaluation)]
    assert slugs == [
        *("buckets", "within-2x", "calibration", "coverage", "density", "factors", "time", "users", "gangs", "weights")
    ]
    for slug in slugs:
        assert f'id="{slug}"' in page
    for name in evaluation.document["models"]:
        assert f'<th scope="row">{name}</th>' in page
    assert evaluation_html(evaluation) == page


def test_names_from_the_trace_are_escaped(evaluation: Evaluation) -> None:
    jobs = [replace(job, job_id="<i>", user="<b>&", name="<u>") for job in evaluation.test_jobs]
    page = evaluation_html(replace(evaluation, test_jobs=jobs))
    assert not re.search("<i>|<b>|<u>", page)
    assert "&lt;b&gt;&amp;" in page


def test_the_story_compares_served_predictions_with_the_median(evaluation: Evaluation) -> None:
    models = {
        "served": {"within_2x": 0.6, "mae_s": 90.0, "coverage_80": 0.81, "pinball_log": 0.2, "jobs": 200},
        FIRST: {"within_2x": 0.5, "mae_s": 120.0, "pinball_log": 0.25},
    }
    models["served"]["cold"] = {"jobs": 20}  # type: ignore[assignment]
    told = story({"models": models, "served": "aggregation"})
    assert "within a factor of two for 60.0% of the jobs (50.0% with the recurrence median alone)" in told
    assert "mean error is 1 min 30 s (2 min)" in told
    assert "20.0% below that of the recurrence median" in told
    assert "10.0% of the jobs were of programs that had never run before" in told


@pytest.mark.parametrize("changed", [{"user": "", "name": ""}, {"duration_s": 60.0, "end_time_s": None}])
def test_unusual_workloads_have_a_page(changed: dict[str, Any]) -> None:
    jobs = tuple(replace(job, **changed) for job in _workload(60).jobs)
    page = evaluation_html(evaluate(Workload("odd", jobs), [], chunks=2))
    assert "nan" not in page.lower()


# The command


def test_out_and_html_write_the_same_page(tmp_path: Path) -> None:
    table, out, html = tmp_path / "w.csv", tmp_path / "out", tmp_path / "page.html"
    write_workload(_workload(100), table)
    words = ["model", "evaluate", "--workload", str(table), "--models", "xgboost", "--chunks", "2"]
    ran = CliRunner().invoke(app, [*words, "--out", str(out), "--html", str(html)])
    assert ran.exit_code == 0, ran.output
    assert {path.name for path in out.iterdir()} == {"evaluation.json", "predictions.csv", "report.html"}
    assert html.read_text() == (out / "report.html").read_text()
    assert "40 test jobs of w.csv" in html.read_text()


def test_a_page_that_cannot_be_written_is_an_error_before_the_run(tmp_path: Path) -> None:
    table = tmp_path / "w.csv"
    write_workload(_workload(100), table)
    html = tmp_path / "no" / "page.html"
    ran = CliRunner().invoke(app, ["model", "evaluate", "--workload", str(table), "--html", str(html)])
    assert ran.exit_code == 2
    assert f"--html {html}: No such file" in ran.stderr
