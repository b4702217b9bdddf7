"""Opening the database: URL to engine, and the two kinds of transaction (reading, writing).

All SQL that only one dialect understands lives in this module. Whoever reads gets a stable snapshot; whoever writes takes
the write lock *first*, so a transaction never reads, waits and then fails because another one wrote in between.
"""

import json
import os
import sqlite3
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, DatabaseError, NoSuchModuleError, OperationalError
from sqlmodel import Session

BUSY_TIMEOUT_S = 10.0
"""How long a writer waits for another one. Transactions here take milliseconds; ten seconds mean that something is stuck."""

_WRITES = "sooner_writes"


class DatabaseUrlError(ValueError):
    """The database URL names nothing that can be opened; the message is one line, without the password."""


class _Turns:
    """A lock that serves those who wait in the order in which they came."""

    def __init__(self) -> None:
        self._mutex = Lock()
        self._waiting: deque[Lock] = deque()
        self._taken = False

    @contextmanager
    def turn(self, timeout_s: float) -> Iterator[None]:
        """Hold the lock. Raises TimeoutError."""
        mine: Lock | None = None
        with self._mutex:
            if self._taken:
                mine = Lock()
                mine.acquire()
                self._waiting.append(mine)
            self._taken = True
        if mine is not None and not mine.acquire(timeout=timeout_s):
            with self._mutex:
                # Not waiting any more means that the turn came in this very moment.
                if mine in self._waiting:
                    self._waiting.remove(mine)
                    raise TimeoutError(f"another transaction has been writing for {timeout_s:g} s")
        try:
            yield
        finally:
            with self._mutex:
                if self._waiting:
                    self._waiting.popleft().release()
                else:
                    self._taken = False


class Database:
    """An engine and its transactions. Safe to share between threads; every transaction gets its own connection.

    The writers of one process take turns before they ask the database: SQLite lets those who find it locked try again at
    random, and under a flood of submissions a scheduling cycle would then wait for ever.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._writers = _Turns()

    @property
    def url(self) -> str:
        """The URL with its password hidden."""
        return self.engine.url.render_as_string(hide_password=True)

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """A snapshot for reading. Nothing is written at its end, whatever was added to the session."""
        with Session(self.engine, expire_on_commit=False) as session:
            yield session
            session.rollback()

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """A transaction that holds the write lock from its start: committed at the end, rolled back by an exception.

        Raises OperationalError if another one holds the lock for longer than :data:`BUSY_TIMEOUT_S`, as it would if this
        were called inside another ``writing``.
        """
        with ExitStack() as stack:
            try:
                stack.enter_context(self._writers.turn(BUSY_TIMEOUT_S))
            except TimeoutError as error:
                raise OperationalError("BEGIN", None, error) from error
            session = stack.enter_context(Session(self.engine, expire_on_commit=False))
            session.connection(execution_options={_WRITES: True})
            yield session
            session.commit()

    def now_s(self, session: Session) -> float:
        """The database's own clock, seconds since the Unix epoch: the one clock that all its users share."""
        sqlite = self.engine.dialect.name == "sqlite"
        statement = (
            "SELECT (julianday('now') - 2440587.5) * 86400.0"
            if sqlite
            else "SELECT extract(epoch FROM clock_timestamp())"
        )
        return float(session.connection().execute(text(statement)).scalar_one())

    def close(self) -> None:
        """Give back all connections."""
        self.engine.dispose()


def open_database(url: str) -> Database:
    """The database of a URL, connected once to see that it answers. Raises :class:`DatabaseUrlError`.

    A SQLite file is created (readable by its owner alone) if its folder exists; its tables are the migrations' business.
    """
    parsed = parse_url(url)
    path = sqlite_path(parsed)
    if path is not None:
        _create_file(path)
    engine = _engine(parsed)
    try:
        with engine.connect() as connection:
            connection.exec_driver_sql("SELECT 1")
    except DatabaseError as error:
        engine.dispose()
        raise DatabaseUrlError(f"cannot open the database {_shown(parsed)}: {_first_line(error)}") from error
    return Database(engine)


def parse_url(url: str) -> URL:
    """The parsed URL, or :class:`DatabaseUrlError` for what is no URL of a database that Sooner can use."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise DatabaseUrlError(
            "the database URL is not of the form sqlite:////folder/file.db or postgresql://user:password@host/name"
        ) from None
    if parsed.get_backend_name() == "sqlite" and (parsed.database in (None, "", ":memory:") or parsed.query):
        raise DatabaseUrlError(
            f"the database URL {_shown(parsed)} names no plain file: the service's threads and a restart must see the same data"
        )
    return parsed


def sqlite_path(url: URL) -> Path | None:
    """The file of a SQLite URL; None for other databases."""
    if url.get_backend_name() != "sqlite" or url.database is None:
        return None
    return Path(url.database)


def _create_file(path: Path) -> None:
    """Let the file appear whole: for its owner alone (its journals inherit the mode) and in WAL mode already.

    Two processes that both found a plain file would collide when each switches it to WAL. An existing file is not opened
    here: closing a descriptor of it would drop the locks that SQLite holds on it elsewhere in this process.
    """
    if path.exists():
        return
    drafted = ""
    try:
        descriptor, drafted = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        os.close(descriptor)
        with closing(sqlite3.connect(drafted)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
        os.link(drafted, path)
    except FileExistsError:
        pass  # another process was faster, with the same result
    except (OSError, sqlite3.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise DatabaseUrlError(f"cannot create the database file {path}: {reason}") from error
    finally:
        if drafted:
            Path(drafted).unlink(missing_ok=True)


def _engine(url: URL) -> Engine:
    # A NaN in a document would be refused by other databases and read back by none: fail where it is made.
    dumps = partial(json.dumps, allow_nan=False, separators=(",", ":"))
    sqlite = url.get_backend_name() == "sqlite"
    options: dict[str, Any] = {"connect_args": {"timeout": BUSY_TIMEOUT_S}} if sqlite else {"pool_pre_ping": True}
    try:
        engine = create_engine(url, json_serializer=dumps, **options)
    except (NoSuchModuleError, ImportError) as error:
        raise DatabaseUrlError(f"no driver for the database URL {_shown(url)}: {_first_line(error)}") from error
    if sqlite:
        event.listen(engine, "connect", _sqlite_connected)
        event.listen(engine, "begin", _sqlite_begin)
    return engine


def _sqlite_connected(connection: Any, record: object) -> None:
    # The driver would open transactions by itself, at the first write and without the lock; _sqlite_begin does it instead.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode = WAL")
    # FULL, not NORMAL: in WAL mode NORMAL may lose the last commits at a power cut, and a job that was answered with 201
    # must be there afterwards. The price is one fsync a commit, which a cycle or a submission can pay.
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _sqlite_begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get(_WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _shown(url: URL) -> str:
    return url.render_as_string(hide_password=True)


def _first_line(error: Exception) -> str:
    cause = error.orig if isinstance(error, OperationalError | DatabaseError) and error.orig is not None else error
    return str(cause).partition("\n")[0]
