"""Fixtures that several folders of tests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from service.db.migrate import upgrade
from service.db.session import Database, open_database


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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many tests on real traces ran: without the traces they skip, and a green run then says less."""
    counts = {
        outcome: sum(1 for report in terminalreporter.stats.get(outcome, ()) if "traces" in report.keywords)
        for outcome in ("passed", "failed", "skipped")
    }
    if any(counts.values()):
        ran = counts["passed"] + counts["failed"]
        terminalreporter.write_line(f"tests on real traces: {ran} ran, {counts['skipped']} skipped")
