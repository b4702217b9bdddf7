"""A tree of commands whose modules are imported when a command is called, and options that commands share.

Looking at the queue must not wait for the libraries of the database, the web server or the simulator.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from importlib import import_module
from typing import Annotated, Any, Final, NamedTuple, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from service.domain.type_faults import in_our_words, with_value

MARKUP: Final = "markdown"
"""How help texts are read: in rich's own markup "p50 [p10-p90]" loses its brackets."""


class Group(NamedTuple):
    """A group of commands: its help, and by name each command as ``module:function``."""

    help: str
    commands: "Mapping[str, str | Group]"


class Only(NamedTuple):
    """Marks a parameter that takes some options of a dataclass and the defaults of the others."""

    names: tuple[str, ...]


class _Commands(MutableMapping[str, Any]):
    """The commands of a group by name; a command is imported when it is looked up."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = _load(name, self._group.commands[name])
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._group.commands)

    def __len__(self) -> int:
        return len(self._group.commands)


class CommandGroup(TyperGroup):
    """A command of commands. ``group`` lists them."""

    group = Group("", {})

    def __init__(self, group: Group | None = None, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _Commands(group or self.group)

    def list_commands(self, ctx: Any) -> list[str]:
        """Names in the order of the tree; nothing is imported for it."""
        return list(self.commands)


class _Command(TyperCommand):
    """A command whose errors about values do not speak of the library that found them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As usual."""
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            from pydantic import ValidationError  # imported by now where it found the error

            error.message = in_our_words(error.message)
            if isinstance(error.__cause__, ValidationError):
                error.message = with_value(error.message, error.__cause__.errors()[0]["input"])
            raise


def function_of(target: str) -> Callable[..., Any]:
    """The function behind ``module:function``, with an option a parameter."""
    module, _, name = target.partition(":")
    return expanded(getattr(import_module(module), name))


def _load(name: str, entry: str | Group) -> Any:
    if isinstance(entry, Group):
        return CommandGroup(entry, name=name, help=entry.help, no_args_is_help=True, rich_markup_mode=MARKUP)
    alone = typer.Typer(add_completion=False, rich_markup_mode=MARKUP, pretty_exceptions_enable=False)
    alone.command(name, cls=_Command)(function_of(entry))
    return typer.main.get_command(alone)


def expanded(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with each parameter that is a dataclass of options replaced by those options."""
    hints = get_type_hints(command, include_extras=True)
    shared: dict[str, tuple[type, list[str]]] = {}
    parameters = []
    for parameter in inspect.signature(command).parameters.values():
        kind, names = _options(hints[parameter.name])
        if kind is None:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[parameter.name]))
        else:
            shared[parameter.name] = kind, names
            parameters += _parameters(kind, names)

    @wraps(command)
    def call(**values: Any) -> Any:
        built = {name: kind(**{each: values.pop(each) for each in names}) for name, (kind, names) in shared.items()}
        return command(**values, **built)

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def _options(hint: Any) -> tuple[type | None, list[str]]:
    """The dataclass of a parameter's options and the names of those it takes; None for a parameter that is one option."""
    kind, *marks = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    if not (isinstance(kind, type) and is_dataclass(kind)):
        return None, []
    chosen = [mark.names for mark in marks if isinstance(mark, Only)]
    return kind, list(chosen[0]) if chosen else [each.name for each in fields(kind)]


def _parameters(kind: type, names: list[str]) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    defaults = {each.name: each.default for each in fields(kind)}
    for name in names:
        default = inspect.Parameter.empty if defaults[name] is MISSING else defaults[name]
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[name])
