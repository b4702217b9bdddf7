"""Values of a job as people write them, in an option or in a job file. Each reader raises ValueError for what it cannot read."""

import shlex
from collections import Counter
from typing import Any

from service.cli.selectors import RangeError, SelectorError, parse_indices

_SHELL_ONLY = frozenset("|&;<>()$`\n")


def words_of(text: str) -> list[str]:
    """The words of a command, split as a shell splits them. What only a shell can do is refused, not passed on as a word."""
    return shlex.split(_without_continuations(text.strip()))


def _without_continuations(text: str) -> str:
    """The text with the lines joined that end in a backslash. Raises ValueError for what a shell would act on: some characters
    outside of quotes, expansions in double quotes as well.
    """
    found: list[str] = []
    quote, escaped = "", False
    for character in text:
        acts = character in _SHELL_ONLY if not quote else quote == '"' and character in "$`"
        if escaped:
            escaped = False
            if character == "\n":
                found.pop()
                continue
            if quote and character in "$`":
                found.pop()  # shlex keeps the backslash before these
        elif acts:
            shown = "a second line" if character == "\n" else repr(character)
            raise ValueError(f"{shown} needs a shell, and none is used; write a list: [sh, -c, '...']")
        elif character == "\\" and quote != "'":
            escaped = True
        elif character in ("'", '"') and quote in ("", character):
            quote = "" if quote else character
        found.append(character)
    return "".join(found)


def array_of(text: str) -> dict[str, Any]:
    """``0-99``, ``1,5,20-30`` or ``0-99%10`` (ten at a time)."""
    indices, percent, most = text.partition("%")
    try:
        found = parse_indices(indices)
        array: dict[str, Any] = {"indices": found} | ({"max_running": int(most)} if percent else {})
    except RangeError:
        raise
    except (SelectorError, ValueError):
        raise ValueError(f"{text!r} is not a list of indices; write 0-99, 1,5,20-30 or 0-99%10") from None
    if len(set(found)) < len(found):
        twice = next(index for index, count in Counter(found).items() if count > 1)
        raise ValueError(f"{text!r}: index {twice} occurs twice")
    return array


def gpu_types_of(text: str) -> dict[str, Any]:
    """``TYPE`` or ``TYPE,TYPE,...`` as keys of the body."""
    if "," not in text:
        return {"gpu_type": text}
    return {"gpu_types": [part.strip() for part in text.split(",")]}


def topology_of(text: str) -> dict[str, Any]:
    """``LEVEL``, or ``LEVEL?`` where it is a wish."""
    return {"level": text.removesuffix("?"), "required": not text.endswith("?")}


def volume_of(text: str) -> dict[str, Any]:
    """``SOURCE``, ``SOURCE:TARGET`` or ``SOURCE:TARGET:ro``."""
    source, _, rest = text.partition(":")
    target, colon, mode = rest.partition(":")
    if not source or (colon and mode not in ("ro", "rw")):
        raise ValueError(f"{text!r} is not SOURCE, SOURCE:TARGET or SOURCE:TARGET:ro")
    return {"source": source, "target": target or source, "read_only": mode == "ro"}
