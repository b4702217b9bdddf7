"""``sooner queue ...``, ``sooner quota ...``, ``sooner reservation ...``: what keeps jobs from starting, besides free GPUs."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli import completion
from service.cli.connect import connect
from service.cli.fail import fail
from service.cli.options import ProjectOption, UserOption, given
from service.cli.output import (
    Answer,
    Column,
    JsonFlag,
    Style,
    Table,
    print_accepted,
    show,
    show_rows,
    show_service,
)
from service.client import Client
from service.domain.counts import count_of

if TYPE_CHECKING:
    from service.wire.cluster import PauseDocument, QuotaDocument, ReservationDocument
    from service.wire.jobs import AcceptedDocument


PAUSES: Table[PauseDocument] = Table(
    columns=(
        Column("PAUSED", lambda pause: pause["scope"]),
        Column("NAME", lambda pause: pause["name"]),
        Column("REASON", lambda pause: pause["reason"]),
    ),
    key=lambda pause: f"{pause['scope']}/{pause['name']}",
)


def _queue(client: Client) -> Answer[PauseDocument]:
    queue = client.queue.show()
    jobs, gpus = queue["jobs"], queue["gpus_running"]
    note = f"{count_of(jobs, 'unfinished job')} {'holds' if jobs == 1 else 'hold'} {count_of(gpus, 'GPU')}"
    if not queue["pauses"]:
        note += "; nothing is paused"
    return Answer(queue["pauses"], {"schema": "sooner.queue/1", "queue": queue}, note)


def queue_show_command(how: Style) -> None:
    """List the pauses of the queue. `sooner q` lists the jobs."""
    with connect() as client:
        show(PAUSES, lambda: _queue(client), how)


def queue_pause_command(
    user: UserOption = None,
    project: ProjectOption = None,
    reason: Annotated[str, typer.Option("--reason", help="Reason, shown to users whose jobs wait.")] = "",
    as_json: JsonFlag = False,
) -> None:
    """Pause the queue: start no jobs until `sooner queue resume`. Running jobs continue."""
    part = _part(user, project)
    with connect() as client:
        _print_change(client.queue.pause({**part, "reason": reason}), part, as_json)


def queue_resume_command(user: UserOption = None, project: ProjectOption = None, as_json: JsonFlag = False) -> None:
    """Resume the queue."""
    part = _part(user, project)
    with connect() as client:
        _print_change(client.queue.resume(part), part, as_json)


def _part(user: str | None, project: str | None) -> dict[str, str]:
    if user is not None and project is not None:
        fail("give --user or --project, not both")
    if user is not None:
        return {"user": user}
    return {} if project is None else {"project": project}


def _print_change(accepted: AcceptedDocument, part: dict[str, str], as_json: bool) -> None:
    target = " ".join(f"{scope} {name}" for scope, name in part.items()) or "everything"
    print_accepted({target: accepted}, as_json)


class Whose(StrEnum):
    """Who can have a quota."""

    USER = "user"
    PROJECT = "project"


WhoseArgument = Annotated[Whose, typer.Argument(help="Kind of the quota's owner.")]
NameArgument = Annotated[str, typer.Argument(help="The user's or project's name.")]


def _limit(value: int | None) -> str:
    return "" if value is None else str(value)


QUOTAS: Table[QuotaDocument] = Table(
    columns=(
        Column("SCOPE", lambda quota: quota["scope"]),
        Column("NAME", lambda quota: quota["name"]),
        Column("GPUS", lambda quota: str(quota["gpus_running"]), right=True),
        Column("GPUS_MAX", lambda quota: _limit(quota["gpus_running_max"]), right=True),
        Column("JOBS", lambda quota: str(quota["jobs"]), right=True),
        Column("JOBS_MAX", lambda quota: _limit(quota["jobs_queued_max"]), right=True),
    ),
    key=lambda quota: f"{quota['scope']}/{quota['name']}",
    name="quotas",
    empty="no quotas are set",
)


def quota_list_command(how: Style) -> None:
    """List quotas and their use: GPUs held, and unfinished jobs."""
    show_service(QUOTAS, lambda client: client.quotas.list(), how)


def quota_set_command(
    whose: WhoseArgument,
    name: NameArgument,
    gpus_running_max: Annotated[
        int | None, typer.Option("--gpus-running-max", min=0, help="GPUs that the owner's jobs may hold at a time.")
    ] = None,
    jobs_queued_max: Annotated[
        int | None, typer.Option("--jobs-queued-max", min=0, help="Unfinished jobs that the owner may have.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Set a quota. A limit whose option is not given keeps its value."""
    given = {"gpus_running_max": gpus_running_max, "jobs_queued_max": jobs_queued_max}
    if all(value is None for value in given.values()):
        fail("give --gpus-running-max, --jobs-queued-max or both; 'sooner quota remove' removes a quota")
    with connect() as client:
        wanted = {key: _present(client, whose, name, key) if value is None else value for key, value in given.items()}
        show_rows(QUOTAS, lambda: [client.quotas.put(whose.value, name, wanted)], Style(as_json))


def quota_remove_command(whose: WhoseArgument, name: NameArgument, as_json: JsonFlag = False) -> None:
    """Remove a quota."""
    show_service(QUOTAS, lambda client: [client.quotas.remove(whose.value, name)], Style(as_json))


def _present(client: Client, whose: Whose, name: str, key: str) -> Any:
    """What the quota says now."""
    found = (quota for quota in client.quotas.list() if (quota["scope"], quota["name"]) == (whose.value, name))
    return next(({**quota}[key] for quota in found), None)


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
    name="reservations",
    empty="nothing is reserved",
)


def reservation_list_command(how: Style) -> None:
    """List current and future reservations by start time."""
    show_service(RESERVATIONS, lambda client: client.reservations.list(), how)


def reservation_create_command(
    starts_at: Annotated[str, typer.Option("--starts-at", help="Start in ISO 8601; local time if it has no zone.")],
    ends_at: Annotated[str, typer.Option("--ends-at", help="End in ISO 8601; local time if it has no zone.")],
    servers: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SERVERS]", help="Names of servers.", autocompletion=completion.servers),
    ] = None,
    count: Annotated[int | None, typer.Option("--count", min=1, help="Number of servers, instead of names.")] = None,
    user: Annotated[str | None, typer.Option("--user", help="Only this user's jobs may run there.")] = None,
    project: Annotated[str | None, typer.Option("--project", help="Only this project's jobs may run there.")] = None,
    reason: Annotated[str, typer.Option("--reason", help="Reason, shown to the owner and to operators.")] = "",
    no_preempt: Annotated[
        bool, typer.Option("--no-preempt", help="Do not preempt jobs that still run there at the start.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Reserve servers for a user or a project; without either, for maintenance."""
    body = given(
        servers=servers or None,
        count=count,
        starts_at=_moment("--starts-at", starts_at),
        ends_at=_moment("--ends-at", ends_at),
        user=user,
        project=project,
        reason=reason,
        preempt=not no_preempt,
    )
    show_service(RESERVATIONS, lambda client: [client.reservations.make(body)], Style(as_json))


def reservation_cancel_command(
    reservation: Annotated[int, typer.Argument(help="The reservation's number.")],
    as_json: JsonFlag = False,
) -> None:
    """Cancel a reservation. All jobs may use its servers again."""
    with connect() as client:
        print_accepted({f"reservation {reservation}": client.reservations.cancel(reservation)}, as_json)


def _moment(option: str, text: str) -> str:
    try:
        return datetime.fromisoformat(text).astimezone().isoformat()
    except (ValueError, OverflowError):
        fail(f"{option}: {text!r} is not a time in ISO 8601")
