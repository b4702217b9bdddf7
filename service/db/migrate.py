"""Upgrades a database to this program's schema, and reports the state of its schema.

``sooner db upgrade`` calls :func:`upgrade`; ``sooner serve`` upgrades an empty database itself and refuses any other that is
not current. There is no downgrade: restore a backup made before the upgrade.

Alembic is imported only to upgrade. A start on a current database compares the revisions, which the names of the scripts tell.
"""

import re
from contextlib import closing
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Select, String, column, inspect, select
from sqlalchemy import table as sql_table

from service.db.dialects import take_locks
from service.db.lease import is_led
from service.db.session import Database, open_database, parse_url, sqlite_path
from service.db.tables import METADATA

if TYPE_CHECKING:
    from alembic.config import Config

UPGRADE_COMMAND = "sooner db upgrade"

WAIT_S = 600.0
"""How long an upgrade waits for another one; rewriting a large table takes minutes."""

LOCK = "migrations"
"""The lock for changing the schema."""

VERSION_TABLE = "alembic_version"

_FOUND: Select[str] = select(column("version_num", String)).select_from(sql_table(VERSION_TABLE))
"""Built once: Alembic builds a new statement for each query, and health checks ask every few seconds."""

_REVISION = re.compile(r"\d{4}")


class SchemaState(StrEnum):
    """The state of a database's schema, as seen by this program."""

    EMPTY = "empty"
    CURRENT = "current"
    OLDER = "older"
    NEWER = "newer"
    FOREIGN = "foreign"
    """It holds tables that are not Sooner's."""

    @property
    def sentence(self) -> str:
        """A sentence for users that says what to do."""
        return _SENTENCES[self]


_SENTENCES = {
    SchemaState.EMPTY: "The database is empty.",
    SchemaState.CURRENT: "The database has this program's schema.",
    SchemaState.OLDER: f"The database has an older schema; back it up and run: {UPGRADE_COMMAND}",
    SchemaState.NEWER: "The database was written by a newer Sooner; install that version or restore a backup.",
    SchemaState.FOREIGN: "The database holds another program's tables; name another database.",
}


class SchemaError(RuntimeError):
    """The database cannot be used or upgraded as it is; the message is one line that says what to do."""


def state(url: str) -> SchemaState:
    """The schema state of the database of a URL. Creates nothing. Raises :class:`~service.db.session.DatabaseUrlError`."""
    if _missing_file(url) is not None:
        return SchemaState.EMPTY
    with closing(open_database(url)) as database, database.reading() as session:
        return state_of(session.connection())


def sentence_of(where: SchemaState, url: str) -> str:
    """A sentence for users about the database of a URL that is in this state; it tells no database from an empty one."""
    missing = _missing_file(url) if where is SchemaState.EMPTY else None
    return f"There is no database at {missing}." if missing is not None else where.sentence


def _missing_file(url: str) -> Path | None:
    """The file that a SQLite URL names, if it does not exist."""
    path = sqlite_path(parse_url(url))
    return path if path is not None and not path.exists() else None


def open_current(url: str) -> Database:
    """The database of a URL for reading its history. Creates and upgrades nothing.

    Raises :class:`SchemaError` where it is empty or has another schema, and DatabaseUrlError.
    """
    where = state(url)
    if where is not SchemaState.CURRENT:
        told = sentence_of(where, url)
        raise SchemaError(
            told if where is not SchemaState.EMPTY else f"there is no history: {told[:1].lower()}{told[1:].rstrip('.')}"
        )
    return open_database(url)


def state_of(connection: Connection) -> SchemaState:
    """The schema state of the database behind a connection."""
    tables = set(inspect(connection).get_table_names())
    found = set(connection.execute(_FOUND).scalars()) if VERSION_TABLE in tables else set()
    ours = METADATA.tables.keys() & tables
    if not found:
        # Tables of Sooner without a revision are an incomplete copy, which cannot be used either.
        return SchemaState.FOREIGN if tables - {VERSION_TABLE} else SchemaState.EMPTY
    if found == {max(revisions())}:
        return SchemaState.CURRENT
    if found <= revisions():
        return SchemaState.OLDER
    return SchemaState.NEWER if ours and all(map(_REVISION.fullmatch, found)) else SchemaState.FOREIGN


def upgrade(url: str) -> SchemaState:
    """Upgrade an empty or older database to the current schema; returns the state before.

    One transaction, under a lock: of two processes upgrading at once the second waits and finds it done, and a failure
    leaves everything as it was. Raises :class:`SchemaError` for a newer or foreign database, and for an older one on which
    a service leads.
    """
    with closing(open_database(url)) as database, database.writing(WAIT_S) as session:
        connection = session.connection()
        take_locks(connection, LOCK)
        before = state_of(connection)
        if before in (SchemaState.NEWER, SchemaState.FOREIGN):
            raise SchemaError(before.sentence)
        if before is SchemaState.OLDER and is_led(database, session):
            # The service would keep writing rows of the old schema.
            raise SchemaError("a service leads on this database: stop it first")
        if before is not SchemaState.CURRENT:
            upgrade_to(connection, "head")
        return before


def upgrade_to(connection: Connection, revision: str) -> None:
    """Run the migrations up to a revision, in the transaction of the connection."""
    from alembic import command

    config = _config(scripts_folder())
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def revision_of(connection: Connection) -> str:
    """The revision of a database that has one."""
    from alembic.runtime.migration import MigrationContext

    return str(MigrationContext.configure(connection).get_current_revision())


def revisions() -> frozenset[str]:
    """Every revision that this program knows."""
    return _revisions(scripts_folder())


def scripts_folder() -> Path:
    """The migrations: beside this module in an installed wheel, at the project's top in a checkout."""
    installed = Path(__file__).with_name("_migrations")
    return installed if installed.is_dir() else Path(__file__).parents[2] / "migrations"


@cache
def _revisions(scripts: Path) -> frozenset[str]:
    """The numbers that the names of the scripts begin with. They are read once, because health checks ask every few seconds."""
    return frozenset(script.name[:4] for script in (scripts / "versions").glob("[0-9]*.py"))


def _config(scripts: Path) -> "Config":
    from alembic.config import Config

    config = Config()
    # The path may hold a percent sign, which the configuration parser would expand.
    config.set_main_option("script_location", str(scripts).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
