"""Opening the database: URL to engine, and the two kinds of transaction (reading, writing); single queries need none (looking).

A reader gets a stable snapshot. A writer to SQLite takes the write lock *first*, so a transaction never reads, waits and then
fails because another one wrote in between; writers to PostgreSQL run side by side. :mod:`service.db.dialects` describes how
the two differ and why that is enough.
"""

import os
import sqlite3
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

from sqlalchemy import Connection, Engine, Executable, create_engine, make_url
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, DatabaseError, DBAPIError, NoSuchModuleError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlmodel import Session

from service.db.dialects import BUSY_TIMEOUT_S, WITHOUT_TRANSACTION, dialect_of, dumps, prepare_file

_DRIVER = "postgresql+psycopg"

_UNABLE = frozenset({"25006", "25P03"})
"""PostgreSQL's codes of temporary failures that are no OperationalError: a standby took over, a writer was idle too long."""


class DatabaseUrlError(ValueError):
    """The database URL cannot be opened; the message is one line without the password."""


class _FairLock:
    """A lock that is given to waiting threads in the order in which they asked for it."""

    def __init__(self) -> None:
        self._mutex = Lock()
        self._waiting: deque[Lock] = deque()
        self._taken = False

    @contextmanager
    def held(self, timeout_s: float) -> Iterator[None]:
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
                # No longer in the queue: the lock was handed over at this very moment.
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

    The writers of one process to SQLite queue up before they ask the database: SQLite lets those that find it locked retry at
    random, so under a flood of submissions a scheduling cycle might never get the lock.

    Every failure of the database (locked, full, unreachable, connection lost) is raised as OperationalError. If it comes from
    the commit of a ``writing`` transaction, the transaction may or may not have been committed.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._dialect = dialect_of(engine.url)
        self._writers = _FairLock()
        self._at_once: Engine | None = None
        self._at_once_is_used = Lock()

    @property
    def url(self) -> str:
        """The URL with its password hidden."""
        return _shown(self.engine.url)

    @property
    def one_writer(self) -> bool:
        """Whether only one transaction can write at a time."""
        return self._dialect.one_writer

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """A snapshot for reading. Changes made in the session are discarded at its end."""
        with _unavailable(), Session(self.engine, expire_on_commit=False) as session:
            session.connection(execution_options=self._dialect.reading())
            yield session
            if self._dialect.readers_only_read:
                # PostgreSQL's driver discards its prepared statements after a ROLLBACK.
                session.expunge_all()
                session.commit()
            else:
                session.rollback()

    @contextmanager
    def looking(self) -> Iterator[Connection]:
        """A connection for queries of which each sees what is committed by then, without a transaction around them.

        To begin and to end one are two more calls of the database: a round trip each on PostgreSQL, and on SQLite a wait for the
        interpreter each while other threads compute. What must not change between two queries is read in :meth:`reading`.
        """
        with _unavailable(), self.engine.connect() as connection:
            yield connection.execution_options(**WITHOUT_TRANSACTION)

    @contextmanager
    def at_once(self) -> Iterator[Connection | None]:
        """As :meth:`looking`, but it waits for nobody, so that an event loop can look at a few rows without another thread.

        None where that cannot be: another process answers, or the connection is in use. Raises OperationalError at once where
        another process has locked the whole database.
        """
        options = self._dialect.options_at_once()
        if options is None or not self._at_once_is_used.acquire(blocking=False):
            yield None
            return
        try:
            if self._at_once is None:
                self._at_once = _engine(self.engine.url, options)
            with _unavailable(), self._at_once.connect() as connection:
                yield connection.execution_options(**WITHOUT_TRANSACTION)
        finally:
            self._at_once_is_used.release()

    @contextmanager
    def writing(self, wait_s: float | None = None, *, lease: bool = False) -> Iterator[Session]:
        """A transaction, committed at the end, rolled back by an exception.

        On SQLite it holds the write lock from its start. Raises OperationalError if it waits for another transaction for longer
        than ``wait_s`` (default :data:`~service.db.dialects.BUSY_TIMEOUT_S`), which on SQLite includes an enclosing ``writing``.
        ``lease``: it locks the row of a lease, so it must end soon for others to take over.
        """
        timeout_s = BUSY_TIMEOUT_S if wait_s is None else wait_s
        with ExitStack() as stack:
            stack.enter_context(_unavailable())
            if self.one_writer:
                try:
                    stack.enter_context(self._writers.held(timeout_s))
                except TimeoutError as error:
                    raise OperationalError("BEGIN", None, error) from error
            session = stack.enter_context(Session(self.engine, expire_on_commit=False))
            session.connection(execution_options=self._dialect.writing(timeout_s, lease=lease))
            yield session
            session.commit()

    def rows(self, statement: Executable) -> Sequence[Any]:
        """The rows of one query."""
        with self.looking() as connection:
            return connection.execute(statement).all()

    def value(self, statement: Executable) -> Any:
        """The first column of the first row of one query; None without a row."""
        with self.looking() as connection:
            return connection.execute(statement).scalar()

    def execute(self, statement: Executable) -> int:
        """Run one statement in a transaction of its own; returns how many rows it changed."""
        with self.writing() as session:
            return session.connection().execute(statement).rowcount

    def now_s(self, session: Session) -> float:
        """The database's own clock, seconds since the Unix epoch: the only clock that all services share."""
        return float(session.connection().execute(self._dialect.clock).scalar_one())

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()
        if self._at_once is not None:
            self._at_once.dispose()


@contextmanager
def _unavailable() -> Iterator[None]:
    """Raise every failure of the database as OperationalError."""
    try:
        yield
    except PoolTimeoutError as error:
        raise OperationalError("BEGIN", None, error) from error
    except OperationalError:
        raise
    except DBAPIError as error:
        if error.connection_invalidated or getattr(error.orig, "sqlstate", None) in _UNABLE:
            raise OperationalError(error.statement, None, error.orig or error) from error
        raise


def open_database(url: str) -> Database:
    """The database of a URL, after one trial connection. Raises :class:`DatabaseUrlError`.

    A SQLite file is created (readable by its owner alone) if its folder exists; the migrations create its tables.
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
    """Parse a database URL. Raises :class:`DatabaseUrlError` unless Sooner can use such a database."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise DatabaseUrlError(
            "the database URL is not of the form sqlite:////folder/file.db or postgresql://user:password@host/name"
        ) from None
    if parsed.drivername in ("postgresql", "postgres"):
        parsed = parsed.set(drivername=_DRIVER)
    if parsed.get_backend_name() != "sqlite" and parsed.drivername != _DRIVER:
        raise DatabaseUrlError(
            f"no driver for the database URL {_shown(parsed)}: it begins with sqlite:/// or postgresql://"
        )
    if parsed.get_backend_name() == "sqlite" and (parsed.database in (None, "", ":memory:") or parsed.query):
        raise DatabaseUrlError(
            f"the database URL {_shown(parsed)} must name a file, without parameters: a database in memory would be lost"
        )
    return parsed


def sqlite_path(url: URL) -> Path | None:
    """The file of a SQLite URL; None for other databases."""
    if url.get_backend_name() != "sqlite" or url.database is None:
        return None
    return Path(url.database)


def _create_file(path: Path) -> None:
    """Create the file in one step: readable by its owner alone (its journals inherit the mode) and already in WAL mode.

    Two processes that both found a file in another mode would collide when each switches it to WAL. An existing file is not
    opened here: closing a descriptor of it would drop the locks that SQLite holds on it elsewhere in this process.
    """
    if path.exists():
        return
    draft = ""
    try:
        descriptor, draft = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        os.close(descriptor)
        with closing(sqlite3.connect(draft)) as connection:
            prepare_file(connection)
        os.link(draft, path)
    except FileExistsError:
        pass  # another process was faster, with the same result
    except (OSError, sqlite3.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise DatabaseUrlError(f"cannot create the database file {path}: {reason}") from error
    finally:
        if draft:
            Path(draft).unlink(missing_ok=True)


def _engine(url: URL, options: Mapping[str, Any] | None = None) -> Engine:
    dialect = dialect_of(url)
    options = dialect.engine_options() if options is None else options
    try:
        # A logged error must not include parameters: the environments of jobs hold secrets.
        engine = create_engine(url, json_serializer=dumps, hide_parameters=True, **options)
    except (NoSuchModuleError, ImportError) as error:
        hint = "; install sooner[postgres]" if url.drivername == _DRIVER else ""
        raise DatabaseUrlError(f"no driver for the database URL {_shown(url)}: {_first_line(error)}{hint}") from error
    dialect.prepare(engine)
    return engine


def _shown(url: URL) -> str:
    # libpq takes its passwords as parameters, too.
    return url.difference_update_query(["password", "sslpassword"]).render_as_string(hide_password=True)


def _first_line(error: Exception) -> str:
    cause = error.orig if isinstance(error, OperationalError | DatabaseError) and error.orig is not None else error
    return str(cause).partition("\n")[0]
