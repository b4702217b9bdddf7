"""The command line against the real API and a real SQLite file, without a socket and without a running loop."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from service.cli import connect
from service.cli.commands import CommandGroup, Group
from service.cli.main import TREE, app
from service.client import Client
from tests.api.client import AppTransport
from tests.api.conftest import World, app_of, make_world

RUNNER = CliRunner()
PLAIN: dict[str, Any] = {"name": "digits", "command": ["python", "digits.py"], "gpus": 2, "user": "ada"}


def app_of_group(name: str) -> typer.Typer:
    """A group of commands as an application of its own: ``run`` instead of ``sim run``."""
    commands = TREE.commands[name]
    assert isinstance(commands, Group)
    application = typer.Typer(cls=type("Alone", (CommandGroup,), {"group": commands}), pretty_exceptions_enable=False)
    application.callback()(lambda: None)
    return application


@dataclass
class CliWorld:
    """What the commands find, and how to run them."""

    world: World
    client: Client

    def run(self, *arguments: str, text: str | None = None) -> Result:
        """One command."""
        return RUNNER.invoke(app, list(arguments), input=text)

    def submit(self, **changes: Any) -> int:
        """A job; its number."""
        return self.client.jobs.submit_many(PLAIN | changes)[0]["id"]


@contextmanager
def cli_world(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CliWorld]:
    """A world whose commands reach it under the address and with the token file of an ordinary installation."""
    world = make_world(folder)
    transport = AppTransport(app_of(world, "command line"))
    monkeypatch.delenv("SOONER_URL", raising=False)
    monkeypatch.setenv("SOONER_DATA_DIR", str(folder))
    (folder / "token").write_text(world.token + "\n")
    monkeypatch.setattr(connect, "Client", partial(Client, transport=transport))
    with Client("http://127.0.0.1:8765", world.token, transport=transport) as client:
        yield CliWorld(world, client)
    world.database.close()
