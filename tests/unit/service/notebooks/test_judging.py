"""The computations of the notebooks, by hand: factors, shares, levels, comparisons, corrections, drift."""

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.model.estimate import EndedJob, PredictionRequest
from policies.model.ids import JobId
from policies.model.job import JobSpec
from predictor.aggregation import LEARNT
from predictor.serving import LivePredictor
from service.notebooks import (
    Picture,
    Scored,
    Table,
    against_others,
    answered_by,
    by_group,
    by_history,
    calibration_curve,
    corrected_run,
    drift_curve,
    history_words,
    over_time,
    score,
    who_answered,
)
from service.reports.plots import Axis, Series, line_chart
from service.sim.workloads.generate import generate
from service.sim.workloads.model import Workload

ROW = Scored(
    *(1, "train", "ada", "nlp", 2, 0.0, 10.0, "service_s"),
    p10=50.0,
    p50=100.0,
    p90=200.0,
    actual=100.0,
    source="recurrence: 7 past runs, median 100 s",
)


def took(actual: float, **changes: object) -> Scored:
    return replace(ROW, actual=actual, **changes)  # type: ignore[arg-type]


def test_a_score_computed_by_hand() -> None:
    """Off by 1, 2 (too long), 4 (too short) and 8 (too short)."""
    found = score([took(100.0), took(50.0), took(400.0), took(800.0)])
    assert found.jobs == 4
    assert found.median_factor == pytest.approx(2.0 * math.sqrt(2.0))
    assert found.within_2x == 0.5
    assert found.under_4x == 0.25, "four times as long is not more than four times"
    assert (found.below, found.above) == (0.0, 0.5), "p10 itself is inside"
    assert found.covered == 0.5
    with pytest.raises(ValueError, match="nothing to score"):
        score([])


@given(st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=30))
@settings(max_examples=60, deadline=None)
def test_scores_are_consistent(actuals: list[float]) -> None:
    rows = [took(actual) for actual in actuals]
    found = score(rows)
    assert 1.0 <= found.median_factor <= found.p90_factor * (1.0 + 1e-12)
    assert found.below + found.covered + found.above == pytest.approx(1.0)
    assert found.within_2x == sum(row.factor <= 2.0 * (1 + 1e-12) for row in rows) / len(rows)
    assert score(rows[::-1]) == pytest.approx(found)


def test_a_scored_prediction_has_the_fields_of_its_job() -> None:
    assert took(400.0).log_error == pytest.approx(-math.log(4.0))
    assert took(400.0).factor == took(25.0).factor == pytest.approx(4.0)
    assert ROW.program == "ada/nlp/train"
    assert replace(ROW, user="", project="", name="").program == "(unnamed)"


@pytest.mark.parametrize(
    ("source", "runs", "history"),
    [
        ("recurrence: 1 past run, median 5 s", 1, "1-4 past runs"),
        ("recurrence: 1,204 past runs, median 5 s; distribution by blend", 1204, "20+ past runs"),
        ("recurrence on other GPU counts: 30 past runs, median 5 s", 0, "never run before"),
        ("cold start: median of the user's last 6 programs, 5 s", 0, "never run before"),
        ("declared: 500 iterations, not confirmed by any past run", 0, "never run before"),
    ],
)
def test_the_number_of_past_runs_is_parsed_from_the_source(source: str, runs: int, history: str) -> None:
    row = replace(ROW, source=source)
    assert (row.runs, row.history) == (runs, history)


def test_sources_of_the_predictor_are_parsed() -> None:
    """The true predictor's sources, job by job: as many runs as there were, and the rung that answered."""
    predictor = LivePredictor()
    rungs: Counter[str] = Counter()
    for number in range(1, 26):
        spec = JobSpec("train", "ada", 2, project="nlp")
        (said,) = predictor.predict(float(number), [PredictionRequest(JobId(number), spec, float(number))])
        if said is not None:
            row = replace(ROW, source=said.estimate.source, model=said.estimate.model_version)
            assert row.runs == number - 1
            assert row.trusted is said.estimate.trusted
            rungs[answered_by(row)] += 1
        predictor.ended(EndedJob(JobId(number), spec, float(number), number + 0.5, None, 100.0, "succeeded"))
    other = JobSpec("other", "ada", 1)
    (said,) = predictor.predict(99.0, [PredictionRequest(JobId(99), other, 99.0)])
    assert said is not None
    assert answered_by(replace(ROW, source=said.estimate.source)) == "history of the cluster"
    assert rungs == {"history of the program": 24}


@pytest.mark.parametrize(
    ("source", "model", "who"),
    [
        ("recurrence: 7 past runs; distribution by blend", "m-1/blend", "a model"),
        ("cold start: median of the user's last 20 programs, 498 s", "", "history of the user"),
        ("cold start: cluster median of 20 programs at their first run, 5 s", "", "history of the cluster"),
        ("declared: 500 iterations, not confirmed by any past run", "", "no trusted prediction: attained service"),
        ("recurrence: 7 past runs; ranked by attained service: 51% of", "", "no trusted prediction: attained service"),
        (
            "cold start: cluster median of 3 jobs, 5 s (too few to rank jobs; 20 are needed)",
            "",
            "no trusted prediction: attained service",
        ),
        (
            "cold start: cluster median of 3 jobs, 5 s (too few to rank by; 20 are needed)",  # release 0.1
            "",
            "no trusted prediction: attained service",
        ),
    ],
)
def test_the_source_of_an_answer(source: str, model: str, who: str) -> None:
    assert answered_by(replace(ROW, source=source, model=model)) == who


def test_the_point_is_scored_if_there_is_one() -> None:
    row = took(100.0, point=50.0)
    assert (row.predicted, row.factor) == (50.0, pytest.approx(2.0))
    assert took(100.0).predicted == 100.0


def test_groups_and_their_order() -> None:
    rows = [took(1.0, user="b"), took(1.0, user="a"), took(1.0, user="b"), took(1.0, user="c")]
    assert [(name, len(part)) for name, part in by_group(rows, lambda row: row.user).items()] == [
        ("b", 2),
        ("a", 1),
        ("c", 1),
    ]
    assert list(by_group(rows, lambda row: row.user, most=2)) == ["b", "a"]
    assert list(by_group(rows, lambda row: row.user, jobs_min=2)) == ["b"]
    cold = replace(ROW, source="cold start: x")
    assert list(by_history([ROW, cold, ROW])) == ["never run before", "5-19 past runs"]
    assert history_words("5-19 past runs") == "for programs with 5-19 past runs"
    assert history_words("never run before") == "for programs never run before"


@given(st.integers(1, 60), st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_every_job_is_in_one_part_of_the_time(jobs: int, parts: int) -> None:
    rows = [replace(ROW, job_id=number, submitted_at_s=float(number * 7 % 61)) for number in range(jobs)]
    pieces = over_time(rows, parts)
    assert len(pieces) == min(jobs, parts)
    flat = [row for _, piece in pieces for row in piece]
    assert flat == sorted(rows, key=lambda row: (row.submitted_at_s, row.job_id))
    sizes = [len(piece) for _, piece in pieces]
    assert max(sizes) - min(sizes) <= 1
    assert all(any(row.submitted_at_s == at_s for row in piece) for at_s, piece in pieces)
    assert sum((count for _, count in who_answered(rows, parts)), Counter()) == {"history of the program": jobs}


def test_levels_from_whole_distributions_or_from_three() -> None:
    levels, held = calibration_curve([took(50.0), took(60.0), took(150.0), took(900.0)])
    assert levels == [0.1, 0.5, 0.9]
    assert held == [0.25, 0.5, 0.75]
    points = (10.0, 20.0, 30.0, 40.0)
    levels, held = calibration_curve([took(15.0, points=points), took(40.0, points=points)])
    assert levels == [0.125, 0.375, 0.625, 0.875]
    assert held == [0.0, 0.5, 0.5, 1.0]


def test_other_models_are_scored_on_the_jobs_that_they_predicted() -> None:
    exact, half, twice = (100.0,) * len(LEARNT), (50.0,) * len(LEARNT), (200.0,) * 32
    rows = [
        took(100.0, points=twice, others={"baseline/user_last": half, "m-1/blend": exact}),
        took(100.0, points=twice, others={"baseline/user_last": half}),
        took(100.0, points=twice, others={"baseline/user_last": half, "m-2/blend": exact}),
    ]
    found = against_others(rows, jobs_min=2)
    assert list(found) == ["model blend", "user_last"], "the versions of a model are one, and the best comes first"
    assert found["model blend"] == (2, 0.0)
    # Twice as much and half as much are as far off in logarithms, and the levels are symmetric.
    assert found["user_last"] == (3, pytest.approx(1.0))
    assert against_others(rows, jobs_min=4) == {}
    names = {"undeclared": exact, "baseline/aggregation": exact, "m-1/aggregation": exact, "m-1/mix": exact[:8]}
    assert against_others([took(100.0, points=twice, others=names)] * 2, jobs_min=2) == {
        "the aggregation before calibration": (4, 0.0),
        "undeclared": (2, 0.0),
    }, "of an earlier release's shadows nothing is known at these levels"
    assert against_others([took(1.0)]) == {}


def test_a_calibration_learns_only_from_what_has_ended() -> None:
    """Jobs that end after the last was submitted calibrate nothing; those that end at once do."""
    rows = generate(9, 400).jobs
    late = tuple(replace(row, end_time_s=1e9 if number >= 60 else None) for number, row in enumerate(rows))
    corrected = corrected_run(Workload("late", late))
    assert corrected is not None
    assert np.allclose(corrected.raw, corrected.corrected, rtol=0.0, atol=1e-12)
    prompt = corrected_run(Workload("prompt", rows))
    assert prompt is not None
    assert np.abs(prompt.raw - prompt.corrected).max() > 0.01
    assert corrected_run(Workload("few", rows[:50])) is None


def test_the_jobs_of_all_histories_are_those_of_the_run() -> None:
    from service.notebooks import open_source

    fitted = corrected_run(open_source("generator", jobs=600, change=4.0).workload())
    assert fitted is not None
    parts = fitted.named_buckets(1)
    assert sum(len(part.labels) for part in parts.values()) == len(fitted.labels)


def test_drift_in_the_order_in_which_jobs_ended() -> None:
    quiet = [took(110.0, job_id=number, scored_at_s=3_600.0 * number) for number in range(600)]
    wild = [took(900.0, job_id=number, scored_at_s=3_600.0 * number) for number in range(600, 900)]
    assert drift_curve(quiet).raised_at_s == []
    drift = drift_curve([*wild, *quiet])
    assert list(drift.at_s) == [3_600.0 * number for number in range(900)]
    assert len(drift.raised_at_s) == 1
    assert 600.0 < drift.raised_at_s[0] / 3_600.0 < 800.0
    assert not any(drift.alarm[:600])


def test_a_picture_is_one_drawing_with_its_words(tmp_path: Path) -> None:
    chart = line_chart("c", Axis("x"), Axis("y"), [Series("line", (0.0, 1.0), (0.0, 1.0), 0)])
    picture = Picture("A <finding> & more " * 6, chart, "How to read it.")
    found = ElementTree.fromstring(picture.svg)
    words = " ".join(each.text or "" for each in found.iter() if each.tag.endswith("text"))
    assert "A <finding> & more" in words
    assert "How to read it." in words
    assert len([each for each in found.iter() if each.tag.endswith("svg")]) == 2
    assert picture._repr_html_().startswith("<svg ")
    picture.save(tmp_path / "p.svg")
    assert ElementTree.parse(tmp_path / "p.svg").getroot().tag == "{http://www.w3.org/2000/svg}svg"
    picture.save(tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_a_table_for_a_page_and_for_a_terminal() -> None:
    table = Table(("name", "jobs"), [("<b>", 12), ("long name", 3)], "Title")
    assert str(table) == "Title\nname       jobs\n<b>          12\nlong name     3"
    assert "&lt;b&gt;" in table._repr_html_()
    assert "<b>Title</b>" in table._repr_html_()
