"""Opens a notebook's data source: a running service, a service's database, a workload table, or the generator.

Without a name it is the service that ``sooner q`` talks to, if that has scored predictions, else the generator;
:attr:`Source.origin` says which. A named source is never replaced by another: if it cannot be read, an error says why.
"""

import os
from pathlib import Path

from service.cli.connect import URL_VARIABLE, AddressError, TokenError, service_client
from service.client import ClientError
from service.config.cluster_file import ClusterFileError, load_cluster
from service.config.settings import SettingsError, env_name, load_settings
from service.db.migrate import SchemaError, open_current
from service.db.session import DatabaseUrlError
from service.notebooks.live import LiveSource
from service.notebooks.source import Source, SourceError
from service.notebooks.stored import StoredSource
from service.notebooks.tables import TableSource, generated, read_table
from service.sim.workloads.files import WorkloadError

GENERATOR = "generator"
JOBS = 1200
"""Jobs that the generator makes, and the most that are read from any other source, unless a notebook sets another number."""


def open_source(
    named: str | None = None, *, jobs: int = JOBS, seed: int = 7, cluster: str | None = None, change: float = 1.0
) -> Source:
    """The source of this name: None (find one), ``generator``, the address of a service (``http://...``), the URL of a database
    (``sqlite:///...``, ``postgresql+psycopg://...``), or the path of a workload table.

    None tries ``SOONER_URL``, then ``SOONER_DATABASE_URL``, then the service of this machine. At most the ``jobs`` newest are
    read (of a table: the first). ``seed`` and ``change`` are the generator's: from two thirds of its jobs on every program takes
    ``change`` times as long. ``cluster`` is a cluster file for a table, which lists no servers. Raises :class:`SourceError`.
    """
    named = named or os.environ.get(URL_VARIABLE) or os.environ.get(env_name("database_url")) or None
    if named is None:
        found = _local_service(jobs)
        return found if not isinstance(found, str) else _generated(jobs, seed, change, found)
    if named == GENERATOR:
        return _generated(jobs, seed, change)
    try:
        if named.startswith(("http://", "https://")):
            client = service_client(load_settings(), named)
            client.jobs.list(limit=1)  # fails here if the service does not answer, or not to this user
            return LiveSource(client, client.url, jobs)
        if "://" in named:
            return StoredSource(open_current(named), load_settings({"database_url": named}), jobs)
        servers = load_cluster(Path(cluster)) if cluster is not None else None
        return TableSource(f"the workload {named}", read_table(Path(named), jobs), servers)
    except (
        *(AddressError, TokenError, ClientError, ClusterFileError, DatabaseUrlError, SchemaError, SettingsError),
        *(WorkloadError, OSError),
    ) as error:
        raise SourceError(f"{error}; name another source, or {GENERATOR!r}") from error


def _generated(jobs: int, seed: int, change: float, why: str = "") -> Source:
    try:
        return generated(jobs, seed, change, why)
    except ValueError as error:
        raise SourceError(f"{GENERATOR}: {error}") from error


def _local_service(jobs: int) -> Source | str:
    """The service of this machine, if it answers and has scored a prediction; else why not."""
    try:
        client = service_client(load_settings())
        source = LiveSource(client, client.url, jobs)
        return source if source.predictions() else f"no job that {client.url} predicted has ended yet"
    except (AddressError, ClientError, SettingsError, TokenError) as error:
        return str(error)
