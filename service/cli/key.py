"""``sooner key ...`` and ``sooner whoami``: API keys. Each is shown once, when it is made, on standard output."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.connect import connect, settings_or_fail
from service.cli.fail import EXIT_FAILED, fail
from service.cli.job_tables import when
from service.cli.options import seconds_option
from service.cli.output import (
    Answer,
    Column,
    IdsStyle,
    JsonFlag,
    OnceStyle,
    Style,
    Table,
    print_json,
    printable,
    show,
)
from service.config.settings import Settings, SettingsError

if TYPE_CHECKING:
    from service.wire.access import KeyDocument, NewKeyDocument


class RoleName(StrEnum):
    """The roles; each may do all that those before it may."""

    VIEWER = "viewer"
    SUBMITTER = "submitter"
    OPERATOR = "operator"
    ADMIN = "admin"


def _projects(key: KeyDocument) -> str:
    return "all of the user's" if key["projects"] is None else ",".join(key["projects"])


def _state(key: KeyDocument) -> str:
    if key["revoked_at"] is not None:
        return "revoked"
    expires_at = key["expires_at"]
    return "expired" if expires_at is not None and datetime.fromisoformat(expires_at) <= datetime.now(UTC) else "good"


KEYS: Table[KeyDocument] = Table(
    columns=(
        Column("KEY", lambda key: key["id"]),
        Column("USER", lambda key: key["user"]),
        Column("ROLE", lambda key: str(key["role"])),
        Column("STATE", _state),
        Column("EXPIRES", lambda key: when(key["expires_at"])),
        Column("LAST_USED", lambda key: when(key["last_used_at"])),
        Column("PROJECTS", _projects, long=True),
        Column("NOTE", lambda key: key["note"], long=True),
    ),
    key=lambda key: key["id"],
    hidden=(
        Column("CREATED", lambda key: when(key["created_at"])),
        Column("REVOKED", lambda key: when(key["revoked_at"])),
    ),
)


def create_command(
    user: Annotated[str, typer.Option("--user", help="Whose key it is; made if there is no such user yet.")],
    role: Annotated[RoleName | None, typer.Option("--role", help="What the key is good for.")] = None,
    project: Annotated[
        list[str] | None,
        typer.Option("--project", help="Narrow it to this project, of which the user becomes a member; repeatable."),
    ] = None,
    expires_in: Annotated[
        float | None, seconds_option("--expires-in", "How long it is valid: 90d, 12h or 30m.", 1.0)
    ] = None,
    note: Annotated[str, typer.Option("--note", help="What it is for.")] = "",
    first: Annotated[
        bool,
        typer.Option(
            "--first",
            help="Make an admin's key in the database itself, without asking a service: the first one, or a lost one's heir.",
        ),
    ] = False,
    *,
    how: IdsStyle,
) -> None:
    """Create a key and show it once. Its user sets SOONER_TOKEN to it."""
    if first:
        if role not in (None, RoleName.ADMIN) or project:
            fail("--first makes an admin's key, which is for every project")
        made = _first(settings_or_fail(), user, expires_in, note)
    elif role is None:
        fail("give --role viewer, submitter, operator or admin")
    else:
        with connect() as client:
            made = client.make_key(user, role.value, project or (), expires_in, note)
    _print(made, how)


def _print(made: NewKeyDocument, how: Style) -> None:
    if how.as_json:
        print_json({"schema": "sooner.keys/1", "keys": [made]})
        return
    typer.echo(made["key"])
    if not how.quiet:
        line = f"key {made['id']}: {made['role']} {made['user']}, {_projects(made)}, until {when(made['expires_at'])}"
        typer.echo(printable(line), err=True)
        typer.echo("It is not shown again. Use it as: export SOONER_TOKEN=...", err=True)


def _first(settings: Settings, user: str, expires_in_s: float | None, note: str) -> NewKeyDocument:
    from service.cli.first_key import FirstKeyError, make_first_key
    from service.db.migrate import SchemaError
    from service.db.session import DatabaseUrlError
    from service.server.startup import StartError

    try:
        return make_first_key(settings, user, expires_in_s, note)
    except (FirstKeyError, DatabaseUrlError, SettingsError) as error:
        fail(str(error))
    except (StartError, SchemaError) as error:
        fail(str(error), EXIT_FAILED)


def list_command(
    user: Annotated[str | None, typer.Option("--user", help="Of this user alone.")] = None, *, how: OnceStyle
) -> None:
    """Your keys (for an admin: all keys), newest first, with expired and revoked ones; never their secrets."""
    with connect() as client:
        show(KEYS, lambda: _answer(client.keys(user)), how)


def _answer(keys: list[KeyDocument]) -> Answer[KeyDocument]:
    return Answer(keys, {"schema": "sooner.keys/1", "keys": keys}, "" if keys else "there are no keys")


def revoke_command(
    keys: Annotated[list[str], typer.Argument(metavar="KEY...", help="Ids of keys.")], as_json: JsonFlag = False
) -> None:
    """Revoke keys of yours (as an admin: any keys). They are refused from the next request on."""
    with connect() as client:
        show(KEYS, lambda: _answer([client.revoke_key(key) for key in keys]), Style(as_json))


def whoami_command(as_json: JsonFlag = False) -> None:
    """Who this machine's token or SOONER_TOKEN is to the service."""
    with connect() as client:
        me = client.me()
    if as_json:
        print_json({"schema": "sooner.me/1", "me": me})
        return
    projects = "every project" if me["projects"] is None else ", ".join(me["projects"]) or "no project"
    name = "the local token" if me["user"] is None else f"{me['user']} (key {me['key_id']})"
    until = f", until {when(me['expires_at'])}" if me.get("expires_at") else ""
    typer.echo(printable(f"{name}: {me['role']}, {projects}{until}"))
