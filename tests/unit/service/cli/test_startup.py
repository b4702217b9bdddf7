"""Commands import only what they need: looking at the queue must not wait for the libraries of a server or a simulator."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from service.db.migrate import upgrade

HEAVY = {"numpy", "scipy", "sklearn", "xgboost", "pandas", "fastapi", "starlette", "sqlalchemy", "sqlmodel", "uvicorn"}


def imported(*arguments: str) -> set[str]:
    """Modules that a command has imported when it ends."""
    code = (
        "import sys\nfrom service.cli.main import app\n"
        f"try:\n    app({list(arguments)!r})\n"
        "finally:\n    print(*sys.modules, file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(ran.stderr.split())


def test_the_version_needs_no_library_but_typer() -> None:
    assert imported("--version") & (HEAVY | {"httpx", "rich", "pydantic", "yaml", "service.client"}) == set()


def test_a_command_without_standard_output_ends_as_usual() -> None:
    command = [sys.executable, "-m", "service.cli.main"]
    for arguments, code, errors in ((["--version"], 0, ""), (["--no-such"], 2, "No such option")):
        closed = ["sh", "-c", 'exec "$0" "$@" >&-', *command, *arguments]
        ran = subprocess.run(closed, stderr=subprocess.PIPE, text=True, timeout=60.0)
        assert ran.returncode == code, ran.stderr
        assert errors in ran.stderr
        assert "Traceback" not in ran.stderr
        assert bool(ran.stderr) == bool(errors)


def test_characters_that_the_terminal_cannot_show_are_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "ünï 漢🚀"
    environment = os.environ | {"SOONER_DATA_DIR": str(folder), "PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "1"}
    for arguments in ([], ["--no-such-ü漢"]):
        command = [sys.executable, "-m", "service.cli.main", "config", "show", *arguments]
        ran = subprocess.run(command, env=environment, capture_output=True, encoding="latin-1", timeout=60.0)
        assert "Traceback" not in ran.stderr
        assert (ran.returncode, "ünï ??" in ran.stdout) == ((2, False) if arguments else (0, True)), ran.stderr


def test_the_queue_needs_no_settings() -> None:
    assert imported("q", "--help") & (HEAVY | {"service.config.settings", "yaml"}) == set()


@pytest.mark.parametrize("arguments", [("q", "--help"), ("--help",), ("job", "--help"), ("sim", "--help")])
def test_help_needs_no_heavy_library(arguments: tuple[str, ...]) -> None:
    light = HEAVY - ({"numpy"} if arguments[0] == "sim" else set())
    assert imported(*arguments) & light == set()


def test_a_simulation_needs_no_http() -> None:
    assert imported("sim", "run", "--help") & (HEAVY - {"numpy"} | {"httpx", "service.client"}) == set()


def test_a_start_on_a_current_database_waits_for_no_library_of_later_work(tmp_path: Path) -> None:
    """Of migrations, requests to other services, and training. A standby takes the HTTP client before its first request."""
    url = f"sqlite:///{tmp_path / 'sooner.db'}"
    upgrade(url)
    code = (
        "import sys, service.cli.admin, service.server.app\nfrom service.db import migrate\n"
        f"print(migrate.state({url!r}))\nprint(*sys.modules)\n"
        "service.server.app.forwarding.prepare()\nprint('httpx' in sys.modules)"
    )
    state, modules, prepared = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    later = {"alembic", "httpx", "service.client", "sklearn", "xgboost", "quantile_forest", "skops", "scipy", "pandas"}
    assert state == "current"
    assert "fastapi" in modules.split()
    assert later.isdisjoint(modules.split())
    assert prepared == "True"
