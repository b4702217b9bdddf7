"""The words of a pasted command line or shell script, with the variables and arrays that it sets itself.

No shell runs. Both branches of a condition are read, in their order.
"""

import re
import shlex
from collections.abc import Iterator

from service.plans.values import ReadError

TEXT_BYTES_MAX = 256 << 10
VARIABLE_LENGTH_MAX = 4096
"""A longer value is not put in, so that variables that repeat each other do not grow."""

END = ")"
"""The word that ends an array."""

_ASSIGNED = re.compile(r"([A-Za-z_]\w*)\+?=(.*)", re.DOTALL)
_USED = re.compile(r"\$\{(\w+)(?::?-([^{}]*))?\}|\$(\w+)")
_LAUNCHER = re.compile(r"(?:^|[\s/])(?:torchrun|deepspeed|accelerate\s+launch|python[\d.]*)\s")
_FLAG = re.compile(r"\s--\w")

_SAYING = ("echo", "printf")
_WHOLE = re.compile(r"\$\{?([A-Za-z_]\w*)(?:\[[@*]\])?\}?")


def words_of(text: str) -> list[str]:
    """Raises :class:`ReadError` for a text that is too long, or that a shell could not split into words."""
    if len(text.encode("utf-8", "replace")) > TEXT_BYTES_MAX:
        raise ReadError("arguments", f"are longer than {TEXT_BYTES_MAX:,} bytes")
    reader = _Script()
    words: list[str] = []
    said = False
    try:
        for token in _split(text.replace("\r\n", "\n")):
            words += reader.words(token) if said else reader.parts(token)
            said = token in _SAYING or (said and token.startswith("-"))
        return words
    except RecursionError:
        raise ReadError("arguments", "are nested too deeply to be read") from None


def _split(text: str) -> list[str]:
    lexer = shlex.shlex(text, posix=True)
    lexer.whitespace_split = True
    try:
        return list(lexer)
    except ValueError as error:
        raise ReadError("arguments", f"cannot be split into words: {error}") from None


class _Script:
    """Variables that were set, and the names of those whose flags were read where they were set."""

    def __init__(self) -> None:
        self._variables: dict[str, str] = {}
        self._read: set[str] = set()
        self._put_in = 0

    def parts(self, token: str) -> Iterator[str]:
        """As :meth:`words`; a word that holds a whole command, as ``$LAUNCHER`` or after ``bash -c``, is read as its words."""
        for word in self.words(token):
            if not (_LAUNCHER.search(word) and _FLAG.search(word)):
                yield word
                continue
            try:
                found = _split(word)
            except ReadError:
                found = word.split()
            for each in found:
                used = _WHOLE.fullmatch(each)
                if used is None or used[1] not in self._read:
                    yield self._filled(each)

    def words(self, token: str) -> Iterator[str]:
        """What a token stands for: itself, the flags within it, or nothing."""
        # A backslash at the end of a line leaves the line end in the token.
        token = token.replace("\\\n", " ").strip()
        assigned = _ASSIGNED.fullmatch(token)
        if assigned is not None:
            yield from self._assigned(assigned[1], assigned[2].strip(), token)
            return
        used = _WHOLE.fullmatch(token)
        if not token or (used is not None and used[1] in self._read):
            return
        word = self._filled(token)
        ends = min(word.count(END) - word.count("("), len(word) - len(word.rstrip(END)))
        if ends > 0:
            yield from self.words(word[:-ends])
            yield END
        elif re.match(r"--[\w-]+\s", word):
            for each in _split(word):
                yield self._filled(each)
        else:
            yield word

    def _assigned(self, name: str, value: str, token: str) -> Iterator[str]:
        if value.startswith("("):
            self._read.add(name)
            yield from self.words(value[1:])
        elif value.startswith("--"):
            self._read.add(name)
            for each in _split(value):
                yield from self.words(each)
            yield END
        else:
            self._variables[name] = self._filled(value)
            if name.islower():
                yield self._filled(token)  # an override of Hydra has this form too

    def _filled(self, word: str) -> str:
        """The word with the variables that are known, or that have a default."""

        def value(found: re.Match[str]) -> str:
            text = self._variables.get(found[1] or found[3], found[2])
            return found[0] if text is None else text

        filled = _USED.sub(value, word)
        if len(filled) > max(VARIABLE_LENGTH_MAX, len(word)):
            return word
        self._put_in += max(0, len(filled) - len(word))
        if self._put_in > TEXT_BYTES_MAX:
            raise ReadError("arguments", f"have more than {TEXT_BYTES_MAX:,} characters of variables put in")
        return filled
