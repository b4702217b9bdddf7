"""The command line against the real API and a real SQLite file, without a socket and without a running loop."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from fastapi import FastAPI
from typer.testing import CliRunner, Result

from service.api.app import create_app
from service.api.authenticate import Authenticator
from service.api.idempotency import Keys
from service.api.permissions import Owners
from service.cli import connect
from service.cli.main import app
from service.client import Client
from tests.api.client import AppTransport
from tests.api.conftest import World, make_world

RUNNER = CliRunner()
PLAIN: dict[str, Any] = {"name": "digits", "command": ["python", "digits.py"], "gpus": 2, "user": "ada"}


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
        return self.client.submit(PLAIN | changes)[0]["id"]


@cache
def _shared_app() -> FastAPI:
    """One application for all tests: building its routes takes longer than most of them."""
    with TemporaryDirectory() as folder:
        world = make_world(Path(folder))
        world.database.close()
        return create_app(world.dependencies())


@contextmanager
def cli_world(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CliWorld]:
    """A world whose commands reach it under the address and with the token file of an ordinary installation."""
    world = make_world(folder)
    shared = _shared_app()
    shared.state.dependencies = world.dependencies()
    shared.state.owners = Owners(world.database)
    shared.state.authenticator = Authenticator(world.database, world.settings, world.token, lambda: world.now_s)
    shared.state.idempotency_keys = Keys(world.database, lambda: world.now_s, world.settings.idempotency_kept_s)
    transport = AppTransport(shared)
    monkeypatch.delenv("SOONER_URL", raising=False)
    monkeypatch.setenv("SOONER_DATA_DIR", str(folder))
    (folder / "token").write_text(world.token + "\n")
    monkeypatch.setattr(connect, "Client", partial(Client, transport=transport))
    with Client("http://127.0.0.1:8765", world.token, transport=transport) as client:
        yield CliWorld(world, client)
    world.database.close()
