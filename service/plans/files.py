"""Configuration files as mappings. Size, depth, repeated keys and numbers that JSON does not have are refused."""

import json
from pathlib import Path
from typing import Any, NoReturn

from service.domain.strict_yaml import RepeatedKeyError, StrictYamlError, parse_yaml, unique_keys
from service.plans.values import ReadError

JSON_BYTES_MAX = 4 << 20
"""A model's config.json may list the names of 21,000 classes; everything else is far below."""

YAML_BYTES_MAX = 256 << 10
"""YAML is read slowly, and a launcher's file has a page."""


def named_file(folder: Path | None, name: str) -> Path:
    """The file that a configuration names. Raises :class:`ReadError` without a folder: no file is opened then."""
    if folder is None:
        raise ReadError(name, "is a file, which is not opened here: give its content")
    return folder / name


def load_json(path: Path) -> dict[str, Any]:
    """The mapping in a JSON file. Raises :class:`ReadError` with the file's name."""
    text = _text(path, JSON_BYTES_MAX)
    try:
        return parse_json(text)
    except ReadError as error:
        raise ReadError(str(path), str(error)) from None


def parse_json(text: str) -> dict[str, Any]:
    """The mapping that a JSON text holds."""
    try:
        content = json.loads(text, parse_constant=_no_constant, object_pairs_hook=unique_keys)
    except RecursionError:
        raise ReadError("JSON", "is nested too deeply to be read") from None
    except ReadError:
        raise
    except RepeatedKeyError as error:
        raise ReadError(error.key, "occurs twice") from None
    except ValueError as error:
        raise ReadError("JSON", f"cannot be read: {error}") from None
    return _checked("JSON", content)


def load_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file. Raises :class:`ReadError` with the file's name."""
    text = _text(path, YAML_BYTES_MAX)
    try:
        content = parse_yaml(text)
    except StrictYamlError as error:
        raise ReadError(str(path), str(error)) from None
    return _checked(str(path), content)


def _text(path: Path, bytes_max: int) -> str:
    try:
        with path.open("rb") as stream:
            content = stream.read(bytes_max + 1)
    except OSError as error:
        raise ReadError(str(path), error.strerror or str(error)) from None
    except ValueError as error:  # a NUL character
        raise ReadError(repr(str(path)), str(error)) from None
    if len(content) > bytes_max:
        raise ReadError(str(path), f"is larger than {bytes_max:,} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ReadError(str(path), f"is not UTF-8 text: byte {error.start} is {content[error.start]:#04x}") from None


def _checked(name: str, content: Any) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise ReadError(name, f"must be a mapping of keys to values (got {type(content).__name__})")
    for key in content:
        if not isinstance(key, str):
            raise ReadError(name, f"keys must be text (got {key!r:.60})")
    return content


def _no_constant(word: str) -> NoReturn:
    raise ReadError("JSON", f"{word} is not a number that JSON has")
