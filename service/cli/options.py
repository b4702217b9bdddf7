"""Options that several commands have, and how their values are read."""

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli.fail import EXIT_FAILED, fail
from service.domain.counts import count_of
from service.domain.duration import DurationError, seconds_of

if TYPE_CHECKING:
    from service.sim.workloads.model import SkippedRow, Workload, WorkloadJob

STANDARD = "-"
"""A file name that means standard input or output."""
_REASONS_MAX = 20
"""Reasons for skipped rows that are told, the most frequent ones."""
_ROWS_OF_A_REASON_MAX = 10
"""Skipped rows that are named of each."""


def _known_network(value: str) -> str:
    """Option callback."""
    from service.sim.network import NetworkError, parse_network  # numpy takes long to import

    try:
        parse_network(value)
    except NetworkError as error:
        raise typer.BadParameter(str(error)) from error
    return value


NetworkOption = Annotated[
    str,
    typer.Option(
        "--network",
        callback=_known_network,
        help="reserved: each GPU owns its share of the NIC; contended: jobs that span servers share it; "
        "or contended:xi1=X,a=Y,xi2=Z.",
    ),
]
SeedOption = Annotated[int, typer.Option("--seed", help="Equal seeds give equal results.")]
UserOption = Annotated[str | None, typer.Option("--user", help="Only jobs of this user.")]
ProjectOption = Annotated[str | None, typer.Option("--project", help="Only jobs of this project.")]
DatabaseOption = Annotated[str | None, typer.Option("--database-url", help="Database URL (setting database_url).")]
DataDirOption = Annotated[
    Path | None, typer.Option("--data-dir", file_okay=False, help="Data folder (setting data_dir).")
]


WorkloadOption = Annotated[Path, typer.Option("--workload", help="Workload table (sooner.workload/1).")]
FirstOption = Annotated[int | None, typer.Option("--first", min=1, help="Read only the first N rows.")]
SkipInvalidFlag = Annotated[
    bool, typer.Option("--skip-invalid", help="Skip and count invalid rows instead of stopping at the first one.")
]
HtmlOption = Annotated[
    Path | None, typer.Option("--html", dir_okay=False, help="Write a self-contained HTML report to this file.")
]


def given(**options: Any) -> dict[str, Any]:
    """The options that were given: those that are not None."""
    return {name: value for name, value in options.items() if value is not None}


def read_file(path: str, bytes_max: int) -> bytes:
    """The content of a file, or of standard input for ``-``; more than ``bytes_max`` ends the command. Raises OSError."""
    if path == STANDARD:
        content = sys.stdin.buffer.read(bytes_max + 1)
    else:
        with Path(path).open("rb") as stream:
            content = stream.read(bytes_max + 1)
    if len(content) > bytes_max:
        fail(f"{path}: larger than {bytes_max} bytes")
    return content


def above_zero(value: float | None) -> float | None:
    """Option callback, for what the service refuses to be 0."""
    if value is not None and not value > 0.0:
        raise typer.BadParameter(f"must be above 0, not {value:g}")
    return value


def seconds_option(flag: str, text: str, least_s: float = 0.0) -> Any:
    """An option that takes a duration, such as 90, 2h, 30min or 02:30:00, and gives seconds."""

    def duration(value: str | float) -> float:
        try:
            found = seconds_of(value) if isinstance(value, str) else value
        except DurationError as error:
            raise typer.BadParameter(str(error)) from None
        if not math.isfinite(found):
            raise typer.BadParameter("must be a finite number")
        if found < least_s:
            raise typer.BadParameter(f"must be at least {least_s:g} s, not {value}")
        return found

    return typer.Option(flag, parser=duration, metavar="DURATION", help=text, min=least_s)


def instant_s(flag: str, text: str) -> float:
    """Seconds since the Unix epoch of a date and time (UTC without a zone), or of a duration ago."""
    if not text.strip().isdigit():  # 20260301 is a date.
        with suppress(DurationError):
            return datetime.now(UTC).timestamp() - seconds_of(text)
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        fail(f"{flag} {text!r} is neither a time like 2026-03-01T12:00 nor one ago like 7d, 12h or 30min")
    return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()


def make_folder(flag: str, folder: Path | None) -> None:
    """Create the folder before the run, so that a folder that cannot be made ends the command at once."""
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            fail(f"{flag} {folder}: {error.strerror or error}")


def check_file(flag: str, path: Path | None) -> None:
    """Check before the run that the file can be written. A file that did not exist is not left behind."""
    if path is not None:
        try:
            existed = path.exists()
            path.open("a").close()
            if not existed:
                path.unlink()
        except OSError as error:
            fail(f"{flag} {path}: {error.strerror or error}")


def write_new(path: Path, content: bytes) -> None:
    """Write a file that does not exist yet: for what cannot be made again, and so replaces nothing. A fault ends the command."""
    try:
        stream = path.open("xb")
        try:
            with stream:
                stream.write(content)
        except OSError:
            path.unlink(missing_ok=True)
            raise
    except FileExistsError:
        fail(f"{path} exists; name another file with --out")
    except OSError as error:
        fail(f"{path}: {error.strerror or error}")


@contextmanager
def writing(flag: str) -> Iterator[None]:
    """Write results of a run within the block: a file that cannot be written ends the command with one line."""
    try:
        yield
    except OSError as error:
        fail(f"{flag} {error.filename}: {error.strerror or error}", EXIT_FAILED)


def report_skipped(workload: "Workload") -> None:
    """Tell on standard error why rows were skipped: for each reason the first rows, then their number."""
    rows_of: dict[str, list[SkippedRow]] = {}
    for row in workload.skipped:
        rows_of.setdefault(row.reason, []).append(row)
    by_count = sorted(rows_of.items(), key=lambda reason_rows: -len(reason_rows[1]))
    for reason, rows in by_count[:_REASONS_MAX]:
        for row in rows[:_ROWS_OF_A_REASON_MAX]:
            typer.echo(f"{workload.name}:{row.line}: skipped: {reason}", err=True)
        typer.echo(f"skipped {count_of(len(rows), 'row')}: {reason}", err=True)
    if others := by_count[_REASONS_MAX:]:
        count = sum(len(rows) for _, rows in others)
        typer.echo(f"skipped {count:,} more rows for {len(others):,} other reasons", err=True)


def report_unfit(workload: "Workload", unfit: "Sequence[tuple[WorkloadJob, str]]") -> None:
    """Tell on standard error which jobs no simulation on the cluster can have: the first ones, then their number."""
    for row, reason in unfit[:_ROWS_OF_A_REASON_MAX]:
        typer.echo(f"{workload.name}: skipped: job {row.job_id!r} {reason}", err=True)
    if unfit:
        typer.echo(f"skipped {count_of(len(unfit), 'job')} that the cluster cannot run", err=True)
