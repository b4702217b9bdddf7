"""Making an admin's key in the database itself: the first key, for which no service can be asked."""

import time
from contextlib import closing

from pydantic import ValidationError

from service.api.access_documents import key_document
from service.api.faults import message_of
from service.api.problems import Problem
from service.api.routers.access import granted, refused_to
from service.cli.fail import EXIT_FAILED, fail
from service.config.settings import Settings, SettingsError
from service.db import access
from service.db.audit import record_command
from service.db.migrate import SchemaError
from service.db.session import DatabaseUrlError
from service.domain.api_key import new_key
from service.server.startup import StartError, open_current
from service.wire.access import NewKeyDocument
from service.wire.bodies import KeyBody

ACTION = "sooner key create --first"
"""The action's name in the audit log."""


def make_first_key(settings: Settings, user: str, expires_in_s: float | None, note: str) -> NewKeyDocument:
    """Make an admin's key, record it in the audit log, and return it; a fault ends the command with one line.

    This may be repeated. A user who can open the database gains no right by it.
    """
    now_s = time.time()
    try:
        grant = granted(KeyBody(user=user, role="admin", expires_in_s=expires_in_s, note=note), settings, now_s)
        settings.prepare_data_dir()
        database = open_current(settings.database_url)
    except ValidationError as error:
        fault = error.errors()[0]
        fail(f"{fault['loc'][0]}: {message_of(fault)}")
    except Problem as problem:
        fail(problem.faults[0].detail)
    except (DatabaseUrlError, SettingsError) as error:
        fail(str(error))
    except (StartError, SchemaError) as error:
        fail(str(error), EXIT_FAILED)
    key = new_key()
    with closing(database), database.writing() as session:
        connection = session.connection()
        if access.is_disabled(connection, grant.user):
            fail(refused_to(grant.user), EXIT_FAILED)
        access.add_key(connection, key, grant, now_s)
        row = access.key(connection, key.id)
        assert row is not None
        detail = {"user": grant.user, "role": grant.role.value}
        record_command(connection, ACTION, f"key {key.id}", detail, now_s)
    return NewKeyDocument(**key_document(row), key=key.text)
