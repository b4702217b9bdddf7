"""Ending a command: one line on standard error, and the exit code that scripts rely on."""

from typing import NoReturn

import typer

EXIT_FAILED = 1
EXIT_USAGE = 2


def fail(message: str, code: int = EXIT_USAGE) -> NoReturn:
    """End with ``error: message``; exit code 2 (wrong usage or input) unless given."""
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(code)
