"""Profile runs teach how fast a program is, and nothing about how long it trains."""

from dataclasses import replace
from pathlib import Path

import pytest

from policies.model.estimate import EndedJob, Unit
from policies.model.ids import JobId
from policies.model.job import JobSpec
from policies.model.placement import SpanSeconds
from predictor.locality import SlowdownLearner
from predictor.rows import ended_row, read_jsonl, rows_to_jsonl
from predictor.serving import LivePredictor
from predictor.training import train
from tests.unit.predictor.predictor_history import ended, recurring_history, request


def profile_of(past: EndedJob, job: int, seconds: float = 0.25) -> EndedJob:
    """A short run of the same program on two servers, cancelled after twenty of ten thousand iterations."""
    return replace(
        past,
        job=JobId(job),
        spec=replace(past.spec, labels={"sooner/profile": "5"}, declared_iterations=10_000),
        iterations=20.0,
        service_s=20.0 * seconds,
        final_state="cancelled",
        seconds_per_iteration=seconds,
        servers_spanned=2,
        reported_iterations=10_000.0,
    )


@pytest.mark.parametrize("live", [True, False], ids=["as they end", "at the start"])
def test_predictions_of_the_program_stay_as_they_were(live: bool) -> None:
    past = [ended(job, 1_000.0 + job) for job in range(10)]
    without, predictor = LivePredictor(), LivePredictor()
    without.warm(past)
    profiles = [profile_of(past[0], 100 + number) for number in range(30)]
    if live:
        predictor.warm(past)
        for each in profiles:
            predictor.predict(0.0, [request(each.job, labels={"sooner/profile": "5"})])
            predictor.ended(each)
    else:
        predictor.warm([*past, *profiles])
    (expected,), (found,) = (each.predict(0.0, [request(500)]) for each in (without, predictor))
    assert found is not None and expected is not None
    assert found.estimate == replace(expected.estimate, seconds_per_unit=found.estimate.seconds_per_unit)
    assert (expected.estimate.seconds_per_unit, found.estimate.seconds_per_unit) == (0.5, 0.25)
    assert predictor.status().known_jobs == without.status().known_jobs == dict.fromkeys(Unit, 10)


def test_a_model_learns_nothing_from_them(tmp_path: Path) -> None:
    past = recurring_history(120)
    mixed = sorted([*past, *(profile_of(each, 10_000 + number) for number, each in enumerate(past))], key=_submission)
    rows_to_jsonl(tmp_path / "rows.jsonl", mixed)
    rows = list(read_jsonl(tmp_path / "rows.jsonl"))
    assert [row.label(unit) for row in rows if row.submission.job >= 10_000 for unit in Unit] == [None] * 240
    expected, found = train(map(ended_row, sorted(past, key=_submission)), seed=3), train(rows, seed=3)
    assert {unit: head.rows for unit, head in found.heads.items()} == {
        unit: head.rows for unit, head in expected.heads.items()
    }


def _submission(past: EndedJob) -> tuple[float, int]:
    return past.submitted_at_s, past.job


def test_a_profile_run_is_predicted_to_last_at_most_its_walltime() -> None:
    """The program trains for 500 s; its profile run is stopped after 60 s at the latest."""
    predictor = LivePredictor()
    predictor.warm([ended(job, 1_000.0) for job in range(10)])
    profile, real = request(500, labels={"sooner/profile": "5"}, walltime_s=60.0), request(501, walltime_s=60.0)
    short, long = predictor.predict(0.0, [profile, real])
    assert short is not None and long is not None
    assert (short.estimate.unit, max(short.estimate.points)) == (Unit.SERVICE_S, 60.0)
    assert long.estimate.unit is Unit.ITERATIONS
    assert long.estimate.median == pytest.approx(1_000.0, rel=0.05)


@pytest.mark.parametrize("live", [True, False], ids=["as they end", "at the start"])
def test_one_profile_teaches_what_a_second_server_costs(live: bool) -> None:
    """0.5 s on one server and 1 s on two of a rack: the next run of the program is placed by that, the first one included."""
    past = ended(1)
    on_one = replace(profile_of(past, 2, 0.5), seconds_by_span=SpanSeconds("V100", server=0.5), servers_spanned=1)
    on_two = replace(profile_of(past, 3, 1.0), seconds_by_span=SpanSeconds("V100", rack=1.0), servers_spanned=2)
    predictor = LivePredictor(slowdowns=SlowdownLearner())
    predictor.warm([ended(10, name="other")] if live else [ended(10, name="other"), on_one, on_two])
    for each in (on_one, on_two) if live else ():
        predictor.ended(each)
    profiled, unknown = predictor.predict(0.0, [request(500), request(501, name="other")])
    assert profiled is not None and profiled.estimate.slowdown is not None
    assert unknown is not None and unknown.estimate.slowdown is not None
    assert profiled.estimate.slowdown.rack == pytest.approx(2.0, rel=0.1)
    assert (profiled.estimate.slowdown.measured, unknown.estimate.slowdown.measured) == (True, False)


@pytest.mark.parametrize(
    ("labels", "warm_up"),
    [
        ({}, None),
        ({"sooner/profile": "5"}, 5),
        ({"sooner/profile": ""}, 0),
        ({"sooner/profile": "-3"}, 0),
        ({"sooner/profile": "many"}, 0),
    ],
)
def test_the_label_names_the_iterations_to_leave_out(labels: dict[str, str], warm_up: int | None) -> None:
    assert JobSpec("j", "u", 1, labels=labels).profile == warm_up
