"""Pydantic's errors as messages in plain words: ``must be at least 1 (got 0)``, ``is unknown; did you mean 'gpus'?``.

Only numbers, truth values and null are repeated: a text that a client sent may be a secret.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, RootModel, Tag

from policies.suggestion import did_you_mean
from service.domain.type_faults import in_our_words
from service.simulations.request import MORE_SERVERS
from service.wire.base import (
    ABSOLUTE_PATH,
    ENV_NAME,
    IMAGE,
    LABEL_KEY,
    NO_CONTROLS,
    NO_NUL,
    PRINTABLE_ASCII,
    PROJECT,
    SEEN,
    SERVER_NAME,
    USER,
)

MESSAGES: Mapping[str, str] = {
    "missing": "is required",
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be above {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be below {lt}",
    "finite_number": "must be a finite number",
    "string_type": "must be a text",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float", "int_parsing_size"), "must be a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "must be a number"),
    "bool_parsing": "must be true or false",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "must match the pattern {pattern}",
    "too_short": "must have at least {min_length} entries",
    "too_long": "must have at most {max_length} entries",
    "literal_error": "must be one of {expected}",
    "enum": "must be one of {expected}",
    "date_parsing": "must be a date such as 2026-03-01",
    "json_invalid": "is not JSON",
}
"""By pydantic's type of an error, with the names of its context."""

PATTERNS: Mapping[str, str] = {
    NO_NUL: "must not have NUL characters",
    NO_CONTROLS: "must not have control characters",
    SEEN: "must have a character that is seen, and no control characters, line breaks or marks of text direction",
    USER: "must not have slashes or control characters, and must not be '.' or '..'",
    PROJECT: "must not have control characters, and no part between its slashes may be empty, '.' or '..'",
    ABSOLUTE_PATH: "must be an absolute path, without NUL characters",
    PRINTABLE_ASCII: "must have printable ASCII characters alone, and no spaces",
    ENV_NAME: "must have letters, digits and '_' alone, and must not begin with a digit",
    LABEL_KEY: "must have letters, digits, '.', '_', '-' and '/' alone, and a letter or digit at both ends",
    SERVER_NAME: "must have letters, digits, '.', '_' and '-' alone, and a letter or digit at both ends",
    IMAGE: "must begin with a letter, a digit or '/', and must not have spaces or control characters",
    MORE_SERVERS: "must be a list of servers, or a text such as '+2'",
}

_BOUNDS = frozenset({"greater_than_equal", "greater_than", "less_than_equal", "less_than"})
_NUMBER_MAX = 40
"""Characters of the longest number that is repeated."""

KINDS: Mapping[type, str] = {str: "a text", list: "a list", dict: "an object"}


def message_of(error: Mapping[str, Any], known: Sequence[str] = ()) -> str:
    """The message of one of pydantic's errors; ``known`` are the keys beside an unknown one."""
    if error["type"] == "extra_forbidden":
        return f"is unknown{did_you_mean(str(error['loc'][-1]), known)}"
    pattern = MESSAGES.get(error["type"])
    if pattern is None:
        # A validator's own message, or one of pydantic's that no body of this API can cause today.
        return in_our_words(str(error["msg"]))
    if error.get("ctx", {}).get("min_length") == 1 and not error["input"]:
        return "must not be empty"
    if error["type"] == "string_pattern_mismatch" and error["ctx"]["pattern"] in PATTERNS:
        return PATTERNS[error["ctx"]["pattern"]]
    context = {key: _plain(value) for key, value in error.get("ctx", {}).items()}
    return pattern.format(**context) + ("" if error["type"] == "missing" else _got(error["input"], error["type"]))


def _plain(value: object) -> object:
    return f"{value:.15g}" if isinstance(value, float) else value


def _got(value: object, kind: str) -> str:
    """What was sent, where that helps and reveals nothing."""
    if value is None:
        return " (got null)"
    if isinstance(value, bool):
        return f" (got {str(value).lower()})"
    if isinstance(value, int | float):
        if kind == "string_type":
            # It may be a secret that was written without quotes.
            return " (got a number)"
        # What is wrong with 1.0 in place of a whole number is its point.
        return f" (got {value if kind.startswith('int_') else _plain(value)})"
    if isinstance(value, str) and kind in _BOUNDS:
        # A number of a path or a query: a text that is none has no bounds.
        return f" (got {value})" if len(value) <= _NUMBER_MAX else ""
    return f" (got {KINDS[type(value)]})" if kind.endswith("_type") and type(value) in KINDS else ""


def is_tag(part: str | int) -> bool:
    """Whether a part of a path is no key of the body: the tag of a union (``<one>``), or the mark of a fault in a key."""
    return isinstance(part, str) and (part == "[key]" or (part.startswith("<") and part.endswith(">")))


def keys_at(body: Any, path: Sequence[str | int]) -> list[str]:
    """The keys of the object at ``path`` (as pydantic gives it, with the tags of unions) of a body of this type."""
    places = list(_members(body))
    for part in path:
        places = [found for tag, hint in places for found in _step(tag, hint, part)]
    return sorted({key for _, hint in places if _is_model(hint) for key in hint.model_fields})


def _members(hint: Any, tag: str | None = None) -> Iterator[tuple[str | None, Any]]:
    """The types that a value may have, each with its tag."""
    if get_origin(hint) is Annotated:
        inner, *notes = get_args(hint)
        yield from _members(inner, next((note.tag for note in notes if isinstance(note, Tag)), tag))
    elif get_origin(hint) in (Union, UnionType):
        for member in get_args(hint):
            yield from _members(member, tag)
    elif _is_model(hint) and issubclass(hint, RootModel):
        yield from _members(hint.model_fields["root"].annotation, tag)
    else:
        yield tag, hint


def _step(tag: str | None, hint: Any, part: str | int) -> Iterator[tuple[str | None, Any]]:
    """What stands below ``part`` of a value of this type."""
    if is_tag(part):
        if tag == part:
            yield None, hint
    elif isinstance(part, int) and get_origin(hint) is list:
        yield from _members(get_args(hint)[0])
    elif _is_model(hint) and part in hint.model_fields:
        yield from _members(hint.model_fields[part].annotation)


def _is_model(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, BaseModel)
