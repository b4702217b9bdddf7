"""What importers of delimited text share: rows with their line numbers, and the checks that end in a skipped row."""

import csv
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from service.sim.workloads.files import WorkloadError, open_text
from service.sim.workloads.model import SkippedRow, Workload, WorkloadJob, in_submission_order


class SkipRow(ValueError):
    """Raised by an importer for a row that cannot be a job; the message becomes the reason in the report."""


def csv_rows(path: Path, required: Sequence[str]) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Line number and cells by column name of each row; a missing column is a :class:`WorkloadError`."""
    with open_text(path) as stream:
        reader = csv.DictReader(stream)
        try:
            for column in required:
                if column not in (reader.fieldnames or ()):
                    raise WorkloadError("this column is missing", file=str(path), line=1, column=column)
            for row in reader:
                yield reader.line_num, row
        except (csv.Error, UnicodeDecodeError, EOFError, OSError, zlib.error) as error:
            raise WorkloadError(str(error), file=str(path), line=reader.line_num + 1) from error


def number(cell: str | None, column: str) -> float:
    """A finite number, or :class:`SkipRow`."""
    try:
        value = float(cell or "")
    except ValueError:
        raise SkipRow(f"{column} is not a number") from None
    if not math.isfinite(value):
        raise SkipRow(f"{column} is not finite")
    return value


def positive_seconds(cell: str | None, column: str) -> float:
    """A positive number of seconds, or :class:`SkipRow`."""
    value = number(cell, column)
    if value <= 0:
        raise SkipRow(f"{column} is not positive")
    return value


def whole_gpus(cell: str | None, column: str) -> int:
    """A whole number of at least one GPU, or :class:`SkipRow`."""
    value = number(cell, column)
    if value < 1 or value != int(value):
        raise SkipRow(f"{column} is not a whole number of at least 1")
    return int(value)


def import_rows(
    path: Path, required: Sequence[str], parse: Callable[[int, Mapping[str, str]], WorkloadJob]
) -> Workload:
    """Run ``parse(line, cells)`` over a CSV file; the rows for which it raises :class:`SkipRow` are listed as skipped."""
    jobs: list[WorkloadJob] = []
    skipped: list[SkippedRow] = []
    seen: set[str] = set()
    for line, cells in csv_rows(path, required):
        try:
            job = parse(line, cells)
            if job.job_id in seen:
                raise SkipRow("the job id appears twice")
        except SkipRow as reason:
            skipped.append(SkippedRow(line, str(reason)))
            continue
        seen.add(job.job_id)
        jobs.append(job)
    return in_submission_order(path.name, jobs, skipped)
