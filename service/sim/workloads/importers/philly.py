"""The Philly trace (Microsoft 2017, CC BY 4.0) in both of its forms, recognised by their first character.

As a table: timestamp, duration, num_gpus, gpu_time, cluster. It names neither users nor jobs, and the rows are not sorted; a
job's id is the line on which it stands. As the published job log: :mod:`.philly_json`.
"""

from collections.abc import Mapping
from pathlib import Path

from service.domain.source_rows import positive_seconds, timestamp_s, whole_gpus
from service.sim.workloads.files import READ_ERRORS, open_text
from service.sim.workloads.importers.philly_json import import_philly_json
from service.sim.workloads.importers.rows import import_rows
from service.sim.workloads.model import Workload, WorkloadJob


def import_philly(path: Path) -> Workload:
    """Read table or log; naive timestamps are UTC, times are shifted to the first submission, project = virtual cluster."""
    if _is_json(path):
        return import_philly_json(path)
    return import_rows(path, ("timestamp", "duration", "num_gpus", "cluster"), _parse)


def _is_json(path: Path) -> bool:
    with open_text(path, errors="replace") as stream:
        try:
            return stream.read(1024).lstrip()[:1] in ("[", "{")
        except READ_ERRORS:
            return False  # reading the table raises the error with its line


def _parse(line: int, cells: Mapping[str, str]) -> WorkloadJob:
    duration_s = positive_seconds(cells["duration"], "duration")
    return WorkloadJob(
        job_id=f"philly-{line}",
        submit_time_s=timestamp_s(cells["timestamp"], "timestamp"),
        gpus=whole_gpus(cells["num_gpus"], "num_gpus"),
        duration_s=duration_s,
        project=cells["cluster"] or "",
    )
