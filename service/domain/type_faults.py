"""What is wrong with a value by its type, in the words of Sooner instead of those of the library that found it."""

import re
from collections.abc import Mapping
from typing import Final

_TIME: Final = "must be a time in ISO 8601"

_WORDS: Final[Mapping[str, str]] = {
    "Input should be greater than or equal to": "must be at least",
    "Input should be less than or equal to": "must be at most",
    "Input should be greater than": "must be above",
    "Input should be less than": "must be below",
    "Input should be": "must be",
    "String should have at": "must have at",
    "String should match pattern": "must match the pattern",
    "must be a valid string, unable to parse raw data as a unicode string": "must be UTF-8",
    "must be a valid integer, unable to parse string as an integer": "must be a whole number",
    "must be a valid integer, got a number with a fractional part": "must be a whole number",
    "must be a valid number, unable to parse string as a number": "must be a number",
    "must be a valid boolean, unable to interpret input": "must be true or false",
    "must be a valid datetime or date": _TIME,
}
"""Later ones are about the text that the earlier ones leave."""

_NUMBER: Final = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?")


def with_value(message: str, value: object) -> str:
    """``must be at least 1, not 0``; the message alone where it quotes the value already."""
    if not isinstance(value, str):
        return f"{message}, not {value!r}"
    if repr(value) in message:
        return message
    # A number needs no quotes: a command line has texts alone.
    return f"{message}, not {value if _NUMBER.fullmatch(value) else repr(value)}"


def in_our_words(message: str) -> str:
    """A message of pydantic."""
    message = message.removeprefix("Value error, ")
    for theirs, ours in _WORDS.items():
        message = message.replace(theirs, ours)
    # Why the text is no time is told in the library's words.
    return _TIME if message.startswith(_TIME) else message
