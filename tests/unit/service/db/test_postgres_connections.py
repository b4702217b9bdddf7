"""Connections to PostgreSQL: what a transaction costs in ways to the server, and what happens when one is gone."""

import pytest
from sqlalchemy import event, select
from sqlalchemy.exc import OperationalError

from service.db import dialects
from service.db.dialects import TRUSTED_S
from service.db.session import Database
from service.db.tables import PROPERTIES, PropertyRow
from tests.postgres import PostgresServer


class _Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    clock = _Clock()
    monkeypatch.setattr(dialects, "time", clock)
    return clock


@pytest.fixture
def pings(postgres_database: Database, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Connections that were tried before they were used."""
    found: list[object] = []
    dialect = postgres_database.engine.dialect
    usual = dialect.do_ping

    def ping(connection: object) -> bool:
        found.append(connection)
        return usual(connection)  # type: ignore[arg-type]

    monkeypatch.setattr(dialect, "do_ping", ping)
    return found


def _read(database: Database) -> list[str]:
    with database.reading() as session:
        return list(session.connection().execute(select(PROPERTIES.c.name)).scalars())


def _kill_connections(postgres: PostgresServer, database: Database) -> None:
    name = database.engine.url.database
    postgres._admin(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")


def test_a_transaction_begins_with_one_message_and_statements_are_prepared_for_the_next(
    postgres_database: Database,
) -> None:
    asked: list[str] = []
    event.listen(
        postgres_database.engine, "before_cursor_execute", lambda connection, cursor, said, *rest: asked.append(said)
    )
    for _ in range(10):
        _read(postgres_database)
        with postgres_database.writing() as session:
            session.connection().execute(PROPERTIES.delete())
    assert len(asked) == 40
    assert asked[0] == "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
    assert asked[2].startswith("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL idle_in")
    with postgres_database.reading() as session:
        prepared = session.connection().exec_driver_sql("SELECT statement FROM pg_prepared_statements").scalars().all()
    assert sorted(words.split()[0] for words in prepared) == ["DELETE", "SELECT"]


def test_a_connection_is_tried_after_a_rest(postgres_database: Database, clock: _Clock, pings: list[object]) -> None:
    _read(postgres_database)
    clock.now_s += TRUSTED_S / 2
    _read(postgres_database)
    assert pings == []
    clock.now_s += TRUSTED_S
    _read(postgres_database)
    assert len(pings) == 1


def test_nobody_notices_that_a_resting_connection_was_lost(
    postgres: PostgresServer, postgres_database: Database, clock: _Clock, pings: list[object]
) -> None:
    _read(postgres_database)
    _kill_connections(postgres, postgres_database)
    clock.now_s += TRUSTED_S
    assert _read(postgres_database) == _read(postgres_database)
    assert len(pings) == 1


def test_one_that_was_lost_in_use_fails_once_for_all(
    postgres: PostgresServer, postgres_database: Database, clock: _Clock
) -> None:
    with postgres_database.reading(), postgres_database.reading():
        pass  # two connections in the pool
    _kill_connections(postgres, postgres_database)
    with pytest.raises(OperationalError):
        _read(postgres_database)
    for _ in range(2):
        _read(postgres_database)


def test_a_reader_writes_nothing(postgres_database: Database) -> None:
    with postgres_database.reading() as session:
        session.add(PropertyRow(name="x", value="y"))
    assert "x" not in _read(postgres_database)
