"""Helios (SenseTime 2020, CC BY 4.0): four clusters' Slurm logs, one table each.

Columns: job_id, user, vc, gpu_num, cpu_num, node_num, state, submit_time, start_time, end_time, duration, queue; the two last in
seconds. Some releases add ``jobname``. Subsets that were published with later papers leave ``gpu_num`` empty and add
``max_parallelism`` and ``total_iterations``, both of them derived by a script from the run time and an assigned model.
Source: the trace's README (S-Lab-System-Group/HeliosData).
"""

from collections.abc import Mapping
from pathlib import Path

from service.domain.source_rows import SkipRow, number, positive_seconds, timestamp_s, whole_gpus
from service.sim.workloads.importers.rows import checked_end_s, import_rows, known
from service.sim.workloads.model import Workload, WorkloadJob
from service.slurm.accounting import slurm_final_state

_REQUIRED = ("job_id", "user", "vc", "gpu_num", "state", "submit_time", "start_time", "end_time", "duration")
NO_NAME = frozenset({"NA", "None", "-"})


def import_helios(path: Path) -> Workload:
    """Read a table (also gzip); project = virtual cluster, name = job name where one was published.

    Times without a zone are UTC, and all are shifted to the first submission. Jobs without GPUs (CPU jobs are half of the
    trace) and jobs that had not ended are skipped.
    """
    return import_rows(path, _REQUIRED, _parse)


def _parse(line: int, cells: Mapping[str, str]) -> WorkloadJob:
    final_state = slurm_final_state(cells["state"])
    submit_s = timestamp_s(cells["submit_time"], "submit_time")
    gpus_column = "gpu_num" if cells["gpu_num"] or "max_parallelism" not in cells else "max_parallelism"
    return WorkloadJob(
        job_id=cells["job_id"],
        submit_time_s=submit_s,
        gpus=whole_gpus(cells[gpus_column], gpus_column),
        duration_s=run_time_s(cells),
        user=known(cells["user"], NO_NAME),
        project=known(cells["vc"], NO_NAME),
        name=known(cells.get("jobname"), NO_NAME),
        end_time_s=checked_end_s(timestamp_s(cells["end_time"], "end_time"), submit_s),
        iterations=_iterations(cells.get("total_iterations")),
        final_state=final_state,
    )


def run_time_s(cells: Mapping[str, str]) -> float:
    """Seconds from start to end; the column ``duration`` where the start was not recorded.

    In one of the published tables that column counts from the submission, so it is the second choice.
    """
    try:
        start_s = timestamp_s(cells["start_time"], "start_time")
    except SkipRow:
        return positive_seconds(cells["duration"], "duration")
    run_s = timestamp_s(cells["end_time"], "end_time") - start_s
    if run_s <= 0.0:
        raise SkipRow("the run time is not positive")
    return run_s


def _iterations(cell: str | None) -> int | None:
    if not cell:
        return None
    count = round(number(cell, "total_iterations"))
    return count if count >= 1 else None
