"""The Standard Workload Format of the Parallel Workloads Archive; processors stand for GPUs.

Fields by position (1-based, -1 = unknown): 1 job, 2 submit, 3 wait, 4 run time, 5 allocated processors, 8 requested
processors, 9 requested time, 10 requested memory, 11 status, 12 user, 13 group, 14 executable, 15 queue, 16 partition.
Source: "Standards and Benchmarks for Job Schedulers" (Chapin and others) and the archive's own definition.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from sys import intern

from service.sim.workloads.files import READ_ERRORS, WorkloadError, open_text
from service.sim.workloads.importers.rows import SkipRow, checked
from service.sim.workloads.model import SkippedRow, Workload, WorkloadJob, in_submission_order

_FIELDS = 18
_UNKNOWN = -1.0
_RUN_TIME_MIN_S = 1.0
_FINAL_STATES = {"0": "failed", "1": "succeeded", "5": "killed"}
"""Statuses 2 to 4 mark parts of a checkpointed job, whose summary line comes first with the same job number."""


@dataclass(slots=True)
class _Record:
    """A valid line whose name is still open: it depends on the whole executable column.

    ``executable`` is empty where the line names none.
    """

    job: WorkloadJob
    executable: str
    request: str


def import_swf(path: Path) -> Workload:
    """Read a log (also gzip).

    Jobs: gpus = allocated, else requested processors; project = group; end = submit + wait + run (an unknown wait counts
    as none); name = the executable where that column holds more than one value, else the request itself. Run times under
    1 s and lines that repeat a job number are skipped. Times are shifted to the first submission.
    """
    records: list[_Record] = []
    skipped: list[SkippedRow] = []
    seen: set[str] = set()
    for line, cells in _lines(path):
        try:
            if cells[0] in seen:
                raise SkipRow("the job number appears twice")
            records.append(_parse(cells))
        except SkipRow as reason:
            skipped.append(SkippedRow(line, str(reason)))
            continue
        seen.add(cells[0])
    named = len({record.executable for record in records} - {""}) > 1
    jobs = (replace(record.job, name=record.executable if named else record.request) for record in records)
    return in_submission_order(path.name, jobs, skipped)


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


def _parse(cells: list[str]) -> _Record:
    if len(cells) < _FIELDS:
        raise SkipRow(f"fewer than {_FIELDS} fields")
    values = [_number(cell, position) for position, cell in enumerate(cells[:_FIELDS], start=1)]
    submit_s, wait_s, run_s, allocated, requested, walltime_s = (values[index] for index in (1, 2, 3, 4, 7, 8))
    if submit_s < 0:
        raise SkipRow("the submit time is negative")
    if run_s < _RUN_TIME_MIN_S:
        raise SkipRow("the run time is under 1 s")
    gpus = int(allocated if allocated >= 1 else requested)
    if gpus < 1:
        raise SkipRow("neither allocated nor requested processors are known")
    job = WorkloadJob(
        job_id=cells[0],
        submit_time_s=submit_s,
        gpus=gpus,
        duration_s=run_s,
        user=_known(cells[11]),
        project=_known(cells[12]),
        end_time_s=submit_s + max(0.0, wait_s) + run_s,
        walltime_s=walltime_s if walltime_s > 0 else None,
        final_state=_FINAL_STATES.get(cells[10], ""),
    )
    processors = int(requested) if requested >= 1 else gpus
    request = ":".join(
        (f"p{processors}", f"t{cells[8]}", f"m{cells[9]}", f"q{cells[14]}", f"c{cells[15]}", *cells[_FIELDS:])
    )
    return _Record(checked(job), _known(cells[13]), intern(request))


def _number(cell: str, position: int) -> float:
    try:
        value = float(cell)
    except ValueError:
        raise SkipRow(f"field {position} is not a number") from None
    if not math.isfinite(value):
        raise SkipRow(f"field {position} is not finite")
    return value


def _known(cell: str) -> str:
    return "" if float(cell) == _UNKNOWN else intern(cell)  # shared by many lines
