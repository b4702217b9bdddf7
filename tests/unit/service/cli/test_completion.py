"""What the Tab key offers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.generate import cli as commands
from service.cli.completion import TABLES
from service.cli.main import app
from tests.unit.service.cli.cli_world import RUNNER, CliWorld, cli_world


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CliWorld]:
    with cli_world(tmp_path, monkeypatch) as made:
        yield made


def offered(words: str) -> list[str]:
    """What bash is told for ``sooner WORDS<Tab>``."""
    line = f"sooner {words}"
    environ = {"_SOONER_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    return RUNNER.invoke(app, [], env=environ, prog_name="sooner").stdout.split()


def test_policies_states_and_columns() -> None:
    assert offered("sim run --policy fi") == ["fifo", "fifo_backfill"]
    assert offered("sim compare --policies las,fifo_") == ["las,fifo_backfill"]
    assert offered("job list --state q") == ["queued"]
    assert offered("q -o job,na") == ["job,name"]
    assert offered("job attempts 1 -o sta") == ["state", "started"]


def test_servers_and_jobs_of_the_service(cli: CliWorld) -> None:
    number = cli.submit()
    servers = [server["name"] for server in cli.client.cluster.show()["servers"]]
    assert offered("cluster drain ") == servers
    assert offered("job cancel ") == [str(number), "last", "all"]


def test_without_a_service_nothing_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOONER_URL", "http://127.0.0.1:1")
    assert offered("cluster drain ") == []
    monkeypatch.setenv("SOONER_POLCY", "fifo")
    assert offered("job cancel ") == ["last", "all"]


def test_every_command_with_columns_completes_them() -> None:
    with_columns = {
        command.words.removeprefix("sooner ")
        for command in commands.commands()
        if any("--output" in parameter.names for parameter in command.parameters)
    }
    assert set(TABLES) == with_columns
    for words in TABLES:
        assert offered(f"{words} -o ")
