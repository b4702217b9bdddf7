"""ElasticFlow's production clusters (2021, MIT): job_id, submission_time, duration, num_gpu. Seconds; no user, no name."""

from collections.abc import Mapping
from pathlib import Path

from service.domain.source_rows import positive_seconds, seconds, whole_gpus
from service.sim.workloads.importers.rows import import_rows
from service.sim.workloads.model import Workload, WorkloadJob


def import_elasticflow(path: Path) -> Workload:
    """Read the table; times are shifted to the first submission."""
    return import_rows(path, ("job_id", "submission_time", "duration", "num_gpu"), _parse)


def _parse(line: int, cells: Mapping[str, str]) -> WorkloadJob:
    return WorkloadJob(
        job_id=cells["job_id"],
        submit_time_s=seconds(cells["submission_time"], "submission_time"),
        gpus=whole_gpus(cells["num_gpu"], "num_gpu"),
        duration_s=positive_seconds(cells["duration"], "duration"),
    )
