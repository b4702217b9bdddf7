"""The flags of a command line as people paste it: a launcher, a script, its arguments, or the arguments alone."""

import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches

from service.plans.script import END, words_of
from service.plans.values import MISTYPED, Suggestions, Values

_OVERRIDE = re.compile(r"\+{0,2}([a-z][a-z0-9_]*(?:\.[a-z][a-z0-9_]*)*)=(.*)", re.DOTALL)
"""A Hydra override of Megatron-Bridge: ``model.tensor_model_parallel_size=8``."""

_UNSET = {"none", "null"}
_TRUTHS = ("true", "false", "yes", "no", "on", "off", "1", "0")
_TRUTH_LIKENESS = 0.7
"""A word this close to a truth value is taken for a mistyped one."""

_VARIABLE = re.compile(r"\$\{?[A-Za-z_]\w*(\[[@*]\])?\}?")
_HOLDS_FLAGS = re.compile(r"ARG|CMD|CONFIG|FLAG|OPT|PARAM|\[", re.IGNORECASE)
"""What a variable's name says, or its form as an array."""

_PLANNED = re.compile(
    r"parallel-(size|degree)|(tensor|pipeline|context|sequence|expert|data)-parallel$|(^|-)(tp|pp|cp|ep|sp|dp)-(size|degree)"
    r"|offload|shard|recompute|checkpoint-activations|batch-size|accumulation|virtual|num-layers|zero-stage|fsdp"
)
_HARMLESS = re.compile(
    r"eval|inference|check-weight-hash|decrease-batch|ckpt|retro|distribute-saved|microbatch-group|fsdp-double"
)
"""Flags whose names are like those of a plan, but which change neither its degrees nor its memory."""


COMPARED_MAX = 100
"""Flags of one command line that are compared with known ones: a comparison takes a tenth of a millisecond or more."""


class Arguments(Values):
    """Flags by name with hyphens, without leading ones: ``--nproc_per_node 8`` is ``nproc-per-node``.

    A flag given twice has its last value, as argparse has it. A value that several words follow is the first one;
    :meth:`every` gives all. ``positional`` are the words that belong to no flag, or that follow the value of one. ``hiding``:
    shell variables that may hold flags.
    """

    def __init__(
        self, flags: dict[str, list[str]], written: dict[str, str], positional: list[str], hiding: list[str]
    ) -> None:
        super().__init__({name: values[0] if values else "" for name, values in flags.items()}, labels=written)
        self._flags = flags
        self._hiding = hiding
        self.positional = positional

    def every(self, key: str) -> list[str]:
        """All words after a flag."""
        self.raw(key)
        return self._flags.get(key, [])

    def flag(self, key: str) -> bool:
        """True where the flag stands alone or with a true value. A word after it that is no truth value is not its value."""
        value = self.raw(key)
        if isinstance(value, str) and not get_close_matches(value.lower(), _TRUTHS, 1, _TRUTH_LIKENESS):
            return True
        return super().flag(key)

    def label(self, key: str) -> str:
        return self._labels.get(key, f"--{key}")

    def not_understood(self, known: Iterable[str]) -> Iterator[str]:
        """A line for each unread flag that is named like a part of a plan, and for each word that hides flags."""
        words = list(known)
        suggestions = Suggestions(words)
        flags = [name for name in self.unread() if not _HARMLESS.search(name)]
        for position, name in enumerate(flags):
            if _PLANNED.search(name) or (position < COMPARED_MAX and get_close_matches(name, words, 1, MISTYPED)):
                yield f"{self.label(name)} is not understood{suggestions.near(name)}"
        for word in self._hiding:
            yield f"{word} is a shell variable: its flags are not read"


def arguments(text: str) -> Arguments:
    """Raises :class:`ReadError` for a text that is too long, or that a shell could not split into words."""
    flags: dict[str, list[str]] = {}
    written: dict[str, str] = {}
    positional: list[str] = []
    hiding: list[str] = []
    current: list[str] | None = None
    for word in words_of(text):
        if word == END:
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
            # The word after a flag is its value, unless its name says otherwise: --bf16 $EXTRA_ARGS.
            if _VARIABLE.fullmatch(word) and (current != [] or _HOLDS_FLAGS.search(word)):
                hiding.append(word)
            if current is not None:
                current.append(word)
    return Arguments(flags, written, positional, hiding)
