"""Commands of the machine that the service runs on: ``serve``, ``config show``, ``db ...``, ``history import``, ``demo``.

What a command needs is imported when it runs: looking at the queue must not wait for the database's and the web's libraries.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from service.cli import completion
from service.cli.fail import settings_or_fail
from service.cli.options import DatabaseOption, DataDirOption
from service.cli.output import (
    Answer,
    Column,
    ColumnsStyle,
    Table,
    show,
)
from service.config.settings import SettingLine
from service.runtime.garbage import uncollected


@dataclass(frozen=True)
class ServeOptions:
    """The settings that ``serve`` has as options."""

    host: Annotated[str | None, typer.Option("--host", help="Address to listen on.")] = None
    port: Annotated[int | None, typer.Option("--port", help="TCP port; 0 takes any free port.")] = None
    database_url: DatabaseOption = None
    cluster: Annotated[Path | None, typer.Option("--cluster", help="Cluster file (sooner.cluster/1).")] = None
    executor: Annotated[
        str | None,
        typer.Option(
            "--executor",
            help="local (this machine), slurm or ray (the servers of a cluster), or fake (timers, for tests).",
        ),
    ] = None
    policy: Annotated[
        str | None, typer.Option("--policy", help="Scheduling policy.", autocompletion=completion.policies)
    ] = None
    shadow_policy: Annotated[
        str | None,
        typer.Option(
            "--shadow-policy",
            help="A second policy that decides without effect, for comparison (see `sooner shadow`).",
            autocompletion=completion.policies,
        ),
    ] = None
    data_dir: DataDirOption = None


def serve_command(options: ServeOptions) -> None:
    """Run the service until Ctrl-C or SIGTERM. `sooner config show` lists the environment variables of all settings."""
    settings = settings_or_fail(asdict(options))
    with uncollected():
        from service.server.app import serve

    raise typer.Exit(serve(settings))


SETTINGS: Table[SettingLine] = Table(
    columns=(
        Column("SETTING", lambda line: line.name),
        Column("VALUE", lambda line: f"{line.value} {line.unit}".strip(), long=True),
        Column("SOURCE", lambda line: line.source),
        Column("ENVIRONMENT", lambda line: line.env),
    ),
    key=lambda line: line.name,
    hidden=(Column("DESCRIPTION", lambda line: line.description, long=True),),
)


def show_command(how: ColumnsStyle) -> None:
    """List each setting with its value, source and environment variable."""
    lines = settings_or_fail().describe()
    document = {"schema": "sooner.config/1", "settings": [line._asdict() for line in lines]}
    show(SETTINGS, lambda: Answer(lines, document), how)
