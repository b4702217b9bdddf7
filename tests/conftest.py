"""Fixtures that several folders of tests share."""

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from service.db.migrate import upgrade
from service.db.session import Database, open_database
from service.runtime.garbage import is_frozen, made_to_stay
from tests.postgres import NoPostgres, PostgresServer

# How fast examples are drawn says something about the machine alone.
settings.register_profile("any_machine", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any_machine")

_PLACES = {"services": ("crash", "e2e"), "alone": ("e2e",)}
"""Where `make test` looks for the tests with a mark: collecting all folders again takes half a minute."""


def pytest_configure() -> None:
    """A shell that starts the tests in the background lets them ignore Ctrl-C, and every program that they start as well."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first: where two processes take whole files, neither is left with a long one in the end."""
    for item in items:
        for mark, folders in _PLACES.items():
            if item.get_closest_marker(mark) is not None and item.path.parent.name not in folders:
                raise pytest.UsageError(f"{item.nodeid}: tests marked {mark} must be in {' or '.join(folders)}")
    slow = {item.path for item in items if item.get_closest_marker("slow") is not None}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish() -> None:
    """Ten thousand collected tests are 700,000 objects: each full collection would take half a second to scan them."""
    with made_to_stay():
        gc.collect()


def pytest_runtest_setup() -> None:
    """Freeze them again after a test of something that lets go of frozen objects."""
    if not is_frozen():
        with made_to_stay():
            pass


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A migrated, empty SQLite file: copying it is faster than migrating for every test."""
    path = tmp_path_factory.mktemp("migrated") / "sooner.db"
    upgrade(f"sqlite:///{path}")
    return path.read_bytes()


@pytest.fixture
def database(migrated_file: bytes, tmp_path: Path) -> Iterator[Database]:
    """A database of its own for each test."""
    (tmp_path / "sooner.db").write_bytes(migrated_file)
    database = open_database(f"sqlite:///{tmp_path / 'sooner.db'}")
    yield database
    database.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server. Where there is none, what asks for it fails in CI and is skipped elsewhere."""
    try:
        server = PostgresServer()
    except NoPostgres as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    yield server
    server.close()


@pytest.fixture(scope="session")
def postgres_template(postgres: PostgresServer) -> str:
    """The name of a migrated, empty database: copying it is faster than migrating for every test."""
    name = postgres.create()
    upgrade(postgres.url(name))
    return name


@pytest.fixture
def postgres_url(postgres: PostgresServer, postgres_template: str) -> Iterator[str]:
    """The URL of a migrated PostgreSQL database of its own for each test."""
    with postgres.database(postgres_template) as url:
        yield url


@pytest.fixture
def postgres_database(postgres_url: str) -> Iterator[Database]:
    """A PostgreSQL database of its own for each test."""
    database = open_database(postgres_url)
    yield database
    database.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def any_database(request: pytest.FixtureRequest) -> Database:
    """A database of its own for each test, once of each kind."""
    name = "database" if request.param == "sqlite" else "postgres_database"
    found = request.getfixturevalue(name)
    assert isinstance(found, Database)
    return found


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many tests on real traces ran: without the traces they skip, and a green run then says less."""
    counts = {
        outcome: sum(1 for report in terminalreporter.stats.get(outcome, ()) if "traces" in report.keywords)
        for outcome in ("passed", "failed", "skipped")
    }
    if any(counts.values()):
        ran = counts["passed"] + counts["failed"]
        terminalreporter.write_line(f"tests on real traces: {ran} ran, {counts['skipped']} skipped")
