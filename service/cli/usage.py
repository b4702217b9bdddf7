"""``sooner usage``: GPU-hours by user, project and day."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.connect import connect
from service.cli.fail import fail
from service.cli.options import ProjectOption, UserOption
from service.cli.output import Answer, Column, JsonFlag, Style, Table, show
from service.domain.counts import gpu_hours

if TYPE_CHECKING:
    from service.wire.access import UsageDocument, UsageRowDocument


GROUPS = ("day", "user", "project")


_SUMS: tuple[Column[UsageRowDocument], ...] = (
    Column("HELD", lambda row: gpu_hours(row["held_gpu_h"]), right=True),
    Column("USEFUL", lambda row: gpu_hours(row["useful_gpu_h"]), right=True),
    Column("WASTED", lambda row: gpu_hours(row["wasted_gpu_h"]), right=True),
    Column("JOBS", lambda row: str(row["jobs"]), right=True),
    Column("ATTEMPTS", lambda row: str(row["attempts"]), right=True),
    Column("PREEMPTIONS", lambda row: str(row["preemptions"]), right=True),
)

_GROUPS: dict[str, Column[UsageRowDocument]] = {
    "day": Column("DAY", lambda row: row["day"] or ""),
    "user": Column("USER", lambda row: row["user"] or "-", long=True),
    "project": Column("PROJECT", lambda row: row["project"] or "-", long=True),
}


def usage_command(
    by: Annotated[
        str,
        typer.Option(
            "--by", metavar="GROUPS", help="Group by user, project or day, or by several of these, comma-separated."
        ),
    ] = "user",
    first: Annotated[
        datetime | None,
        typer.Option("--from", formats=["%Y-%m-%d"], help="First day (UTC). Default: the 30 days up to the last day."),
    ] = None,
    last: Annotated[
        datetime | None, typer.Option("--to", formats=["%Y-%m-%d"], help="Last day (UTC), included. Default: today.")
    ] = None,
    user: UserOption = None,
    project: ProjectOption = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV with a header.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Report GPU-hours, jobs and preemptions. Running attempts count up to now."""
    if as_csv and as_json:
        fail("--csv and --json exclude each other")
    groups = [word.strip() for word in by.split(",")] if by else []
    if unknown := [word for word in groups if word not in GROUPS]:
        fail(f"--by: {unknown[0]!r} is not one of {', '.join(GROUPS)}")
    first_day, last_day = _day(first), _day(last)
    with connect() as client:
        if as_csv:
            text = client.usage.csv(groups, first_day=first_day, last_day=last_day, user=user, project=project)
            typer.echo(text.replace("\r\n", "\n"), nl=False)
            return
        show(
            _table(groups),
            lambda: _answer(
                client.usage.show(groups, first_day=first_day, last_day=last_day, user=user, project=project)
            ),
            Style(as_json),
        )


def _day(given: datetime | None) -> str | None:
    return None if given is None else given.date().isoformat()


def _table(groups: list[str]) -> Table[UsageRowDocument]:
    asked = [_GROUPS[name] for name in GROUPS if name in groups]
    return Table(columns=(*asked, *_SUMS), key=lambda row: " ".join(column.text(row) for column in asked))


def _answer(found: UsageDocument) -> Answer[UsageRowDocument]:
    document = {"schema": "sooner.usage/1", "usage": found}
    note = f"GPU-hours from {found['first_day']} to {found['last_day']} (UTC)"
    return Answer(found["rows"], document, note)
