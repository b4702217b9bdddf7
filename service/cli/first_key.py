"""Making an admin's key in the database itself: the first key, for which no service can be asked."""

import time

from pydantic import ValidationError

from service.api.access_documents import key_document
from service.api.problems import Problem
from service.api.routers.access import granted
from service.config.settings import Settings
from service.db import access
from service.db.audit import record_command
from service.domain.api_key import new_key
from service.server.startup import open_current
from service.wire.access import NewKeyDocument
from service.wire.bodies import KeyBody

ACTION = "sooner key create --first"
"""What the log of changes calls it."""


class FirstKeyError(ValueError):
    """The key cannot be made as it was asked for; one line."""


def make_first_key(settings: Settings, user: str, expires_in_s: float | None, note: str) -> NewKeyDocument:
    """A new admin's key, and the line about it in the log of changes. Raises :class:`FirstKeyError`, and what
    :func:`service.server.startup.open_current` raises.

    This may be repeated. A user who can open the database gains no right by it.
    """
    now_s = time.time()
    try:
        body = KeyBody(user=user, role="admin", expires_in_s=expires_in_s, note=note)
        grant = granted(body, settings, now_s)
    except ValidationError as error:
        fault = error.errors()[0]
        raise FirstKeyError(f"{fault['loc'][0]}: {fault['msg']}") from None
    except Problem as problem:
        raise FirstKeyError(problem.faults[0].detail) from None
    key = new_key()
    settings.prepare_data_dir()
    database = open_current(settings.database_url)
    try:
        with database.writing() as session:
            connection = session.connection()
            access.add_key(connection, key, grant, now_s)
            row = access.key(connection, key.id)
            assert row is not None
            detail = {"user": grant.user, "role": grant.role.value}
            record_command(connection, ACTION, f"key {key.id}", detail, now_s)
    finally:
        database.close()
    return NewKeyDocument(**key_document(row), key=key.text)
