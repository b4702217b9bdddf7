"""What is wrong with a value by its type, in the words of Sooner instead of those of the library that found it."""

from collections.abc import Mapping
from typing import Final

_WORDS: Final[Mapping[str, str]] = {
    "Input should be": "must be",
    "must be a valid integer, unable to parse string as an integer": "must be a whole number",
    "must be a valid integer, got a number with a fractional part": "must be a whole number",
    "must be a valid number, unable to parse string as a number": "must be a number",
    "must be a valid boolean, unable to interpret input": "must be true or false",
    "must be a valid datetime or date": "must be a time in ISO 8601",
}
"""Later ones are about the text that the earlier ones leave."""


def in_our_words(message: str) -> str:
    """A message of pydantic."""
    message = message.removeprefix("Value error, ")
    for theirs, ours in _WORDS.items():
        message = message.replace(theirs, ours)
    return message
