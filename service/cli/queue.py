"""``sooner queue ...``: let jobs start, or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

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
from service.client import Client

if TYPE_CHECKING:
    from service.wire.cluster import PauseDocument
    from service.wire.jobs import AcceptedDocument


UserOption = Annotated[str | None, typer.Option("--user", help="Only this user's jobs.")]
ProjectOption = Annotated[str | None, typer.Option("--project", help="Only this project's jobs.")]

PAUSES: Table[PauseDocument] = Table(
    columns=(
        Column("PAUSED", lambda pause: pause["scope"]),
        Column("NAME", lambda pause: pause["name"]),
        Column("REASON", lambda pause: pause["reason"]),
    ),
    key=lambda pause: f"{pause['scope']}/{pause['name']}",
)


def _answer(client: Client) -> Answer[PauseDocument]:
    queue = client.queue()
    note = f"{queue['jobs']} unfinished jobs hold {queue['gpus_running']} GPUs"
    if not queue["pauses"]:
        note += "; nothing is paused"
    return Answer(queue["pauses"], {"schema": "sooner.queue/1", "queue": queue}, note)


def show_command(how: Style) -> None:
    """What is paused. 'sooner q' lists the jobs."""
    with connect() as client:
        show(PAUSES, lambda: _answer(client), how)


def pause_command(
    user: UserOption = None,
    project: ProjectOption = None,
    reason: Annotated[str, typer.Option("--reason", help="Shown to users whose jobs wait.")] = "",
    as_json: JsonFlag = False,
) -> None:
    """Start no jobs until 'sooner queue resume'. Running jobs continue."""
    part = _part(user, project)
    with connect() as client:
        _print(client.pause_queue({**part, "reason": reason}), part, as_json)


def resume_command(user: UserOption = None, project: ProjectOption = None, as_json: JsonFlag = False) -> None:
    """Let jobs start again."""
    part = _part(user, project)
    with connect() as client:
        _print(client.resume_queue(part), part, as_json)


def _part(user: str | None, project: str | None) -> dict[str, str]:
    if user is not None and project is not None:
        fail("give --user or --project, not both")
    if user is not None:
        return {"user": user}
    return {} if project is None else {"project": project}


def _print(accepted: AcceptedDocument, part: dict[str, str], as_json: bool) -> None:
    target = " ".join(f"{scope} {name}" for scope, name in part.items()) or "everything"
    print_accepted({target: accepted}, as_json)
