"""What a model computes, as the programs that read PyTorch and ONNX write it: a list of operations in the order they run."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from service.plans.values import ReadError

OPERATIONS_MAX = 500_000
"""Limit of a trace; the largest published models have some ten thousand."""

AMOUNT_MAX = 2**80
"""Limit of each count of elements, bytes or floating-point operations."""


class Kind(StrEnum):
    """What an operation is.

    ``view`` copies nothing, ``lookup`` reads the rows that are asked for, ``experts`` are grouped products.
    """

    INPUT = "input"
    PARAMETER = "parameter"
    BUFFER = "buffer"
    VIEW = "view"
    PRODUCT = "product"
    CONVOLUTION = "convolution"
    ATTENTION = "attention"
    EXPERTS = "experts"
    LOOKUP = "lookup"
    OTHER = "other"


SOURCES = frozenset((Kind.INPUT, Kind.PARAMETER, Kind.BUFFER))
"""What is there before the model runs."""

PRODUCTS = frozenset((Kind.PRODUCT, Kind.CONVOLUTION, Kind.ATTENTION, Kind.EXPERTS))
"""Operations with arithmetic that counts; the rest are bound by memory."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One value and how it is made. ``floats``: its floating-point elements, ``fixed_bytes``: bytes of its other elements.

    ``inputs``: positions of what it reads, all before its own; ``factors``: those that are multiplied with one another.
    ``flops``: of the forward pass. ``scope``: path of the module it is in; ``0@1`` is the second call of ``0``.
    """

    name: str
    kind: Kind
    floats: int
    fixed_bytes: int = 0
    scope: tuple[str, ...] = ()
    flops: int = 0
    inputs: tuple[int, ...] = ()
    factors: tuple[int, ...] = ()
    trainable: bool = False


@dataclass(frozen=True, slots=True)
class Trace:
    """``classes``: the class of each module by path. ``precision``: of most parameters, "" if unknown."""

    operations: tuple[Operation, ...]
    classes: Mapping[str, str]
    precision: str = ""
    warnings: tuple[str, ...] = ()


def trace_of(document: Mapping[str, Any]) -> Trace:
    """The trace in an answer of a program that has run foreign code. Raises :class:`ReadError` for anything else."""
    try:
        rows = document["operations"]
        if len(rows) > OPERATIONS_MAX:
            raise ReadError("model", f"has more than {OPERATIONS_MAX:,} operations (got {len(rows):,})")
        return Trace(
            operations=tuple(_operation(row, position) for position, row in enumerate(rows)),
            classes={_text(path): _text(name) for path, name in document["modules"].items()},
            precision=_text(document["precision"]),
            warnings=tuple(_text(line) for line in document["warnings"]),
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, ReadError):
            raise
        raise ReadError("model", f"the program that read it answered something else ({error})") from None


def _operation(row: Mapping[str, Any], position: int) -> Operation:
    scope = _text(row.get("scope", ""))
    return Operation(
        name=_text(row["name"]),
        kind=Kind(row["kind"]),
        floats=_amount(row["floats"]),
        fixed_bytes=_amount(row["fixed_bytes"]),
        scope=tuple(scope.split(".")) if scope else (),
        flops=_amount(row.get("flops", 0)),
        inputs=_before(row.get("inputs", ()), position),
        factors=_before(row.get("factors", ()), position),
        trainable=row.get("trainable") is True,
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.60} is no text")
    return value


def _amount(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= AMOUNT_MAX:
        raise ValueError(f"{value!r:.60} is no amount")
    return value


def _before(values: Any, position: int) -> tuple[int, ...]:
    """Positions before ``position``, so that a trace has no cycle."""
    found = tuple(_amount(value) for value in values)
    if any(value >= position for value in found):
        raise ValueError(f"operation {position} reads a later one")
    return found
