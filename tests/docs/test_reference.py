"""The reference pages say what the code says, and leave nothing out."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
import typer

from docs.generate import PAGES, cli, http
from policies.lifecycle import TRANSITIONS, AttemptState, Cause, JobState
from policies.model.reasons import Reason
from policies.options import Options
from policies.registry import BUILT_IN
from service.api.problems import ProblemType
from service.cli import main
from service.config.settings import Settings, env_name

DOCS = Path(__file__).parents[2] / "docs"


def _page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def _headings(name: str) -> set[str]:
    return set(re.findall(r"^#+ (.+)$", _page(name), re.MULTILINE))


@pytest.mark.parametrize("name", sorted(PAGES))
def test_the_page_on_disk_is_what_the_code_says(name: str) -> None:
    assert _page(name) == PAGES[name](), "run: python -m docs.generate"


def test_every_setting_has_a_heading_its_variable_and_a_reason() -> None:
    page, headings = _page("reference/settings.md"), _headings("reference/settings.md")
    for name in Settings.model_fields:
        assert name in headings
        assert f"`{env_name(name)}`" in page
        assert Settings.model_fields[name].description


def test_every_policy_has_a_heading_and_every_option_a_row() -> None:
    assert set(BUILT_IN) <= _headings("reference/policies.md")
    for name, factory in BUILT_IN.items():
        section = re.split(r"^## ", _page("reference/policies.md"), flags=re.MULTILINE)
        mine = next(part for part in section if part.startswith(f"{name}\n"))
        assert {option for option in factory.options if f"| `{option}` |" not in mine} == set()
    for field in fields(Options):
        assert f"| `{field.name}` |" in _page("reference/policies.md")


def test_every_reason_has_a_heading_and_a_sentence() -> None:
    page = _page("reference/reasons.md")
    for reason in Reason:
        assert f"## {reason.value}\n\n{reason.sentence}" in page


def test_every_state_cause_and_transition_has_a_row() -> None:
    page = _page("reference/states.md")
    for word in (*JobState, *AttemptState, *Cause):
        assert re.search(rf"^\| `{word.value}` \|", page, re.MULTILINE), word
    for source, target, cause in TRANSITIONS:
        assert f"| `{source.value}` | `{target.value}` | `{cause.value}` |" in page


def test_every_route_and_document_has_a_heading() -> None:
    headings = _headings("reference/http-api.md")
    assert len(list(http.operations())) > 20
    assert {f"{method} {path}" for method, path, _ in http.operations()} <= headings
    assert set(http.openapi()["components"]["schemas"]) <= headings


def test_every_problem_type_has_a_heading() -> None:
    assert {kind.value.slug for kind in ProblemType} <= _headings("reference/problems.md")


def _leaves(words: str, app: typer.Typer) -> set[str]:
    """The commands as Typer itself knows them, found without the generator."""
    group = typer.main.get_group(app)
    found: set[str] = set()
    for name, command in group.commands.items():
        below = getattr(command, "commands", None)
        if below is None:
            options = {option for each in command.params for option in each.opts if option.startswith("-")}
            found |= {f"{words} {name} {option}" for option in options} | {f"{words} {name}"}
        else:
            for leaf, child in below.items():
                options = {option for each in child.params for option in each.opts if option.startswith("-")}
                found |= {f"{words} {name} {leaf} {option}" for option in options} | {f"{words} {name} {leaf}"}
    return found


def test_every_command_and_flag_is_documented() -> None:
    documented = {command.words for command in cli.commands()}
    for command in cli.commands():
        for parameter in command.parameters:
            documented |= {f"{command.words} {name}" for name in parameter.names if parameter.is_option}
    assert documented == _leaves("sooner", main.app)
    page = _page("reference/cli.md")
    sections = {part.partition("\n")[0]: part for part in re.split(r"^## ", page, flags=re.MULTILINE)}
    for command in cli.commands():
        for parameter in command.parameters:
            assert all(f"`{name}`" in sections[command.words] for name in parameter.names if parameter.is_option)
