"""Writes a workload for Batsim: jobs that hold their GPUs for their run time on any platform.

Source: Batsim's documentation ("Workload"). The profile type is ``delay``, its name in the releases up to version 4 (version 5:
``DelayProfile``).
"""

import json
from pathlib import Path
from typing import Any

from service.sim.workloads.files import create_text
from service.sim.workloads.model import Workload, WorkloadJob


def write_batsim(workload: Workload, path: Path) -> None:
    """Write the JSON (gzip for ``.gz``), one line per job and one per profile. Equal workloads give equal bytes.

    A profile is named after its job, as in ``batsim_jobs.csv``; ``nb_res`` is the largest gang, the least that runs every job.
    Raises :class:`~service.sim.workloads.files.WorkloadError`.
    """
    with create_text(path) as stream:
        stream.write(f'{{"description": {json.dumps(workload.name)}, ')
        stream.write(f'"nb_res": {max((job.gpus for job in workload.jobs), default=1)},\n"jobs": [')
        separator = "\n"
        for job in workload.jobs:
            stream.write(separator + json.dumps(_job(job)))
            separator = ",\n"
        stream.write('],\n"profiles": {')
        separator = "\n"
        for job in workload.jobs:
            profile = {"type": "delay", "delay": job.duration_s}
            stream.write(f"{separator}{json.dumps(job.job_id)}: {json.dumps(profile)}")
            separator = ",\n"
        stream.write("}}\n")


def _job(job: WorkloadJob) -> dict[str, Any]:
    """Without the walltime where the job ran longer: its cluster did not enforce the limit, but Batsim would."""
    row: dict[str, Any] = {"id": job.job_id, "subtime": job.submit_time_s, "res": job.gpus, "profile": job.job_id}
    if job.walltime_s is not None and job.walltime_s >= job.duration_s:
        row["walltime"] = job.walltime_s
    about = {key: value for key in ("user", "project", "name", "model") if (value := getattr(job, key))}
    return {**row, "extra_data": json.dumps(about)} if about else row
