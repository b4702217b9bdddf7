"""Where a notebook's data comes from: a running service, a service's database, a workload table, or the generator.

Nothing named: the service that ``sooner q`` talks to, if one answers and has something to tell, else the generator, and
:attr:`Source.origin` says which. A source that somebody did name is never replaced by another: it answers, or an error says
why not.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from policies.model.cluster import Cluster
from service.cli.connect import URL_VARIABLE, AddressError, service_client
from service.client import ClientError
from service.config.cluster_file import ClusterFileError, load_cluster
from service.config.settings import SettingsError, env_name, load_settings
from service.notebooks.scored import Scored
from service.sim.jobs import SimJobs
from service.sim.results import Result
from service.sim.workloads.files import WorkloadError
from service.sim.workloads.model import Workload

GENERATOR = "generator"
JOBS = 1200
"""Jobs that the generator makes, and the most that are read from anywhere else, unless a notebook says otherwise."""


class SourceError(Exception):
    """A source that was named and cannot be read; one line."""


@dataclass(frozen=True, slots=True)
class Past:
    """Jobs that a simulation can run again. ``actual`` is what really became of them, where that is known; ``recorded``
    says that the predictor ``recorded`` can be used with them."""

    jobs: SimJobs
    cluster: Cluster
    actual: Result | None = None
    recorded: bool = False


class Source(Protocol):
    """What every source can tell."""

    @property
    def origin(self) -> str:
        """Where the data comes from, for people."""

    @property
    def synthetic(self) -> bool:
        """Whether every number is about a generator and none about a cluster."""

    def predictions(self) -> list[Scored]:
        """Predictions whose jobs have ended, in the order in which the jobs were submitted."""

    def workload(self) -> Workload:
        """The jobs that ended, with their true durations."""

    def cluster(self) -> Cluster:
        """The servers that they ran on, or could run on."""

    def past(self) -> Past:
        """The jobs as the simulator takes them."""


def open_source(
    named: str | None = None, *, jobs: int = JOBS, seed: int = 7, cluster: str | None = None, change: float = 1.0
) -> Source:
    """The source that ``named`` says: None (find one), ``generator``, the address of a service (``http://...``), the URL of
    a database (``sqlite:///...``, ``postgresql+psycopg://...``), or the path of a workload table.

    None looks at ``SOONER_URL``, then at ``SOONER_DATABASE_URL``, then for the service of this machine. At most the ``jobs``
    newest are read (of a table: the first). ``seed`` and ``change`` are the generator's: from two thirds of its jobs on every
    program takes ``change`` times as long. ``cluster`` is a cluster file for a table, which knows no servers.
    Raises :class:`SourceError`.
    """
    named = named or os.environ.get(URL_VARIABLE) or os.environ.get(env_name("database_url")) or None
    if named is None:
        found = _ours(jobs)
        return found if not isinstance(found, str) else _generated(jobs, seed, change, found)
    try:
        if named == GENERATOR:
            return _generated(jobs, seed, change)
        if named.startswith(("http://", "https://")):
            from service.notebooks.live import LiveSource

            client = service_client(load_settings(), named)
            client.jobs(limit=1)  # whether it answers, and to us
            return LiveSource(client, client.address, jobs)
        if "://" in named:
            return _stored(named, jobs)
        from service.notebooks.tables import TableSource, read_table

        servers = load_cluster(Path(cluster)) if cluster is not None else None
        return TableSource(f"the workload {named}", read_table(Path(named), jobs), servers)
    except (AddressError, ClientError, ClusterFileError, SettingsError, WorkloadError, OSError) as error:
        raise SourceError(f"{error}; name another source, or {GENERATOR!r}") from error


def _generated(jobs: int, seed: int, change: float, why: str = "") -> Source:
    from service.notebooks.tables import generated

    try:
        return generated(jobs, seed, change, why)
    except ValueError as error:
        raise SourceError(f"{GENERATOR}: {error}") from error


def _stored(url: str, jobs: int) -> Source:
    from service.db.migrate import SchemaError, open_current
    from service.db.session import DatabaseUrlError
    from service.notebooks.stored import StoredSource

    try:
        return StoredSource(open_current(url), load_settings({"database_url": url}), jobs)
    except (DatabaseUrlError, SchemaError) as error:
        raise SourceError(f"{error}; name another source, or {GENERATOR!r}") from error


def _ours(jobs: int) -> Source | str:
    """The service of this machine, where it answers and a prediction of it has been scored; else why not."""
    from service.notebooks.live import LiveSource

    try:
        client = service_client(load_settings())
        source = LiveSource(client, client.address, jobs)
        return source if source.predictions() else f"no job that {client.address} predicted has ended yet"
    except (AddressError, ClientError, SettingsError) as error:
        return str(error)
