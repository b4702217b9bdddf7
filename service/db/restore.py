"""Restoring a backup: into an empty database of either kind, in one transaction.

The migrations create the tables of the backup's revision, the rows are inserted, and then the schema is upgraded. So a backup
made before an upgrade can be restored by the new program. The result becomes visible in one step.
"""

import hashlib
import json
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from pydantic import TypeAdapter
from sqlalchemy import Connection, Table
from sqlmodel import Session

from service.db import migrate
from service.db.backup import BACKUP_SCHEMA, MANIFEST, BackupError, Manifest, TablePart, member, reflected
from service.db.dialects import drop_everything, set_last_ids, take_locks
from service.db.lease import is_any_held
from service.db.migrate import SchemaError, SchemaState
from service.db.session import Database, open_database
from service.db.tables import JOBS, LEASES, PropertyRow

IDS_SKIPPED = 100_000
"""Job ids that are skipped after a restore. Jobs that were submitted after the backup had such ids and may have left folders;
a new job must not get one of their ids."""

_ROWS_PER_INSERT = 1000
_BYTES_MAX = 1 << 30
"""Limit of one line. The longest rows, cycles with a full queue, take some megabytes."""


class LiveDatabase(BackupError):
    """A service holds the leader lease of the database."""


@dataclass(frozen=True, slots=True)
class Restored:
    """The result: the number of rows, and the revisions of the backup and of the restored database."""

    rows: int
    revision: str
    revision_now: str


def restore(url: str, file: Path, *, force: bool = False) -> Restored:
    """Restore a backup into the database of a URL: completely, or not at all.

    ``force`` replaces what is there. Raises :class:`LiveDatabase` while a service leads on it, whatever is forced;
    :class:`~service.db.backup.BackupError` for an invalid backup and for a database that is not empty;
    SchemaError, DatabaseUrlError and OperationalError.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            manifest = _manifest(archive, file)
            with closing(open_database(url)) as database:
                return _restore(database, archive, manifest, force)
    except (OSError, zipfile.BadZipFile) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BackupError(f"cannot read the backup {file}: {reason}") from error


def _restore(database: Database, archive: zipfile.ZipFile, manifest: Manifest, force: bool) -> Restored:
    with database.writing(migrate.WAIT_S) as session:
        connection = session.connection()
        take_locks(connection, migrate.LOCK)
        _clear(database, session, force)
        if manifest.revision not in migrate.revisions():
            raise SchemaError(SchemaState.NEWER.sentence)
        migrate.upgrade_to(connection, manifest.revision)
        tables = reflected(connection).sorted_tables
        if {table.name for table in tables} != set(manifest.tables):
            raise BackupError(f"the backup holds other tables than revision {manifest.revision} has")
        for table in tables:
            _fill(connection, table, archive, manifest.tables[table.name])
        newest_job = manifest.last_ids.get(JOBS.name, 0)
        set_last_ids(connection, {**manifest.last_ids, JOBS.name: newest_job + IDS_SKIPPED})
        _expire_leases(connection, database.now_s(session))
        migrate.upgrade_to(connection, "head")
        rows = sum(part.rows for part in manifest.tables.values())
        return Restored(rows, manifest.revision, migrate.revision_of(connection))


def _clear(database: Database, session: Session, force: bool) -> None:
    """Check that no service leads and that the database is empty; with ``force`` empty it."""
    connection = session.connection()
    where = migrate.state_of(connection)
    if where is SchemaState.EMPTY:
        return
    if where not in (SchemaState.CURRENT, SchemaState.OLDER):
        raise SchemaError(where.sentence)
    tables = reflected(connection).sorted_tables
    # The leases are locked: a service that starts now sees the restored database.
    if is_any_held(database, session):
        raise LiveDatabase("a service leads on this database: stop it first")
    if not force:
        for found in tables:
            if found.name != PropertyRow.__tablename__ and connection.execute(sa.select(found).limit(1)).first():
                raise BackupError("the database is not empty; --force replaces what is there")
    drop_everything(connection, [*(found.name for found in reversed(tables)), migrate.VERSION_TABLE])


def _manifest(archive: zipfile.ZipFile, file: Path) -> Manifest:
    try:
        document: Any = json.loads(archive.read(MANIFEST))
        if document["schema"] != BACKUP_SCHEMA:
            raise BackupError(f"{file} is a {document['schema']}, not a {BACKUP_SCHEMA}")
        return TypeAdapter(Manifest).validate_python(document)
    except (KeyError, TypeError, ValueError) as error:
        raise BackupError(f"{file} is no backup of Sooner: its manifest cannot be read") from error


def _fill(connection: Connection, into: Table, archive: zipfile.ZipFile, part: TablePart) -> None:
    if set(part.columns) != set(into.c.keys()):
        raise BackupError(f"the backup's table {into.name} has other columns than its revision has")
    connection.execute(sa.delete(into))  # a migration may insert rows into a table that it creates
    rows = _rows(archive, into.name, part)
    while batch := list(islice(rows, _ROWS_PER_INSERT)):
        connection.execute(sa.insert(into), batch)


def _rows(archive: zipfile.ZipFile, name: str, part: TablePart) -> Iterator[Mapping[str, Any]]:
    """The rows of a table. Raises BackupError after the last one if their number or digest is wrong."""
    digest, count = hashlib.sha256(), 0
    try:
        with archive.open(member(name)) as lines:
            while line := lines.readline(_BYTES_MAX):
                digest.update(line)
                count += 1
                yield dict(zip(part.columns, json.loads(line), strict=True))
    except (KeyError, ValueError, TypeError) as error:
        raise BackupError(f"the backup's table {name} cannot be read at row {count}") from error
    if (count, digest.hexdigest()) != (part.rows, part.sha256):
        raise BackupError(f"the backup's table {name} is not what was written: its digest differs")


def _expire_leases(connection: Connection, now_s: float) -> None:
    """Free all leases, with tokens larger than any that was given out after the backup.

    Each holder keeps a lease for at least a second, so the Unix time in seconds exceeds every earlier token.
    """
    token = sa.case((LEASES.c.token < int(now_s), int(now_s)), else_=LEASES.c.token + 1)
    connection.execute(sa.update(LEASES).values(expires_at_s=0.0, token=token))
