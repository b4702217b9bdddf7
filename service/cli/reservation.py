"""``sooner reservation ...``: set servers aside for a time."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli import completion
from service.cli.connect import connect
from service.cli.fail import fail
from service.cli.output import (
    Answer,
    Column,
    JsonFlag,
    Style,
    Table,
    print_accepted,
    show,
)

if TYPE_CHECKING:
    from service.wire.cluster import ReservationDocument


def _local(text: str) -> str:
    return datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M")


def _whose(reservation: ReservationDocument) -> str:
    parts = [f"{scope} {name}" for scope in ("user", "project") if (name := reservation[scope])]
    return ", ".join(parts)


RESERVATIONS: Table[ReservationDocument] = Table(
    columns=(
        Column("ID", lambda each: str(each["id"]), right=True),
        Column("STARTS", lambda each: _local(each["starts_at"])),
        Column("ENDS", lambda each: _local(each["ends_at"])),
        Column("ACTIVE", lambda each: "yes" if each["active"] else ""),
        Column("FOR", _whose),
        Column("SERVERS", lambda each: ",".join(each["servers"])),
        Column("REASON", lambda each: each["reason"]),
    ),
    key=lambda each: str(each["id"]),
)


def _answer(found: list[ReservationDocument]) -> Answer[ReservationDocument]:
    document = {"schema": "sooner.reservations/1", "reservations": found}
    return Answer(found, document, "" if found else "nothing is reserved")


def list_command(how: Style) -> None:
    """Reservations that are not over, the first to begin first."""
    with connect() as client:
        show(RESERVATIONS, lambda: _answer(client.reservations()), how)


def create_command(
    starts_at: Annotated[str, typer.Option("--starts-at", help="ISO 8601; without a zone, local time.")],
    ends_at: Annotated[str, typer.Option("--ends-at", help="ISO 8601; without a zone, local time.")],
    servers: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SERVERS]", help="Names of servers.", autocompletion=completion.servers),
    ] = None,
    count: Annotated[int | None, typer.Option("--count", min=1, help="Number of servers, instead of names.")] = None,
    user: Annotated[str | None, typer.Option("--user", help="Only this user's jobs may be there.")] = None,
    project: Annotated[str | None, typer.Option("--project", help="Only this project's jobs may be there.")] = None,
    reason: Annotated[str, typer.Option("--reason")] = "",
    no_preempt: Annotated[
        bool, typer.Option("--no-preempt", help="Stop no job that still runs there at the start.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Reserve servers: for a user or a project, or (neither) for maintenance."""
    given = {
        "servers": servers or None,
        "count": count,
        "starts_at": _moment("--starts-at", starts_at),
        "ends_at": _moment("--ends-at", ends_at),
        "user": user,
        "project": project,
        "reason": reason,
        "preempt": not no_preempt,
    }
    with connect() as client:
        made = client.reserve({key: value for key, value in given.items() if value is not None})
    show(RESERVATIONS, lambda: _answer([made]), Style(as_json))


def cancel_command(
    reservation: Annotated[int, typer.Argument(help="Its number.")],
    as_json: JsonFlag = False,
) -> None:
    """Cancel a reservation: its servers are open to all jobs again."""
    with connect() as client:
        print_accepted({f"reservation {reservation}": client.cancel_reservation(reservation)}, as_json)


def _moment(option: str, text: str) -> str:
    try:
        return datetime.fromisoformat(text).astimezone().isoformat()
    except (ValueError, OverflowError):
        fail(f"{option}: {text!r} is not a time in ISO 8601")
