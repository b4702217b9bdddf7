"""``sooner top`` as a command: where it cannot open, and what it costs the other commands."""

from pathlib import Path

import pytest
import typer

from service.cli.top.command import top_command
from tests.unit.service.cli.cli_world import cli_world
from tests.unit.service.cli.test_startup import imported


def test_without_a_terminal_the_error_names_another_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with cli_world(tmp_path, monkeypatch) as world:
        ran = world.run("top")
    assert ran.exit_code == 2
    assert "needs a terminal" in ran.stderr
    assert "sooner q --watch" in ran.stderr
    assert ran.stdout == ""


def test_a_terminal_without_a_cursor_is_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "dumb")
    with pytest.raises(typer.Exit) as refused:
        top_command()
    assert refused.value.exit_code == 2


@pytest.mark.parametrize("arguments", [("--help",), ("top", "--help"), ("q", "--help")])
def test_no_other_command_imports_textual(arguments: tuple[str, ...]) -> None:
    assert imported(*arguments) & {"textual", "textual.app"} == set()
