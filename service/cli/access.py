"""``sooner key ...``, ``user ...``, ``project ...``, ``whoami`` and ``audit``: API keys, users, projects, and the audit log."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli.connect import connect
from service.cli.fail import fail, settings_or_fail
from service.cli.job_tables import when
from service.cli.one_by_one import change_one_by_one
from service.cli.options import seconds_option
from service.cli.output import (
    Answer,
    Column,
    ColumnsStyle,
    IdsStyle,
    JsonFlag,
    OnceStyle,
    Style,
    Table,
    print_json,
    print_result,
    printable,
    show,
    show_service,
)
from service.domain.api_key import LIFETIME_S_MIN

if TYPE_CHECKING:
    from service.wire.access import (
        AuditDocument,
        KeyDocument,
        MembershipDocument,
        NewKeyDocument,
        ProjectDocument,
        UserDocument,
    )


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
    return "expired" if expires_at is not None and datetime.fromisoformat(expires_at) <= datetime.now(UTC) else "valid"


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
    name="keys",
    empty="there are no keys",
)

UserArgument = Annotated[str, typer.Argument(metavar="USER", help="The user's name.")]
ProjectArgument = Annotated[str, typer.Argument(metavar="PROJECT", help="The project's name.")]

USERS: Table[UserDocument] = Table(
    columns=(
        Column("USER", lambda user: user["name"]),
        Column("STATE", lambda user: "enabled" if user["disabled_at"] is None else "disabled"),
        Column("PROJECTS", lambda user: ",".join(user["projects"]), long=True),
        Column("SINCE", lambda user: when(user["created_at"])),
    ),
    key=lambda user: user["name"],
    hidden=(Column("DISABLED", lambda user: when(user["disabled_at"])),),
    name="users",
    empty="there are no users",
)

PROJECTS: Table[ProjectDocument] = Table(
    columns=(
        Column("PROJECT", lambda project: project["name"]),
        Column("MEMBERS", lambda project: ",".join(project["members"]), long=True),
    ),
    key=lambda project: project["name"],
    name="projects",
    empty="no project has members",
)


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


def key_create_command(
    user: Annotated[str, typer.Option("--user", help="User of the key; added if unknown.")],
    role: Annotated[RoleName | None, typer.Option("--role", help="Role of the key.")] = None,
    project: Annotated[
        list[str] | None,
        typer.Option(
            "--project", help="Restrict the key to this project, and add the user to the project; repeatable."
        ),
    ] = None,
    expires_in: Annotated[
        float | None,
        seconds_option(
            "--expires-in", "Lifetime, such as 90d or 12h. Default: the setting key_lifetime_s.", LIFETIME_S_MIN
        ),
    ] = None,
    note: Annotated[str, typer.Option("--note", help="Purpose of the key.")] = "",
    first: Annotated[
        bool,
        typer.Option(
            "--first",
            help="Create an admin key directly in the database, for the first admin or to replace a lost key.",
        ),
    ] = False,
    *,
    how: IdsStyle,
) -> None:
    """Create an API key and print it once. The user sets SOONER_TOKEN to it."""
    if first:
        if role not in (None, RoleName.ADMIN) or project:
            fail(
                "--first creates an admin key for all projects; it cannot be combined with --project or another --role"
            )
        # It needs the libraries of the database, which the other commands do not.
        from service.cli.first_key import make_first_key

        made = make_first_key(settings_or_fail(), user, expires_in, note)
    elif role is None:
        fail("give --role viewer, submitter, operator or admin")
    else:
        with connect() as client:
            made = client.keys.make(user, role.value, project or (), expires_in, note)
    _print(made, how)


def _print(made: NewKeyDocument, how: Style) -> None:
    if how.as_json:
        print_json({"schema": "sooner.keys/1", "keys": [made]})
        return
    typer.echo(made["key"])
    if not how.quiet:
        line = f"key {made['id']}: {made['role']} {made['user']}, {_projects(made)}, until {when(made['expires_at'])}"
        typer.echo(printable(line), err=True)
        typer.echo("The key is not stored and cannot be shown again. To use it: export SOONER_TOKEN=...", err=True)


def key_list_command(
    user: Annotated[str | None, typer.Option("--user", help="Only keys of this user.")] = None, *, how: OnceStyle
) -> None:
    """List your keys (for admins: all keys), newest first, including expired and revoked ones."""
    show_service(KEYS, lambda client: client.keys.list(user), how)


def key_revoke_command(
    keys: Annotated[list[str], typer.Argument(metavar="KEY...", help="Ids of keys.")], as_json: JsonFlag = False
) -> None:
    """Revoke your keys (for admins: any keys). The next request with a revoked key is refused."""
    change_one_by_one(
        "key",
        keys,
        lambda client, key: client.keys.revoke(key),
        lambda key, _: typer.echo(printable(f"key {key}: revoked")),
        lambda revoked: KEYS.answer(revoked).document,
        as_json,
    )


def whoami_command(as_json: JsonFlag = False) -> None:
    """Show the user, role and projects of the token in use: SOONER_TOKEN, or this machine's token."""
    with connect() as client:
        me = client.me()
    if as_json:
        print_json({"schema": "sooner.me/1", "me": me})
        return
    projects = "every project" if me["projects"] is None else ", ".join(me["projects"]) or "no project"
    name = "the local token" if me["user"] is None else f"{me['user']} (key {me['key_id']})"
    until = f", until {when(me['expires_at'])}" if me.get("expires_at") else ""
    typer.echo(printable(f"{name}: {me['role']}, {projects}{until}"))


def user_list_command(how: OnceStyle) -> None:
    """List users by name, with their projects."""
    show_service(USERS, lambda client: client.users.list(), how)


def user_add_command(user: UserArgument, as_json: JsonFlag = False) -> None:
    """Add a user without a key, for example to add the user to a project. `sooner key create` adds users too.

    A user who is disabled stays so.
    """
    show_service(USERS, lambda client: [client.users.put(user)], Style(as_json))


def user_disable_command(user: UserArgument, as_json: JsonFlag = False) -> None:
    """Disable a user: the next request with one of the user's keys is refused. Jobs continue."""
    show_service(USERS, lambda client: [client.users.put(user, disabled=True, known=True)], Style(as_json))


def user_enable_command(user: UserArgument, as_json: JsonFlag = False) -> None:
    """Enable a disabled user. The user's keys work again."""
    show_service(USERS, lambda client: [client.users.put(user, disabled=False, known=True)], Style(as_json))


def project_list_command(how: OnceStyle) -> None:
    """List projects by name, with their members."""
    show_service(PROJECTS, lambda client: client.projects.list(), how)


def project_add_command(project: ProjectArgument, user: UserArgument, as_json: JsonFlag = False) -> None:
    """Add a user to a project. Members see its jobs and submit to it. A project exists while it has members."""
    with connect() as client:
        _print_membership(client.projects.add_member(project, user), as_json)


def project_remove_command(project: ProjectArgument, user: UserArgument, as_json: JsonFlag = False) -> None:
    """Remove a user from a project. The user no longer sees any of its jobs. The user's own jobs in it continue."""
    with connect() as client:
        _print_membership(client.projects.remove_member(project, user), as_json)


def _print_membership(membership: MembershipDocument, as_json: bool) -> None:
    word = "a" if membership["member"] else "no"
    text = f"{membership['user']} is {word} member of {membership['project']}"
    print_result({"schema": "sooner.membership/1", "membership": membership}, text, as_json)


def audit_command(
    user: Annotated[str | None, typer.Option("--user", help="Only changes by this user.")] = None,
    target: Annotated[
        str | None, typer.Option("--target", help="Only changes of this target, such as 'job 12'.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most this many changes.")] = 50,
    *,
    how: ColumnsStyle,
) -> None:
    """List changes with user, target and outcome, newest first."""

    def ask() -> Answer[AuditDocument]:
        changes = client.audit.list(user=user, target=target, limit=limit)
        return Answer(changes, {"schema": "sooner.audit/1", "changes": changes}, "" if changes else "no such changes")

    with connect() as client:
        show(CHANGES, ask, how)


def _detail(detail: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in detail.items())
