"""The service's own past, as commands read it: the window, the database, what is left out. And ``sooner cluster export``.

What opens the database is imported when it is opened: the other commands must not wait for its libraries.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from service.cli.connect import settings_or_fail
from service.cli.fail import EXIT_FAILED, fail
from service.cli.options import DatabaseOption, DataDirOption, instant_s
from service.cli.output import printable
from service.config.settings import Settings

if TYPE_CHECKING:
    from policies.model.cluster import Cluster
    from service.db.session import Database
    from service.history.workload import OwnHistory


SinceOption = Annotated[
    str | None,
    typer.Option("--since", metavar="WHEN", help="Start of the period: 7d or 12h (ago), or a date and time in UTC."),
]
UntilOption = Annotated[
    str | None, typer.Option("--until", metavar="WHEN", help="End of the period: only jobs submitted before it.")
]


class Window(NamedTuple):
    """Instants in seconds since the Unix epoch; None = no end on that side."""

    since_s: float | None
    until_s: float | None


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


def read_past(
    database: "Database", settings: Settings, when: Window, *, carry: bool
) -> tuple["OwnHistory", "Cluster", list[str]]:
    """The window's jobs, the present servers, and the names of those that are down."""
    from service.config.cluster_export import all_servers, present_cluster
    from service.db.recorded_jobs import recorded_jobs, stored_servers
    from service.history.workload import own_history

    servers = stored_servers(database)
    cluster, down = present_cluster(servers, settings.cluster)
    cluster = replace(cluster, gangs=settings.gangs)
    jobs = recorded_jobs(database, *when)
    return own_history(jobs, all_servers(servers, cluster), when.since_s, carry=carry), cluster, down


def left_out_notes(history: "OwnHistory") -> list[str]:
    """One line for each reason for which jobs are left out."""
    return [f"left out {count_of(count)}: {why}" for why, count in sorted(history.left_out.items())]


def count_of(count: int) -> str:
    """``1 job``, ``2 jobs``."""
    return f"{count} job{'s' if count != 1 else ''}"


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
    typer.echo(printable(f"wrote {len(cluster.servers)} servers to {out}"), err=True)
