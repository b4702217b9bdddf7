"""Read and write the table ``sooner.workload/1`` as CSV (also gzip) or Parquet. Every rule of the format is checked here."""

import csv
import math
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from itertools import islice
from operator import attrgetter
from pathlib import Path
from sys import intern
from typing import Any, TypeAlias, TypeVar

from service.domain.spreadsheet import cells, text_of
from service.sim.workloads.batsim import write_batsim
from service.sim.workloads.files import READ_ERRORS, WorkloadError, create_text, open_text
from service.sim.workloads.model import (
    DURATION_S_MIN,
    FINAL_STATES,
    GPUS_MAX,
    ITERATIONS_MAX,
    SECONDS_MAX,
    SkippedRow,
    Workload,
    WorkloadJob,
    misread,
)

COLUMNS = (
    "job_id",
    "submit_time_s",
    "user",
    "project",
    "name",
    "gpus",
    "duration_s",
    "end_time_s",
    "iterations",
    "model",
    "declared_iterations",
    "walltime_s",
    "gpu_type",
    "final_state",
)
"""The columns in the order in which they are written; they are read in any order."""
REQUIRED = ("job_id", "submit_time_s", "gpus", "duration_s")

Cell = str | int | float | None
_Value = TypeVar("_Value")


class _BadCell(ValueError):
    """A cell that breaks a rule of its column."""

    def __init__(self, column: str, message: str) -> None:
        super().__init__(message)
        self.column = column


_Rows: TypeAlias = Generator[tuple[int, dict[str, Cell] | _BadCell], None, None]
"""Line or row number, and the cells by column or the error of the row."""


def _empty(cell: Cell) -> bool:
    # A Parquet column of numbers written by pandas holds NaN where a value is missing; the text "nan" is an error.
    return cell is None or cell == "" or (isinstance(cell, float) and math.isnan(cell))


def _text(column: str, cell: Cell) -> str:
    if cell is None:
        return ""
    if isinstance(cell, str) and cell.isascii() and cell.isprintable():
        return cell  # nearly all: none of the rules below can be broken
    text = "" if _empty(cell) else str(cell)
    if found := misread(text):
        raise _BadCell(column, f"must not contain {found}")
    if _holds_other_bytes(text):
        raise _BadCell(column, f"{text.encode(errors='surrogateescape')!r} is not UTF-8")
    return text


def _holds_other_bytes(text: str) -> bool:
    """Whether the file had bytes there that are not UTF-8: each is read as a surrogate."""
    return not text.isascii() and any(0xDC80 <= ord(character) <= 0xDCFF for character in text)


def _label(column: str, cell: Cell) -> str:
    """A text that many rows share, interned to save memory in large tables."""
    return intern(_text(column, cell))


def _number(column: str, cell: Cell) -> float:
    if isinstance(cell, str) and "_" in cell:  # Python's own digit separator; no other tool reads it as a number
        raise _BadCell(column, f"{cell!r} is not a number")
    try:
        value = float(cell)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise _BadCell(column, f"{cell!r} is not a number") from None
    if not math.isfinite(value):
        raise _BadCell(column, f"{cell!r} is not a finite number")
    return value


def _seconds(column: str, cell: Cell) -> float:
    value = _number(column, cell)
    if value < 0:
        raise _BadCell(column, f"{cell} s is negative")
    if value > SECONDS_MAX:
        raise _BadCell(column, f"{cell} s is above the limit of {SECONDS_MAX:,.0f} s")
    return value


def _positive_seconds(column: str, cell: Cell) -> float:
    value = _seconds(column, cell)
    if value == 0:
        raise _BadCell(column, f"{cell} s is not positive")
    return value


def _duration(column: str, cell: Cell) -> float:
    value = _positive_seconds(column, cell)
    if value < DURATION_S_MIN:
        raise _BadCell(column, f"{cell} s is below the limit of {DURATION_S_MIN:f} s")
    return value


def _count(column: str, cell: Cell, maximum: int) -> int:
    value = _number(column, cell)
    if value != int(value) or not 1 <= value <= maximum:
        raise _BadCell(column, f"{cell} is not a whole number from 1 to {maximum}")
    return int(value)


def _iterations(column: str, cell: Cell) -> int:
    return _count(column, cell, ITERATIONS_MAX)


def _optional(cells: dict[str, Cell], column: str, parse: Callable[[str, Cell], _Value]) -> _Value | None:
    cell = cells.get(column)
    return None if _empty(cell) else parse(column, cell)


def parse_job(cells: dict[str, Cell]) -> WorkloadJob:
    """A job from its cells by column name; raises :class:`_BadCell` (a ValueError) for the first rule that is broken."""

    for column in REQUIRED:
        if _empty(cells.get(column)):
            raise _BadCell(column, "is missing")
    submit_time_s = _seconds("submit_time_s", cells["submit_time_s"])
    end_time_s = _optional(cells, "end_time_s", _seconds)
    if end_time_s is not None and end_time_s < submit_time_s:
        raise _BadCell("end_time_s", f"{end_time_s} is before the submission at {submit_time_s}")
    final_state = _label("final_state", cells.get("final_state"))
    if final_state and final_state not in FINAL_STATES:
        raise _BadCell("final_state", f"{final_state!r} is not one of {', '.join(sorted(FINAL_STATES))}")
    return WorkloadJob(
        job_id=_text("job_id", cells["job_id"]),
        submit_time_s=submit_time_s,
        gpus=_count("gpus", cells["gpus"], GPUS_MAX),
        duration_s=_duration("duration_s", cells["duration_s"]),
        user=_label("user", cells.get("user")),
        project=_label("project", cells.get("project")),
        name=_label("name", cells.get("name")),
        end_time_s=end_time_s,
        iterations=_optional(cells, "iterations", _iterations),
        model=_label("model", cells.get("model")),
        declared_iterations=_optional(cells, "declared_iterations", _iterations),
        walltime_s=_optional(cells, "walltime_s", _positive_seconds),
        gpu_type=_label("gpu_type", cells.get("gpu_type")),
        final_state=final_state,
    )


def read_workload(
    path: Path, *, first: int | None = None, skip_invalid: bool = False, any_order: bool = False
) -> Workload:
    """Read a workload; ``first`` limits the number of rows, ``any_order`` accepts unsorted rows.

    Raises :class:`~service.sim.workloads.files.WorkloadError` that names file, line and column for the first row that
    breaks the table; with ``skip_invalid`` such rows are left out and listed in ``Workload.skipped``. A broken header or
    file is always an error.
    """
    jobs: list[WorkloadJob] = []
    skipped: list[SkippedRow] = []
    seen: set[str] = set()
    # Closed here: a compiled generator that is dropped does not run its own ``with`` to the end.
    with closing(_parquet_rows(path) if path.suffix == ".parquet" else _csv_rows(path)) as rows:
        for line, row in islice(rows, first):
            try:
                job = parse_job(row) if isinstance(row, dict) else _raise(row)
                if job.job_id in seen:
                    raise _BadCell("job_id", f"{job.job_id!r} appears twice")
                if not any_order and jobs and job.submit_time_s < jobs[-1].submit_time_s:
                    raise _BadCell(
                        "submit_time_s", f"{job.submit_time_s} is before the row above ({jobs[-1].submit_time_s})"
                    )
            except _BadCell as error:
                if not skip_invalid:
                    raise WorkloadError(str(error), file=str(path), line=line, column=error.column) from None
                skipped.append(SkippedRow(line, f"{error.column}: {error}"))
                continue
            seen.add(job.job_id)
            jobs.append(job)
    return Workload(path.name, tuple(jobs), tuple(skipped))


def _cells(header: list[str], row: list[str]) -> dict[str, Cell]:
    """The cells that are not empty, by column. A trace has a million cells: many are empty, hardly one is marked as a text."""
    cells: dict[str, Cell] = {}
    for at, written in enumerate(row):
        if written:
            cells[header[at]] = text_of(written) if written.startswith("'") else written
    return cells


def _raise(error: _BadCell) -> WorkloadJob:
    raise error


def _csv_rows(path: Path) -> _Rows:
    """Line number and cells of each row, or the error of a row of the wrong length."""
    # What is not UTF-8 breaks the row that holds it, and not the file.
    with open_text(path, "surrogateescape") as stream:
        reader = csv.reader(stream, strict=True)
        try:
            names = next(reader, [])
            if any(map(_holds_other_bytes, names)):
                raise WorkloadError("the header is not UTF-8", file=str(path), line=1)
            header = _check_header(path, names)
            for row in reader:
                if not row:
                    continue
                if len(row) == len(header):
                    yield reader.line_num, _cells(header, row)
                else:
                    at = header[min(len(row), len(header) - 1)]
                    yield reader.line_num, _BadCell(at, f"the row has {len(row)} cells, the header {len(header)}")
        except READ_ERRORS as error:
            raise WorkloadError(str(error), file=str(path), line=reader.line_num + 1) from error


def _parquet_rows(path: Path) -> _Rows:
    """Row number (from 1) and cells of each row."""
    parquet = _pyarrow_parquet(path)
    try:
        file = parquet.ParquetFile(path)
    except (OSError, ValueError) as error:  # pyarrow's own errors derive from these
        raise WorkloadError(str(error), file=str(path)) from error
    header = _check_header(path, file.schema_arrow.names)
    number = 0
    for batch in file.iter_batches(columns=header):
        for row in batch.to_pylist():
            number += 1
            yield number, row


def _check_header(path: Path, header: Sequence[str]) -> list[str]:
    for column in REQUIRED:
        if column not in header:
            raise WorkloadError("this column is missing", file=str(path), line=1, column=column)
    for column in header:
        if column not in COLUMNS:
            known = ", ".join(COLUMNS)
            raise WorkloadError(f"unknown column; the columns are {known}", file=str(path), line=1, column=column)
    if len(set(header)) != len(header):
        twice = next(column for column in header if list(header).count(column) > 1)
        raise WorkloadError("this column appears twice", file=str(path), line=1, column=twice)
    return list(header)


def _pyarrow_parquet(path: Path) -> Any:
    try:
        import pyarrow.parquet
    except ImportError:
        raise WorkloadError("Parquet needs the extra `sooner[parquet]` (pyarrow)", file=str(path)) from None
    return pyarrow.parquet


def write_workload(workload: Workload, path: Path) -> None:
    """Write as Parquet for ``.parquet``, for Batsim for ``.json``, else as CSV (``.gz``: gzip). Equal workloads, equal bytes."""
    if path.suffix == ".parquet":
        _write_parquet(workload, path)
        return
    if ".json" in path.suffixes[-2:]:
        write_batsim(workload, path)
        return
    values = attrgetter(*COLUMNS)
    with create_text(path) as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(COLUMNS)
        for job in workload.jobs:
            writer.writerow(cells(values(job)))  # the writer leaves the cell of a None empty


def _write_parquet(workload: Workload, path: Path) -> None:
    parquet = _pyarrow_parquet(path)
    import pyarrow

    whole = ("gpus", "iterations", "declared_iterations")
    types = {column: pyarrow.int64() for column in whole} | {
        column: pyarrow.float64() for column in COLUMNS if column.endswith("_s")
    }
    schema = pyarrow.schema([(column, types.get(column, pyarrow.string())) for column in COLUMNS])
    columns = {column: [getattr(job, column) for job in workload.jobs] for column in COLUMNS}
    try:
        parquet.write_table(pyarrow.table(columns, schema=schema), path)
    except OSError as error:
        raise WorkloadError(error.strerror or str(error), file=str(path)) from error
