"""What a command tells of a job: its numeric arguments by name, and hashes of its other words and of its working folder.

The same program started with other epochs takes another time, in proportion. Numbers are compared with those of earlier runs of
the program; hashes only tell which runs were started alike. Neither is a feature by itself. Values of secrets are left out.
"""

import math
import re
from collections import Counter, deque
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple
from zlib import crc32

import numpy as np

PARTS_MAX: Final = 64
"""Arguments that are read of a command."""
NUMBER_MAX: Final = 1e12
"""A larger number is a name, not an amount."""
RUNS_KEPT: Final = 20
"""The newest runs kept per program."""
ALIKE_MIN: Final = 3
"""Runs that make the point, at least, where there are so many."""
PAIRS_MIN: Final = 3
"""Pairs of runs that must differ in an argument before its exponent is learnt."""
EXPONENTS: Final = (-1.0, 0.0, 0.5, 1.0)
"""By which power of an argument a total may grow."""
SURE: Final = 1.5
"""An exponent replaces the usual one if it saves this many standard errors."""

_OPTION: Final = re.compile(r"-{0,2}([A-Za-z][\w.\-]{0,63})(?:=(.*))?", re.DOTALL)
_DIGITS: Final = frozenset("0123456789.+")
"""How a number begins: not as the words nan and infinity do."""
_SECRET: Final = frozenset(
    {"secret", "secrets", "password", "passwd", "passphrase", "pass", "pwd", "pin", "token", "key", "apikey"}
    | {"credential", "credentials", "auth", "authorization"}
)
_SCALING: Final = re.compile(r"(?:^|_)(?:epoch|step|iter|iteration|update|timestep)s?$")
_NOT_SCALING: Final = re.compile(
    r"(?:^|_)(?:warmup|warm_up|save|saving|eval|evaluation|val|valid|validation|log|logging|print|decay|accumulation|accum|checkpoint"
    r"|every|per|resume|start|lr)(?:_|$)"
)
_EXPONENTS: Final = np.array(EXPONENTS)


class Arguments(NamedTuple):
    """``numbers``: natural logarithms of the positive numeric arguments by name; ``words``: hashes of the others."""

    numbers: dict[str, float]
    words: frozenset[str]


def described(command: Sequence[str], secrets: Sequence[str] = (), working_dir: str | None = None) -> str:
    """The arguments of a command as one text, ``epochs=10.0 lr=0.1 #9f2c11ab``; "" for an empty command.

    Arguments whose name sounds secret, and those that contain one of ``secrets``, are left out. Words are hashed, and
    ``working_dir`` is one of them: ``bash train.sh`` is another training in another folder.
    """
    numbers: dict[str, float] = {}
    words: set[str] = set()
    for name, value in _pairs(command, secrets):
        number = _number(value)
        if number is None:
            words.add(_hashed(f"{name}={value}"))
        else:
            numbers[name] = number
    if command and working_dir is not None and not any(each in working_dir for each in secrets):
        words.add(_hashed(working_dir))
    parts = [*(f"{name}={value!r}" for name, value in sorted(numbers.items())), *sorted(words)]
    return " ".join(parts[:PARTS_MAX])


def _hashed(word: str) -> str:
    return f"#{crc32(word.encode('utf-8', 'replace')):08x}"


def _pairs(command: Sequence[str], secrets: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(option, value) of each argument: the name of a positional one is its number, the value of a flag is ""."""
    # A script for a shell is one argument of many words.
    tokens = [token for argument in command for token in argument.split()][: 2 * PARTS_MAX]
    position, count = 0, 0
    while position < len(tokens):
        token = tokens[position]
        position += 1
        option = _OPTION.fullmatch(token)
        if option is None or (not token.startswith("-") and option[2] is None):
            count += 1
            name, value = str(count), token
        else:
            name, value = option[1].lower().replace("-", "_"), option[2] or ""
            if option[2] is None and position < len(tokens) and not tokens[position].startswith("-"):
                position, value = position + 1, tokens[position]
        if not _sounds_secret(name) and not any(each in token or each in value for each in secrets):
            yield name, value


@lru_cache(maxsize=4_096)
def parsed(text: str) -> Arguments:
    """The inverse of :func:`described`."""
    numbers: dict[str, float] = {}
    words: list[str] = []
    for part in text.split():
        if part[0] == "#":
            words.append(part)
        else:
            name, _, value = part.partition("=")
            number = _number(value)
            if number is not None:
                numbers[name] = math.log(number)
    return Arguments(numbers, frozenset(words))


def _number(value: str) -> float | None:
    """A positive number of plausible size; None for anything else."""
    if not value or value[0] not in _DIGITS or "_" in value:
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if 0.0 < number <= NUMBER_MAX else None


@lru_cache(maxsize=4_096)
def _sounds_secret(name: str) -> bool:
    return not _SECRET.isdisjoint(re.split(r"[_.]", name))


@lru_cache(maxsize=4_096)
def usual_exponent(name: str) -> float:
    """1.0 for an argument that usually is the length of a training, such as ``epochs`` or ``max_steps``; 0.0 for others."""
    name = name.replace(".", "_")
    return 1.0 if _SCALING.search(name) and not _NOT_SCALING.search(name) else 0.0


class _Run(NamedTuple):
    gpus: int
    arguments: Arguments
    label: float


class ArgumentRuns:
    """The newest runs of one program with their arguments, and what scales its total."""

    def __init__(self) -> None:
        self._runs: deque[_Run] = deque(maxlen=RUNS_KEPT)
        self._pairs: deque[tuple[dict[str, float], float]] = deque(maxlen=RUNS_KEPT)
        self._exponents: dict[str, float] | None = None

    def add(self, gpus: int, text: str, label: float) -> None:
        """One more run has ended, with this log label. It is compared with the most alike run before it."""
        run = _Run(gpus, parsed(text), label)
        before = min(reversed(self._runs), key=lambda other: _distance(run, other), default=None)
        if before is not None and before.gpus == gpus:
            ratios = _ratios(run.arguments, before.arguments)
            if ratios:
                self._pairs.append((ratios, label - before.label))
                self._exponents = None
        self._runs.append(run)

    @property
    def exponents(self) -> dict[str, float]:
        """Of each argument that differed between runs: by which power of it the total grows."""
        if self._exponents is None:
            self._exponents = _fitted(self._pairs)
        return self._exponents

    def point(self, gpus: int, text: str) -> float:
        """The log of the total that the most alike runs say, scaled to these arguments; NaN without any run."""
        if not self._runs:
            return math.nan
        asked, exponents = _Run(gpus, parsed(text), math.nan), self.exponents
        distances = [_distance(asked, run) for run in self._runs]
        farthest = sorted(distances)[min(ALIKE_MIN, len(distances)) - 1]
        scaled = sorted(
            run.label
            + sum(
                ratio * exponents.get(name, usual_exponent(name))
                for name, ratio in _ratios(asked.arguments, run.arguments).items()
            )
            for run, distance in zip(self._runs, distances, strict=True)
            if distance <= farthest
        )
        middle = len(scaled) // 2
        return scaled[middle] if len(scaled) % 2 else (scaled[middle - 1] + scaled[middle]) / 2.0


def _distance(run: _Run, other: _Run) -> tuple[int, bool]:
    """How differently two runs were started: words that only one of them has, then whether their GPUs differ."""
    return len(run.arguments.words ^ other.arguments.words), run.gpus != other.gpus


def _ratios(arguments: Arguments, other: Arguments) -> dict[str, float]:
    """Logarithms of the ratios of the numbers that both have and that differ."""
    there = other.numbers
    return {name: value - there[name] for name, value in arguments.numbers.items() if there.get(name, value) != value}


def _fitted(pairs: Collection[tuple[dict[str, float], float]]) -> dict[str, float]:
    """The exponents that explain how labels change between pairs of runs, by least absolute errors: one argument after the
    other, the one that saves most first.
    """
    counts = Counter(name for ratios, _ in pairs for name in ratios)
    exponents = {name: usual_exponent(name) for name in sorted(counts)}
    names = [name for name in exponents if counts[name] >= PAIRS_MIN]
    if not names:
        return exponents
    changes = np.array([[ratios.get(name, 0.0) for ratios, _ in pairs] for name in names])
    errors = np.array(
        [change - sum(exponents[name] * ratio for name, ratio in ratios.items()) for ratios, change in pairs]
    )
    for _ in names:
        steps = _EXPONENTS - np.array([[exponents[name]] for name in names])
        saved = np.abs(errors) - np.abs(errors - steps[:, :, None] * changes[:, None, :])
        totals = saved.sum(axis=2)
        row, column = divmod(int(totals.argmax()), len(EXPONENTS))
        if not totals[row, column] > SURE * math.sqrt(float((saved[row, column] ** 2).sum())):
            break
        errors = errors - steps[row, column] * changes[row]
        exponents[names[row]] = EXPONENTS[column]
    return exponents
