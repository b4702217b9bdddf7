"""``sooner audit``: the log of changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli.connect import connect
from service.cli.job_tables import when
from service.cli.output import Answer, Column, ColumnsStyle, Table, show

if TYPE_CHECKING:
    from service.wire.access import AuditDocument


CHANGES: Table[AuditDocument] = Table(
    columns=(
        Column("AT", lambda change: when(change["at"])),
        Column("USER", lambda change: change["user"] or "-"),
        Column("FROM", lambda change: change["address"] or "-"),
        Column("ACTION", lambda change: change["action"]),
        Column("TARGET", lambda change: change["target"]),
        Column("OUTCOME", lambda change: change["outcome"]),
        Column("DETAIL", lambda change: _detail(change["detail"]), long=True),
    ),
    key=lambda change: str(change["id"]),
    hidden=(
        Column("ID", lambda change: str(change["id"]), right=True),
        Column("ROLE", lambda change: str(change["role"])),
        Column("KEY", lambda change: change["key_id"] or "-"),
        Column("REQUEST", lambda change: change["request_id"]),
        Column("STATUS", lambda change: str(change["status"]), right=True),
    ),
)


def _detail(detail: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in detail.items())


def audit_command(
    user: Annotated[str | None, typer.Option("--user", help="Changes of this user alone.")] = None,
    target: Annotated[str | None, typer.Option("--target", help="Changes of this alone: 'job 12', 'key ...'.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Newest lines to show.")] = 50,
    *,
    how: ColumnsStyle,
) -> None:
    """Who changed what, newest first."""

    def ask() -> Answer[AuditDocument]:
        changes = client.changes(user=user, target=target, limit=limit)
        return Answer(changes, {"schema": "sooner.audit/1", "changes": changes}, "" if changes else "no such changes")

    with connect() as client:
        show(CHANGES, ask, how)
