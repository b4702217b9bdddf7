"""Slurm's accounting as ``sacct --parsable2`` prints it; :mod:`service.slurm.accounting` has the command and the fields."""

import csv
from collections.abc import Mapping
from pathlib import Path

from service.domain.source_rows import SkipRow
from service.sim.workloads.importers.rows import checked_end_s, collect, csv_rows
from service.sim.workloads.model import Workload, WorkloadJob
from service.slurm.accounting import GPU_FIELDS, REQUIRED, RUN_FIELDS, parse_row, slurm_final_state


def import_sacct(path: Path) -> Workload:
    """Read accounting text (also gzip); project = account, name = job name, gpus = allocated, else requested ``gres/gpu``.

    Times are ISO dates, UTC where they name no zone, or seconds since 1970 (``SLURM_TIME_FORMAT=%s``), and are shifted to the
    first submission. Steps of jobs, jobs without GPUs and jobs that had not ended are skipped.
    """
    rows = csv_rows(path, REQUIRED, one_of=(GPU_FIELDS, RUN_FIELDS), delimiter="|", quoting=csv.QUOTE_NONE)
    return collect(path.name, rows, _parse)


def _parse(line: int, cells: Mapping[str, str]) -> WorkloadJob:
    job = parse_row(cells)
    final_state = slurm_final_state(job.state)
    if not job.gpus:
        raise SkipRow("the job has no GPU")
    if not job.run_s > 0.0:
        raise SkipRow("the job never ran")
    assert job.end_s is not None
    return WorkloadJob(
        job_id=job.id,
        submit_time_s=job.submit_s,
        gpus=job.gpus,
        duration_s=job.run_s,
        user=job.user,
        project=job.account,
        name=job.name,
        end_time_s=checked_end_s(job.end_s, job.submit_s),
        walltime_s=job.time_limit_s,
        gpu_type=job.gpu_type,
        final_state=final_state,
    )
