"""The id of the database, without which attempt numbers are ambiguous, and the secret that its services share."""

import secrets

from sqlalchemy import insert, select

from service.db.dialects import take_locks
from service.db.session import Database
from service.db.tables import PROPERTIES

_DATABASE_ID = "database_id"
_PEER_SECRET = "peer_secret"  # noqa: S105 (a name)


def database_id(database: Database) -> str:
    """The database's id, generated on first use."""
    return _property(database, _DATABASE_ID, 8)


def peer_secret(database: Database) -> str:
    """The secret by which the services of this database authenticate each other, generated on first use."""
    return _property(database, _PEER_SECRET, 32)


def _property(database: Database, name: str, size_bytes: int) -> str:
    with database.writing() as session:
        connection = session.connection()
        take_locks(connection, "identity")
        found = connection.execute(select(PROPERTIES.c.value).where(PROPERTIES.c.name == name)).scalar()
        if found is None:
            found = secrets.token_hex(size_bytes)
            connection.execute(insert(PROPERTIES), {"name": name, "value": found})
    return str(found)
