"""Which database this is: attempt numbers mean something only together with it."""

import secrets

from sqlalchemy import insert, select

from service.db.dialects import take_turns
from service.db.session import Database
from service.db.tables import PropertyRow, table

_NAME = "database_id"


def database_id(database: Database) -> str:
    """The database's own id, drawn when it is first asked for."""
    properties = table(PropertyRow)
    with database.writing() as session:
        connection = session.connection()
        take_turns(connection, "identity")
        found = connection.execute(select(properties.c.value).where(properties.c.name == _NAME)).scalar()
        if found is None:
            found = secrets.token_hex(8)
            connection.execute(insert(properties), {"name": _NAME, "value": found})
    return str(found)
