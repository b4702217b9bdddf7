"""Ending a command: one line on standard error, and the exit code that scripts rely on."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer

from service.client import ApiError, ClientError, Unreachable

EXIT_FAILED = 1
EXIT_USAGE = 2

_WRONG_INPUT = frozenset({400, 413, 415, 422})
"""Statuses that say the request itself was wrong."""


def fail(message: str, code: int = EXIT_USAGE) -> NoReturn:
    """End with ``error: message``; exit code 2 (wrong usage or input) unless said otherwise."""
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(code)


@contextmanager
def refusals() -> Iterator[None]:
    """Turn what the client raises into an error line and an exit code."""
    try:
        yield
    except Unreachable as error:
        fail(f"{error}; start the service with: sooner serve", EXIT_FAILED)
    except ApiError as error:
        for fault in error.errors:
            where = fault.get("pointer", fault.get("parameter", ""))
            typer.echo(f"  {where or '(whole body)'}: {fault.get('detail', '')}", err=True)
        fail(str(error), EXIT_USAGE if error.status in _WRONG_INPUT else EXIT_FAILED)
    except ClientError as error:
        fail(str(error), EXIT_FAILED)
