"""What predictions are worth: which jobs' predictions are replaced by what, and that the replays are those that are meant."""

import math
from dataclasses import replace

import pytest

from policies.model.cluster import Cluster, Server
from policies.model.estimate import Estimate, Prediction, ShadowPrediction, Unit
from policies.registry import make_policy
from predictor import dataset
from predictor.aggregation import LEARNT
from predictor.features import NAMES
from service.sim.experiment import SimulationOptions, run_jobs
from service.sim.jobs import SimJobs, prepare
from service.sim.results import Result
from service.sim.value import (
    PARTS,
    Replay,
    Said,
    Told,
    expert_of,
    gpu_hours,
    said_of,
    tell,
    value_of,
    waiting_hours,
    wasted_gpu_hours,
)
from service.sim.workloads.generate import generate
from service.sim.workloads.model import Workload, WorkloadJob

CLUSTER = Cluster("two", (Server("a", 8), Server("b", 8)))
OPTIONS = SimulationOptions()
WORKLOAD = generate(3, 60, gpus=16, load=0.9, communication=False)


def run(replays: "list[Replay]") -> list[Result]:
    return [run_jobs(each.jobs, CLUSTER, make_policy("asrpt"), each.predictor, OPTIONS).result for each in replays]


def seconds(*points: float, trusted: bool = True) -> Estimate:
    return Estimate(points, Unit.SERVICE_S, "s", seconds_per_unit=1.0, trusted=trusted)


def features(runs: float) -> tuple[float, ...]:
    vector = [0.0] * len(NAMES)
    vector[NAMES.index("recurrence_gpus.log_count")] = math.log1p(runs) if runs == runs else math.nan
    return tuple(vector)


def test_the_truth_stands_in_for_the_chosen_jobs_alone() -> None:
    jobs = prepare(WORKLOAD, CLUSTER)
    said = {
        job.id: Said(seconds(4.1 * job.row.duration_s, trusted=False), number % 4)
        for number, job in enumerate(jobs.jobs[:8])
    }
    told = Told(jobs, said)
    first = jobs.jobs[0]
    assert said[first.id].log_error(first) == pytest.approx(math.log(4.1))
    expected = {"1-4 past runs": 2, "predicted above 2x": 8, "predicted above 4x": 8, "predicted below 1/2": 0}
    for name, count in expected.items():
        swapped: SimJobs = told.with_truth(PARTS[name])
        truths = [job for job in swapped.jobs if job.predicted is not None and job.predicted.trusted]
        assert len(truths) == count == len(told.of(PARTS[name])), name
        for job in truths:
            assert job.predicted is not None
            assert job.predicted.median * (job.predicted.seconds_per_unit or 0.0) == pytest.approx(job.row.duration_s)
        assert [job.predicted for job in swapped.jobs[8:]] == [None] * (len(jobs.jobs) - 8)
    assert [job.predicted for job in told.as_said().jobs[:8]] == [each.estimate for each in said.values()]


def test_shadows_become_experts_and_the_features_tell_the_bucket() -> None:
    prediction = Prediction(
        seconds(5.0, 7.0, trusted=False),
        features=features(7),
        shadows=(
            ShadowPrediction("m-2/xgboost", (2.0,) * len(LEARNT)),
            ShadowPrediction("m-1/xgboost", (4.0,) * len(LEARNT)),
            ShadowPrediction("baseline/global_median", (9.0,) * len(LEARNT)),
            ShadowPrediction("baseline/user_last", (9.0,) * 8),
        ),
    )
    said = said_of(prediction)
    assert said.bucket == 2
    assert set(said.experts) == {"model xgboost", "global_median"}, "eight points are those of an earlier release"
    expert = said.experts["model xgboost"]
    assert expert.points == pytest.approx((2.0,) * 32)
    assert (expert.unit, expert.trusted, expert.seconds_per_unit) == (Unit.SERVICE_S, True, 1.0)
    assert said_of(replace(prediction, features=features(math.nan))).bucket == 0
    assert said_of(replace(prediction, features=(1.0, 2.0))).bucket is None, "features of another version"
    assert expert_of("m-1/aggregation") == "the aggregation before calibration"


def test_iterations_of_a_job_that_reported_none_have_no_error() -> None:
    (job,) = prepare(Workload("w", (WorkloadJob("a", 0.0, 1, 100.0),)), CLUSTER).jobs
    assert Said(Estimate((50.0,), Unit.ITERATIONS, "s"), 0).log_error(job) is None
    assert (
        Told(SimJobs([job], 0), {job.id: Said(Estimate((50.0,), Unit.ITERATIONS, "s"), 0)}).of(
            PARTS["predicted below 1/2"]
        )
        == []
    )


def test_the_value_of_a_queue_by_hand() -> None:
    """One server of 8 GPUs, taken by the first job for 100 s. Of the two that wait, the short one should go first."""
    rows = (
        WorkloadJob("first", 0.0, 8, 100.0),
        WorkloadJob("long", 1.0, 8, 1000.0),
        WorkloadJob("short", 2.0, 8, 10.0),
    )
    cluster = Cluster("one", (Server("a", 8),))
    jobs = prepare(Workload("w", rows), cluster)
    first, long, short = jobs.jobs
    said = {
        first.id: Said(seconds(100.0), 3),
        # The wrong way round; the expert knows which is which.
        long.id: Said(seconds(100.0), 1, {"model x": seconds(1000.0)}),
        short.id: Said(seconds(500.0), 2, {"model x": seconds(10.0)}),
    }
    policy = ("srsf", {"preemption": "never"})

    def replay(replays: "list[Replay]") -> list[Result]:
        return [run_jobs(each.jobs, cluster, make_policy(*policy), each.predictor, OPTIONS).result for each in replays]

    found = value_of(Told(jobs, said), replay)
    assert found.oracle.mean_jct_s == pytest.approx((100.0 + (110.0 - 2.0) + (1110.0 - 1.0)) / 3)
    assert found.served.mean_jct_s == pytest.approx((100.0 + (1100.0 - 1.0) + (1110.0 - 2.0)) / 3)
    (expert,) = found.experts
    assert (expert.name, expert.jobs, expert.result.mean_jct_s) == ("model x", 2, found.oracle.mean_jct_s)
    assert expert.gpu_hours == pytest.approx(8 * 1010.0 / 3600.0)
    recovered = {part.name: (part.jobs, found.recovered(part)) for part in found.parts}
    assert recovered == {
        "0 past runs": (0, 0.0),
        "1-4 past runs": (1, 1.0),
        "5-19 past runs": (1, 1.0),
        "20+ past runs": (1, 0.0),
        "predicted below 1/2": (1, 1.0),
        "predicted above 2x": (1, 1.0),
        "predicted below 1/4": (1, 1.0),
        "predicted above 4x": (1, 1.0),
    }
    document = found.to_json()
    lost_s = found.served.mean_jct_s - found.oracle.mean_jct_s
    assert document["loss"] == {
        "mean_jct_s": pytest.approx(lost_s, abs=1e-3),
        "waiting_hours": pytest.approx(3 * lost_s / 3600.0, abs=1e-3),
        "gpu_hours": 0.0,
    }
    assert [each["past_runs"] for each in document["accuracy"]] == ["1-4", "5-19", "20+"]
    assert document["accuracy"][0]["below_quarter"] == document["accuracy"][1]["above_4x"] == 1.0


def test_what_is_told_and_replayed_is_the_run_in_which_it_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    # A replay has what was said first of each job. So here nothing more is said of any.
    monkeypatch.setattr(dataset, "TELLING_RUNS", frozenset())
    monkeypatch.setattr(dataset, "FIRST_ENDS", frozenset())
    jobs = prepare(WORKLOAD, CLUSTER)
    told, simulation = tell(jobs, CLUSTER, make_policy("asrpt"), OPTIONS)
    assert 50 < len(told.said) <= 60
    assert "recurrence_median20" in told.experts()
    found = value_of(told, run)
    assert found.served.mean_jct_s == pytest.approx(simulation.result.mean_jct_s, rel=1e-9)
    assert found.oracle.mean_jct_s < found.none.mean_jct_s
    assert sum(part.jobs for part in found.parts[:4]) == len(told.said) == sum(each.jobs for each in found.accuracy)
    assert sum(part.gpu_hours for part in found.parts[:4]) == pytest.approx(
        gpu_hours([job for job in jobs.jobs if job.id in told.said])
    )
    assert waiting_hours(found.none) == pytest.approx(60 * found.none.mean_queueing_delay_s / 3600.0)
    assert wasted_gpu_hours(found.none) == pytest.approx(found.none.wasted_gpu_s / 3600.0)


def test_jobs_that_nobody_predicted_have_no_value() -> None:
    with pytest.raises(ValueError, match="none of these jobs was predicted"):
        value_of(Told(prepare(WORKLOAD, CLUSTER), {}), run)
