"""The page of the command line, from the commands' own signatures."""

import inspect
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from typer.models import ArgumentInfo, OptionInfo

from docs.generate.markdown import code, join, opening, table
from service.cli import main
from service.cli.commands import Group, function_of
from service.cli.options import above_zero

_INTRODUCTION = """
Commands have the form `sooner NOUN VERB`. `--help` (or `-h`) works after every part of a command. `sooner --version` prints the
version. `sooner --install-completion` installs shell completion (`--show-completion` prints it).

Exit codes: 0 done, 1 the operation failed, 2 wrong usage or input, or a full disk. With `--json` standard output is one
JSON document; notes, progress and errors go to standard error. `NO_COLOR` turns colours off.

Jobs are selected by number: `7`, `1,3,5-8`, `last`, `all` (for commands that change jobs: all unfinished ones).

Commands find the service of this machine by themselves. `SOONER_URL` sets another address and `SOONER_TOKEN` its token. The token
file of this machine is never sent elsewhere. With `--host`, `--port` or `--data-dir` `sooner serve` prints what to export:
other commands do not know these options.
"""


class Parameter(NamedTuple):
    """One argument or option of a command. ``names`` as typed; ``default`` is None where it is required or left out."""

    names: tuple[str, ...]
    value: str
    default: str
    required: bool
    help: str
    is_option: bool


class Command(NamedTuple):
    """A command with the words that call it."""

    words: str
    help: str
    parameters: tuple[Parameter, ...]


def commands() -> list[Command]:
    """Every command in the order of ``sooner --help``."""
    return list(_commands("sooner", main.TREE))


def page() -> str:
    """``reference/cli.md``."""
    lines = opening("Command line", "`service.cli`", _INTRODUCTION)
    for command in commands():
        lines += [f"## {command.words}", "", command.help, "", "```text", _usage(command), "```", ""]
        for kind, of_options in (("Argument", False), ("Option", True)):
            rows = [_row(each) for each in command.parameters if each.is_option is of_options]
            lines += table((kind, "Value", "Default", "Meaning"), rows)
    return join(lines)


def _row(parameter: Parameter) -> tuple[str, str, str, str]:
    names = ", ".join(map(code, parameter.names))
    default = "required" if parameter.required else code(parameter.default)
    return names, parameter.value, default, parameter.help


def _usage(command: Command) -> str:
    words = [command.words]
    for each in command.parameters:
        if not each.is_option:
            words.append(each.names[0] if each.required else f"[{each.names[0]}]")
    if any(each.is_option for each in command.parameters):
        words.append("[OPTIONS]")
    return " ".join(words)


def _commands(words: str, group: Group) -> Iterator[Command]:
    for name, entry in group.commands.items():
        if isinstance(entry, Group):
            yield from _commands(f"{words} {name}", entry)
        else:
            callback = function_of(entry)
            yield Command(f"{words} {name}", _first_words(callback), tuple(_parameters(callback)))


def _first_words(callback: Callable[..., Any]) -> str:
    return inspect.cleandoc(callback.__doc__ or "")


def _parameters(callback: Callable[..., Any]) -> Iterator[Parameter]:
    hints = get_type_hints(callback, include_extras=True)
    for name, parameter in inspect.signature(callback).parameters.items():
        kind, info = _split(hints[name])
        if isinstance(info, OptionInfo):
            names = _names(info) or ("--" + name.replace("_", "-"),)
        elif isinstance(info, ArgumentInfo):
            names = (info.metavar or name.upper(),)
        else:
            raise TypeError(f"{callback.__qualname__}: {name} is neither an option nor an argument")
        required = parameter.default is inspect.Parameter.empty
        default = "" if required or parameter.default in (None, False) else _default(parameter.default)
        yield Parameter(names, _value(kind, info), default, required, info.help or "", isinstance(info, OptionInfo))


def _names(info: OptionInfo) -> tuple[str, ...]:
    """The long form first. Inside ``Annotated`` Typer takes what stands first for a default, and knows better later."""
    first = (info.default,) if isinstance(info.default, str) else ()
    return tuple(sorted((*first, *(info.param_decls or ())), key=len, reverse=True))


def _split(hint: Any) -> tuple[Any, Any]:
    """The type without "or nothing", and Typer's description of it."""
    assert get_origin(hint) is Annotated, hint
    kind, info = get_args(hint)[:2]
    if get_origin(kind) in (Union, UnionType):
        kind = next(each for each in get_args(kind) if each is not NoneType)
    return kind, info


def _value(kind: Any, info: OptionInfo | ArgumentInfo) -> str:
    """What to write after the name: empty for a switch."""
    if kind is bool:
        return ""
    repeated = get_origin(kind) is list
    word = {int: "whole number", float: "number", Path: "path"}.get(get_args(kind)[0] if repeated else kind, "text")
    if info.metavar and isinstance(info, OptionInfo):
        word = code(info.metavar)
    if info.min is not None and info.max is not None:
        word += f", {info.min:.15g} to {info.max:.15g}"
    elif info.min is not None:
        word += f", at least {info.min:g}"
    elif info.callback is above_zero:
        word += ", above 0"
    return word


def _default(value: object) -> str:
    return str(value.value) if isinstance(value, Enum) else f"{value:g}" if isinstance(value, float) else str(value)
