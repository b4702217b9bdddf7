"""Restoring a backup: into an empty database of either kind, in one transaction.

The migrations create the tables of the backup's revision, the rows are inserted, and then the schema is upgraded. So a backup
made before an upgrade can be restored by the new program. The result becomes visible in one step.
"""

import hashlib
import json
import zipfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from pydantic import TypeAdapter
from sqlalchemy import Connection, Table
from sqlalchemy.exc import OperationalError, StatementError
from sqlmodel import Session

from service.db import migrate
from service.db.backup import BACKUP_SCHEMA, MANIFEST, BackupError, Manifest, TablePart, member, reflected
from service.db.dialects import drop_everything, set_last_ids, take_locks
from service.db.lease import is_led
from service.db.migrate import SchemaError, SchemaState
from service.db.session import Database, open_database
from service.db.tables import JOBS, LEASES, PropertyRow

IDS_SKIPPED = 100_000
"""Job ids that are skipped after a restore. Jobs that were submitted after the backup had such ids and may have left folders;
a new job must not get one of their ids."""

_ROWS_PER_INSERT = 1000
_BYTES_MAX = 1 << 30
"""Limit of one line. The longest rows, cycles with a full queue, take some megabytes."""


class InUse(BackupError):
    """The database cannot be replaced as it is: the file may be right."""


class LiveDatabase(InUse):
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
    :class:`InUse` for a database that is not empty; :class:`~service.db.backup.BackupError` for an invalid backup;
    SchemaError, DatabaseUrlError and OperationalError.
    """
    with _open(file) as archive:
        manifest = _manifest(archive, file)
        # Everything is read once before the database is opened: what is damaged changes nothing and locks nothing.
        for name, part in manifest.tables.items():
            for _ in _rows(archive, name, part):
                pass
        with closing(open_database(url)) as database:
            try:
                return _restore(database, archive, manifest, force)
            except OperationalError:
                raise
            except (StatementError, ValueError) as error:
                raise BackupError(f"the rows of {file} do not fit their tables: {_line(error)}") from error


def _open(file: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(file)
    except (
        Exception
    ) as error:  # zipfile raises whatever a damaged byte leads to: half a dozen kinds, not all documented
        raise BackupError(f"cannot read the backup {file}: {_line(error)}") from error


def _line(error: Exception) -> str:
    cause = getattr(error, "orig", None) or error
    return getattr(cause, "strerror", None) or " ".join(str(cause).split()) or type(cause).__name__


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
            raise BackupError(f"the tables of the backup differ from those of revision {manifest.revision}")
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
    # The lead is locked: a service that starts now sees the restored database.
    if is_led(database, session):
        raise LiveDatabase("a service leads on this database: stop it first")
    if not force:
        for found in tables:
            if found.name != PropertyRow.__tablename__ and connection.execute(sa.select(found).limit(1)).first():
                raise InUse("the database is not empty; --force replaces what is there")
    drop_everything(connection, [*(found.name for found in reversed(tables)), migrate.VERSION_TABLE])


def _manifest(archive: zipfile.ZipFile, file: Path) -> Manifest:
    try:
        document: Any = json.loads(archive.read(MANIFEST))
        schema = str(document["schema"])
        manifest = TypeAdapter(Manifest).validate_python(document) if schema == BACKUP_SCHEMA else None
    except Exception as error:  # as in _open
        raise BackupError(f"{file} is not a backup of Sooner, or it is damaged: its manifest cannot be read") from error
    if manifest is None:
        raise BackupError(f"{file} is a {schema}, not a {BACKUP_SCHEMA}")
    return manifest


def _fill(connection: Connection, into: Table, archive: zipfile.ZipFile, part: TablePart) -> None:
    if set(part.columns) != set(into.c.keys()):
        raise BackupError(f"the columns of the backup's table {into.name} differ from those of its revision")
    connection.execute(sa.delete(into))  # a migration may insert rows into a table that it creates
    rows = _rows(archive, into.name, part)
    while batch := [dict(zip(part.columns, row, strict=True)) for row in islice(rows, _ROWS_PER_INSERT)]:
        connection.execute(sa.insert(into), batch)


def _rows(archive: zipfile.ZipFile, name: str, part: TablePart) -> Iterator[list[Any]]:
    """The rows of a table. Raises BackupError for a row that cannot be read, and after the last one if their number or
    digest is wrong."""
    digest, count = hashlib.sha256(), 0
    try:
        with archive.open(member(name)) as lines:
            while line := lines.readline(_BYTES_MAX):
                digest.update(line)
                count += 1
                row = json.loads(line)
                if not isinstance(row, list):
                    raise ValueError(f"{type(row).__name__} instead of a list")
                yield row
    except Exception as error:  # as in _open
        raise BackupError(f"the backup's table {name} cannot be read at row {count}") from error
    if (count, digest.hexdigest()) != (part.rows, part.sha256):
        raise BackupError(f"the backup's table {name} is damaged: its digest differs")


def _expire_leases(connection: Connection, now_s: float) -> None:
    """Free all leases, with tokens larger than any that was given out after the backup.

    Each holder keeps a lease for at least a second, so the Unix time in seconds exceeds every earlier token.
    """
    token = sa.case((LEASES.c.token < int(now_s), int(now_s)), else_=LEASES.c.token + 1)
    connection.execute(sa.update(LEASES).values(expires_at_s=0.0, token=token))
