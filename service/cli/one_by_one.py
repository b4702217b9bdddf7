"""Changing several named things: a request each. One that is refused does not keep the others from being made."""

from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, TypeVar

import typer

from service.cli.connect import connect
from service.cli.fail import EXIT_FAILED
from service.cli.output import print_json, printable
from service.client import ApiError, Client

Changed = TypeVar("Changed")

REFUSED_ALONE: Final = frozenset({HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT})
"""Statuses that concern one job, key or server and say nothing about the next one."""


def change_one_by_one(
    kind: str,
    names: Sequence[str],
    change: Callable[[Client, str], Changed],
    say: Callable[[str, Changed], None],
    document: Callable[[list[Changed]], Mapping[str, Any]],
    as_json: bool,
) -> None:
    """Make a request for each name, in order, and report each result: with ``say``, or all in one document.

    Exit code 1 if one was refused; the document then has them as ``refused``: the ``kind`` with its name, and the ``error``.
    """
    changed: list[Changed] = []
    refused: list[dict[str, str]] = []
    with connect() as client:
        try:
            for name in dict.fromkeys(names):
                try:
                    changed.append(change(client, name))
                except ApiError as error:
                    if error.status not in REFUSED_ALONE:
                        raise
                    refused.append({kind: name, "error": str(error)})
                    typer.echo(printable(f"error: {kind} {name}: {error}"), err=True)
                    continue
                if not as_json:
                    say(name, changed[-1])
        finally:
            # Also after an error that ends the command: what was changed before is in no other place.
            if as_json:
                print_json({**document(changed), "refused": refused})
    if refused:
        raise typer.Exit(EXIT_FAILED)
