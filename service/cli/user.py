"""``sooner user ...``: users with API keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.connect import connect
from service.cli.job_tables import when
from service.cli.output import Answer, Column, JsonFlag, OnceStyle, Style, Table, show

if TYPE_CHECKING:
    from service.wire.access import UserDocument


UserArgument = Annotated[str, typer.Argument(metavar="USER", help="The user's name.")]

USERS: Table[UserDocument] = Table(
    columns=(
        Column("USER", lambda user: user["name"]),
        Column("STATE", lambda user: "good" if user["disabled_at"] is None else "disabled"),
        Column("PROJECTS", lambda user: ",".join(user["projects"]), long=True),
        Column("SINCE", lambda user: when(user["created_at"])),
    ),
    key=lambda user: user["name"],
    hidden=(Column("DISABLED", lambda user: when(user["disabled_at"])),),
)


def _users(users: list[UserDocument]) -> Answer[UserDocument]:
    return Answer(users, {"schema": "sooner.users/1", "users": users}, "" if users else "there are no users")


def list_command(how: OnceStyle) -> None:
    """Users by name, with their projects."""
    with connect() as client:
        show(USERS, lambda: _users(client.users()), how)


def add_command(user: UserArgument, as_json: JsonFlag = False) -> None:
    """Add a user, to let him into projects before he has a key. Making a key adds its user, too."""
    with connect() as client:
        show(USERS, lambda: _users([client.put_user(user)]), Style(as_json))


def disable_command(user: UserArgument, as_json: JsonFlag = False) -> None:
    """Let all of a user's keys open nothing, from the next request on. The user's jobs go on."""
    with connect() as client:
        show(USERS, lambda: _users([client.put_user(user, disabled=True)]), Style(as_json))


def enable_command(user: UserArgument, as_json: JsonFlag = False) -> None:
    """Let a disabled user's keys open again what they opened before."""
    with connect() as client:
        show(USERS, lambda: _users([client.put_user(user)]), Style(as_json))
