"""The fallback chain: its words with little history, and the weight of declarations."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.model.estimate import EndedJob, Estimate, Unit
from policies.model.graph import Stage, StageGraph
from predictor.declarations import WEIGHT_MAX, Declarations
from predictor.intervals import POINTS
from predictor.rows import Submission, ended_row
from predictor.serving import LivePredictor
from predictor.throughput_table import ThroughputTable
from tests.unit.predictor.predictor_history import ended, request

GRAPH = StageGraph((Stage("all", 0.1, 0.2, 1_000),), ())


def _estimate(predictor: LivePredictor, job: int = 900, **of: object) -> Estimate:
    (answer,) = predictor.predict(2e6, [request(job, **of)])
    assert answer is not None
    return answer.estimate


def test_zero_history_answers_nothing() -> None:
    assert LivePredictor().predict(0.0, [request(1), request(2)]) == [None, None]
    assert LivePredictor().predict(0.0, []) == []


def test_a_recurrence_speaks_in_iterations_with_its_runs_and_measured_speed() -> None:
    predictor = LivePredictor()
    predictor.warm([ended(job, 5_200.0, submitted_at_s=job * 9_000.0) for job in range(14)])
    estimate = _estimate(predictor)
    assert estimate.source == "recurrence: 14 past runs, median 5,200 iterations"
    assert estimate.unit is Unit.ITERATIONS
    assert estimate.seconds_per_unit == pytest.approx(0.5)
    assert estimate.trusted
    assert estimate.median == pytest.approx(5_200.0, rel=0.05)
    assert estimate.quantile(0.95) > 1.5 * estimate.median


def test_one_run_is_a_run_and_other_gpu_counts_are_named() -> None:
    predictor = LivePredictor()
    predictor.warm([ended(1, 100.0)])
    assert _estimate(predictor).source == "recurrence: 1 past run, median 100 iterations"
    assert _estimate(predictor, gpus=8).source == "recurrence on other GPU counts: 1 past run, median 100 iterations"


def test_a_program_that_reports_no_iterations_is_answered_in_seconds() -> None:
    predictor = LivePredictor()
    predictor.warm([ended(job, None, submitted_at_s=job * 1e4, service_s=730.0) for job in range(3)])
    estimate = _estimate(predictor)
    assert estimate.unit is Unit.SERVICE_S
    assert estimate.seconds_per_unit == 1.0
    assert estimate.source == "recurrence: 3 past runs, median 730 s"


def test_cold_start_climbs_down_from_the_users_programs_to_the_clusters() -> None:
    predictor = LivePredictor()
    predictor.warm(
        [ended(job, submitted_at_s=job * 1e4, service_s=60.0, name=f"p{job}") for job in range(6)]
        + [ended(job, submitted_at_s=job * 1e4, service_s=600.0, name=f"p{job}", user="bob") for job in range(6, 19)]
    )
    user = _estimate(predictor, name="new")
    assert user.source == "cold start: median of the user's last 6 programs, 60 s"
    assert user.unit is Unit.SERVICE_S
    assert 60.0 <= user.median < 0.5 * 600.0
    stranger = _estimate(predictor, name="new", user="eve")
    assert stranger.source == "cold start: cluster median of 19 jobs, 600 s (too few to rank jobs; 20 are needed)"
    assert not stranger.trusted
    predictor.ended(ended(50, service_s=60.0, name="p18", user="bob"))
    stranger = _estimate(predictor, name="new", user="eve")
    assert stranger.source == "cold start: cluster median of 20 jobs, 600 s"
    assert stranger.trusted
    assert stranger.quantile(0.1) < 0.5 * 600.0
    assert stranger.median == pytest.approx(600.0, rel=0.2)
    for job in range(51, 200):
        predictor.ended(ended(job, service_s=60.0, name="p18", user="bob"))
    predictor.ended(ended(200, service_s=700.0, name="p200", user="zoe"))
    stranger = _estimate(predictor, name="new", user="eve")
    assert stranger.source == "cold start: cluster median of 20 programs at their first run, 600 s"
    assert stranger.median > 1.3 * 60.0, "150 runs of one program are still one program"
    assert stranger.quantile(0.9) > 0.8 * 600.0, "nor do they rule out what other programs did"


def test_constant_labels_give_an_interval_that_narrows_to_them() -> None:
    predictor = LivePredictor()
    predictor.warm([ended(job, 400.0, submitted_at_s=job * 1e4) for job in range(80)])
    estimate = _estimate(predictor)
    assert estimate.quantile(0.05) == pytest.approx(400.0)
    assert estimate.quantile(0.95) == pytest.approx(400.0)


def test_walltime_truncates_seconds_but_never_iterations() -> None:
    predictor = LivePredictor()
    predictor.warm([ended(job, None, submitted_at_s=job * 1e4, service_s=1_000.0) for job in range(30)])
    assert max(_estimate(predictor, walltime_s=900.0).points) == 900.0
    predictor = LivePredictor()
    predictor.warm([ended(job, 1_000.0, submitted_at_s=job * 1e4) for job in range(30)])
    assert max(_estimate(predictor, walltime_s=90.0).points) > 900.0


def test_a_declaration_weighs_a_half_at_first_and_says_so() -> None:
    predictor = LivePredictor()
    predictor.warm([ended(job, 100.0, submitted_at_s=job * 1e4) for job in range(60)])
    estimate = _estimate(predictor, declared_iterations=10_000)
    assert estimate.source.endswith("; declared 10,000 iterations weighs 50%")
    assert sum(point > 5_000.0 for point in estimate.points) == POINTS // 2


def test_a_declaration_of_a_new_program_counts_only_where_a_speed_is_known() -> None:
    predictor = LivePredictor()
    assert predictor.predict(0.0, [request(1, declared_iterations=500)]) == [None]
    alone = _estimate(predictor, declared_iterations=500, stage_graph=GRAPH)
    assert alone.source == "declared: 500 iterations, not confirmed by any past run"
    assert not alone.trusted
    assert alone.seconds_per_unit is None
    predictor.warm([ended(job, None, submitted_at_s=job * 1e4, service_s=50.0, name="x") for job in range(30)])
    assert _estimate(predictor, declared_iterations=500).unit is Unit.SERVICE_S


def _declared(job: int, declared: int | None, actual: float) -> object:
    return ended_row(ended(job, actual, declared_iterations=declared))


def _submission(declared: float | None = 1_000.0) -> Submission:
    return replace(ended_row(ended(1)).submission, declared_iterations=declared)


def test_the_weight_of_declarations_is_earned() -> None:
    declarations = Declarations()
    assert declarations.weight_of(_submission()).weight == 0.5
    assert declarations.weight_of(_submission(None)).weight == 0.0
    declarations.ended(_declared(1, 1_000, 1_100.0))  # type: ignore[arg-type]
    assert declarations.weight_of(_submission()).weight == pytest.approx(2 / 3)
    declarations.ended(_declared(2, 1_000, 100.0))  # type: ignore[arg-type]
    early = declarations.weight_of(_submission())
    assert early.weight == pytest.approx(2 / 4), "a job that ends early costs precision, not standing"
    for job in range(3, 60):
        declarations.ended(_declared(job, 1_000, 1_000.0))  # type: ignore[arg-type]
    assert declarations.weight_of(_submission()).weight == WEIGHT_MAX


def test_an_exceeded_declaration_is_worth_nothing_until_the_user_declares_right_again() -> None:
    predictor = LivePredictor()
    predictor.warm([ended(job, 1_000.0, submitted_at_s=job * 1e4) for job in range(60)])
    honest = _estimate(predictor, job=901)
    predictor.ended(ended(100, 1_000.0, submitted_at_s=1e6, name="other", declared_iterations=10))
    liar = _estimate(predictor, job=902, declared_iterations=10)
    assert liar.points == honest.points
    assert liar.source.endswith("; declared 10 iterations not counted until 1 more of the user's declarations holds")
    predictor.ended(ended(101, 1_000.0, submitted_at_s=1.1e6, name="other", declared_iterations=1_000))
    assert "weighs" in _estimate(predictor, job=903, declared_iterations=900).source
    predictor.ended(ended(102, 1_000.0, submitted_at_s=1.2e6, name="other", declared_iterations=10))
    again = _estimate(predictor, job=904, declared_iterations=10)
    assert again.source.endswith("; declared 10 iterations not counted until 2 more of the user's declarations hold")


@pytest.mark.parametrize("declared", [-5, 0, 10**400, 10**13])
def test_absurd_declarations_are_as_if_not_said(declared: int) -> None:
    predictor = LivePredictor()
    predictor.warm([ended(job, 1_000.0, submitted_at_s=job * 1e4) for job in range(60)])
    plain = _estimate(predictor, job=901)
    absurd = _estimate(predictor, job=902, declared_iterations=declared)
    assert (absurd.points, absurd.source) == (plain.points, plain.source)
    label = ended(903, 1_000.0, submitted_at_s=1e6, declared_iterations=declared)
    predictor.ended(label)
    assert _estimate(predictor, job=904).points == pytest.approx(plain.points, rel=0.1)


@settings(max_examples=40, deadline=None)
@given(
    labels=st.lists(
        st.tuples(
            st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True)),
            st.floats(allow_nan=True, allow_infinity=True),
        ),
        max_size=12,
    )
)
def test_odd_labels_never_reach_an_estimate(labels: list[tuple[float | None, float]]) -> None:
    predictor = LivePredictor()
    for job, (iterations, service_s) in enumerate(labels):
        label = replace(ended(job, 10.0), iterations=iterations, service_s=service_s, ended_at_s=job * 10.0)
        predictor.ended(replace(label, seconds_per_iteration=iterations))
    (answer,) = predictor.predict(0.0, [request(99)])
    if answer is not None:
        points = np.array(answer.estimate.points)
        assert np.isfinite(points).all()
        assert (points >= 1.0).all()
        assert (np.diff(points) >= 0.0).all()


def test_throughput_is_the_median_of_the_newest_and_backs_off() -> None:
    table = ThroughputTable()
    key = ("ada", "vision", "resnet")
    assert table.lookup(key, 4) is None
    for seconds in (9.0, *([1.0] * 10), *([2.0] * 9), math.nan, -1.0):
        table.observe(key, 4, "V100", 1, seconds)
    for seconds in (3.0, 3.5, 4.0):
        table.observe(key, 4, "V100", 2, seconds)
    table.observe(key, 16, "A100", 2, 0.25)
    assert table.lookup(key, 4, "V100") == table.lookup(key, 4) == 1.5, "on the servers where it was fastest"
    assert table.lookup(key, 4, "H100") == 1.5, "another GPU type"
    assert table.lookup(key, 32) == 0.25, "another number of GPUs"
    assert table.lookup(key, 32, "V100") == 0.25
    table.observe(key, 4, "", 1, 7.0)
    assert table.lookup(key, 4) == 1.5, "without a type the fastest that was measured"
    assert table.lookup(("eve", "", "x"), 4) is None


def test_the_predictor_knows_the_median_speed() -> None:
    predictor = LivePredictor()
    predictor.warm([ended(1, 10.0, seconds_per_iteration=0.5)])
    predictor.ended(ended(2, 10.0, seconds_per_iteration=0.7))
    assert _estimate(predictor).seconds_per_unit == pytest.approx(0.6)


def test_a_speed_that_was_not_measured_is_the_mean_over_the_run() -> None:
    predictor = LivePredictor()
    predictor.warm([ended(1, 100.0, service_s=250.0, seconds_per_iteration=None)])
    assert _estimate(predictor).seconds_per_unit == pytest.approx(2.5)
    predictor.ended(ended(2, 0.0, service_s=250.0, seconds_per_iteration=None))
    assert _estimate(predictor).seconds_per_unit == 2.5


def _ended_with_walltime(job: int, ran_s: float, walltime_s: float) -> EndedJob:
    return ended(job, None, submitted_at_s=1e4 * job, service_s=ran_s, walltime_s=walltime_s)


def test_a_walltime_that_ends_nobody_cuts_nothing() -> None:
    """Where nobody says whether walltimes are enforced, the jobs that asked for one show it: 1 in 100 may run over by 5%."""
    predictor = LivePredictor(walltimes_enforced=None)
    predictor.warm([_ended_with_walltime(-job, 1_000.0, 1_000.0) for job in range(1, 50)])
    assert max(_estimate(predictor, walltime_s=900.0).points) > 900.0, "49 jobs show too little"
    predictor.ended(_ended_with_walltime(-50, 1_049.0, 1_000.0))
    assert max(_estimate(predictor, walltime_s=900.0).points) == 900.0
    predictor.ended(_ended_with_walltime(-51, 1_051.0, 1_000.0))
    assert max(_estimate(predictor, walltime_s=900.0).points) > 900.0, "one in 51"
    for job in range(52, 101):
        predictor.ended(_ended_with_walltime(-job, 1_000.0, 1_000.0))
    assert max(_estimate(predictor, walltime_s=900.0).points) == 900.0, "one in 100"
    told = LivePredictor(walltimes_enforced=False)
    told.warm([_ended_with_walltime(-job, 1_000.0, 1_000.0) for job in range(1, 200)])
    assert max(_estimate(told, walltime_s=900.0).points) > 900.0
