"""``sooner quota ...``: how many GPUs and unfinished jobs a user or a project may have at a time."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli.connect import connect
from service.cli.fail import fail
from service.cli.output import (
    Answer,
    Column,
    JsonFlag,
    Style,
    Table,
    show,
)
from service.client import Client

if TYPE_CHECKING:
    from service.wire.cluster import QuotaDocument


class Whose(StrEnum):
    """Who can have a quota."""

    USER = "user"
    PROJECT = "project"


WhoseArgument = Annotated[Whose, typer.Argument(help="Whose quota.")]
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
)


def _answer(quotas: Sequence[QuotaDocument]) -> Answer[QuotaDocument]:
    return Answer(quotas, {"schema": "sooner.quotas/1", "quotas": list(quotas)}, "" if quotas else "no quotas are set")


def list_command(how: Style) -> None:
    """Quotas with what is used of them: GPUs held, and unfinished jobs."""
    with connect() as client:
        show(QUOTAS, lambda: _answer(client.quotas()), how)


def set_command(
    whose: WhoseArgument,
    name: NameArgument,
    gpus_running_max: Annotated[
        int | None, typer.Option("--gpus-running-max", min=0, help="GPUs that its jobs may hold at a time.")
    ] = None,
    jobs_queued_max: Annotated[
        int | None, typer.Option("--jobs-queued-max", min=0, help="Unfinished jobs that it may have.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Set a quota; a limit that is not given stays as it is."""
    given = {"gpus_running_max": gpus_running_max, "jobs_queued_max": jobs_queued_max}
    if all(value is None for value in given.values()):
        fail("give --gpus-running-max, --jobs-queued-max or both; 'sooner quota remove' removes a quota")
    with connect() as client:
        wanted = {key: _present(client, whose, name, key) if value is None else value for key, value in given.items()}
        _print(client.set_quota(whose.value, name, wanted), as_json)


def remove_command(whose: WhoseArgument, name: NameArgument, as_json: JsonFlag = False) -> None:
    """Remove a quota: the number of its jobs and GPUs is no longer limited."""
    with connect() as client:
        _print(client.remove_quota(whose.value, name), as_json)


def _present(client: Client, whose: Whose, name: str, key: str) -> Any:
    """What the quota says now."""
    found = (quota for quota in client.quotas() if (quota["scope"], quota["name"]) == (whose.value, name))
    return next(({**quota}[key] for quota in found), None)


def _print(quota: QuotaDocument, as_json: bool) -> None:
    show(QUOTAS, lambda: _answer([quota]), Style(as_json))
