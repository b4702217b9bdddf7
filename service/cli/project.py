"""``sooner project ...``: projects and their members."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.connect import connect
from service.cli.output import Answer, Column, JsonFlag, OnceStyle, Table, print_json, show
from service.cli.user import UserArgument

if TYPE_CHECKING:
    from service.wire.access import ProjectDocument


ProjectArgument = Annotated[str, typer.Argument(metavar="PROJECT", help="The project's name.")]

PROJECTS: Table[ProjectDocument] = Table(
    columns=(
        Column("PROJECT", lambda project: project["name"]),
        Column("MEMBERS", lambda project: ",".join(project["members"]), long=True),
    ),
    key=lambda project: project["name"],
)


def list_command(how: OnceStyle) -> None:
    """Projects with their members, by name."""

    def ask() -> Answer[ProjectDocument]:
        projects = client.projects()
        document = {"schema": "sooner.projects/1", "projects": projects}
        return Answer(projects, document, "" if projects else "no project has members")

    with connect() as client:
        show(PROJECTS, ask, how)


def add_command(project: ProjectArgument, user: UserArgument, as_json: JsonFlag = False) -> None:
    """Let a user see a project's jobs and submit to it. A project exists as soon as it has a member."""
    _set_member(project, user, member=True, as_json=as_json)


def remove_command(project: ProjectArgument, user: UserArgument, as_json: JsonFlag = False) -> None:
    """Let a user see a project's jobs no more, the user's own among them; they go on."""
    _set_member(project, user, member=False, as_json=as_json)


def _set_member(project: str, user: str, *, member: bool, as_json: bool) -> None:
    with connect() as client:
        membership = client.set_member(project, user, member=member)
    if as_json:
        print_json({"schema": "sooner.membership/1", "membership": membership})
    else:
        typer.echo(f"{user} is {'a' if member else 'no'} member of {project}")
