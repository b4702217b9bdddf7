"""Notations that Slurm's commands share: lists of hosts, resources, numbers, and the blocks of ``scontrol show``."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from service.slurm.commands import SlurmUnreadable

HOSTS_MAX: Final = 100_000
"""Names in one list of hosts. Slurm's own limit is 65,536 nodes a cluster."""

_RANGE: Final = re.compile(r"(\d+)(?:-(\d+))?")
_GRES: Final = re.compile(
    r"(?:gres[:/])?gpu(?::(?P<type>[^:=,()]+?))??(?:[:=](?P<count>\d+)(?P<unit>[kKmM])?)?(?:\(.*\))?"
)
_INDICES: Final = re.compile(r"\(IDX:([0-9,\-]+)\)")
_UNITS: Final = {"": 1, "k": 1024, "m": 1024**2}
_PAIR: Final = re.compile(r"(?:^|\s)([A-Za-z][A-Za-z0-9_:/.\[\]-]*)=")


class Gpus(NamedTuple):
    """GPUs of one type. ``type`` is "" where none is named; ``indices`` are those of the node, as far as they are listed."""

    type: str
    amount: int
    indices: tuple[int, ...] = ()


def expand_hosts(text: str | None) -> tuple[str, ...]:
    """The names of a list of hosts: ``rack[1-2]node[01-03,07],login1``. Raises :class:`SlurmUnreadable`."""
    if not text or text in ("(null)", "None assigned"):
        return ()
    names: list[str] = []
    for entry in split_outside(text):
        names.extend(_expanded(entry, text))
        if len(names) > HOSTS_MAX:
            raise SlurmUnreadable(f"the list of hosts {text[:80]!r} has more than {HOSTS_MAX} names")
    return tuple(names)


def split_outside(text: str) -> Iterator[str]:
    """The parts between the commas that stand in no bracket."""
    depth, start = 0, 0
    for position, character in enumerate(text):
        depth += (character in "[(") - (character in "])")
        if character == "," and depth == 0:
            yield text[start:position]
            start = position + 1
    if start < len(text):
        yield text[start:]


def _expanded(entry: str, whole: str) -> Iterator[str]:
    before, bracket, rest = entry.partition("[")
    if not bracket:
        yield entry
        return
    inside, closed, after = rest.partition("]")
    if not closed:
        raise SlurmUnreadable(f"a list of hosts has an open bracket: {whole[:80]!r}")
    for tail in _expanded(after, whole):
        for number in _numbers(inside, whole):
            yield f"{before}{number}{tail}"


def _numbers(inside: str, whole: str) -> Iterator[str]:
    for part in inside.split(","):
        found = _RANGE.fullmatch(part)
        if found is None:
            raise SlurmUnreadable(f"{part!r} in the list of hosts {whole[:80]!r} is not a range of numbers")
        first, last = found[1], found[2] or found[1]
        if int(last) - int(first) >= HOSTS_MAX:
            raise SlurmUnreadable(f"the list of hosts {whole[:80]!r} has more than {HOSTS_MAX} names")
        for number in range(int(first), int(last) + 1):
            yield str(number).zfill(len(first))


def parse_indices(text: str) -> tuple[int, ...]:
    """The numbers of ``0-1,3``."""
    numbers: list[int] = []
    for part in text.split(","):
        found = _RANGE.fullmatch(part)
        if found is not None:
            numbers.extend(range(int(found[1]), int(found[2] or found[1]) + 1))
    return tuple(numbers)


def parse_gpus(text: str | None) -> list[Gpus]:
    """The GPUs among generic resources: ``gpu:a100:2(IDX:0-1),nic:1``, ``gres:gpu:4`` or ``gpu`` (one). Others are left out."""
    found = []
    for entry in split_outside(text or ""):
        match = _GRES.fullmatch(entry.strip())
        if match is not None:
            count = int(match["count"] or 1) * _UNITS[(match["unit"] or "").lower()]
            indices = _INDICES.search(entry)
            found.append(Gpus(match["type"] or "", count, parse_indices(indices[1]) if indices else ()))
    return found


def parse_tres(text: str | None) -> dict[str, str]:
    """The tracked resources of ``cpu=2,mem=2000M,gres/gpu:a100=4`` by name."""
    pairs = (entry.partition("=") for entry in split_outside(text or ""))
    return {name: value for name, equals, value in pairs if equals}


def tres_gpus(tres: Mapping[str, str]) -> tuple[int, str]:
    """The GPUs among tracked resources, and their type where exactly one is named. The entry without a type is the sum."""
    counts: dict[str, int] = {}
    for name, value in tres.items():
        kind, _, gpu_type = name.partition(":")
        if kind == "gres/gpu":
            factor = _UNITS.get(value[-1:].lower(), 1) if value[-1:].isalpha() else 1
            digits = value.rstrip("kKmM")
            counts[gpu_type] = int(float(digits) * factor) if digits.replace(".", "", 1).isdecimal() else 0
    types = sorted(counts.keys() - {""})
    return counts.get("", sum(counts.values())), types[0] if len(types) == 1 else ""


def number(value: Any) -> float | None:
    """A number of an answer in JSON; later versions write ``{"set": true, "infinite": false, "number": 5}``. None: not set."""
    if isinstance(value, Mapping):
        value = value.get("number") if value.get("set") and not value.get("infinite") else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def number_before_unit(text: str | None) -> float | None:
    """The number of ``30 sec``, as the configuration is shown; None for anything else."""
    word = (text or "").split(" ")[0]
    return float(word) if word.isdecimal() else None


def parse_shown(text: str) -> list[dict[str, str]]:
    """The blocks of ``scontrol --oneliner show ...``: one line each, ``Name=value`` pairs whose values may hold blanks."""
    return [_pairs(line) for line in text.split("\n") if "=" in line]


def _pairs(line: str) -> dict[str, str]:
    starts = list(_PAIR.finditer(line))
    ends = [following.start() for following in starts[1:]] + [len(line)]
    return {start[1]: line[start.end() : end].strip() for start, end in zip(starts, ends, strict=True)}
