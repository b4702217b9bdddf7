"""Small YAML files written by people: read once, checked key by key, with one clear line for what is wrong.

Knows no framework. Whoever parses a file of its own gives its format's name to the error that leaves it.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

FILE_BYTES_MAX = 16 * 1024 * 1024
"""Size of a file, enough for every server of the largest cluster by name."""
_NAME_LENGTH_MAX = 255


class YamlFileError(ValueError):
    """A file that cannot be used. ``str()`` names the file and the key (``servers[1].gpus: ...``)."""

    def __init__(self, key: str, message: str, file: str = "") -> None:
        # A key may be any text: the message stays one line.
        shown = key if key.isprintable() else repr(key)
        super().__init__(": ".join(part for part in (file, shown, message) if part))
        self.key = key
        self.message = message
        self.file = file


def read_yaml(path: Path) -> object:
    """What the file holds; raises :class:`YamlFileError` (key empty) for one that cannot be read or is not YAML."""
    try:
        with path.open("rb") as stream:
            text = stream.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise YamlFileError("", error.strerror or str(error)) from error
    if len(text) > FILE_BYTES_MAX:
        raise YamlFileError("", f"is larger than {FILE_BYTES_MAX} bytes")
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise YamlFileError("", f"is not YAML: {' '.join(str(error).split())}") from error


def mapping(key: str, data: object, known: set[str]) -> Mapping[str, Any]:
    """A mapping with no other keys than these."""
    if not isinstance(data, Mapping):
        raise YamlFileError(key, f"must be a mapping, not {_kind(data)}")
    for name in data:
        if name not in known:
            at = f"{key}.{name}" if key else str(name)
            raise YamlFileError(at, f"unknown key; the keys are {', '.join(sorted(known))}")
    return data


def schema(top: Mapping[str, Any], name: str) -> None:
    """The file says that it is of this format."""
    if top.get("schema") != name:
        raise YamlFileError("schema", f"must be {name!r}, not {top.get('schema')!r}")


def word(key: str, value: object) -> str:
    """Text, or a number that YAML made of what was meant as text (a rack called 1)."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value or len(value) > _NAME_LENGTH_MAX or not value.isprintable():
        raise YamlFileError(key, f"must be text of 1 to {_NAME_LENGTH_MAX} characters, not {_kind(value)}")
    return value


def whole(key: str, value: object, maximum: int) -> int:
    """A whole number from 1 on."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= maximum:
        raise YamlFileError(key, f"must be a whole number from 1 to {maximum}, not {_kind(value)}")
    return value


def positive(key: str, value: object) -> float:
    """A finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise YamlFileError(key, f"must be a positive number, not {_kind(value)}")
    return float(value)


def _kind(value: object) -> str:
    """What was found, short enough for one line of an error."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
