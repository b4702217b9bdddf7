"""The statistics of a workload that ``sooner workload describe`` prints."""

from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

from policies.model.cluster import Cluster
from service.sim.workloads.model import Workload, WorkloadJob

DESCRIPTION_SCHEMA = "sooner.workload.description/1"
RECURRING_RUNS_MIN = 5
"""Runs of a program that recurs often, as in published studies."""
DAY_S = 86_400.0
_PAST_RUNS_MAX = 20
"""Past runs of a program with which the next one is compared."""


def describe(workload: Workload, cluster: Cluster | None = None) -> dict[str, Any]:
    """Counts, sizes, durations and recurrence, as JSON. A recurrence key is (user, project, name).

    With a cluster also the offered load, and the number of gangs that are too large for every GPU type.
    """
    jobs = workload.jobs
    span_s = jobs[-1].submit_time_s - jobs[0].submit_time_s if jobs else 0.0
    gpu_s = sum(job.gpus * job.duration_s for job in jobs)
    busy = gpu_s / span_s if span_s > 0.0 else 0.0
    sizes = Counter(job.gpus for job in jobs)
    return {
        "schema": DESCRIPTION_SCHEMA,
        "workload": workload.name,
        "jobs": len(jobs),
        "skipped": len(workload.skipped),
        "span_s": span_s,
        **_load(jobs, busy, cluster),
        "gpu_hours": gpu_s / 3600.0,
        "mean_gpus_busy": busy,
        **_users(jobs),
        **_recurrence(jobs),
        **_rhythm(jobs, span_s),
        "gpus_max": max(sizes, default=0),
        **_of_sizes(jobs),
        "jobs_by_gpus": {str(size): sizes[size] for size in sorted(sizes)},
        **_of_durations(jobs),
        "with_iterations": sum(job.iterations is not None for job in jobs),
        "with_model": sum(bool(job.model) for job in jobs),
        "with_declared_iterations": sum(job.declared_iterations is not None for job in jobs),
        "with_walltime": sum(job.walltime_s is not None for job in jobs),
        "final_states": dict(sorted(Counter(job.final_state or "unknown" for job in jobs).items())),
    }


def undefined(description: Mapping[str, Any]) -> set[str]:
    """Keys of the description that are 0 because they are shares, rates or quantiles of nothing."""
    found = set[str]()
    if not description["recurring_5_jobs_ratio"]:
        found.add("repeats_off_2x_ratio")
    if not description["users"]:
        found |= {"top_user_jobs_ratio", "top_tenth_of_users_jobs_ratio"}
    if not description["span_s"]:
        found |= {"load_ratio", "mean_gpus_busy", "jobs_per_day"}
    if not description["jobs"]:
        found |= {"span_s", *_recurrence(()).keys() - {"recurrence_keys"}, "gpus_max"}
        found |= _of_sizes(()).keys() | _of_durations(()).keys()
    return found


def _load(jobs: Sequence[WorkloadJob], busy: float, cluster: Cluster | None) -> dict[str, Any]:
    if cluster is None:
        return {}
    largest = max(cluster.gpus_by_type.values())
    return {
        "cluster": cluster.name,
        "cluster_gpus": cluster.gpus,
        "load_ratio": busy / cluster.gpus,
        "jobs_too_large": sum(
            job.gpus > (cluster.gpus_by_type.get(job.gpu_type, 0) if job.gpu_type else largest) for job in jobs
        ),
    }


def _users(jobs: Sequence[WorkloadJob]) -> dict[str, Any]:
    counts = sorted(Counter(job.user for job in jobs if job.user).values(), reverse=True)
    return {
        "users": len(counts),
        "projects": len({job.project for job in jobs if job.project}),
        "top_user_jobs_ratio": counts[0] / len(jobs) if counts else 0.0,
        "top_tenth_of_users_jobs_ratio": sum(counts[: max(1, len(counts) // 10)]) / len(jobs) if counts else 0.0,
    }


def _recurrence(jobs: Sequence[WorkloadJob]) -> dict[str, Any]:
    """The share of jobs that run a program again, and how far runs deviate from past ones."""
    keys = Counter((job.user, job.project, job.name) for job in jobs if job.name)
    total = max(1, len(jobs))
    factors = factors_to_past(jobs)
    off = sum(not 0.5 <= factor <= 2.0 for factor in factors)
    return {
        "recurrence_keys": len(keys),
        "recurring_jobs_ratio": sum(many for many in keys.values() if many > 1) / total,
        "recurring_5_jobs_ratio": sum(many for many in keys.values() if many >= RECURRING_RUNS_MIN) / total,
        "repeats_off_2x_ratio": off / len(factors) if factors else 0.0,
    }


def factors_to_past(jobs: Sequence[WorkloadJob]) -> list[float]:
    """For each run with at least four earlier ones: its duration over the median of up to 20 that were submitted before it."""
    past: defaultdict[tuple[str, str, str], deque[float]] = defaultdict(lambda: deque(maxlen=_PAST_RUNS_MAX))
    found = []
    for job in jobs:
        if job.name:
            runs = past[job.user, job.project, job.name]
            if len(runs) >= RECURRING_RUNS_MIN - 1:
                found.append(job.duration_s / median(runs))
            runs.append(job.duration_s)
    return found


def rhythm(jobs: Sequence[WorkloadJob], period_s: float, parts: int) -> list[float]:
    """Submissions in each part of a period, relative to the mean, counted over whole periods from 0 s on.

    Empty without a whole period.
    """
    periods = int(jobs[-1].submit_time_s // period_s) if jobs else 0
    if not periods:
        return []
    times_s = np.array([job.submit_time_s for job in jobs])
    inside = times_s[times_s < periods * period_s]
    many = np.bincount((inside % period_s * (parts / period_s)).astype(int).clip(max=parts - 1), minlength=parts)
    return [float(part) for part in many * (parts / max(1, len(inside)))]


def _rhythm(jobs: Sequence[WorkloadJob], span_s: float) -> dict[str, Any]:
    hours, days = rhythm(jobs, DAY_S, 24), rhythm(jobs, 7 * DAY_S, 7)
    return {
        "jobs_per_day": len(jobs) / span_s * DAY_S if span_s > 0.0 else 0.0,
        "busiest_hour_ratio": max(hours, default=None),
        "quietest_hour_ratio": min(hours, default=None),
        "busiest_day_ratio": max(days, default=None),
        "quietest_day_ratio": min(days, default=None),
    }


def _of_sizes(jobs: Sequence[WorkloadJob]) -> dict[str, float]:
    return _quantiles("gpus", [float(job.gpus) for job in jobs], (50, 90, 99), "")


def _of_durations(jobs: Sequence[WorkloadJob]) -> dict[str, float]:
    return _quantiles("duration", [job.duration_s for job in jobs], (10, 25, 50, 75, 90, 99), "_s")


def _quantiles(name: str, values: Sequence[float], levels: Sequence[int], unit: str) -> dict[str, float]:
    """The mean, and the quantiles under their usual names."""
    numbers = np.array(values or [0.0])
    found = {f"{name}_mean{unit}": float(numbers.mean())}
    for level, value in zip(levels, np.percentile(numbers, levels), strict=True):
        found[f"{name}_{'median' if level == 50 else f'p{level}'}{unit}"] = float(value)
    return found
