"""Ending a command: one line on standard error, and the exit code that scripts rely on."""

from typing import TYPE_CHECKING, NoReturn

import typer

if TYPE_CHECKING:
    from service.config.settings import Settings

EXIT_FAILED = 1
EXIT_USAGE = 2


def fail(message: str, code: int = EXIT_USAGE) -> NoReturn:
    """End with ``error: message``; exit code 2 (wrong usage or input) unless given."""
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(code)


def settings_or_fail(flags: dict[str, object] | None = None) -> "Settings":
    """The settings in force; a fault among them ends the command with one line and exit code 2."""
    # Imported here because a client needs no settings as long as none is given.
    from service.config.settings import SettingsError, load_settings

    try:
        return load_settings(flags)
    except SettingsError as error:
        fail(str(error))
