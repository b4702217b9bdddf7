"""Values of a configuration, read key by key. Each read checks type and limit; a fault names the key, the value and the limit."""

import math
import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from policies.suggestion import did_you_mean

COUNT_MAX = 10**9
"""Limit of every count: GPUs, samples, tokens, layers, units."""

LAYERS_MAX = 10_000
"""Limit of a model's layers, some of which are looked at one by one."""

SUGGESTIONS_MAX = 10
"""A search for the known word near to an unknown one may take a millisecond."""

MISTYPED = 0.9
"""Likeness to a known key above which an unknown one is taken for a mistyped one."""

AUTO = "auto"
"""What a DeepSpeed file holds where the program fills the value in."""

KEYS_MAX = 1_000
"""Limit of the keys of one mapping: each key that is not known is compared with those that are."""

_WHOLE = re.compile(r"-?[0-9]+")
_TRUE = {"true", "yes", "on", "1", ""}
_FALSE = {"false", "no", "off", "0"}
_SHOW = reprlib.Repr()
_SHOW.maxstring = 60
_SHOW.maxlevel, _SHOW.maxlist, _SHOW.maxdict = 2, 3, 3

Found = TypeVar("Found")


class Suggestions:
    """The known words near to unknown ones, for the first :data:`SUGGESTIONS_MAX` of a configuration."""

    def __init__(self, known: Iterable[str]) -> None:
        self._known = tuple(known)
        self._left = SUGGESTIONS_MAX

    def near(self, word: str) -> str:
        """As :func:`did_you_mean`; empty where enough were looked up."""
        self._left -= 1
        return did_you_mean(word, self._known) if self._left >= 0 else ""


class ReadError(ValueError):
    """A configuration that cannot be read as a plan. ``key`` is the key as its owner writes it."""

    def __init__(self, key: str, problem: str) -> None:
        shown = key if key.isprintable() and len(key) <= 100 else _SHOW.repr(key)
        super().__init__(f"{shown}: {problem}")
        self.key, self.problem = key, problem


class Values:
    """A mapping of a configuration. ``labels`` has the keys as they were written; others are shown with ``path`` before them.

    Raises :class:`ReadError` for more than :data:`KEYS_MAX` keys.
    """

    def __init__(self, content: Mapping[str, Any], path: str = "", labels: Mapping[str, str] | None = None) -> None:
        if len(content) > KEYS_MAX:
            where = path.rstrip(".") or ("arguments" if labels is not None else "configuration")
            raise ReadError(where, f"must have at most {KEYS_MAX:,} keys (got {len(content):,})")
        self.content = content
        self._path = path
        self._labels = labels or {}
        self._read: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return self.content.get(key) is not None

    def label(self, key: str) -> str:
        """The key as its owner writes it."""
        return self._labels.get(key, f"{self._path}{key}")

    def raw(self, key: str) -> Any:
        """The value as it is; None where the key is missing or null."""
        self._read.add(key)
        return self.content.get(key)

    def unread(self) -> list[str]:
        """Keys with a value that nothing has asked for."""
        return [key for key, value in self.content.items() if value is not None and key not in self._read]

    def is_auto(self, key: str) -> bool:
        return bool(self.raw(key) == AUTO)

    def count(self, key: str, least: int = 1, most: int = COUNT_MAX) -> int | None:
        """A whole number from ``least`` to ``most``; None where it is missing."""
        value = self.raw(key)
        if value is None:
            return None
        number = _whole(value)
        if number is None:
            raise self.fault(key, f"must be a whole number from {least:,} to {most:,}")
        if not least <= number <= most:
            raise self.fault(key, f"must be {least:,} to {most:,}")
        return number

    def needed(self, key: str) -> int:
        """A whole number that must be there."""
        found = self.count(key)
        if found is None:
            raise ReadError(self.label(key), "is missing")
        return found

    def flag(self, key: str) -> bool:
        """True or false; false where it is missing."""
        value = self.raw(key)
        if value is None:
            return False
        word = str(value).lower() if isinstance(value, bool | int | str) else None
        if word in _TRUE:
            return True
        if word in _FALSE:
            return False
        raise self.fault(key, "must be true or false")

    def choice(self, key: str, choices: Mapping[str, Found]) -> Found | None:
        """What the word stands for; None where it is missing. YAML reads an unquoted ``no`` as false."""
        value = self.raw(key)
        if value is None:
            return None
        word = "no" if value is False else str(value) if isinstance(value, str | int) else None
        if word is None or word not in choices:
            raise self.fault(key, f"must be one of {', '.join(choices)}")
        return choices[word]

    def text(self, key: str) -> str | None:
        """A text; None where it is missing."""
        value = self.raw(key)
        if value is not None and not isinstance(value, str):
            raise self.fault(key, "must be text")
        return value

    def words(self, key: str) -> Sequence[Any]:
        """A list; empty where it is missing."""
        value = self.raw(key)
        if value is None:
            return ()
        if not isinstance(value, list):
            raise self.fault(key, "must be a list")
        return value

    def section(self, key: str) -> "Values":
        """The mapping below a key; empty where it is missing."""
        value = self.raw(key)
        if value is None:
            return Values({}, f"{self._path}{key}.")
        if not isinstance(value, Mapping):
            raise self.fault(key, "must be a mapping of keys to values")
        return Values(value, f"{self._path}{key}.")

    def fault(self, key: str, limit: str) -> ReadError:
        """The error of a value, with the value."""
        value = self.content.get(key)
        if isinstance(value, str) and value.startswith("$"):
            return ReadError(self.label(key), f"{limit} (got the shell variable {_SHOW.repr(value)}: write its value)")
        return ReadError(self.label(key), f"{limit} (got {_SHOW.repr(value)})")


def _whole(value: Any) -> int | None:
    """The number that a value stands for; None for anything else, such as a bool or NaN."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return int(value) if math.isfinite(value) and value.is_integer() else None
    if isinstance(value, str) and len(value) <= 20:
        text = value.strip().replace("_", "")
        return int(text) if _WHOLE.fullmatch(text) else None
    return None
