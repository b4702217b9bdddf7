"""Slurm's accounting as ``sacct --parsable2`` prints it: a header, cells between bars, nothing quoted.

    sacct -a -X --parsable2 -S 2025-01-01 \\
        -o JobID,User,Account,JobName,State,Submit,Start,End,ElapsedRaw,TimelimitRaw,AllocTRES,ReqTRES

Source: Slurm's manual page of sacct ("Job Accounting Fields", "Job State Codes").
"""

import csv
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from service.sim.workloads.importers.rows import (
    SkipRow,
    checked_end_s,
    collect,
    csv_rows,
    known,
    number,
    positive_seconds,
    slurm_final_state,
    timestamp_s,
    whole_gpus,
)
from service.sim.workloads.model import Workload, WorkloadJob

_REQUIRED: Final = ("JobID", "State", "Submit", "End")
_GPU_COLUMNS: Final = ("AllocTRES", "ReqTRES")
"""Where the GPUs of a job stand; the first that names any counts. Tracked resources are totals over all nodes."""
_RUN_COLUMNS: Final = ("ElapsedRaw", "Elapsed", "Start")
_DURATION: Final = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)")
_UNITS: Final = {"K": 1024, "M": 1024**2}
_NO_USER: Final = frozenset({"Unknown", "None"})


def import_sacct(path: Path) -> Workload:
    """Read accounting text (also gzip); project = account, name = job name, gpus = allocated, else requested ``gres/gpu``.

    Times are ISO dates, UTC where they name no zone, or seconds since 1970 (``SLURM_TIME_FORMAT=%s``), and are shifted to the
    first submission. Steps of jobs, jobs without GPUs and jobs that had not ended are skipped.
    """
    one_of = (_GPU_COLUMNS, _RUN_COLUMNS)
    rows = csv_rows(path, _REQUIRED, one_of=one_of, delimiter="|", quoting=csv.QUOTE_NONE)
    return collect(path.name, rows, _parse)


def _parse(line: int, cells: Mapping[str, str]) -> WorkloadJob:
    if None in cells or None in cells.values():
        raise SkipRow("the row has not as many cells as the header (a job's name may hold a bar)")
    if "." in cells["JobID"]:
        raise SkipRow("a step of a job")
    final_state = slurm_final_state(cells["State"])
    gpus, gpu_type = _gpus(cells)
    submit_s = _moment_s(cells, "Submit")
    return WorkloadJob(
        job_id=cells["JobID"],
        submit_time_s=submit_s,
        gpus=gpus,
        duration_s=_run_s(cells),
        user=known(cells.get("User"), _NO_USER),
        project=known(cells.get("Account"), _NO_USER),
        name=known(cells.get("JobName"), _NO_USER),
        end_time_s=checked_end_s(_moment_s(cells, "End"), submit_s),
        walltime_s=_walltime_s(cells),
        gpu_type=gpu_type,
        final_state=final_state,
    )


def _gpus(cells: Mapping[str, str]) -> tuple[int, str]:
    """GPUs and, where exactly one is named, their type: ``billing=8,gres/gpu:a100=4,gres/gpu=4,node=1``."""
    for column in _GPU_COLUMNS:
        counts = {}
        for resource in cells.get(column, "").split(","):
            name, _, count = resource.partition("=")
            kind, _, gpu_type = name.partition(":")
            if kind == "gres/gpu" and count:
                counts[gpu_type] = _count(count, column)
        types = sorted(counts.keys() - {""})
        # The entry without a type, where there is one, is the sum of the others.
        gpus = counts[""] if "" in counts else sum(counts.values())
        if gpus > 0:
            return gpus, types[0] if len(types) == 1 else ""
    raise SkipRow("the job has no GPU")


def _count(cell: str, column: str) -> int:
    """A whole number; without ``--noconvert`` sacct writes large ones with a unit (``1K`` is 1024)."""
    factor = _UNITS.get(cell[-1:].upper(), 1)
    return whole_gpus(str(factor * number(cell[:-1] if factor > 1 else cell, column)), column)


def _moment_s(cells: Mapping[str, str], column: str) -> float:
    cell = cells[column]
    return number(cell, column) if cell.isdecimal() else timestamp_s(cell, column)


def _run_s(cells: Mapping[str, str]) -> float:
    if cells.get("ElapsedRaw"):
        return positive_seconds(cells["ElapsedRaw"], "ElapsedRaw")
    if cells.get("Elapsed"):
        run_s, column = _duration_s(cells["Elapsed"]), "Elapsed"
    elif "Start" not in cells:
        raise SkipRow("the run time is empty")
    else:
        run_s, column = _moment_s(cells, "End") - _moment_s(cells, "Start"), "End - Start"
    if not run_s > 0.0:
        raise SkipRow(f"{column} is not a positive time")
    return run_s


def _duration_s(cell: str) -> float:
    """Seconds of ``[days-][hours:]minutes:seconds``; NaN for anything else."""
    found = _DURATION.fullmatch(cell)
    if found is None:
        return math.nan
    days, hours, minutes, seconds = (float(part or 0.0) for part in found.groups())
    return ((days * 24.0 + hours) * 60.0 + minutes) * 60.0 + seconds


def _walltime_s(cells: Mapping[str, str]) -> float | None:
    """The limit: TimelimitRaw is in minutes. None where there is none (UNLIMITED) or it is the partition's."""
    raw = cells.get("TimelimitRaw", "")
    limit_s = 60.0 * float(raw) if raw.isdecimal() else _duration_s(cells.get("Timelimit", ""))
    return limit_s if limit_s > 0.0 else None
