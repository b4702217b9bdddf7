"""Naming the known word that a mistyped one is closest to."""

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``; did you mean 'policy'?`` for a word that is close to a known one, else an empty text."""
    nearest = get_close_matches(word, list(known), 1)
    return f"; did you mean {nearest[0]!r}?" if nearest else ""
