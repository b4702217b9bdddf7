"""Naming jobs: ``7``, ``1,3,5-8``, ``last``, ``all``; elements of an array: ``42[3]``, ``42[0-9,15]``, ``42[*]``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from policies.model.ids import ID_MAX
from service.cli import completion
from service.cli.fail import EXIT_FAILED, fail
from service.client import UNFINISHED_STATES, Client

if TYPE_CHECKING:
    from service.wire.jobs import JobDocument


RANGE_MAX = 10_000
"""Jobs that one range may name, so that a typing mistake does not ask for millions."""
LONGEST = 10
"""Digits of the largest number."""

_HELP = "Job numbers: 7, 1,3,5-8, last or all; elements of an array: 42[3], 42[0-9], 42[*]."
SelectorArgument = Annotated[list[str], typer.Argument(metavar="JOBS", help=_HELP, autocompletion=completion.jobs)]
JobArgument = Annotated[
    str, typer.Argument(metavar="JOB", help="A job number, an element 42[3], or last.", autocompletion=completion.jobs)
]

_COMMA = re.compile(r",(?![^\[\]]*\])")
"""A comma outside brackets."""
_ELEMENTS = re.compile(r"(?P<array>[^\[\]]+)\[(?P<indices>[^\[\]]+)\]")


class SelectorError(ValueError):
    """A text that names no jobs; the message is one line."""


class RangeError(SelectorError):
    """A range of numbers that names none, or too many."""


class Elements(NamedTuple):
    """Elements of a job array by their indices; None names them all."""

    array: int
    indices: tuple[int, ...] | None


Part = int | str | Elements


def parse(text: str) -> list[Part]:
    """The parts of a selector in their order, numbers once each; words (``last``, ``all``) as they are."""
    parts: list[Part] = []
    for part in _COMMA.split(text):
        word = part.strip()
        if found := _ELEMENTS.fullmatch(word):
            parts.append(_elements(found["array"], found["indices"], word))
        else:
            parts += [word.lower()] if word.lower() in ("last", "all") else _range(word, 1)
    return list(dict.fromkeys(parts))


def _elements(array: str, indices: str, whole: str) -> Elements:
    number = _number(array, whole, 1)
    return Elements(number, None if indices.strip() == "*" else tuple(dict.fromkeys(parse_indices(indices))))


def parse_indices(text: str) -> list[int]:
    """``0-9,15`` as numbers in their order. Raises :class:`SelectorError`."""
    return [index for part in text.split(",") for index in _range(part.strip(), 0)]


def _range(text: str, least: int) -> list[int]:
    first, dash, last = text.partition("-")
    low = _number(first, text, least)
    high = _number(last, text, least) if dash else low
    if high < low:
        raise RangeError(f"{text!r}: the range ends before it begins")
    if high - low >= RANGE_MAX:
        raise RangeError(f"{text!r}: a range names at most {RANGE_MAX:,} jobs")
    return list(range(low, high + 1))


def _number(text: str, whole: str, least: int) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= LONGEST and least <= int(text) <= ID_MAX):
        raise SelectorError(f"{whole!r} is not a job; write 7, 1,3,5-8, 42[0-9], 42[*], last or all")
    return int(text)


def parts_of(texts: Sequence[str]) -> list[Part]:
    """The parts of all selectors of a command; ends it for one that names nothing."""
    try:
        return [part for text in texts for part in parse(text)]
    except SelectorError as error:
        fail(str(error))


def select(client: Client, texts: Sequence[str], *, unfinished: bool = False) -> list[int]:
    """The job numbers that the selectors name. ``all`` means all jobs, or all unfinished ones for commands that act.

    Numbers are not looked up, elements of arrays are. Ends the command for a selector that names nothing.
    """
    return numbers_of(client, parts_of(texts), unfinished=unfinished)


def numbers_of(client: Client, parts: Sequence[Part], *, unfinished: bool = False) -> list[int]:
    """The job numbers that these parts name; see :func:`select`."""
    found: dict[int, None] = {}
    for part in parts:
        if isinstance(part, Elements):
            found |= dict.fromkeys(_named(client, part, unfinished))
        elif part == "all":
            states = UNFINISHED_STATES if unfinished else ()
            found |= dict.fromkeys(sorted(job["id"] for job in client.jobs.list(states=states)))
        elif part == "last":
            found[newest(client)["id"]] = None
        else:
            found[int(part)] = None
    return list(found)


def _named(client: Client, wanted: Elements, unfinished: bool) -> list[int]:
    """The jobs of these elements. ``42[*]`` means the unfinished ones alone for commands that act."""
    everything = wanted.indices is None
    states = UNFINISHED_STATES if unfinished and everything else ()
    jobs = {job["array_index"]: job["id"] for job in client.jobs.list(array=wanted.array, states=states)}
    if wanted.indices is None:
        if not jobs and not client.jobs.list(array=wanted.array, limit=1):
            fail(f"there is no job array {wanted.array}", EXIT_FAILED)
        return sorted(jobs.values())
    missing = [index for index in wanted.indices if index not in jobs]
    if missing:
        fail(f"job array {wanted.array} has no element {missing[0]}", EXIT_FAILED)
    return [jobs[index] for index in wanted.indices]


def select_one(client: Client, text: str) -> int:
    """The one job that a selector names."""
    found = select(client, [text])
    if len(found) != 1:
        fail(f"{text!r} names {len(found)} jobs; this command takes one")
    return found[0]


def newest(client: Client) -> JobDocument:
    """The job that was submitted last; ends the command where there is none."""
    jobs = client.jobs.list(limit=1)
    if not jobs:
        fail("there are no jobs yet", EXIT_FAILED)
    return jobs[0]
