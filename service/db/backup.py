"""A backup: every table as lines of JSON in one zip file, with the schema's revision and a digest of each.

Both kinds of database share the format, so a backup of one can be restored into the other, without any other program. It is
read from one snapshot while the service runs, also from an older schema, because a backup is made before an upgrade. The file
holds everything that the database holds, such as the environments of jobs and hashes of API keys; only its owner can read it.
"""

import hashlib
import json
import os
import tempfile
import time
import zipfile
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, MetaData, Table

from service.db.dialects import last_ids
from service.db.migrate import VERSION_TABLE, SchemaError, SchemaState, revision_of, sentence_of, state
from service.db.session import open_database

BACKUP_SCHEMA = "sooner.backup/1"
MANIFEST = "manifest.json"

_ROWS_PER_FETCH = 1000
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class BackupError(RuntimeError):
    """The backup cannot be written, read or restored; the message is one line."""


@dataclass(frozen=True, slots=True)
class TablePart:
    """One table of a backup: its columns in the order of each line's values, how many lines, and their digest."""

    columns: tuple[str, ...]
    rows: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of a backup. ``last_ids``: the newest id given out in each table; ``made_at_s``: Unix time."""

    revision: str
    made_at_s: float
    last_ids: dict[str, int]
    tables: dict[str, TablePart]

    def document(self) -> dict[str, Any]:
        """The JSON document."""
        return {"schema": BACKUP_SCHEMA, **asdict(self)}


def member(table: str) -> str:
    """The name of a table's member of the zip file."""
    return f"tables/{table}.ndjson"


def reflected(connection: Connection) -> MetaData:
    """The tables of the database, whatever its revision, with the type of documents corrected."""
    found = MetaData()
    found.reflect(connection)
    found.remove(found.tables[VERSION_TABLE])
    for table in found.tables.values():
        for column in table.c:
            if isinstance(column.type, sa.JSON):
                # As where the tables are declared: Python's None is SQL's NULL.
                column.type = sa.JSON(none_as_null=True)
    return found


def back_up(url: str, file: Path) -> Manifest:
    """Write the database of a URL into a new file: completely, or not at all. The service may keep running.

    Raises :class:`BackupError`, SchemaError unless it is a database of Sooner, DatabaseUrlError and OperationalError.
    """
    if file.exists():
        raise BackupError(f"{file} exists; name another file")
    where = state(url)  # which creates no file
    if where not in (SchemaState.CURRENT, SchemaState.OLDER):
        raise SchemaError(sentence_of(where, url))
    with closing(open_database(url)) as database, database.reading() as session:
        return _write(session.connection(), file)


def _write(connection: Connection, file: Path) -> Manifest:
    draft = ""
    try:
        # Readable by its owner alone, and durable before it gets its name.
        descriptor, draft = tempfile.mkstemp(prefix=f".{file.name}-", dir=file.parent)
        with os.fdopen(descriptor, "wb") as stream:
            with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
                manifest = _fill(connection, archive)
            stream.flush()
            os.fsync(stream.fileno())
        os.link(draft, file)
        return manifest
    except OSError as error:
        raise BackupError(f"cannot write {file}: {error.strerror or error}") from error
    finally:
        if draft:
            Path(draft).unlink(missing_ok=True)


def _fill(connection: Connection, archive: zipfile.ZipFile) -> Manifest:
    tables = reflected(connection).sorted_tables
    parts = {table.name: _write_table(connection, table, archive) for table in tables}
    manifest = Manifest(revision_of(connection), time.time(), last_ids(connection, parts), parts)
    archive.writestr(MANIFEST, json.dumps(manifest.document(), indent=2))
    return manifest


def _write_table(connection: Connection, table: Table, archive: zipfile.ZipFile) -> TablePart:
    digest, count = hashlib.sha256(), 0
    statement = sa.select(table).order_by(*table.primary_key)
    found = connection.execute(statement, execution_options={"yield_per": _ROWS_PER_FETCH})
    with archive.open(member(table.name), "w", force_zip64=True) as stream:
        for rows in found.partitions():
            lines = "".join(f"{_encode(list(row))}\n" for row in rows).encode()
            stream.write(lines)
            digest.update(lines)
            count += len(rows)
    return TablePart(tuple(table.c.keys()), count, digest.hexdigest())
