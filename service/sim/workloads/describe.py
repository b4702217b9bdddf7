"""A workload in numbers: what ``sooner workload describe`` prints."""

from collections import Counter
from typing import Any

import numpy as np

from service.sim.workloads.model import Workload

DESCRIPTION_SCHEMA = "sooner.workload.description/1"


def describe(workload: Workload) -> dict[str, Any]:
    """Counts, durations, sizes and how much of it recurs, as JSON. A recurrence key is (user, project, name)."""
    jobs = workload.jobs
    durations_s = np.array([job.duration_s for job in jobs] or [0.0])
    p50_s, p90_s, p99_s = (float(value) for value in np.percentile(durations_s, (50, 90, 99)))
    span_s = jobs[-1].submit_time_s - jobs[0].submit_time_s if jobs else 0.0
    gpu_s = sum(job.gpus * job.duration_s for job in jobs)
    sizes = Counter(job.gpus for job in jobs)
    keys = Counter((job.user, job.project, job.name) for job in jobs if job.name)
    recurring = sum(count for count in keys.values() if count > 1)
    return {
        "schema": DESCRIPTION_SCHEMA,
        "workload": workload.name,
        "jobs": len(jobs),
        "skipped": len(workload.skipped),
        "span_s": span_s,
        "users": len({job.user for job in jobs if job.user}),
        "projects": len({job.project for job in jobs if job.project}),
        "recurrence_keys": len(keys),
        "recurring_jobs_ratio": recurring / len(jobs) if jobs else 0.0,
        "gpus_max": max(sizes, default=0),
        "jobs_by_gpus": {str(size): sizes[size] for size in sorted(sizes)},
        "gpu_hours": gpu_s / 3600.0,
        "mean_gpus_busy": gpu_s / span_s if span_s > 0.0 else 0.0,
        "duration_mean_s": float(durations_s.mean()),
        "duration_median_s": p50_s,
        "duration_p90_s": p90_s,
        "duration_p99_s": p99_s,
        "with_iterations": sum(job.iterations is not None for job in jobs),
        "with_model": sum(bool(job.model) for job in jobs),
        "with_declared_iterations": sum(job.declared_iterations is not None for job in jobs),
        "with_walltime": sum(job.walltime_s is not None for job in jobs),
        "final_states": dict(sorted(Counter(job.final_state or "unknown" for job in jobs).items())),
    }
