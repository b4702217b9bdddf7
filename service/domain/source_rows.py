"""Cells of rows that other programs wrote: numbers and times, checked, with the reason why a row is left out."""

import math
from datetime import UTC, datetime


class SkipRow(ValueError):
    """Raised for a row that is no job; the message becomes the reason in the report."""


def number(cell: str | None, column: str) -> float:
    """A finite number, or :class:`SkipRow`."""
    try:
        if cell is None or "_" in cell:  # Python's own digit separator; no other tool reads it as a number
            raise ValueError
        value = float(cell)
    except ValueError:
        raise SkipRow(f"{column} is not a number") from None
    if not math.isfinite(value):
        raise SkipRow(f"{column} is not finite")
    return value


def seconds(cell: str | None, column: str) -> float:
    """A number of seconds that is not negative, or :class:`SkipRow`."""
    value = number(cell, column)
    if value < 0.0:
        raise SkipRow(f"{column} is negative")
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


def timestamp_s(cell: object, column: str) -> float:
    """Seconds since 1970 of an ISO date and time, UTC where it names no zone; :class:`SkipRow` for anything else."""
    try:
        moment = datetime.fromisoformat(cell if isinstance(cell, str) else "")
    except ValueError:
        raise SkipRow(f"{column} is not a date and time") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return moment.timestamp()
