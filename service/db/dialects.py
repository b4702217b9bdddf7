"""Differences between SQLite and PostgreSQL: all SQL and options that only one of them has, except for notifications
(:mod:`service.db.notifications`).

**Isolation.** Readers get one snapshot for all their statements on both (SQLite in WAL mode; PostgreSQL's REPEATABLE READ, READ
ONLY, which never fails because of concurrency). Writers: SQLite has one at a time, from its first statement on. On PostgreSQL
they run side by side under READ COMMITTED. That is enough because every possible conflict has a stronger guard: rows of jobs
have one writer (the leader, fenced by its token) and a version guard under a row lock, keys and names have unique
constraints, and the few transactions that read before they insert take a named lock (:func:`take_locks`). SERIALIZABLE would
guard nothing more and would abort cycles without a conflict.
"""

import json
import math
import sqlite3
import time
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache, partial
from typing import Any, Final, Protocol, TypeVar

from pydantic import ConfigDict, TypeAdapter
from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Engine,
    Integer,
    Table,
    TextClause,
    any_,
    bindparam,
    event,
    text,
    update,
)
from sqlalchemy import Dialect as EngineDialect
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL
from sqlalchemy.exc import InvalidatePoolError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.pool import ConnectionPoolEntry, StaticPool
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import NullType

T = TypeVar("T")

BUSY_TIMEOUT_S = 10.0
"""How long a writer waits for another one. Transactions take milliseconds, so ten seconds mean that something is stuck."""

CONNECT_TIMEOUT_S = 5
"""How long a PostgreSQL server may take to answer a new connection; on a network it takes milliseconds."""

CONNECTIONS_MAX = 20
"""Connections of one process. PostgreSQL admits 100 by default for all services; more do not write faster."""

TRUSTED_S = 1.0
"""A PostgreSQL connection used within this time is reused without a ping, which would cost a round trip."""

_STATEMENT_S = 300
"""Limit of one statement. The longest reads scan a whole table, at the start of a service or in a backup."""

_WRITE_IDLE_S = 10
"""Idle time after which the server ends a writer: its process is suspended and its locks block other writers."""

_LEASE_IDLE_S = 5
"""The same for a writer that has locked a lease: until it is ended no service can take over, which must take ten seconds."""

_JOURNAL_BYTES_MAX = 64 * 1024 * 1024
"""Size to which SQLite truncates its journal once no reader needs it; usual writes need a few megabytes."""

_STATEMENTS_MAX = 256
"""Statements that are kept for SQLite: some for each table that rows are inserted into."""

_WRITES = "sooner_writes"
_WAIT_S = "sooner_wait_s"
_LEASE = "sooner_lease"
_RETURNED_AT_S = "sooner_returned_at_s"
_NO_TRANSACTION = "sooner_no_transaction"

WITHOUT_TRANSACTION: Final[Mapping[str, Any]] = {_NO_TRANSACTION: True}
"""Execution options of a connection whose queries are no transaction. Both drivers are used in their mode without one."""


_escaped: Final = partial(json.dumps, allow_nan=False, separators=(",", ":"))
_plain: Final = TypeAdapter(object, config=ConfigDict(ser_json_inf_nan="constants")).dump_json


def dumps(document: object) -> str:
    """The text of a JSON document as it is stored. Raises ValueError for a NaN or an infinity: other databases refuse them.

    Written by pydantic, in a fifth of the time that ``json`` takes for the numbers of predictions.
    """
    try:
        written = _plain(document).decode()
    except ValueError:  # half of a surrogate pair, which only ``json`` escapes
        return _escaped(document)
    return _escaped(document) if "NaN" in written or "Infinity" in written else written


class Dialect(Protocol):
    """One kind of database."""

    one_writer: bool
    """Whether there is one write lock for the whole database, for which the writers of a process queue up."""

    readers_only_read: bool
    """Whether the database itself refuses writes in a reading transaction."""

    clock: TextClause
    """Selects the database's own clock, seconds since the Unix epoch."""

    def engine_options(self) -> dict[str, Any]:
        """Arguments of ``create_engine``."""

    def options_at_once(self) -> dict[str, Any] | None:
        """The same for an engine with one connection that waits for nobody; None where there can be none."""

    def prepare(self, engine: Engine) -> None:
        """Install the listeners that configure every connection of the engine."""

    def reading(self) -> dict[str, Any]:
        """Execution options of a reading transaction with one snapshot."""

    def writing(self, wait_s: float, *, lease: bool) -> dict[str, Any]:
        """Execution options of a writing transaction that waits at most ``wait_s`` for a lock.

        With ``lease`` it locks the row of a lease: a database that can do so ends it sooner when its process is suspended.
        """


class SqliteDialect:
    """One file, one writer at a time, any number of readers beside it."""

    one_writer = True
    readers_only_read = False
    clock = text("SELECT (julianday('now') - 2440587.5) * 86400.0")

    def engine_options(self) -> dict[str, Any]:
        """Wait for a lock that another process holds. The connection used last is preferred: it has the statements prepared."""
        # Those beyond the pool's size would be closed after each use: to open one takes as long as ten statements.
        return {
            "pool_size": CONNECTIONS_MAX,
            "max_overflow": 0,
            "pool_use_lifo": True,
            "connect_args": {"timeout": BUSY_TIMEOUT_S},
        }

    def options_at_once(self) -> dict[str, Any] | None:
        """A reader waits neither for writers nor for a process; what it looks at has mostly just been written."""
        return {"poolclass": StaticPool, "connect_args": {"timeout": 0.0, "check_same_thread": False}}

    def prepare(self, engine: Engine) -> None:
        """WAL mode, durable commits, checked references, and explicit BEGIN statements."""
        event.listen(engine, "connect", _sqlite_connected)
        event.listen(engine, "begin", _sqlite_begin)

    def reading(self) -> dict[str, Any]:
        """A deferred transaction: its first read takes the snapshot."""
        return {}

    def writing(self, wait_s: float, *, lease: bool) -> dict[str, Any]:
        """The write lock from the start."""
        return {_WRITES: True, _WAIT_S: wait_s}


class PostgresDialect:
    """A server with many writers at a time."""

    one_writer = False
    readers_only_read = True
    clock = text("SELECT extract(epoch FROM clock_timestamp())")

    def engine_options(self) -> dict[str, Any]:
        """A small pool that detects a lost server soon, and explicit BEGIN statements."""
        return {
            "isolation_level": "AUTOCOMMIT",
            "pool_size": CONNECTIONS_MAX // 2,
            "max_overflow": CONNECTIONS_MAX - CONNECTIONS_MAX // 2,
            "pool_timeout": BUSY_TIMEOUT_S,
            "connect_args": {
                "application_name": "sooner",
                "connect_timeout": CONNECT_TIMEOUT_S,
                "keepalives_idle": 5,
                "keepalives_interval": 2,
                "keepalives_count": 3,
                "tcp_user_timeout": 10_000,
            },
        }

    def options_at_once(self) -> dict[str, Any] | None:
        """Each look waits for the server."""
        return None

    def prepare(self, engine: Engine) -> None:
        """Time limits on every connection, tighter ones on writers; a connection that was idle is pinged before use."""
        event.listen(engine, "connect", _postgres_connected)
        event.listen(engine, "begin", _postgres_begin)
        event.listen(engine, "do_execute_no_params", _postgres_at_once)
        event.listen(engine, "checkin", _returned)
        event.listen(engine, "checkout", partial(_ping, engine))

    def reading(self) -> dict[str, Any]:
        """One snapshot for all statements; writes of others cannot make it fail."""
        return {_WRITES: False}

    def writing(self, wait_s: float, *, lease: bool) -> dict[str, Any]:
        """Each statement sees what is committed by then; rows that matter are locked and guarded."""
        return {_WRITES: True, _WAIT_S: wait_s, _LEASE: lease}


SERVERS_LOCK = "servers"
"""The lock for adding servers: names are unique and positions are consecutive."""

_FAULTS_MAX = 100

_LOCKS = 0x536F6F6E << 32
"""Our range of advisory locks ("Soon"), apart from those of other programs in the same database."""


def dialect_of(url: URL) -> Dialect:
    """The kind of database that a URL names."""
    return SqliteDialect() if url.get_backend_name() == "sqlite" else PostgresDialect()


class Likely(FunctionElement[Any]):
    """A condition that SQLite takes to be true of most rows: so it looks for no index but one of such rows alone."""

    inherit_cache = True
    name = "likely"
    # As a Boolean it would be compared with 1, and no longer be the condition of an index.
    type = NullType()


@compiles(Likely)
def _condition(element: Likely, compiler: SQLCompiler, **options: Any) -> str:
    return f"({compiler.process(element.clauses, **options)})"


@compiles(Likely, "sqlite")
def _likely(element: Likely, compiler: SQLCompiler, **options: Any) -> str:
    return f"likely({compiler.process(element.clauses, **options)})"


def by_dialect(column: ColumnElement[Any], name: str, build: Callable[[ColumnElement[bool]], T]) -> Mapping[str, T]:
    """What ``build`` makes of the condition that the column is in the list of the parameter ``name``, by the name of the dialect.

    On PostgreSQL the list is one value, so that the server prepares the statement once and not for each length.
    """
    of_server = column == any_(bindparam(name, type_=postgresql.ARRAY(column.type)))
    of_file = column.in_(bindparam(name, expanding=True))
    return {"postgresql": build(of_server), "sqlite": build(of_file)}


def take_locks(connection: Connection, *names: str) -> None:
    """Take named locks, which serialize writing transactions of all processes, until this transaction ends.

    For transactions that check whether a row exists before they insert it. On SQLite all writers are serialized anyway.
    Several locks are taken in one global order, so that no two transactions wait for each other.
    """
    if names and connection.dialect.name == "postgresql":
        # Two names with the same checksum share a lock, which is harmless. The server frees it however the transaction ends.
        numbers = sorted({_LOCKS + zlib.crc32(name.encode()) for name in names})
        locks = text("SELECT pg_advisory_xact_lock(number) FROM unnest(CAST(:numbers AS bigint[])) AS number")
        connection.execute(locks, {"numbers": numbers})


def insert_rows(connection: Connection, target: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows with the same columns; their ids follow their order.

    PostgreSQL gets all rows as one JSON document: a parameter per value would take six times as long, mostly in the driver,
    and a new statement for each number of rows. SQLite's driver gets the rows as they are: SQLAlchemy would take several times
    as long to look at each value as SQLite takes to store it.
    """
    if rows and connection.dialect.name == "postgresql":
        connection.execute(_insert_document(target, tuple(rows[0])), {"rows": dumps(rows)})
    elif rows:
        _insert_positional(connection, target, rows)


def insert_numbered(connection: Connection, target: Table, rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Insert rows as :func:`insert_rows` does; returns the ``id`` of each."""
    if not rows:
        return []
    if connection.dialect.name == "postgresql":
        statement = text(f'{_insert_document(target, tuple(rows[0]))} RETURNING "{target.name}".id')
        # Ids follow the order of the rows, but the server returns them in any order.
        return sorted(connection.execute(statement, {"rows": dumps(rows)}).scalars())
    _insert_positional(connection, target, rows)
    # One writer at a time: the numbers of one statement's rows are consecutive.
    last = int(connection.exec_driver_sql("SELECT last_insert_rowid()").scalar_one())
    return list(range(last - len(rows) + 1, last + 1))


def _insert_positional(connection: Connection, target: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    statement, processors = _positional_insert(target, tuple(rows[0]), connection.dialect)
    connection.exec_driver_sql(statement, _given(rows, processors))


_Processors = Sequence[tuple[str, Callable[[Any], Any] | None]]
"""The keys of a row in the order of a statement's places, and how the driver is given each value (None: as it is)."""


def _given(rows: Sequence[Mapping[str, Any]], processors: _Processors) -> list[tuple[Any, ...]]:
    return [tuple(row[key] if process is None else process(row[key]) for key, process in processors) for row in rows]


def _processors(target: Table, columns: Mapping[str, str], dialect: EngineDialect) -> _Processors:
    return [
        (key, target.c[column].type.dialect_impl(dialect).bind_processor(dialect)) for key, column in columns.items()
    ]


@lru_cache(maxsize=_STATEMENTS_MAX)
def _positional_insert(target: Table, names: tuple[str, ...], dialect: EngineDialect) -> tuple[str, _Processors]:
    quoted = ", ".join(f'"{name}"' for name in names)
    places = ", ".join("?" * len(names))
    statement = f'INSERT INTO "{target.name}" ({quoted}) VALUES ({places})'  # noqa: S608 (our names)
    return statement, _processors(target, {name: name for name in names}, dialect)


@lru_cache(maxsize=_STATEMENTS_MAX)
def _positional_update(
    target: Table, names: tuple[str, ...], at: tuple[tuple[str, str], ...], dialect: EngineDialect
) -> tuple[str, _Processors]:
    columns = dict(at)
    changed = [name for name in names if name not in columns]
    assigned = ", ".join(f'"{name}" = ?' for name in changed)
    same = " AND ".join(f'"{column}" = ?' for _, column in at)
    statement = f'UPDATE "{target.name}" SET {assigned} WHERE {same}'  # noqa: S608 (our names)
    return statement, _processors(target, {name: name for name in changed} | columns, dialect)


def insert_missing(connection: Connection, target: Table, row: Mapping[str, Any]) -> bool:
    """Insert a row unless one with its primary key exists; returns whether it was inserted."""
    statement = _own_insert(connection)(target).on_conflict_do_nothing(index_elements=list(target.primary_key))
    return connection.execute(statement.values(**row)).rowcount == 1


def upsert(
    connection: Connection, target: Table, rows: Sequence[Mapping[str, Any]], summed: Collection[str] = ()
) -> None:
    """Insert rows with the same columns, or update those whose primary key exists; columns of ``summed`` are added up."""
    if rows:
        statement = _own_insert(connection)(target)
        new = {name: statement.excluded[name] for name in rows[0] if not target.c[name].primary_key}
        changes = {name: target.c[name] + value if name in summed else value for name, value in new.items()}
        keyed = statement.on_conflict_do_update(index_elements=list(target.primary_key), set_=changes)
        connection.execute(keyed, list(rows))


def _own_insert(connection: Connection) -> Any:
    """The dialect's own class of insertions, which knows conflicts."""
    return postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert


def update_rows(
    connection: Connection, target: Table, rows: Sequence[Mapping[str, Any]], at: Mapping[str, str]
) -> int | None:
    """Update one row per entry of ``rows``, which have the same keys; returns how many rows matched (None: unknown).

    ``at`` maps the keys that identify a row to the columns they are compared with.
    """
    if not rows:
        return 0
    document = None
    if connection.dialect.name == "postgresql":
        with suppress(ValueError):  # an infinity, which JSON cannot express: such rows are few
            document = dumps(rows)
    if document is not None:
        statement = _update_document(target, tuple(rows[0]), tuple(at.items()))
        return int(connection.execute(statement, {"rows": document}).rowcount)
    if connection.dialect.name == "sqlite":
        direct, processors = _positional_update(target, tuple(rows[0]), tuple(at.items()), connection.dialect)
        return int(connection.exec_driver_sql(direct, _given(rows, processors)).rowcount)
    found = [target.c[column] == bindparam(key) for key, column in at.items()]
    hit = int(connection.execute(update(target).where(*found), list(rows)).rowcount)
    return None if hit == -1 else hit


@cache
def _insert_document(target: Table, names: tuple[str, ...]) -> TextClause:
    quoted = ", ".join(f'"{name}"' for name in names)
    # WITH ORDINALITY: only an explicit order determines which row gets which number.
    found = _recordset({name: target.c[name] for name in names})
    selected = f"SELECT {quoted} FROM ROWS FROM ({found}) WITH ORDINALITY ORDER BY ordinality"  # noqa: S608 (our names)
    return text(f'INSERT INTO "{target.name}" ({quoted}) {selected}')


@cache
def _update_document(target: Table, names: tuple[str, ...], at: tuple[tuple[str, str], ...]) -> TextClause:
    columns = dict(at)
    changed = ", ".join(f'"{name}" = given."{name}"' for name in names if name not in columns)
    same = " AND ".join(f'"{target.name}"."{column}" = given."{key}"' for key, column in at)
    found = _recordset({name: target.c[columns.get(name, name)] for name in names}, "given")
    return text(f'UPDATE "{target.name}" SET {changed} FROM {found} WHERE {same}')  # noqa: S608 (our names)


def _recordset(columns: Mapping[str, Column[Any]], name: str = "") -> str:
    """The rows of a JSON document as a table with these columns."""
    typed = ", ".join(f'"{key}" {_read_as(key, column)}' for key, column in columns.items())
    return f"json_to_recordset(CAST(:rows AS json)) AS {name}({typed})"


def _read_as(key: str, column: Column[Any]) -> str:
    # A whole number may arrive as 3.0, which INTEGER refuses but NUMERIC accepts. A compared column keeps its indexed type.
    if isinstance(column.type, Integer) and key == column.name:
        return "NUMERIC"
    postgres: Any = postgresql
    return str(column.type.compile(postgres.dialect()))


def prepare_file(connection: sqlite3.Connection) -> None:
    """Configure a new SQLite file before it becomes visible."""
    connection.execute("PRAGMA journal_mode = WAL")


def _sqlite_connected(connection: Any, record: object) -> None:
    # The driver would begin transactions at the first write and without the lock; _sqlite_begin does it instead.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode = WAL")
    # FULL, not NORMAL: in WAL mode NORMAL may lose the last commits in a power cut, but a job answered with 201 must
    # survive one. The cost is one fsync per commit.
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.execute("PRAGMA foreign_keys = ON")
    # The journal grows during a long read (a backup, a training run) and would keep that size.
    cursor.execute(f"PRAGMA journal_size_limit = {_JOURNAL_BYTES_MAX}")
    cursor.close()


def _sqlite_begin(connection: Connection) -> None:
    options = connection.get_execution_options()
    if options.get(_NO_TRANSACTION):
        return
    if not options.get(_WRITES, False):
        connection.exec_driver_sql("BEGIN")
        return
    wait_s = options[_WAIT_S]
    if wait_s == BUSY_TIMEOUT_S:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        return
    connection.exec_driver_sql(f"PRAGMA busy_timeout = {int(wait_s * 1000)}")
    try:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    finally:
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT_S * 1000)}")


def _postgres_connected(connection: Any, record: object) -> None:
    # Not as connection options: a connection pooler refuses those. JIT compilation pays off for complex queries, but every
    # statement here is short or scans one table.
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT set_config('lock_timeout', %s, false), set_config('statement_timeout', %s, false),"
            " set_config('idle_in_transaction_session_timeout', %s, false), set_config('timezone', 'UTC', false),"
            " set_config('jit', 'off', false)",
            (_milliseconds(BUSY_TIMEOUT_S), _milliseconds(_STATEMENT_S), _milliseconds(_STATEMENT_S)),
        )


def _postgres_begin(connection: Connection) -> None:
    # All in one message: the driver would send a BEGIN of its own first, and each round trip costs as much as a statement.
    options = connection.get_execution_options()
    if options.get(_NO_TRANSACTION):
        return
    parts = ["BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY" if options.get(_WRITES) is False else "BEGIN"]
    if options.get(_WRITES):
        parts = ["BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"]
        parts += [f"SET LOCAL {name} = '{value}'" for name, value in _limits_of_writer(options).items()]
    connection.exec_driver_sql("; ".join(parts), execution_options={"no_parameters": True})


def _limits_of_writer(options: Mapping[str, Any]) -> dict[str, str]:
    if options[_WAIT_S] == BUSY_TIMEOUT_S:
        idle_s = _LEASE_IDLE_S if options[_LEASE] else _WRITE_IDLE_S
        return {"idle_in_transaction_session_timeout": _milliseconds(idle_s)}
    # A long wait belongs to a long transaction: a migration of a large table, a restore.
    return {"lock_timeout": _milliseconds(options[_WAIT_S]), "statement_timeout": "0"}


def _postgres_at_once(cursor: Any, statement: str, context: object) -> bool:
    # The driver prepares repeated statements, and several statements in one message cannot be prepared.
    cursor.execute(statement, prepare=False)
    return True


def _returned(connection: object, record: ConnectionPoolEntry) -> None:
    record.info[_RETURNED_AT_S] = time.monotonic()


def _ping(engine: Engine, connection: Any, record: ConnectionPoolEntry, proxy: object) -> None:
    """Make the pool open another connection if the server of this one is, or meanwhile was, unreachable."""
    if time.monotonic() - record.info.get(_RETURNED_AT_S, math.inf) < TRUSTED_S:
        return
    dialect = engine.dialect
    try:
        dialect.do_ping(connection)
    except dialect.loaded_dbapi.Error as error:
        if dialect.is_disconnect(error, connection, None):
            raise InvalidatePoolError from error
        raise


def _milliseconds(duration_s: float) -> str:
    return f"{int(duration_s * 1000)}ms"


# Backup, restore and check.


def last_ids(connection: Connection, names: Collection[str]) -> dict[str, int]:
    """The newest id given out in each of these tables, whether its row still exists or not."""
    if connection.dialect.name == "sqlite":
        found = connection.execute(text("SELECT name, seq FROM sqlite_sequence"))
        return {name: number for name, number in found if name in names}
    sequences = _sequences(connection)
    last = text("SELECT pg_sequence_last_value(CAST(CAST(:sequence AS text) AS regclass))")
    return {
        name: int(connection.execute(last, {"sequence": sequences[name]}).scalar() or 0)
        for name in sequences.keys() & names
    }


def set_last_ids(connection: Connection, ids: Mapping[str, int]) -> None:
    """Make each of these tables that numbers its rows continue after its number."""
    if connection.dialect.name == "sqlite":
        for name, number in ids.items():
            values = {"name": name, "number": number}
            connection.execute(text("DELETE FROM sqlite_sequence WHERE name = :name"), {"name": name})
            connection.execute(text("INSERT INTO sqlite_sequence (name, seq) VALUES (:name, :number)"), values)
        return
    sequences = _sequences(connection)
    move = text("SELECT setval(CAST(CAST(:sequence AS text) AS regclass), :number)")
    for name in sequences.keys() & ids.keys():
        if ids[name] > 0:
            connection.execute(move, {"sequence": sequences[name], "number": ids[name]})


def _sequences(connection: Connection) -> dict[str, str]:
    """The sequence that numbers each table's rows."""
    owned = text(
        "SELECT t.relname AS name, s.oid::regclass::text AS sequence FROM pg_class s"
        " JOIN pg_depend d ON d.objid = s.oid AND d.deptype IN ('a', 'i')"
        " JOIN pg_class t ON t.oid = d.refobjid"
        " WHERE s.relkind = 'S' AND t.relnamespace = current_schema()::regnamespace"
    )
    return {row.name: row.sequence for row in connection.execute(owned)}


def drop_everything(connection: Connection, names: Sequence[str]) -> None:
    """Drop these tables (referencing tables first) and their functions."""
    for name in names:
        cascade = "" if connection.dialect.name == "sqlite" else " CASCADE"
        connection.execute(text(f'DROP TABLE IF EXISTS "{name}"{cascade}'))
    if connection.dialect.name == "postgresql":
        # The migrations create functions for triggers; the database holds no others.
        functions = text(
            "SELECT p.oid::regprocedure::text FROM pg_proc p WHERE p.pronamespace = current_schema()::regnamespace"
            " AND p.prokind = 'f' AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = p.oid AND d.deptype = 'e')"
        )
        for function in list(connection.execute(functions).scalars()):
            connection.execute(text(f"DROP FUNCTION {function}"))


def damage(connection: Connection) -> list[str]:
    """Damaged pages and broken references that the database itself finds; one line each.

    PostgreSQL checks references at every commit and pages as it reads them, so it needs no extra check.
    """
    if connection.dialect.name != "sqlite":
        return []
    pages = connection.execute(text(f"PRAGMA integrity_check({_FAULTS_MAX})")).scalars()
    faults = [f"the file is damaged: {line}" for line in pages if line != "ok"]
    references = connection.execute(text("PRAGMA foreign_key_check"))
    return faults + [f"row {row[1]} of {row[0]} refers to a missing row of {row[2]}" for row in references]
