"""Notifications between the services of one PostgreSQL: only wake-ups, and nobody depends on them."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from service.db import notifications
from service.db.notifications import Listener, notify_leader
from service.db.session import Database

PATIENCE_S = 60.0
LISTENERS = "FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = current_database()"
"""Those of other tests' databases may take their time to go."""


class Woken:
    """Counts wake-ups."""

    def __init__(self) -> None:
        self.count = 0
        self._changed = threading.Condition()

    def __call__(self) -> None:
        with self._changed:
            self.count += 1
            self._changed.notify_all()

    def is_more_than(self, count: int) -> bool:
        """Whether it is, before patience runs out."""
        with self._changed:
            return self._changed.wait_for(lambda: self.count > count, PATIENCE_S)


@pytest.fixture
def woken() -> Woken:
    return Woken()


@pytest.fixture
def listener(postgres_database: Database, woken: Woken) -> Iterator[Listener]:
    made = Listener(postgres_database, woken)
    assert woken.is_more_than(0), "what was committed before it listened is looked for at once"
    yield made
    made.close()


def test_whoever_listens_is_woken(listener: Listener, postgres_database: Database, woken: Woken) -> None:
    before = woken.count
    notify_leader(postgres_database)
    assert woken.is_more_than(before)


def test_a_listener_whose_connection_is_gone_listens_again(
    listener: Listener, postgres_database: Database, woken: Woken
) -> None:
    before = woken.count
    with postgres_database.writing() as session:
        ended = session.connection().execute(text(f"SELECT pg_terminate_backend(pid) {LISTENERS}"))
        assert len(ended.all()) == 1
    assert woken.is_more_than(before), "it looks at once what it may have missed"
    before = woken.count
    notify_leader(postgres_database)
    assert woken.is_more_than(before)


def test_a_listener_outlasts_a_pool_that_is_exhausted(
    postgres_database: Database, woken: Woken, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = postgres_database.engine
    connect, failures = engine.raw_connection, [PoolTimeoutError("no connection is free")]

    def raw_connection() -> Any:
        if failures:
            raise failures.pop()
        return connect()

    monkeypatch.setattr(notifications, "RETRY_S", 0.0)
    monkeypatch.setattr(engine, "raw_connection", raw_connection)
    listener = Listener(postgres_database, woken)
    try:
        assert woken.is_more_than(0)
    finally:
        listener.close()
    assert not failures


def test_nothing_is_left_of_a_listener(listener: Listener, postgres_database: Database) -> None:
    listener.close()
    listening = text(f"SELECT count(*) {LISTENERS}")
    until_s = time.monotonic() + PATIENCE_S
    while True:
        with postgres_database.reading() as session:
            left = session.connection().execute(listening).scalar()
        if not left:
            break
        assert time.monotonic() < until_s
    assert "wake-ups" not in {thread.name for thread in threading.enumerate()}


def test_nobody_is_told_and_nobody_minds(database: Database, postgres_database: Database, woken: Woken) -> None:
    """Neither a kind of database without notifications nor one that is gone raises anything."""
    notify_leader(database)
    Listener(database, woken).close()
    postgres_database.close()
    gone = Database(postgres_database.engine.execution_options())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(gone.engine.dialect, "connect", _refuse)
        notify_leader(gone)
        listener = Listener(gone, woken)
        listener.close()
    assert woken.count == 0


def _refuse(*_: object, **__: object) -> object:
    import psycopg

    raise psycopg.OperationalError("connection refused")
