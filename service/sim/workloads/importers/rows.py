"""The common part of importers: rows with their line numbers, and checks that skip a row."""

import csv
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from sys import intern
from typing import Any, Final, TypeVar

from service.domain.source_rows import SkipRow
from service.sim.workloads.files import READ_ERRORS, WorkloadError, open_text
from service.sim.workloads.model import (
    DURATION_S_MIN,
    GPUS_MAX,
    ITERATIONS_MAX,
    SECONDS_MAX,
    SkippedRow,
    Workload,
    WorkloadJob,
    in_submission_order,
    misread,
)

Row = TypeVar("Row")

_SECONDS_MAX: Final = SECONDS_MAX / 2
"""Of either sign: the difference between two times, such as a job's and the first job's, is then within the table's limit."""


def csv_rows(
    path: Path,
    required: Sequence[str],
    *,
    one_of: Sequence[Sequence[str]] = (),
    columns: Sequence[str] | None = None,
    **dialect: Any,
) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Line number and cells by column name of each row; a missing column is a :class:`WorkloadError`, and so is
    the lack of all columns of an entry of ``one_of``.

    ``columns`` names the columns of a file without a header (where the first row is one nevertheless, it is left out);
    ``dialect`` are arguments of :mod:`csv`. A row that is too long has its last cells under None, one that is too short None
    in its last columns. Text that is not UTF-8 is replaced.
    """
    with open_text(path, errors="replace") as stream:
        reader = csv.DictReader(stream, fieldnames=columns, **dialect)
        try:
            names = reader.fieldnames = [name.strip() for name in reader.fieldnames or ()]
            for column in required:
                if column not in names:
                    raise WorkloadError("this column is missing", file=str(path), line=1, column=column)
            for choice in one_of:
                if not any(column in names for column in choice):
                    message = f"none of {', '.join(choice)} is there"
                    raise WorkloadError(message, file=str(path), line=1, column=choice[0])
            for row in reader:
                if columns is None or [*row.values()] != names:
                    yield reader.line_num, row
        except READ_ERRORS as error:
            raise WorkloadError(str(error), file=str(path), line=reader.line_num + 1) from error


def header(path: Path) -> list[str]:
    """The cells of the first row, by which a format recognises its tables; empty where it cannot be read."""
    with open_text(path, errors="replace") as stream:
        try:
            return [name.strip() for name in next(csv.reader(stream), [])]
        except READ_ERRORS:
            return []  # reading the rows raises the error


def rounded_up(gpus: float) -> int:
    """A number of GPUs rounded up to whole ones; :class:`SkipRow` for none or far too many."""
    if not gpus > 0.0:
        raise SkipRow("the job asks for no GPU")
    if gpus > GPUS_MAX:
        raise SkipRow(f"more than {GPUS_MAX:,} GPUs")
    return max(1, math.ceil(round(gpus, 6)))


def checked_end_s(end_s: float, submit_s: float) -> float:
    """The end of a job, or :class:`SkipRow` where it lies before the submission."""
    if end_s < submit_s:
        raise SkipRow("the job ends before its submission")
    return end_s


def import_rows(
    path: Path, required: Sequence[str], parse: Callable[[int, Mapping[str, str]], WorkloadJob]
) -> Workload:
    """Run ``parse(line, cells)`` over a CSV file; the rows for which it raises :class:`SkipRow` are listed as skipped."""
    return collect(path.name, csv_rows(path, required), partial(_parse_whole, parse))


def _parse_whole(
    parse: Callable[[int, Mapping[str, str]], WorkloadJob], line: int, cells: Mapping[str, str]
) -> WorkloadJob:
    if None in cells:  # an unquoted comma: all cells behind it are in the wrong column
        raise SkipRow("the row has more cells than the header")
    return parse(line, cells)


def collect(name: str, rows: Iterable[tuple[int, Row]], parse: Callable[[int, Row], WorkloadJob]) -> Workload:
    """Run ``parse(line, row)`` over numbered rows; those for which it raises :class:`SkipRow` are listed as skipped.

    The jobs are sorted by submission and shifted to the first one.
    """
    jobs: list[WorkloadJob] = []
    skipped: list[SkippedRow] = []
    seen: set[str] = set()
    for line, row in rows:
        try:
            job = checked(parse(line, row))
            if job.job_id in seen:
                raise SkipRow("the job id appears twice")
        except SkipRow as reason:
            skipped.append(SkippedRow(line, str(reason)))
            continue
        seen.add(job.job_id)
        jobs.append(job)
    return in_submission_order(name, jobs, skipped)


def known(cell: str | None, unknown: Collection[str]) -> str:
    """The cell, or "" where it means unknown. Interned, because many rows share it."""
    return "" if cell is None or not cell or cell in unknown else intern(cell)


def checked(job: WorkloadJob) -> WorkloadJob:
    """The job, or :class:`SkipRow` where it breaks a rule of the table."""
    if not job.job_id:
        raise SkipRow("the job id is empty")
    if job.gpus > GPUS_MAX:
        raise SkipRow(f"more than {GPUS_MAX:,} GPUs")
    if job.iterations is not None and job.iterations > ITERATIONS_MAX:
        raise SkipRow(f"more than {ITERATIONS_MAX:,} iterations")
    if job.duration_s < DURATION_S_MIN:
        raise SkipRow(f"a run time below {DURATION_S_MIN:f} s")
    times_s = (job.submit_time_s, job.duration_s, job.end_time_s or 0.0, job.walltime_s or 0.0)
    if not -_SECONDS_MAX <= min(times_s) <= max(times_s) <= _SECONDS_MAX:
        raise SkipRow(f"a time beyond {_SECONDS_MAX:,.0f} s")
    if found := misread("".join((job.job_id, job.user, job.project, job.name, job.gpu_type))):
        raise SkipRow(f"a text with {found}")
    return job
