"""Acme (Shanghai AI Laboratory 2023): jobs of two clusters that train and evaluate large language models.

Columns: job_id, user, node_num, gpu_num, cpu_num, type, state, submit_time, start_time, end_time, duration, queue, gpu_time; the
table of the cluster Kalos has more. Times name their zone. Source: the trace's README (InternLM/AcmeTrace).
"""

from collections.abc import Mapping
from pathlib import Path

from service.domain.source_rows import timestamp_s, whole_gpus
from service.sim.workloads.importers.helios import NO_NAME, run_time_s
from service.sim.workloads.importers.rows import checked_end_s, import_rows, known
from service.sim.workloads.model import Workload, WorkloadJob
from service.slurm.accounting import slurm_final_state

_REQUIRED = ("job_id", "user", "gpu_num", "type", "state", "submit_time", "start_time", "end_time", "duration")


def import_acme(path: Path) -> Workload:
    """Read a table (also gzip); name = the type of work (pretraining, evaluation, ...), the only information about the program.

    Times are shifted to the first submission. Jobs without GPUs and jobs that had not ended are skipped.
    """
    return import_rows(path, _REQUIRED, _parse)


def _parse(line: int, cells: Mapping[str, str]) -> WorkloadJob:
    final_state = slurm_final_state(cells["state"])
    submit_s = timestamp_s(cells["submit_time"], "submit_time")
    return WorkloadJob(
        job_id=cells["job_id"],
        submit_time_s=submit_s,
        gpus=whole_gpus(cells["gpu_num"], "gpu_num"),
        duration_s=run_time_s(cells),
        user=known(cells["user"], NO_NAME),
        name=known(cells["type"], NO_NAME),
        end_time_s=checked_end_s(timestamp_s(cells["end_time"], "end_time"), submit_s),
        final_state=final_state,
    )
