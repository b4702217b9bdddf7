"""The Philly trace as a table (Microsoft 2017, CC BY 4.0): timestamp, duration, num_gpus, gpu_time, cluster.

It names neither users nor jobs. The rows are not sorted; a job's id is the line on which it stands.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from service.sim.workloads.importers.rows import SkipRow, import_rows, positive_seconds, whole_gpus
from service.sim.workloads.model import Workload, WorkloadJob


def import_philly(path: Path) -> Workload:
    """Read the table; naive timestamps are UTC, times are shifted to the first submission, project = virtual cluster."""
    return import_rows(path, ("timestamp", "duration", "num_gpus", "cluster"), _parse)


def _parse(line: int, cells: Mapping[str, str]) -> WorkloadJob:
    duration_s = positive_seconds(cells["duration"], "duration")
    return WorkloadJob(
        job_id=f"philly-{line}",
        submit_time_s=_timestamp_s(cells["timestamp"]),
        gpus=whole_gpus(cells["num_gpus"], "num_gpus"),
        duration_s=duration_s,
        project=cells["cluster"] or "",
    )


def _timestamp_s(cell: str) -> float:
    try:
        moment = datetime.fromisoformat(cell)
    except (TypeError, ValueError):
        raise SkipRow("timestamp is not a date and time") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return moment.timestamp()
