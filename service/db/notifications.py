"""Notifications between the services of one PostgreSQL database: NOTIFY tells the leader to look for new requests.

A notification saves the leader's next poll of the database, a quarter of a second. It may come late, twice or never: the
request is committed before, and the next poll finds it anyway. SQLite has no notifications.
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
"""Duration of one wait for notifications, and so the longest time that closing a listener takes."""

RETRY_S = 2.0
"""Pause before a listener that lost its connection tries again; until then the leader polls."""


def notify_leader(database: Database) -> None:
    """Tell the leader that a request is committed, in a transaction of its own. A failure is logged and ignored."""
    if database.one_writer:
        return
    try:
        database.execute(text(f"NOTIFY {CHANNEL}"))
    except DBAPIError as error:
        logger.debug("cannot notify the leader: %s", error)


class Listener:
    """Calls ``wake`` for each notification, in a thread and on a connection of its own, until :meth:`close`."""

    def __init__(self, database: Database, wake: Callable[[], None]) -> None:
        self._database = database
        self._wake = wake
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        if not database.one_writer:
            self._thread = threading.Thread(target=self._run, name="notifications", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the thread and close its connection."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        import psycopg

        while not self._closed.is_set():
            try:
                self._listen()
            except (SQLAlchemyError, psycopg.Error) as error:  # also a pool that has no connection left for a while
                logger.debug("no notifications for a while: %s", error)
                self._closed.wait(RETRY_S)

    def _listen(self) -> None:
        with ExitStack() as stack:
            # Not a connection of the pool: this one waits for as long as the service leads.
            pooled = self._database.engine.raw_connection()
            connection: Any = pooled.driver_connection
            pooled.detach()
            stack.enter_context(closing(connection))
            connection.autocommit = True
            connection.execute(f"LISTEN {CHANNEL}")
            # Requests that were committed before LISTEN are found by this call.
            self._wake()
            while not self._closed.is_set():
                for _ in connection.notifies(timeout=LISTENING_S, stop_after=1):
                    self._wake()
