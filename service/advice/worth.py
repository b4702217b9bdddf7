"""What another order would have been worth: a cluster's own past, replayed under Slurm's rules and under A-SRPT.

Schedules of the same jobs on the same servers: what happened, a replay under a model of Slurm (first come, first served, with
backfill by the users' time limits), and replays under A-SRPT. Gains are stated against the replay, which makes the same
simplifications; how well the replay reproduces the real waits says how far it can be trusted.

Predictions are made in the order of time: each job is predicted at its submission by models that know only the jobs that had
ended by then. The first jobs are only learnt from, and not counted.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from policies.model.cluster import Cluster
from policies.model.estimate import Estimate, Unit
from policies.registry import make_policy
from predictor import prequential
from predictor.aggregation import AGGREGATION
from predictor.dataset import Knowledge, replay
from predictor.intervals import estimate_points
from predictor.training import ESTIMATORS
from service.advice.history import Past
from service.domain.counts import count_of
from service.sim.evaluate import rows_of
from service.sim.experiment import SimulationOptions, run_jobs
from service.sim.jobs import SimJob, SimJobs, prepare
from service.sim.results import JobOutcome
from service.sim.workloads.model import WorkloadJob

SCHEMA: Final = "sooner.advice.worth/1"
JOBS_MIN: Final = 200
"""With fewer jobs there is nothing to learn from and to measure."""
JOBS_MAX: Final = 20_000
"""The newest jobs that are replayed."""
LEARN_SHARE: Final = 0.25
"""The first part of the past is only learnt from; it also fills the queue."""
TRAININGS: Final = 4
DAY_S: Final = 86_400.0
WEEKS_MIN: Final = 6
BLOCKS_MIN: Final = 5
RESAMPLES: Final = 2000
LEVEL: Final = (5.0, 95.0)
USER_JOBS_MIN: Final = 5
ALIKE: Final = 0.05
"""A user whose mean completion time changes by less is neither a winner nor a loser."""
SIZES: Final = ((1, 1), (2, 4), (5, 8), (9, 32), (33, 10**9))
GOOD: Final = (1.25, 0.6)
FAIR: Final = (2.0, 0.4)
"""Largest factor between the replay's and the real mean wait, and least rank correlation of the waits."""

REAL: Final = "real"
SLURM: Final = "slurm"
NEVER: Final = "asrpt never"
GUIDED: Final = "asrpt"
POLICIES: Final[Mapping[str, tuple[str, Mapping[str, str], str]]] = {
    SLURM: ("easy", {}, "none"),
    # As Slurm, it keeps no GPU idle for a job that may come.
    NEVER: ("asrpt", {"preemption": "never", "release": "early"}, "recorded"),
    GUIDED: ("asrpt", {}, "recorded"),
}
"""Label -> policy, its options, and whether it sees the predictions."""


class WorthError(Exception):
    """The past cannot be replayed; one line that says why."""


@dataclass(frozen=True, slots=True)
class Done:
    """One job under one schedule. Seconds; ``wait_s`` covers all its times in the queue."""

    row: WorkloadJob
    jct_s: float
    wait_s: float
    held_s: float
    wasted_s: float = 0.0
    preemptions: int = 0


Schedule = Sequence[Done]


def worth(
    past: Past, cluster: Cluster, options: SimulationOptions, on_step: Callable[[str], None] = lambda step: None
) -> dict[str, Any]:
    """The document ``sooner.advice.worth/1``. ``on_step`` is called with what begins. Raises :class:`WorthError`.

    Deterministic. O(jobs log jobs) for each replay, and some trainings on all jobs before.
    """
    rows = past.workload.jobs[-JOBS_MAX:]
    if len(rows) < JOBS_MIN:
        raise WorthError(f"{count_of(len(rows))} with GPUs ran and ended; at least {JOBS_MIN} are needed")
    on_step("predict each job from those that had ended before it")
    estimates = predictions(rows, options.seed)
    first = len(rows) - len(estimates)
    prepared = prepare(replace(past.workload, jobs=rows), cluster, checkpoint_period_s=options.checkpoint_period_s)
    jobs = [_predicted(job, estimates) for job in prepared.jobs]
    schedules: dict[str, Schedule] = {REAL: [_real(row) for row in rows[first:]]}
    for label, (policy, settings, predictor) in POLICIES.items():
        on_step(f"replay under {label}")
        run = run_jobs(SimJobs(jobs, 0), cluster, make_policy(policy, settings), predictor, options)
        schedules[label] = _replayed(rows, run.outcomes)[first:]
    return _document(past, rows, first, cluster, schedules, options)


def predictions(rows: Sequence[WorkloadJob], seed: int) -> dict[str, Estimate]:
    """Estimates of the run time by job id, for all jobs but the first part. Each knows only jobs that had ended by then."""
    found = (examples.get(Unit.SERVICE_S) for _, examples in replay(rows_of(rows), Knowledge()))
    examples = [example for example in found if example is not None]
    run = prequential.run(
        examples,
        ESTIMATORS,
        test_start=math.ceil(len(examples) * LEARN_SHARE),
        chunks=TRAININGS,
        seed=seed,
    )
    if not len(run.labels):
        raise WorthError("no job ended before the last submission: there is nothing to learn from")
    served = prequential.serve(run)
    points = np.exp(estimate_points(served.tested(run))).tolist()
    numbers = [example.submission.job for example in run.examples[run.test_start :]]
    return {
        rows[number].job_id: Estimate(tuple(own), Unit.SERVICE_S, AGGREGATION, seconds_per_unit=1.0)
        for number, own in zip(numbers, points, strict=True)
    }


def _predicted(job: SimJob, estimates: Mapping[str, Estimate]) -> SimJob:
    return replace(job, predicted=estimates.get(job.row.job_id))


def _real(row: WorkloadJob) -> Done:
    assert row.end_time_s is not None
    jct_s = row.end_time_s - row.submit_time_s
    return Done(row, jct_s, max(0.0, jct_s - row.duration_s), row.duration_s)


def _replayed(rows: Sequence[WorkloadJob], outcomes: Sequence[JobOutcome]) -> list[Done]:
    ended = {outcome.job_id: outcome for outcome in outcomes}
    if len(ended) != len(rows):
        raise WorthError(f"{count_of(len(rows) - len(ended))} did not end in the replay")
    return [
        Done(row, own.jct_s, own.queueing_delay_s, own.held_s, own.wasted_s, own.preemptions)
        for row in rows
        for own in (ended[row.job_id],)
    ]


# The document.


def _document(
    past: Past,
    rows: Sequence[WorkloadJob],
    first: int,
    cluster: Cluster,
    schedules: Mapping[str, Schedule],
    options: SimulationOptions,
) -> dict[str, Any]:
    counted = rows[first:]
    left_out = dict(past.left_out)
    if len(past.workload.jobs) > len(rows):
        left_out[f"older than the newest {JOBS_MAX:,}"] = len(past.workload.jobs) - len(rows)
    blocks = _blocks(counted)
    against = {label: _gain(schedules[SLURM], schedules[label], blocks, options.seed) for label in (NEVER, GUIDED)}
    return {
        "schema": SCHEMA,
        "from_s": past.start_s + counted[0].submit_time_s,
        "until_s": past.start_s + counted[-1].submit_time_s,
        "jobs": len(counted),
        "learnt_from": first,
        "left_out": left_out,
        "users": len({row.user for row in counted}),
        "servers": len(cluster.servers),
        "gpus": cluster.gpus,
        "restart_s": options.restart_s,
        "checkpoint_s": options.checkpoint_s,
        "replay": _fidelity(schedules[REAL], schedules[SLURM]),
        "schedules": {label: _measures(schedule) for label, schedule in schedules.items()},
        "gains": against,
        "users_changed": {label: _users(schedules[SLURM], schedules[label]) for label in (NEVER, GUIDED)},
    }


def _measures(schedule: Schedule) -> dict[str, Any]:
    jcts_s = np.array([done.jct_s for done in schedule])
    median_s, p95_s = (float(value) for value in np.percentile(jcts_s, (50, 95)))
    return {
        "mean_jct_s": float(jcts_s.mean()),
        "median_jct_s": median_s,
        "p95_jct_s": p95_s,
        "mean_wait_s": _mean([done.wait_s for done in schedule]),
        "waits": [
            {
                "gpus_min": low,
                "gpus_max": high if high < 10**9 else None,
                "jobs": len(waits),
                "mean_wait_s": _mean(waits),
            }
            for low, high in SIZES
            if (waits := [done.wait_s for done in schedule if low <= done.row.gpus <= high])
        ],
        "gpu_hours": sum(done.row.gpus * done.held_s for done in schedule) / 3600.0,
        "lost_gpu_hours": sum(done.row.gpus * done.wasted_s for done in schedule) / 3600.0,
        "preemptions": sum(done.preemptions for done in schedule),
        "preempted_jobs": sum(done.preemptions > 0 for done in schedule),
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _fidelity(real: Schedule, replayed: Schedule) -> dict[str, Any]:
    """How well the replay reproduces the real waits."""
    waits = np.array([[done.wait_s for done in schedule] for schedule in (real, replayed)])
    real_s, replay_s = (float(value) for value in waits.mean(axis=1))
    correlation = _rank_correlation(*waits)
    # A minute on both sides: two clusters that hardly wait are alike.
    factor = (max(real_s, replay_s) + 60.0) / (min(real_s, replay_s) + 60.0)

    def within(limits: tuple[float, float]) -> bool:
        return factor <= limits[0] and (correlation is None or correlation >= limits[1])

    return {
        "real_mean_wait_s": real_s,
        "replay_mean_wait_s": replay_s,
        "rank_correlation": correlation,
        "verdict": "good" if within(GOOD) else "fair" if within(FAIR) else "poor",
    }


def _rank_correlation(one: Any, other: Any) -> float | None:
    """Spearman's, with equal ranks for ties; None if one of them is constant."""
    ranks = [_ranks(values) for values in (one, other)]
    if any(float(values.std()) == 0.0 for values in ranks):
        return None
    return float(np.corrcoef(*ranks)[0, 1])


def _ranks(values: Any) -> Any:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2.0)[inverse]


def _blocks(rows: Sequence[WorkloadJob]) -> list[int]:
    """The week of each job, or its day where there are too few weeks: jobs of one queue are not independent, weeks nearly are."""
    start_s = rows[0].submit_time_s
    span_s = rows[-1].submit_time_s - start_s
    length_s = 7 * DAY_S if span_s >= WEEKS_MIN * 7 * DAY_S else DAY_S
    return [int((row.submit_time_s - start_s) // length_s) for row in rows]


def _gain(base: Schedule, other: Schedule, blocks: Sequence[int], seed: int) -> dict[str, Any]:
    """The relative change of the mean completion time with a 90% bootstrap interval over whole blocks; None with few of them."""
    present = sorted(set(blocks))
    position = {block: number for number, block in enumerate(present)}
    sums = np.zeros((2, len(present)))
    for row, schedule in enumerate((base, other)):
        for block, done in zip(blocks, schedule, strict=True):
            sums[row, position[block]] += done.jct_s
    change = float(sums[1].sum() / sums[0].sum()) - 1.0
    interval: list[float] | None = None
    if len(present) >= BLOCKS_MIN:
        # The counts of jobs cancel: both schedules have the same jobs.
        drawn = np.random.default_rng(seed).integers(len(present), size=(RESAMPLES, len(present)))
        ratios = sums[1][drawn].sum(axis=1) / sums[0][drawn].sum(axis=1)
        interval = [float(value) - 1.0 for value in np.percentile(ratios, LEVEL)]
    return {"mean_jct_change": change, "interval_90": interval, "blocks": len(present)}


def _users(base: Schedule, other: Schedule) -> dict[str, Any]:
    """Users with enough jobs, by the change of their mean completion time: how many gain and lose, and all of them in order."""
    changes = sorted(_changes(base, other), key=lambda each: (each["mean_jct_change"], each["user"]))
    return {
        "better": sum(each["mean_jct_change"] < -ALIKE for each in changes),
        "worse": sum(each["mean_jct_change"] > ALIKE for each in changes),
        "alike": sum(abs(each["mean_jct_change"]) <= ALIKE for each in changes),
        "changes": changes,
    }


def _changes(base: Schedule, other: Schedule) -> Iterator[dict[str, Any]]:
    sums: dict[str, list[float]] = {}
    for before, after in zip(base, other, strict=True):
        own = sums.setdefault(before.row.user, [0.0, 0.0, 0.0])
        own[0] += 1
        own[1] += before.jct_s
        own[2] += after.jct_s
    for user, (jobs, before_s, after_s) in sums.items():
        if user and jobs >= USER_JOBS_MIN:
            yield {
                "user": user,
                "jobs": int(jobs),
                "mean_jct_s": after_s / jobs,
                "mean_jct_change": after_s / before_s - 1.0,
            }
