"""Naming jobs: ``7``, ``1,3,5-8``, ``last``, ``all``."""

from collections.abc import Sequence
from typing import Annotated

import typer

from service.cli.fail import EXIT_FAILED, fail
from service.client import UNFINISHED_STATES, Client
from service.client_documents import Job

RANGE_MAX = 10_000
"""Jobs that one range may name: a slip of the finger must not ask for millions."""
ID_MAX = 2**31 - 1

SelectorArgument = Annotated[list[str], typer.Argument(metavar="JOBS", help="Job numbers: 7, 1,3,5-8, last or all.")]
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="A job number, or last.")]


class SelectorError(ValueError):
    """A text that names no jobs; the message is one line."""


def parse(text: str) -> list[int | str]:
    """The parts of a selector in their order, numbers once each; words (``last``, ``all``) as they are."""
    parts: list[int | str] = []
    for part in text.split(","):
        word = part.strip()
        parts += [word.lower()] if word.lower() in ("last", "all") else _numbers(word)
    return list(dict.fromkeys(parts))


def _numbers(text: str) -> list[int]:
    first, dash, last = text.partition("-")
    low = _number(first, text)
    high = _number(last, text) if dash else low
    if high < low:
        raise SelectorError(f"{text!r}: the range ends before it begins")
    if high - low >= RANGE_MAX:
        raise SelectorError(f"{text!r}: a range names at most {RANGE_MAX} jobs")
    return list(range(low, high + 1))


def _number(text: str, whole: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 10 and 1 <= int(text) <= ID_MAX):
        raise SelectorError(f"{whole!r} names no jobs; write 7, 1,3,5-8, last or all")
    return int(text)


def select(client: Client, texts: Sequence[str], *, unfinished: bool = False) -> list[int]:
    """The job numbers that the selectors name. ``all`` means all jobs, or all unfinished ones for commands that act.

    Numbers are not looked up. Ends the command for a selector that names nothing.
    """
    try:
        parts = [part for text in texts for part in parse(text)]
    except SelectorError as error:
        fail(str(error))
    found: dict[int, None] = {}
    for part in parts:
        if part == "all":
            states = UNFINISHED_STATES if unfinished else ()
            found |= dict.fromkeys(sorted(job["id"] for job in client.jobs(states=states)))
        elif part == "last":
            found[newest(client)["id"]] = None
        else:
            found[int(part)] = None
    return list(found)


def select_one(client: Client, text: str) -> int:
    """The one job that a selector names."""
    found = select(client, [text])
    if len(found) != 1:
        fail(f"{text!r} names {len(found)} jobs; this command takes one")
    return found[0]


def newest(client: Client) -> Job:
    """The job that was submitted last; ends the command where there is none."""
    jobs = client.jobs(limit=1)
    if not jobs:
        fail("there are no jobs yet", EXIT_FAILED)
    return jobs[0]
