"""Usage as documents and as a table for spreadsheets."""

import csv
import io
from collections.abc import Collection, Sequence
from datetime import UTC, date, datetime, timedelta

from service.api.documents import document, instant
from service.db.usage import GROUPS, Group
from service.domain.spreadsheet import cells
from service.domain.usage import Usage
from service.wire.access import UsageDocument, UsageRowDocument

HOUR_S = 3600.0
_EPOCH = date(1970, 1, 1)

SUMS = ("held_gpu_h", "useful_gpu_h", "wasted_gpu_h", "jobs", "attempts", "preemptions")


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
        first_day=first.isoformat(),
        last_day=last.isoformat(),
        at=instant(now_s),
        group=asked,
        rows=[_row(dict(zip(asked, group, strict=True)), usage) for group, usage in rows],
    )


def _row(group: dict[str, int | str], usage: Usage) -> UsageRowDocument:
    day = group.get("day")
    return document(
        UsageRowDocument,
        usage,
        day=day_named(day).isoformat() if isinstance(day, int) else None,
        user=group.get("user"),
        project=group.get("project"),
        held_gpu_h=usage.held_gpu_s / HOUR_S,
        useful_gpu_h=usage.useful_gpu_s / HOUR_S,
        wasted_gpu_h=max(0.0, usage.held_gpu_s - usage.useful_gpu_s) / HOUR_S,
    )


def usage_csv(found: UsageDocument) -> str:
    """The rows as CSV (RFC 4180) with a header. What a spreadsheet would take for a formula gets an apostrophe."""
    out = io.StringIO()
    writer = csv.writer(out)
    columns = [*found["group"], *SUMS]
    writer.writerow(columns)
    for row in found["rows"]:
        values = dict(row)
        writer.writerow(cells([values[name] for name in columns]))
    return out.getvalue()
