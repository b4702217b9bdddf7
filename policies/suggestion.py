"""Naming the known word that a mistyped one is closest to."""

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(word: str, known: Iterable[str], prefix: str = "") -> str:
    """``; did you mean 'policy'?`` for a word that is close to a known one, else an empty text.

    ``prefix``: what all of them begin with, which makes them no more alike.
    """
    nearest = get_close_matches(word.removeprefix(prefix), [each.removeprefix(prefix) for each in known], 1)
    return f"; did you mean {prefix + nearest[0]!r}?" if nearest else ""
