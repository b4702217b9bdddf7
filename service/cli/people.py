"""``sooner user ...``, ``sooner project ...`` and ``sooner audit``: who may see what, and who changed what."""

from typing import Annotated, Any

import typer

from service.cli.connect import connect
from service.cli.job_tables import when
from service.cli.output import (
    Answer,
    Column,
    ColumnsOption,
    JsonFlag,
    QuietFlag,
    Table,
    print_json,
    show,
    style,
)
from service.client.access import Change, Project, User

user_app = typer.Typer(help="Users with API keys: list, add, disable, enable.", no_args_is_help=True)
project_app = typer.Typer(help="Who sees the jobs of a project.", no_args_is_help=True)

UserArgument = Annotated[str, typer.Argument(metavar="USER", help="The user's name.")]
ProjectArgument = Annotated[str, typer.Argument(metavar="PROJECT", help="The project's name.")]

USERS = Table[User](
    columns=(
        Column("USER", lambda user: user["name"]),
        Column("STATE", lambda user: "good" if user["disabled_at"] is None else "disabled"),
        Column("PROJECTS", lambda user: ",".join(user["projects"]), long=True),
        Column("SINCE", lambda user: when(user["created_at"])),
    ),
    key=lambda user: user["name"],
    hidden=(Column("DISABLED", lambda user: when(user["disabled_at"])),),
)

PROJECTS = Table[Project](
    columns=(
        Column("PROJECT", lambda project: project["name"]),
        Column("MEMBERS", lambda project: ",".join(project["members"]), long=True),
    ),
    key=lambda project: project["name"],
)

CHANGES = Table[Change](
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
        Column("ROLE", lambda change: change["role"]),
        Column("KEY", lambda change: change["key_id"] or "-"),
        Column("REQUEST", lambda change: change["request_id"]),
        Column("STATUS", lambda change: str(change["status"]), right=True),
    ),
)


def _detail(detail: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in detail.items())


def _users(users: list[User]) -> Answer[User]:
    return Answer(users, {"schema": "sooner.users/1", "users": users}, "" if users else "there are no users")


@user_app.command("list")
def list_users_command(as_json: JsonFlag = False, quiet: QuietFlag = False, columns: ColumnsOption = None) -> None:
    """Users by name, with their projects."""
    with connect() as client:
        show(USERS, lambda: _users(client.users()), style(as_json, quiet, columns))


@user_app.command("add")
def add_user_command(user: UserArgument, as_json: JsonFlag = False) -> None:
    """Add a user, to let him into projects before he has a key. Making a key adds its user, too."""
    with connect() as client:
        show(USERS, lambda: _users([client.put_user(user)]), style(as_json))


@user_app.command("disable")
def disable_user_command(user: UserArgument, as_json: JsonFlag = False) -> None:
    """Let all of a user's keys open nothing, from the next request on. The user's jobs go on."""
    with connect() as client:
        show(USERS, lambda: _users([client.put_user(user, disabled=True)]), style(as_json))


@user_app.command("enable")
def enable_user_command(user: UserArgument, as_json: JsonFlag = False) -> None:
    """Let a disabled user's keys open again what they opened before."""
    with connect() as client:
        show(USERS, lambda: _users([client.put_user(user)]), style(as_json))


@project_app.command("list")
def list_projects_command(as_json: JsonFlag = False, quiet: QuietFlag = False, columns: ColumnsOption = None) -> None:
    """Projects with their members, by name."""

    def ask() -> Answer[Project]:
        projects = client.projects()
        document = {"schema": "sooner.projects/1", "projects": projects}
        return Answer(projects, document, "" if projects else "no project has members")

    with connect() as client:
        show(PROJECTS, ask, style(as_json, quiet, columns))


@project_app.command("add")
def add_member_command(project: ProjectArgument, user: UserArgument, as_json: JsonFlag = False) -> None:
    """Let a user see a project's jobs and submit to it. A project is there as soon as it has a member."""
    _set_member(project, user, member=True, as_json=as_json)


@project_app.command("remove")
def remove_member_command(project: ProjectArgument, user: UserArgument, as_json: JsonFlag = False) -> None:
    """Let a user see a project's jobs no more, the user's own among them; they go on."""
    _set_member(project, user, member=False, as_json=as_json)


def _set_member(project: str, user: str, *, member: bool, as_json: bool) -> None:
    with connect() as client:
        told = client.set_member(project, user, member=member)
    if as_json:
        print_json({"schema": "sooner.membership/1", "membership": told})
    else:
        typer.echo(f"{user} is {'a' if member else 'no'} member of {project}")


def audit_command(
    user: Annotated[str | None, typer.Option("--user", help="Changes of this user alone.")] = None,
    target: Annotated[str | None, typer.Option("--target", help="Changes of this alone: 'job 12', 'key ...'.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Newest lines to show.")] = 50,
    as_json: JsonFlag = False,
    columns: ColumnsOption = None,
) -> None:
    """Who changed what, newest first."""

    def ask() -> Answer[Change]:
        changes = client.changes(user=user, target=target, limit=limit)
        return Answer(changes, {"schema": "sooner.audit/1", "changes": changes}, "" if changes else "no such changes")

    with connect() as client:
        show(CHANGES, ask, style(as_json, columns=columns))
