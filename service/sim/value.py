"""What predictions are worth: the same jobs replayed with what was predicted, with what others predicted, the truth, and nothing.

Every replay has the same jobs, servers, costs and policy; only the estimates at submission differ. What is lost to the oracle
is then taken apart: the truth replaces the predictions of some of the jobs, by how often their program had run before or by how
far the prediction was off. The parts overlap and do not add up: a job that is predicted well also helps those behind it.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from policies.base import Policy
from policies.model.cluster import Cluster
from policies.model.estimate import Estimate, Prediction, ShadowPrediction, Unit
from policies.model.ids import JobId
from predictor.aggregation import AGGREGATION, FROM_LEARNT, LEARNT
from predictor.features import NAMES
from predictor.intervals import estimate_points
from predictor.pending import UNDECLARED, basic_name
from predictor.recurrence import BUCKETS, bucket_of
from service.sim.experiment import SimulationOptions, run_jobs
from service.sim.jobs import SimJob, SimJobs
from service.sim.predictors import true_estimate
from service.sim.results import Result, Simulation

SERVED: Final = "served"
NONE: Final = "none"
ORACLE: Final = "oracle"

_RUNS: Final = NAMES.index("recurrence_gpus.log_count")
_HOUR_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Said:
    """What was predicted of a job at its submission.

    ``bucket``: position in ``BUCKETS``; None: unknown, because the features are those of another version. ``experts``: what each
    other predictor said, by its name.
    """

    estimate: Estimate
    bucket: int | None
    experts: Mapping[str, Estimate] = field(default_factory=dict)

    def log_error(self, job: SimJob) -> float | None:
        """ln(median / truth) in the estimate's unit; None where the job's total in that unit is unknown."""
        truth = job.row.duration_s if self.estimate.unit is Unit.SERVICE_S else job.iterations
        return None if truth is None else math.log(self.estimate.median / truth)


def said_of(prediction: Prediction) -> Said:
    """What a prediction says, with its shadows as experts. Of several versions of a model the first one counts."""
    experts: dict[str, Estimate] = {}
    for shadow in prediction.shadows:
        # Earlier releases stored other levels.
        if len(shadow.points) == len(LEARNT):
            experts.setdefault(expert_of(shadow.model_version), _estimate_of(shadow, prediction.estimate))
    return Said(prediction.estimate, _bucket(prediction.features), experts)


def _bucket(features: Sequence[float]) -> int | None:
    if not features:
        return 0
    if len(features) != len(NAMES):
        return None
    log_count = features[_RUNS]
    return 0 if math.isnan(log_count) else bucket_of(round(math.expm1(log_count)))


def _estimate_of(shadow: ShadowPrediction, served: Estimate) -> Estimate:
    """The estimate that a shadow would have been: its distribution, ranked by, at the speed that was predicted."""
    points = np.exp(estimate_points(np.log(shadow.points) @ FROM_LEARNT)).tolist()
    return replace(
        served, points=tuple(points), source=shadow.model_version, model_version="", trusted=True, point=None
    )


def expert_of(shadow: str) -> str:
    """The name of a shadow in words, without the version of its model."""
    kind = shadow.rpartition("/")[2]
    if kind == AGGREGATION:
        return "the aggregation before calibration"
    return kind if shadow in (basic_name(kind), UNDECLARED) else f"model {kind}"


Chosen = Callable[[Said, float | None], bool]
"""Whether a job belongs to a part, by what was said of it and its log error."""


def _in_bucket(bucket: int) -> Chosen:
    return lambda said, error: said.bucket == bucket


def _below(factor: float) -> Chosen:
    limit = -math.log(factor)
    return lambda said, error: error is not None and error < limit


def _above(factor: float) -> Chosen:
    limit = math.log(factor)
    return lambda said, error: error is not None and error > limit


PARTS: Final[Mapping[str, Chosen]] = {
    **{f"{runs} past runs": _in_bucket(bucket) for bucket, runs in enumerate(BUCKETS)},
    "predicted below 1/2": _below(2.0),
    "predicted above 2x": _above(2.0),
    "predicted below 1/4": _below(4.0),
    "predicted above 4x": _above(4.0),
}
"""The parts of the loss: jobs by the past runs of their program, and by the predicted over the actual total."""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The errors of the jobs of one history bucket; shares from 0 to 1."""

    past_runs: str
    jobs: int
    gpu_hours: float
    within_2x: float
    below_quarter: float
    above_4x: float
    trusted: float


@dataclass(frozen=True, slots=True)
class Told:
    """Jobs for the simulator, and what was said of those that were predicted."""

    jobs: SimJobs
    said: Mapping[JobId, Said]

    def as_said(self) -> SimJobs:
        """The jobs with the predictions that were served."""
        return self._with(lambda job, said: said.estimate)

    def by_expert(self, name: str) -> SimJobs:
        """The jobs with the predictions of an expert; those of which it said nothing with the served ones."""
        return self._with(lambda job, said: said.experts.get(name, said.estimate))

    def with_truth(self, chosen: Chosen) -> SimJobs:
        """The jobs as they were predicted, but for the chosen ones: of them the truth is known."""
        return self._with(lambda job, said: true_estimate(job) if chosen(said, said.log_error(job)) else said.estimate)

    def of(self, chosen: Chosen) -> list[SimJob]:
        """The chosen jobs."""
        return [
            job
            for job in self.jobs.jobs
            if (said := self.said.get(job.id)) is not None and chosen(said, said.log_error(job))
        ]

    def experts(self) -> Counter[str]:
        """The number of jobs of which each expert said something."""
        return Counter(name for said in self.said.values() for name in said.experts)

    def accuracy(self) -> list[Accuracy]:
        """The errors by history bucket; buckets without a job are left out."""
        found = []
        for bucket, runs in enumerate(BUCKETS):
            jobs = self.of(_in_bucket(bucket))
            if jobs:
                said = [self.said[job.id] for job in jobs]
                errors = [each.log_error(job) for job, each in zip(jobs, said, strict=True)]
                known = [error for error in errors if error is not None]
                found.append(
                    Accuracy(
                        runs,
                        len(jobs),
                        gpu_hours(jobs),
                        _share([abs(error) <= math.log(2.0) for error in known]),
                        _share([error < -math.log(4.0) for error in known]),
                        _share([error > math.log(4.0) for error in known]),
                        _share([each.estimate.trusted for each in said]),
                    )
                )
        return found

    def _with(self, estimate: Callable[[SimJob, Said], Estimate]) -> SimJobs:
        jobs = [
            replace(job, predicted=estimate(job, said) if (said := self.said.get(job.id)) is not None else None)
            for job in self.jobs.jobs
        ]
        return replace(self.jobs, jobs=jobs)


def _share(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags) if flags else 0.0


def gpu_hours(jobs: Sequence[SimJob]) -> float:
    """The work of these jobs: GPUs x run time at the best placement."""
    return sum(job.row.gpus * job.row.duration_s for job in jobs) / _HOUR_S


def waiting_hours(result: Result) -> float:
    """The time in the queue of all jobs of a run together."""
    return result.mean_queueing_delay_s * result.finished / _HOUR_S


def wasted_gpu_hours(result: Result) -> float:
    """GPU-hours held without lasting progress."""
    return result.wasted_gpu_s / _HOUR_S


def tell(jobs: SimJobs, cluster: Cluster, policy: Policy[Any], options: SimulationOptions) -> tuple[Told, Simulation]:
    """What the predictor ``trained`` says of each job while it learns from the jobs that end in a simulation."""
    said: dict[JobId, Said] = {}

    def listen(job: JobId, prediction: Prediction) -> None:
        # Later ones of the job are better informed, and not what was said of it.
        said.setdefault(job, said_of(prediction))

    simulation = run_jobs(jobs, cluster, policy, "trained", options, on_prediction=listen)
    return Told(jobs, said), simulation


@dataclass(frozen=True, slots=True)
class Replayed:
    """A replay that differs from the served one for ``jobs`` jobs, whose work are ``gpu_hours``."""

    name: str
    jobs: int
    gpu_hours: float
    result: Result


@dataclass(frozen=True, slots=True)
class Value:
    """The replays: without predictions, with the served ones, the truth, and each expert's; and with the truth for each part."""

    none: Result
    served: Result
    oracle: Result
    experts: Sequence[Replayed]
    parts: Sequence[Replayed]
    accuracy: Sequence[Accuracy]

    def recovered(self, part: Replayed) -> float | None:
        """The share of the way from the served mean completion time to the oracle's; None where there is no way."""
        loss_s = self.served.mean_jct_s - self.oracle.mean_jct_s
        return (self.served.mean_jct_s - part.result.mean_jct_s) / loss_s if loss_s > 0.0 else None

    def to_json(self) -> dict[str, Any]:
        """The replays as a JSON object."""
        return {
            "schedules": {
                NONE: schedule_json(self.none),
                SERVED: schedule_json(self.served),
                ORACLE: schedule_json(self.oracle),
            },
            "worth": _difference(self.none, self.served),
            "loss": _difference(self.served, self.oracle),
            "experts": [_replayed_json(each) for each in self.experts],
            "parts": [
                _replayed_json(part) | {"recovered_ratio": _rounded(self.recovered(part), 4)} for part in self.parts
            ],
            "accuracy": [
                {
                    "past_runs": each.past_runs,
                    "jobs": each.jobs,
                    "gpu_hours": round(each.gpu_hours, 3),
                    "within_2x": round(each.within_2x, 4),
                    "below_quarter": round(each.below_quarter, 4),
                    "above_4x": round(each.above_4x, 4),
                    "trusted": round(each.trusted, 4),
                }
                for each in self.accuracy
            ],
        }


def schedule_json(result: Result) -> dict[str, Any]:
    """What a schedule costs."""
    return {
        "mean_jct_s": round(result.mean_jct_s, 3),
        "waiting_hours": round(waiting_hours(result), 4),
        "wasted_gpu_hours": round(wasted_gpu_hours(result), 4),
        "preemptions": result.preemptions,
    }


def _replayed_json(each: Replayed) -> dict[str, Any]:
    return {
        "name": each.name,
        "jobs": each.jobs,
        "gpu_hours": round(each.gpu_hours, 3),
        **schedule_json(each.result),
    }


def _difference(worse: Result, better: Result) -> dict[str, Any]:
    """What the better schedule saves; below 0: it costs more."""
    return {
        "mean_jct_s": round(worse.mean_jct_s - better.mean_jct_s, 3),
        "waiting_hours": round(waiting_hours(worse) - waiting_hours(better), 4),
        "gpu_hours": round(wasted_gpu_hours(worse) - wasted_gpu_hours(better), 4),
    }


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


@dataclass(frozen=True, slots=True)
class Replay:
    """One simulation to run: the jobs with their estimates, and the name of its predictor."""

    name: str
    jobs: SimJobs
    predictor: str


Run = Callable[[Sequence[Replay]], Sequence[Result]]
"""Runs the replays, and returns their results in the same order."""


def value_of(told: Told, run: Run) -> Value:
    """Replay the jobs in every way: one simulation for each expert and for each part that has jobs, and three.

    Raises ValueError where no job was predicted.
    """
    if not told.said:
        raise ValueError("none of these jobs was predicted")
    experts = sorted(told.experts())
    parts = {name: jobs for name, chosen in PARTS.items() if (jobs := told.of(chosen))}
    replays = [
        Replay(NONE, told.jobs, "none"),
        Replay(SERVED, told.as_said(), "recorded"),
        Replay(ORACLE, told.jobs, "oracle"),
        *(Replay(name, told.by_expert(name), "recorded") for name in experts),
        *(Replay(f"truth for {name}", told.with_truth(PARTS[name]), "recorded") for name in parts),
    ]
    none, served, oracle, *others = run(replays)
    by_expert = [
        Replayed(name, len(jobs), gpu_hours(jobs), result)
        for name, result in zip(experts, others, strict=False)
        if (jobs := told.of(_spoke(name)))
    ]
    by_expert.sort(key=lambda each: (each.result.mean_jct_s, each.name))
    by_part = dict(zip(parts, others[len(experts) :], strict=True))
    return Value(
        none,
        served,
        oracle,
        by_expert,
        [
            Replayed(name, len(parts.get(name, ())), gpu_hours(parts.get(name, ())), by_part.get(name, served))
            for name in PARTS
        ],
        told.accuracy(),
    )


def _spoke(name: str) -> Chosen:
    return lambda said, error: name in said.experts
