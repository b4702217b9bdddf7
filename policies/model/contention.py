"""How jobs whose traffic straddles servers slow each other down: three numbers, and their text form."""

from dataclasses import dataclass, fields
from math import inf, isfinite

_VALUE_MAX = 1e6


class NetworkError(ValueError):
    """An unknown network, or an invalid value of one; the message names both."""


@dataclass(frozen=True, slots=True)
class Contention:
    """``xi1``: the weight of each straddling job as a contender; ``a``: the share of a link that each further contender wastes,
    relative to a lone job; ``xi2``: additional seconds of an iteration for each server of a straddling job.

    ``a`` is 0.235 / 0.856, the ratio of the two coefficients that were fitted to contended all-reduces on 10 GbE (Wang et al.,
    arXiv 2002.10105, and its published code). With xi1 = 1 it predicts the measured slowdown of four 4-GPU jobs on four
    servers (tests/unit/service/sim/test_sim_network.py). ``xi2`` is a guess: a ring visits each server twice, at some 50 us
    of TCP latency.
    """

    xi1: float = 1.0
    a: float = 0.235 / 0.856
    xi2: float = 1e-4

    def split(self, jobs: int) -> float:
        """f(k): the divisor of a link's bandwidth for each of ``jobs`` straddling jobs on it."""
        contenders = max(1.0, self.xi1 * jobs)
        return contenders + self.a * (contenders - 1.0)


def parse_network(text: str) -> Contention | None:
    """``reserved`` (None) or ``contended``, with values if wanted: ``contended:xi1=0.5,a=0,xi2=0``. Raises NetworkError."""
    name, colon, rest = text.partition(":")
    if name not in ("reserved", "contended") or (name == "reserved" and colon):
        raise NetworkError(f"{text!r} is unknown; use reserved, contended or contended:NAME=VALUE,...")
    if name == "reserved":
        return None
    known = [each.name for each in fields(Contention)]
    values: dict[str, float] = {}
    for part in rest.split(",") if colon else ():
        key, _, value = part.partition("=")
        if key not in known or key in values:
            raise NetworkError(f"{text!r}: {part!r} is not NAME=VALUE with one of the names {', '.join(known)}")
        values[key] = _number(text, part, value)
    return Contention(**values)


def network_text(contention: Contention) -> str:
    """The text that :func:`parse_network` reads as these numbers."""
    return "contended:" + ",".join(f"{each.name}={getattr(contention, each.name)!r}" for each in fields(contention))


def _number(text: str, part: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = inf
    if not (isfinite(number) and 0.0 <= number <= _VALUE_MAX):
        raise NetworkError(f"{text!r}: {part!r} needs a number from 0 to {_VALUE_MAX:g}")
    return number
