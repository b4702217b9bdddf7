"""Wake-ups between the services of one PostgreSQL: NOTIFY says that there is something to look at, and never what.

A wake-up saves the leader's next look at the database, a quarter of a second. It may come late, twice or never: what it
speaks of is committed before, and found at the next look anyway. SQLite has nothing like it.
"""

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any, Final

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from service.db.session import Database

logger = logging.getLogger(__name__)

CHANNEL: Final = "sooner_wake"

LISTENING_S = 0.25
"""How long one wait for notifications lasts, and so how long the end of a listener may take."""

RETRY_S = 2.0
"""A listener whose connection is gone tries again after so long; until then the leader looks by itself."""


def wake_leader(database: Database) -> None:
    """Tell whoever leads that something is committed. A transaction of its own; a failure is nobody's loss."""
    if database.one_writer:
        return
    try:
        with database.writing() as session:
            session.connection().execute(text(f"NOTIFY {CHANNEL}"))
    except DBAPIError as error:
        logger.debug("the leader was not told: %s", error)


class Listener:
    """Calls ``wake`` for each notification, in a thread and on a connection of its own, from its making to :meth:`close`."""

    def __init__(self, database: Database, wake: Callable[[], None]) -> None:
        self._database = database
        self._wake = wake
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        if not database.one_writer:
            self._thread = threading.Thread(target=self._run, name="wake-ups", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the thread and give back the connection."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        import psycopg

        while not self._closed.is_set():
            try:
                self._listen()
            except (SQLAlchemyError, psycopg.Error) as error:  # also a pool that has no connection left for a while
                logger.debug("no wake-ups for a while: %s", error)
                self._closed.wait(RETRY_S)

    def _listen(self) -> None:
        with ExitStack() as stack:
            # Not one of the pool's: it waits for as long as this service leads.
            pooled = self._database.engine.raw_connection()
            connection: Any = pooled.driver_connection
            pooled.detach()
            stack.enter_context(closing(connection))
            connection.autocommit = True
            connection.execute(f"LISTEN {CHANNEL}")
            # Whatever was committed before is seen by this.
            self._wake()
            while not self._closed.is_set():
                for _ in connection.notifies(timeout=LISTENING_S, stop_after=1):
                    self._wake()
