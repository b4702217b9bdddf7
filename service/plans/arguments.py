"""The flags of a command line as people paste it: a launcher, a script, its arguments, or the arguments alone."""

import re
import shlex
from collections.abc import Iterable, Iterator
from difflib import get_close_matches

from policies.suggestion import did_you_mean
from service.plans.values import MISTYPED, ReadError, Values

TEXT_BYTES_MAX = 256 << 10
_OVERRIDE = re.compile(r"\+{0,2}([a-z][a-z0-9_]*(?:\.[a-z][a-z0-9_]*)*)=(.*)", re.DOTALL)
"""A Hydra override of Megatron-Bridge: ``model.tensor_model_parallel_size=8``."""

_ARRAY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=\(")
_UNSET = {"none", "null"}
_VARIABLE = re.compile(r"\$\{?[A-Za-z_]\w*(\[[@*]\])?\}?")

_PLANNED = re.compile(
    r"parallel-(size|degree)|(tensor|pipeline|context|sequence|expert|data)-parallel$|(^|-)(tp|pp|cp|ep|sp|dp)-(size|degree)"
    r"|offload|shard|recompute|checkpoint-activations|batch-size|accumulation|virtual|num-layers|zero-stage|fsdp"
)
_HARMLESS = re.compile(
    r"eval|inference|check-weight-hash|decrease-batch|ckpt|retro|distribute-saved|microbatch-group|fsdp-double"
)
"""Flags whose names are like those of a plan, but which change neither its degrees nor its memory."""


class Arguments(Values):
    """Flags by name with hyphens, without leading ones: ``--nproc_per_node 8`` is ``nproc-per-node``.

    A flag given twice has its last value, as argparse has it. A value that several words follow is the first one;
    :meth:`every` gives all. ``positional`` are the words that belong to no flag, or that follow the value of one.
    """

    def __init__(self, flags: dict[str, list[str]], written: dict[str, str], positional: list[str]) -> None:
        super().__init__({name: values[0] if values else "" for name, values in flags.items()}, labels=written)
        self._flags = flags
        self.positional = positional

    def every(self, key: str) -> list[str]:
        """All words after a flag."""
        self.raw(key)
        return self._flags.get(key, [])

    def flag(self, key: str) -> bool:
        """True where the flag stands alone or with a true value. A path or module after it is not its value."""
        value = self.raw(key)
        if isinstance(value, str) and re.search(r"[./]", value):
            return True
        return super().flag(key)

    def label(self, key: str) -> str:
        return self._labels.get(key, f"--{key}")

    def not_understood(self, known: Iterable[str]) -> Iterator[str]:
        """A line for each unread flag that is named like a part of a plan, and for each word that hides flags."""
        words = list(known)
        for name in self.unread():
            mistyped = get_close_matches(name, words, 1, MISTYPED)
            if (mistyped or _PLANNED.search(name)) and not _HARMLESS.search(name):
                yield f"{self.label(name)} is not understood{did_you_mean(name, words)}"
        for word in self.positional:
            if _VARIABLE.fullmatch(word):
                yield f"{word} is a shell variable: its flags are not read"


def arguments(text: str) -> Arguments:
    """Raises :class:`ReadError` for a text that is too long, or that a shell could not split into words."""
    if len(text.encode("utf-8", "replace")) > TEXT_BYTES_MAX:
        raise ReadError("arguments", f"are longer than {TEXT_BYTES_MAX:,} bytes")
    lines = re.sub(r"(?m)^\s*#.*$", "", text.replace("\\\r\n", " ").replace("\\\n", " "))
    try:
        words = shlex.split(lines)
    except ValueError as error:
        raise ReadError("arguments", f"cannot be split into words: {error}") from None
    flags: dict[str, list[str]] = {}
    written: dict[str, str] = {}
    positional: list[str] = []
    current: list[str] | None = None
    for word in words:
        if word in ("(", ")") or _ARRAY.fullmatch(word):
            current = None
        elif word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            current = [value] if equals else []
            key = name.replace("_", "-")
            flags[key], written[key] = current, f"--{name}"
            if equals:
                current = None
        elif found := _OVERRIDE.fullmatch(word):
            key = found[1].rpartition(".")[2].replace("_", "-")
            written[key] = found[1]
            if found[2].lower() not in _UNSET:
                flags[key] = [found[2]]
            current = None
        else:
            positional.append(word)
            if current is not None:
                current.append(word)
    return Arguments(flags, written, positional)
