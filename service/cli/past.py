"""The service's own past, as commands read it: the window, the database, what is left out. And ``sooner cluster export``.

What opens the database is imported when it is opened: the other commands must not wait for its libraries.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.fail import EXIT_FAILED, fail, settings_or_fail
from service.cli.options import DatabaseOption, DataDirOption, instant_s
from service.cli.output import printable
from service.config.settings import Settings
from service.domain.counts import count_of
from service.simulations.request import Window

if TYPE_CHECKING:
    from service.db.session import Database


SinceOption = Annotated[
    str | None,
    typer.Option("--since", metavar="WHEN", help="Start of the period: 7d or 12h (ago), or a date and time in UTC."),
]
UntilOption = Annotated[
    str | None, typer.Option("--until", metavar="WHEN", help="End of the period: only jobs submitted before it.")
]


def window(since: str | None, until: str | None) -> Window:
    """The window of these options, or an end with one line."""
    found = Window(
        None if since is None else instant_s("--since", since), None if until is None else instant_s("--until", until)
    )
    if found.since_s is not None and found.until_s is not None and found.since_s >= found.until_s:
        fail("--since must be before --until")
    return found


@contextmanager
def own_database(database_url: str | None, data_dir: Path | None) -> Iterator[tuple[Settings, "Database"]]:
    """The service's database, for reading: a running service is not disturbed. Nothing is created or upgraded."""
    from service.db.migrate import SchemaError, open_current
    from service.db.session import DatabaseUrlError

    settings = settings_or_fail({"database_url": database_url, "data_dir": data_dir})
    try:
        database = open_current(settings.database_url)
    except (DatabaseUrlError, SchemaError) as error:
        fail(str(error))
    with closing(database):
        yield settings, database


def export_command(
    out: Annotated[Path, typer.Option("--out", dir_okay=False, help="Cluster file to write (sooner.cluster/1).")],
    database_url: DatabaseOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Write the service's servers to a cluster file, without those that are down."""
    from service.config.cluster_export import present_cluster, write_cluster
    from service.db.recorded_jobs import stored_servers

    with own_database(database_url, data_dir) as (settings, database):
        cluster, down = present_cluster(stored_servers(database), settings.cluster)
    if not cluster.servers:
        fail("all servers in the database are down", EXIT_FAILED)
    try:
        write_cluster(cluster, out)
    except OSError as error:
        fail(f"{out}: {error.strerror or error}")
    if down:
        typer.echo(printable(f"not written because they are down: {', '.join(down)}"), err=True)
    typer.echo(printable(f"wrote {count_of(len(cluster.servers), 'server')} to {out}"), err=True)
