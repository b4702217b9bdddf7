"""Predictors of a simulation: exact rules, drawn from (seed, job_id) alone."""

import math
import statistics

import pytest

from policies.model.cluster import Cluster, Server
from policies.model.estimate import EndedJob, Estimate, PredictionRequest, Unit
from policies.model.ids import JobId
from service.sim.draws import normal, uniform
from service.sim.jobs import SimJob, prepare
from service.sim.predictors import PredictorNameError, adversarial_factor, make_predictor
from service.sim.workloads.model import Workload, WorkloadJob

ROWS = (WorkloadJob("with", 0.0, 1, 100.0, iterations=400), WorkloadJob("without", 1.0, 1, 50.0))
JOBS = prepare(Workload("w", ROWS), Cluster("c", (Server("a", 8),))).jobs


def _estimates(name: str, seed: int = 0, jobs: "list[SimJob] | None" = None) -> list[Estimate | None]:
    predictor = make_predictor(name, JOBS, seed)
    requests = [PredictionRequest(job.id, job.spec, job.row.submit_time_s) for job in jobs or JOBS]
    return [None if answer is None else answer.estimate for answer in predictor.predict(0.0, requests)]


def test_oracle_predicts_the_true_total_in_the_unit_of_the_workload() -> None:
    assert _estimates("oracle") == [
        Estimate((400.0,), Unit.ITERATIONS, "oracle", seconds_per_unit=0.25),
        Estimate((50.0,), Unit.SERVICE_S, "oracle", seconds_per_unit=1.0),
    ]


def test_none_gives_no_estimate() -> None:
    assert _estimates("none") == [None, None]


def test_noise_is_a_log_normal_factor_of_seed_and_job_id() -> None:
    first, second = (estimate.points[0] for estimate in _estimates("noisy:0.5", seed=7) if estimate)
    assert first == 400.0 * math.exp(0.5 * normal(7, "with", "noisy"))
    assert second == 50.0 * math.exp(0.5 * normal(7, "without", "noisy"))
    # It depends on neither the order nor the batch of the requests.
    alone = _estimates("noisy:0.5", seed=7, jobs=[JOBS[1]])[0]
    assert alone is not None
    assert alone.points == (second,)
    assert _estimates("noisy:0.5", seed=8) != _estimates("noisy:0.5", seed=7)
    assert [estimate.points for estimate in _estimates("noisy:0") if estimate] == [(400.0,), (50.0,)]


def test_draws_have_their_distribution() -> None:
    names = [str(index) for index in range(4000)]
    uniforms = [uniform(3, name, "x") for name in names]
    assert 0.0 < min(uniforms) < max(uniforms) < 1.0
    assert statistics.mean(uniforms) == pytest.approx(0.5, abs=0.02)
    normals = [normal(3, name, "x") for name in names]
    assert statistics.mean(normals) == pytest.approx(0.0, abs=0.06)
    assert statistics.stdev(normals) == pytest.approx(1.0, abs=0.05)
    independent = [normal(3, name, "y") for name in names]
    assert statistics.correlation(normals, independent) == pytest.approx(0.0, abs=0.05)


def test_the_adversary_corrupts_a_tenth_either_way() -> None:
    factors = [adversarial_factor(1, str(index)) for index in range(4000)]
    assert set(factors) == {100.0, 1.0, 0.01}
    assert factors.count(100.0) / 4000 == pytest.approx(0.05, abs=0.012)
    assert factors.count(0.01) / 4000 == pytest.approx(0.05, abs=0.012)
    points = [estimate.points[0] for estimate in _estimates("adversarial", seed=1) if estimate]
    assert points == [400.0 * adversarial_factor(1, "with"), 50.0 * adversarial_factor(1, "without")]


@pytest.mark.parametrize(
    "name",
    [
        "",
        "delphi",
        "noisy",
        "noisy:",
        "noisy:-1",
        "noisy:nan",
        "noisy:inf",
        "noisy:11",
        "noisy:x",
        "oracle:1",
    ],
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(PredictorNameError, match="predictor"):
        make_predictor(name, JOBS, 0)


def test_job_numbers_follow_submission() -> None:
    assert [job.id for job in JOBS] == [JobId(1), JobId(2)]


def test_trained_learns_only_from_jobs_that_have_ended() -> None:
    trained = make_predictor("trained", JOBS, 0)
    request = PredictionRequest(JOBS[0].id, JOBS[0].spec, 0.0)
    assert trained.predict(0.0, [request]) == [None]
    for number in range(3):
        trained.ended(EndedJob(JobId(100 + number), JOBS[0].spec, 0.0, 10.0 + number, None, 50.0, "succeeded"))
    (prediction,) = trained.predict(20.0, [request])
    assert prediction is not None
    assert prediction.estimate.median == pytest.approx(50.0, rel=0.05)
