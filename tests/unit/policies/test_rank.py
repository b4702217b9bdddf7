"""A job's rank from its estimate, its progress and its speed; the numbers themselves are in tests/golden/test_gittins.py."""

import pytest

from policies.model.estimate import Estimate, Unit
from policies.model.ids import JobId, ServerIndex
from policies.model.job import JobSpec
from policies.model.placement import ServerShare, place
from policies.rank import OverRun, Rank, expected_remaining_s, remaining_work_rank
from service.engine.record import AttemptRecord, JobRecord
from tests.scenarios.dsl import policy

G = 8


def job(*points: float, unit: Unit = Unit.SERVICE_S, done: float = 0.0, **estimate: object) -> JobRecord:
    record = JobRecord(JobId(1), JobSpec("j", "u", gpus=2), 0.0, service_s=done, iterations=done)
    if points:
        record.estimate = Estimate(points, unit, "test", **estimate)  # type: ignore[arg-type]
    return record


def rank(record: JobRecord, now_s: float = 0.0, rule: OverRun = OverRun.DOUBLE) -> Rank:
    return remaining_work_rank(record, now_s, G, rule)


def test_a_point_in_seconds_of_service() -> None:
    assert rank(job(100.0, done=40.0)).value == 60.0 * 2 / 8
    assert rank(job(100.0, done=40.0)).slope == -1


def test_a_point_in_iterations_takes_the_measured_speed_first_then_the_model_then_the_predictor() -> None:
    told = job(100.0, unit=Unit.ITERATIONS, seconds_per_unit=3.0)
    assert rank(told).value == 100 * 3.0 * 2 / 8
    told.measured_s_per_iteration = 0.5
    assert rank(told).value == 100 * 0.5 * 2 / 8


def test_without_an_estimate_or_a_speed_or_trust_it_is_attained_service() -> None:
    for record in (job(), job(100.0, unit=Unit.ITERATIONS), job(100.0, trusted=False)):
        record.held_gpu_s = 80.0
        assert rank(record) == Rank(10.0, +1)
    running = job()
    here = place([ServerShare(ServerIndex(0), 2)])
    running.attempt = AttemptRecord("1.1", JobId(1), 1, "running", here, ((0, 1),), 100.0)  # type: ignore[arg-type]
    assert rank(running, 140.0).value == 2 * 40.0 / 8


def test_progress_is_extrapolated_while_it_runs() -> None:
    record = job(100.0)
    record.progressing, record.anchor_s = True, 10.0
    assert rank(record, 50.0).value == 60.0 * 2 / 8
    assert rank(record, 5.0).value == 100.0 * 2 / 8, "a restart has not ended yet"


def test_past_its_estimate_the_rule_decides_and_the_slope_follows() -> None:
    assert rank(job(100.0, done=150.0)) == Rank(50.0 * 2 / 8, -1, 200.0)
    assert rank(job(100.0, done=150.0), rule=OverRun.ATTAINED) == Rank(150.0 * 2 / 8, +1)
    assert rank(job(50.0, 100.0, done=150.0)) == Rank(50.0 * 2 / 8, -1, 200.0)
    assert rank(job(50.0, 100.0, done=150.0), rule=OverRun.ATTAINED) == Rank(150.0 * 2 / 8, +1)


@pytest.mark.parametrize(
    ("points", "done", "expected"),
    [((100.0,), 30.0, 70.0), ((10.0, 20.0, 60.0), 15.0, 25.0), ((10.0,), 15.0, 5.0), ((10.0, 20.0), 21.0, 19.0)],
)
def test_expected_remaining_seconds(points: tuple[float, ...], done: float, expected: float) -> None:
    """The mean of what is left over the points that are still possible; past all of them the doubling rule."""
    assert expected_remaining_s(job(*points, done=done), 0.0) == expected


def test_without_an_estimate_the_remaining_time_is_unknown() -> None:
    assert expected_remaining_s(job(), 0.0) is None
    assert expected_remaining_s(job(100.0, unit=Unit.ITERATIONS), 0.0) is None


@pytest.mark.parametrize(("held_gpu_s", "level_gpu_s"), [(0, 0), (59, 0), (60, 60), (119, 60), (120, 120), (500, 480)])
def test_attained_service_falls_into_levels_that_double(held_gpu_s: float, level_gpu_s: float) -> None:
    class Book:
        gpus = G

    record = job()
    record.held_gpu_s = held_gpu_s

    class View:
        now_s = 0.0

    assert policy("las").rank(View(), record, Book()).value == level_gpu_s / G  # type: ignore[attr-defined]
