"""The results of a simulation: one row per job, the summary ``sooner.sim.result/1``, and the files of ``--out``."""

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from math import exp, fsum, log
from pathlib import Path
from typing import Any, NamedTuple

from policies.bounds import Bounds
from policies.model.cluster import Cluster
from policies.model.placement import Placement
from policies.model.reasons import Reason
from policies.model.value import value
from service.domain.spreadsheet import cells
from service.sim.faults import FaultCounts

RESULT_SCHEMA = "sooner.sim.result/1"
BOUNDS_SCHEMA = "sooner.sim.bounds/1"
COMPARISON_SCHEMA = "sooner.sim.comparison/1"
SLOWDOWN_DURATION_MIN_S = 10.0
"""A shorter job counts as this long in the slowdown, so that a few tiny jobs do not dominate the mean."""


@value
class Span:
    """One attempt: when it held which GPUs. ``gpu_ids`` are indices within each share's server."""

    start_s: float
    end_s: float
    placement: Placement
    gpu_ids: tuple[tuple[int, ...], ...]


@value
class JobOutcome:
    """One finished job. ``start_time_s`` is its first start; placement and GPU indices are those of its last attempt.

    ``held_s`` is the time in which it held GPUs, ``wasted_s`` the part of it without progress that counts.
    ``prediction_log_error`` is ln(median of its estimate / truth), None without an estimate. ``spans`` are its attempts,
    where the run was asked to keep them. ``promised_end_s`` is the end that the policy promised it, None without a promise.
    """

    job_id: str
    submit_time_s: float
    start_time_s: float
    finish_time_s: float
    duration_s: float
    walltime_s: float | None
    succeeded: bool
    gpus: int
    preemptions: int
    held_s: float
    wasted_s: float
    placement: Placement
    gpu_ids: tuple[tuple[int, ...], ...]
    user: str = ""
    prediction_log_error: float | None = None
    spans: tuple[Span, ...] = ()
    promised_end_s: float | None = None

    @property
    def jct_s(self) -> float:
        """Job completion time: submission to finish."""
        return self.finish_time_s - self.submit_time_s

    @property
    def queueing_delay_s(self) -> float:
        """Time in the queue, before the first start and after each preemption."""
        return max(0.0, self.jct_s - self.held_s)

    @property
    def slowdown(self) -> float:
        """JCT over duration; below 1 for a job that is over in less than the shortest duration that counts."""
        return self.jct_s / max(self.duration_s, SLOWDOWN_DURATION_MIN_S)


@dataclass(frozen=True, slots=True)
class Result:
    """The summary; fields as in the format. Means are over the finished jobs, and 0 where there are none.

    ``ratio_to_lower_bound`` is None unless every job finished. ``wall_s`` is set by the caller, which has a real clock.
    Values of promises are over the ``promises`` finished jobs that were promised an end, and None where there are none:
    ``promised_jct_ratio`` is the geometric mean of the promised over the actual JCT.
    """

    policy: str
    predictor: str
    seed: int
    jobs: int
    skipped: int
    finished: int
    mean_jct_s: float
    median_jct_s: float
    p90_jct_s: float
    p99_jct_s: float
    mean_queueing_delay_s: float
    mean_slowdown: float
    makespan_s: float
    utilization_ratio: float
    preemptions: int
    wasted_gpu_s: float
    lower_bound_mean_jct_s: float
    ratio_to_lower_bound: float | None
    events: int
    wall_s: float = 0.0
    promises: int = 0
    promises_kept_ratio: float | None = None
    mean_lateness_s: float | None = None
    mean_promised_jct_s: float | None = None
    promised_jct_ratio: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """The JSON object ``sooner.sim.result/1``."""
        return {"schema": RESULT_SCHEMA, **asdict(self)}


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A job that did not succeed, and why."""

    job_id: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class Simulation:
    """A result with the jobs behind it, in order of submission. ``faults`` is None in a run without any."""

    result: Result
    outcomes: Sequence[JobOutcome]
    cluster: Cluster
    unfinished: Sequence[Unfinished] = ()
    faults: FaultCounts | None = None


def summarise(
    outcomes: Sequence[JobOutcome],
    *,
    policy: str,
    predictor: str,
    seed: int,
    jobs: int,
    skipped: int,
    first_submission_s: float,
    bounds: Bounds,
    events: int,
) -> Result:
    """The summary of a run. ``jobs`` were submitted; ``outcomes`` holds those that ended."""
    done = [outcome for outcome in outcomes if outcome.succeeded]
    jcts_s = sorted([outcome.jct_s for outcome in done] or [0.0])
    mean_s = fsum(jcts_s) / len(jcts_s)
    makespan_s = max((outcome.finish_time_s for outcome in outcomes), default=first_submission_s) - first_submission_s
    wasted_gpu_s = sum((outcome.gpus * outcome.wasted_s for outcome in outcomes), 0.0)
    useful_gpu_s = sum(outcome.gpus * outcome.held_s for outcome in outcomes) - wasted_gpu_s
    bound_s = bounds.lower_bound_mean_jct_s
    return Result(
        policy=policy,
        predictor=predictor,
        seed=seed,
        jobs=jobs,
        skipped=skipped,
        finished=len(done),
        mean_jct_s=mean_s,
        median_jct_s=percentile(jcts_s, 50),
        p90_jct_s=percentile(jcts_s, 90),
        p99_jct_s=percentile(jcts_s, 99),
        mean_queueing_delay_s=_mean(outcome.queueing_delay_s for outcome in done),
        mean_slowdown=_mean(outcome.slowdown for outcome in done),
        makespan_s=makespan_s,
        utilization_ratio=useful_gpu_s / (bounds.gpus * makespan_s) if makespan_s > 0.0 else 0.0,
        preemptions=sum(outcome.preemptions for outcome in outcomes),
        wasted_gpu_s=wasted_gpu_s,
        lower_bound_mean_jct_s=bound_s,
        ratio_to_lower_bound=mean_s / bound_s if jobs and len(done) == jobs else None,
        events=events,
        **_promises(done),
    )


def _promises(done: Sequence[JobOutcome]) -> dict[str, Any]:
    """The fields of promises."""
    promised = [(outcome, outcome.promised_end_s) for outcome in done if outcome.promised_end_s is not None]
    if not promised:
        return {}
    lengths_s = [(end_s - outcome.submit_time_s, outcome.jct_s) for outcome, end_s in promised]
    return {
        "promises": len(promised),
        "promises_kept_ratio": _mean(float(outcome.finish_time_s <= end_s) for outcome, end_s in promised),
        "mean_lateness_s": _mean(max(0.0, outcome.finish_time_s - end_s) for outcome, end_s in promised),
        "mean_promised_jct_s": _mean(promised_s for promised_s, _ in lengths_s),
        "promised_jct_ratio": exp(_mean(log(promised_s / jct_s) for promised_s, jct_s in lengths_s if jct_s > 0.0)),
    }


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else 0.0


def bounds_dict(bounds: Bounds) -> dict[str, Any]:
    """The JSON object ``sooner.sim.bounds/1``."""
    return {"schema": BOUNDS_SCHEMA, **asdict(bounds)}


def comparison_dict(results: Sequence[Result]) -> dict[str, Any]:
    """The JSON object ``sooner.sim.comparison/1``."""
    return {"schema": COMPARISON_SCHEMA, "runs": [result.to_dict() for result in results]}


JOB_COLUMNS = (
    "job_id",
    "submit_time_s",
    "start_time_s",
    "finish_time_s",
    "jct_s",
    "queueing_delay_s",
    "preemptions",
    "gpus",
    "servers",
    "promised_end_s",
)


def percentile(ordered: Sequence[float], percent: int) -> float:
    """The percentile of ascending values, between two of them by a straight line, as numpy's: numpy takes long to import."""
    at = (len(ordered) - 1) * (percent / 100)
    low = int(at)
    below, above, share = ordered[low], ordered[min(low + 1, len(ordered) - 1)], at - low
    return above - (above - below) * (1 - share) if share >= 0.5 else below + (above - below) * share


def write_simulation(simulation: Simulation, folder: Path, workload_name: str) -> None:
    """Write ``result.json``, ``jobs.csv`` and ``batsim_jobs.csv`` into ``folder``, which is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(simulation.result.to_dict(), indent=2, allow_nan=False)
    (folder / "result.json").write_text(text + "\n", encoding="utf-8")
    names = [server.name for server in simulation.cluster.servers]
    _write_csv(folder / "jobs.csv", JOB_COLUMNS, (_job_row(outcome, names) for outcome in simulation.outcomes))
    first_gpu = list(accumulate([server.gpus for server in simulation.cluster.servers], initial=0))
    rows = (_batsim_row(outcome, workload_name, first_gpu) for outcome in simulation.outcomes)
    _write_csv(folder / "batsim_jobs.csv", _BatsimJob._fields, rows)


def _write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(map(cells, rows))


def _job_row(outcome: JobOutcome, names: Sequence[str]) -> Sequence[object]:
    servers = " ".join(names[server] for server in outcome.placement.servers)
    return [servers if column == "servers" else getattr(outcome, column) for column in JOB_COLUMNS]


class _BatsimJob(NamedTuple):
    """A row of ``<prefix>_jobs.csv`` as Batsim writes it and evalys reads it (documentation of both).

    Batsim has one start per job: waiting ends at the first start, and later pauses count as execution.
    """

    job_id: str
    workload_name: str
    profile: str
    submission_time: float
    requested_number_of_resources: int
    requested_time: float | str
    success: int
    final_state: str
    starting_time: float
    execution_time: float
    finish_time: float
    waiting_time: float
    turnaround_time: float
    stretch: float | str
    consumed_energy: str
    allocated_resources: str
    metadata: str


def _batsim_row(outcome: JobOutcome, workload_name: str, first_gpu: Sequence[int]) -> _BatsimJob:
    execution_s = outcome.finish_time_s - outcome.start_time_s
    resources = sorted(
        first_gpu[share.server] + gpu
        for share, gpus in zip(outcome.placement.shares, outcome.gpu_ids, strict=True)
        for gpu in gpus
    )
    return _BatsimJob(
        job_id=outcome.job_id,
        workload_name=workload_name,
        profile=outcome.job_id,  # as in a workload written for Batsim
        submission_time=outcome.submit_time_s,
        requested_number_of_resources=outcome.gpus,
        requested_time="" if outcome.walltime_s is None else outcome.walltime_s,
        success=int(outcome.succeeded),
        final_state="COMPLETED_SUCCESSFULLY" if outcome.succeeded else "COMPLETED_FAILED",
        starting_time=outcome.start_time_s,
        execution_time=execution_s,
        finish_time=outcome.finish_time_s,
        waiting_time=outcome.start_time_s - outcome.submit_time_s,
        turnaround_time=outcome.jct_s,
        stretch=outcome.jct_s / execution_s if execution_s > 0.0 else "",
        consumed_energy="",  # not simulated
        allocated_resources=interval_set(resources),
        metadata=f"preemptions={outcome.preemptions}",
    )


def interval_set(numbers: Sequence[int]) -> str:
    """Ascending numbers as Batsim writes them: ``0-3 7``."""
    return " ".join(
        str(first) if count == 1 else f"{first}-{first + count - 1}" for first, count in consecutive(numbers)
    )


def consecutive(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Ascending numbers as (first, how many in a row)."""
    first = 0
    for index in range(1, len(numbers) + 1):
        if index == len(numbers) or numbers[index] != numbers[index - 1] + 1:
            yield numbers[first], index - first
            first = index
