"""Restoring a backup: into an empty database of either kind, in one transaction.

The tables are made by the migrations up to the backup's revision, filled, and then brought to this program's schema, so a
backup made before an upgrade is restored by the new program. Nothing of it is seen before all of it is there.
"""

import hashlib
import json
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Table
from sqlmodel import Session

from service.db import migrate
from service.db.backup import BACKUP_SCHEMA, MANIFEST, BackupError, Manifest, TablePart, member, reflected
from service.db.dialects import drop_everything, set_last_ids, take_turns
from service.db.lease import is_any_held
from service.db.migrate import SchemaError, SchemaState
from service.db.session import Database, open_database
from service.db.tables import JOBS, LEASES, PropertyRow

IDS_SKIPPED = 100_000
"""Numbers of jobs that are left out after a restore: jobs that were submitted after the backup had them, and their folders are
still there. A new job must not be taken for one of those."""

_ROWS_PER_INSERT = 1000
_BYTES_MAX = 1 << 30
"""The longest line; the longest row that the service writes, a cycle of a full queue, takes some megabytes."""


class LiveDatabase(BackupError):
    """A service leads on the database."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What was restored: how many rows, and the revisions of the backup and of the database now."""

    rows: int
    revision: str
    revision_now: str


def restore(url: str, file: Path, *, force: bool = False) -> Restored:
    """Fill the database of a URL from a backup: whole, or not at all.

    ``force`` replaces what is there. Raises :class:`LiveDatabase` while a service leads on it, whatever is forced;
    :class:`~service.db.backup.BackupError` for a file that is no sound backup and for a database that is not empty;
    SchemaError, DatabaseUrlError and OperationalError.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            manifest = _manifest(archive, file)
            database = open_database(url)
            try:
                return _restore(database, archive, manifest, force)
            finally:
                database.close()
    except (OSError, zipfile.BadZipFile) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BackupError(f"cannot read the backup {file}: {reason}") from error


def _restore(database: Database, archive: zipfile.ZipFile, manifest: Manifest, force: bool) -> Restored:
    with database.writing(migrate.WAIT_S) as session:
        connection = session.connection()
        take_turns(connection, migrate.TURN)
        _make_room(database, session, force)
        if manifest.revision not in migrate.revisions():
            raise SchemaError(SchemaState.NEWER.sentence)
        migrate.upgrade_to(connection, manifest.revision)
        tables = reflected(connection).tables
        if set(tables) != set(manifest.tables):
            raise BackupError(f"the backup holds other tables than revision {manifest.revision} has")
        for name in [found.name for found in reflected(connection).sorted_tables]:
            _fill(connection, tables[name], archive, manifest.tables[name])
        ids = dict(manifest.last_ids)
        jobs = JOBS.name
        ids[jobs] = ids.get(jobs, 0) + IDS_SKIPPED
        set_last_ids(connection, ids)
        _hand_over(connection, database.now_s(session))
        migrate.upgrade_to(connection, "head")
        rows = sum(part.rows for part in manifest.tables.values())
        return Restored(rows, manifest.revision, migrate.revision_of(connection))


def _make_room(database: Database, session: Session, force: bool) -> None:
    """See that nobody uses the database and that it is empty, or make it so."""
    connection = session.connection()
    where = migrate.state_of(connection)
    if where is SchemaState.EMPTY:
        return
    if where not in (SchemaState.CURRENT, SchemaState.OLDER):
        raise SchemaError(where.sentence)
    tables = reflected(connection)
    # A service that starts now finds the database that was restored.
    if is_any_held(database, session):
        raise LiveDatabase("a service leads on this database: stop it first")
    if not force:
        for found in tables.sorted_tables:
            if found.name != PropertyRow.__tablename__ and connection.execute(sa.select(found).limit(1)).first():
                raise BackupError("the database is not empty; --force replaces what is there")
    names = [found.name for found in reversed(tables.sorted_tables)]
    drop_everything(connection, [*names, migrate.VERSION_TABLE])


def _manifest(archive: zipfile.ZipFile, file: Path) -> Manifest:
    try:
        document: Any = json.loads(archive.read(MANIFEST))
        if document["schema"] != BACKUP_SCHEMA:
            raise BackupError(f"{file} is a {document['schema']}, not a {BACKUP_SCHEMA}")
        parts = {
            str(name): TablePart(tuple(part["columns"]), int(part["rows"]), str(part["sha256"]))
            for name, part in document["tables"].items()
        }
        last_ids = {str(name): int(number) for name, number in document["last_ids"].items()}
        return Manifest(str(document["revision"]), float(document["made_at_s"]), last_ids, parts)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BackupError(f"{file} is no backup of Sooner: its manifest cannot be read") from error


def _fill(connection: Connection, into: Table, archive: zipfile.ZipFile, part: TablePart) -> None:
    if set(part.columns) != set(into.c.keys()):
        raise BackupError(f"the backup's table {into.name} has other columns than its revision has")
    connection.execute(sa.delete(into))  # a migration may put rows into a table that it makes
    rows: list[Mapping[str, Any]] = []
    for row in _rows(archive, into.name, part):
        rows.append(row)
        if len(rows) == _ROWS_PER_INSERT:
            connection.execute(sa.insert(into), rows)
            rows = []
    if rows:
        connection.execute(sa.insert(into), rows)


def _rows(archive: zipfile.ZipFile, name: str, part: TablePart) -> Iterator[Mapping[str, Any]]:
    """The rows of a table; raises at the end if they are not those that were written."""
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


def _hand_over(connection: Connection, now_s: float) -> None:
    """Nobody leads on a restored database, and whoever leads next must count as newer than anybody after the backup.

    A lead takes at least a second, so the seconds of the epoch are more than all tokens that were ever given out.
    """
    token = sa.case((LEASES.c.token < int(now_s), int(now_s)), else_=LEASES.c.token + 1)
    connection.execute(sa.update(LEASES).values(expires_at_s=0.0, token=token))
