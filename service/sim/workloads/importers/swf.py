"""The Standard Workload Format of the Parallel Workloads Archive; processors stand for GPUs.

Fields by position (1-based, -1 = unknown): 1 job, 2 submit, 3 wait, 4 run time, 5 allocated processors, 8 requested
processors, 9 requested time, 10 requested memory, 11 status, 12 user, 13 group, 14 executable, 15 queue, 16 partition.
Source: "Standards and Benchmarks for Job Schedulers" (Chapin and others) and the archive's own definition.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from sys import intern

from service.domain.source_rows import SkipRow, number
from service.sim.workloads.files import READ_ERRORS, WorkloadError, open_text
from service.sim.workloads.importers.rows import checked, collect
from service.sim.workloads.model import Workload, WorkloadJob

_FIELDS = 18
_UNKNOWN = -1.0
_RUN_TIME_MIN_S = 1.0
_FINAL_STATES = {"0": "failed", "1": "succeeded", "5": "killed"}
"""Statuses 2 to 4 mark parts of a checkpointed job; its summary line comes first with the same job number."""


def import_swf(path: Path) -> Workload:
    """Read a log (also gzip).

    Jobs: gpus = allocated, else requested processors; project = group; end = submit + wait + run (an unknown wait counts
    as none); name = the executable where that column holds more than one value, else the request itself. Run times under
    1 s and lines that repeat a job number are skipped. Times are shifted to the first submission.
    """
    executables: dict[str, str] = {}

    def parse(line: int, cells: list[str]) -> WorkloadJob:
        job = checked(_parse(cells))
        executables.setdefault(job.job_id, _known(cells[13]))
        return job

    workload = collect(path.name, _lines(path), parse)
    if len(set(executables.values()) - {""}) < 2:
        return workload
    return replace(workload, jobs=tuple(replace(job, name=executables[job.job_id]) for job in workload.jobs))


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line number and fields of each line that is neither empty nor a comment."""
    line = 0
    with open_text(path, errors="replace") as stream:  # headers may be in other encodings
        try:
            for line, text in enumerate(stream, start=1):
                cells = text.split()
                if cells and not cells[0].startswith(";"):
                    yield line, cells
        except READ_ERRORS as error:
            raise WorkloadError(str(error), file=str(path), line=line + 1) from error


def _parse(cells: list[str]) -> WorkloadJob:
    """The job of a line, named after its request."""
    if len(cells) < _FIELDS:
        raise SkipRow(f"fewer than {_FIELDS} fields")
    values = [number(cell, f"field {position}") for position, cell in enumerate(cells[:_FIELDS], start=1)]
    submit_s, wait_s, run_s, allocated, requested, walltime_s = (values[index] for index in (1, 2, 3, 4, 7, 8))
    if submit_s < 0:
        raise SkipRow("the submit time is negative")
    if run_s < _RUN_TIME_MIN_S:
        raise SkipRow("the run time is under 1 s")
    gpus = int(allocated if allocated >= 1 else requested)
    if gpus < 1:
        raise SkipRow("neither allocated nor requested processors are known")
    processors = int(requested) if requested >= 1 else gpus
    request = ":".join(
        (f"p{processors}", f"t{cells[8]}", f"m{cells[9]}", f"q{cells[14]}", f"c{cells[15]}", *cells[_FIELDS:])
    )
    return WorkloadJob(
        job_id=cells[0],
        submit_time_s=submit_s,
        gpus=gpus,
        duration_s=run_s,
        user=_known(cells[11]),
        project=_known(cells[12]),
        name=intern(request),
        end_time_s=submit_s + max(0.0, wait_s) + run_s,
        walltime_s=walltime_s if walltime_s > 0 else None,
        final_state=_FINAL_STATES.get(cells[10], ""),
    )


def _known(cell: str) -> str:
    return "" if float(cell) == _UNKNOWN else intern(cell)  # shared by many lines
