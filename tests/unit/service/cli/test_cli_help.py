"""``--help`` says what the code says: no part of a text is taken for markup and lost."""

import re

import pytest

from docs.generate import cli
from service.cli.main import app
from tests.unit.service.cli.cli_world import RUNNER

TEXTS = [
    (command.words, text)
    for command in cli.commands()
    for text in (command.help, *(parameter.help for parameter in command.parameters))
    if "[" in text
]


def _words(text: str) -> str:
    """Letters alone: lines break anywhere, and boxes are drawn around them."""
    return re.sub(r"[^\w\[\]-]", "", text)


@pytest.mark.parametrize(("words", "text"), TEXTS)
def test_brackets_are_shown(words: str, text: str) -> None:
    shown = RUNNER.invoke(app, [*words.split()[1:], "--help"], env={"COLUMNS": "400", "NO_COLOR": "1"}).stdout
    bracketed = re.findall(r"\S*\[[^\]]*\]", text)
    assert bracketed
    assert all(_words(part) in _words(shown) for part in bracketed)


def test_there_are_some() -> None:
    assert {words for words, _ in TEXTS} >= {"sooner forecast", "sooner sim compare"}


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("submit", "Did you mean 'sooner job submit'?"),
        ("cancel", "Did you mean 'sooner job cancel' or 'sooner reservation cancel'?"),
        ("serv", "Did you mean 'serve'"),
    ],
)
def test_a_command_that_is_only_in_a_group_is_named_with_it(typed: str, meant: str) -> None:
    result = RUNNER.invoke(app, [typed, "3"], env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert result.exit_code == 2
    assert f"No such command '{typed}'. {meant}" in result.stderr


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (
            ("key", "create", "--role", "king"),
            "Invalid value for '--role': 'king' is not one of 'viewer', 'submitter', 'operator', 'admin'.",
        ),
        (("usage", "--from", "May"), "Invalid value for '--from': 'May' does not match the formats '%Y-%m-%d'."),
        (("audit", "--limit", "0"), "Invalid value for '--limit': must be at least 1, not 0"),
        (
            ("job", "plan", "--gpus", "1000001"),
            "Invalid value for '--gpus' / '-g': must be at most 1000000, not 1000001",
        ),
        (("webhook", "remove", "0"), "Invalid value for 'WEBHOOK': must be at least 1, not 0"),
        (("audit", "--limit", "1.5"), "Invalid value for '--limit': must be a whole number, not 1.5"),
        (("job", "submit", "--memory-gib", "x"), "Invalid value for '--memory-gib': must be a number, not 'x'"),
        (
            ("history", "import", "w.csv", "--start", "May"),
            "Invalid value for '--start': must be a time in ISO 8601, not 'May'",
        ),
    ],
)
def test_a_value_that_cannot_be_is_told_without_the_words_of_a_library(typed: tuple[str, ...], told: str) -> None:
    result = RUNNER.invoke(app, typed, env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert result.exit_code == 2
    assert f"│ {told} " in result.stderr
