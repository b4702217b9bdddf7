"""``sooner job cancel|hold|release|priority``: requests about jobs and whole job arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli.connect import connect
from service.cli.fail import EXIT_FAILED
from service.cli.one_by_one import REFUSED_ALONE
from service.cli.output import JsonFlag, print_json, printable
from service.cli.selectors import Elements, SelectorArgument, numbers_of, parts_of
from service.client import ApiError, Client
from service.domain.counts import count_of

if TYPE_CHECKING:
    from service.wire.jobs import AcceptedDocument, ArrayAcceptedDocument


JOB_FINISHED = "job-finished"
"""Problem type of the API: the job has ended, so nothing about it can change."""


def cancel_command(jobs: SelectorArgument, as_json: JsonFlag = False) -> None:
    """Cancel jobs. `all` means all unfinished jobs."""
    _act(
        jobs,
        as_json,
        lambda client, number: client.jobs.cancel(number),
        lambda client, number: client.arrays.cancel(number),
    )


def hold_command(
    jobs: SelectorArgument,
    preempt: Annotated[bool, typer.Option("--preempt", help="Also preempt a running attempt.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Prevent jobs from starting until they are released."""
    _act(
        jobs,
        as_json,
        lambda client, number: client.jobs.hold(number, preempt=preempt),
        lambda client, number: client.arrays.hold(number, preempt=preempt),
    )


def release_command(jobs: SelectorArgument, as_json: JsonFlag = False) -> None:
    """Release held jobs."""
    _act(
        jobs,
        as_json,
        lambda client, number: client.jobs.release(number),
        lambda client, number: client.arrays.release(number),
    )


def priority_command(
    jobs: SelectorArgument,
    value: Annotated[int, typer.Option("--set", help="The new priority; larger comes first.")],
    as_json: JsonFlag = False,
) -> None:
    """Change the priority of jobs."""
    _act(
        jobs,
        as_json,
        lambda client, number: client.jobs.set_priority(number, value),
        lambda client, number: client.arrays.set_priority(number, value),
    )


def _act(
    texts: Sequence[str],
    as_json: bool,
    on_job: Callable[[Client, int], AcceptedDocument],
    on_array: Callable[[Client, int], ArrayAcceptedDocument],
) -> None:
    """Make one request for each job or whole array, in order, and report each result.

    A job that cannot be changed does not keep the others from being changed; the exit code is then 1. A job that has ended
    counts as such only if its number was given: ``all`` and ``42[*]`` mean the unfinished jobs.
    """
    accepted: list[AcceptedDocument | ArrayAcceptedDocument] = []
    refused: list[dict[str, Any]] = []
    with connect() as client:
        try:
            for target, by_number in _targets(client, texts).items():
                key, number = ("array_id", target.array) if isinstance(target, Elements) else ("job_id", target)
                try:
                    if isinstance(target, Elements):
                        of_array = on_array(client, number)
                        accepted.append(of_array)
                        line = f"array {number}: {of_array['accepted']} accepted for {count_of(of_array['jobs'])}"
                    else:
                        accepted.append(on_job(client, number))
                        line = f"job {number}: {accepted[-1]['accepted']} accepted"
                except ApiError as error:
                    if error.status not in REFUSED_ALONE:
                        raise
                    if by_number or error.kind != JOB_FINISHED:
                        refused.append({key: number, "error": str(error)})
                        typer.echo(printable(f"error: {key.removesuffix('_id')} {number}: {error}"), err=True)
                    continue
                if not as_json:
                    typer.echo(printable(line))
        finally:
            if as_json:
                print_json({"schema": "sooner.accepted/1", "accepted": accepted, "refused": refused})
    if refused:
        raise typer.Exit(EXIT_FAILED)
    if not accepted and not as_json:
        typer.echo("no job is unfinished", err=True)


def _targets(client: Client, texts: Sequence[str]) -> dict[int | Elements, bool]:
    """Jobs and whole arrays in order, and whether each was named by its number."""
    targets: dict[int | Elements, bool] = {}
    for part in parts_of(texts):
        if isinstance(part, Elements) and part.indices is None:
            targets.setdefault(part, False)
            continue
        for number in numbers_of(client, [part], unfinished=True):
            targets[number] = part != "all" or targets.get(number, False)
    return targets
