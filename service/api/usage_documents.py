"""Usage as documents and as a table for spreadsheets."""

import csv
import io
from collections.abc import Collection, Sequence
from datetime import UTC, date, datetime, timedelta

from pydantic import BaseModel, Field

from service.api.documents import instant
from service.db.usage import GROUPS, Group
from service.domain.usage import Usage

HOUR_S = 3600.0
_EPOCH = date(1970, 1, 1)
_STEERS = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet takes for the beginning of a formula. Users and projects are words that others have chosen."""

SUMS = ("held_gpu_h", "useful_gpu_h", "wasted_gpu_h", "jobs", "attempts", "preemptions")


class UsageRowDocument(BaseModel):
    """The sums of one group; what was not grouped by is null."""

    day: date | None = Field(description="UTC.")
    user: str | None = Field(description="Empty for jobs without a user.")
    project: str | None = Field(description="Empty for jobs without a project.")
    held_gpu_h: float = Field(description="GPU-hours held, from the decision to start until the GPUs were free again.")
    useful_gpu_h: float = Field(description="Of these, the hours that moved jobs on for good.")
    wasted_gpu_h: float = Field(
        description="The others: launching, restarting, work that was lost in a stop or a crash."
    )
    jobs: int = Field(description="Jobs that ended.")
    attempts: int = Field(description="Attempts that ended.")
    preemptions: int = Field(description="Attempts that were preempted.")


class UsageDocument(BaseModel):
    """What was used of the GPUs on the days from ``first_day`` to ``last_day``, both included."""

    first_day: date
    last_day: date
    at: datetime = Field(description="Attempts that still run count until then.")
    group: list[str]
    rows: list[UsageRowDocument]


def day_number(day: date) -> int:
    """Days since 1970-01-01."""
    return (day - _EPOCH).days


def day_named(number: int) -> date:
    """The day of this number."""
    return _EPOCH + timedelta(days=number)


def today(now_s: float) -> date:
    """The UTC day of an instant."""
    return datetime.fromtimestamp(now_s, UTC).date()


def usage_document(
    first: date, last: date, now_s: float, groups: Collection[str], rows: Sequence[tuple[Group, Usage]]
) -> UsageDocument:
    """The sums by group."""
    asked = [name for name in GROUPS if name in groups]
    return UsageDocument(
        first_day=first,
        last_day=last,
        at=instant(now_s),
        group=asked,
        rows=[_row(dict(zip(asked, group, strict=True)), usage) for group, usage in rows],
    )


def _row(group: dict[str, int | str], usage: Usage) -> UsageRowDocument:
    day = group.get("day")
    return UsageRowDocument(
        day=day_named(day) if isinstance(day, int) else None,
        user=_word(group, "user"),
        project=_word(group, "project"),
        held_gpu_h=usage.held_gpu_s / HOUR_S,
        useful_gpu_h=usage.useful_gpu_s / HOUR_S,
        wasted_gpu_h=max(0.0, usage.held_gpu_s - usage.useful_gpu_s) / HOUR_S,
        jobs=usage.jobs,
        attempts=usage.attempts,
        preemptions=usage.preemptions,
    )


def _word(group: dict[str, int | str], name: str) -> str | None:
    return str(group[name]) if name in group else None


def usage_csv(document: UsageDocument) -> str:
    """The rows as CSV (RFC 4180) with a header. What a spreadsheet would take for a formula gets an apostrophe."""
    out = io.StringIO()
    writer = csv.writer(out)
    columns = [*document.group, *SUMS]
    writer.writerow(columns)
    for row in document.rows:
        values = row.model_dump(mode="json")
        writer.writerow([_harmless(values[name]) for name in columns])
    return out.getvalue()


def _harmless(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(_STEERS) else value
