"""The nodes of ``sinfo --json`` (22.05) or ``scontrol --json show nodes`` (later versions)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from service.slurm.commands import SlurmUnreadable
from service.slurm.text import number, parse_gpus, parse_tres

_BASE_STATES: Final = frozenset({"unknown", "down", "idle", "allocated", "error", "mixed", "future"})
_DOWN_STATES: Final = frozenset({"down", "error", "unknown", "future"})
_DRAINING: Final = frozenset(
    {
        "DRAIN",
        "FAIL",
        "INVALID_REG",
        "MAINTENANCE",
        "NOT_RESPONDING",
        "POWERING_DOWN",
        "POWER_DOWN",
        "REBOOT",
        "REBOOT_ISSUED",
        "REBOOT_REQUESTED",
        "RESERVED",
    }
)
"""Flags with which a node gets no new jobs although its jobs continue."""


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """One node. ``state`` is one word in lower case; ``flags`` qualify it. ``gpu_types``: GPUs by type ("": untyped).

    ``cpus`` and ``memory_mib`` are what jobs may use, as far as the version says so; ``threads`` are per core.
    """

    name: str
    address: str
    state: str
    flags: frozenset[str] = frozenset()
    reason: str = ""
    gpu_types: Mapping[str, int] = field(default_factory=dict)
    cpus: int = 1
    threads: int = 1
    memory_mib: int = 1
    partitions: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    version: str = ""

    @property
    def gpus(self) -> int:
        """GPUs of all types."""
        return sum(self.gpu_types.values())

    @property
    def gpu_type(self) -> str:
        """The type of its GPUs; "" where there are none, several types or no names of them."""
        return next(iter(self.gpu_types)) if len(self.gpu_types) == 1 else ""

    @property
    def down(self) -> bool:
        """Whether nothing runs there, as far as Slurm knows."""
        return self.state in _DOWN_STATES

    @property
    def drained(self) -> bool:
        """Whether it gets no new jobs. Running ones may continue."""
        return not _DRAINING.isdisjoint(self.flags)

    @property
    def why(self) -> str:
        """The state with its flags, and the operator's reason."""
        state = "+".join((self.state.upper(), *sorted(self.flags - {"PLANNED"})))
        return f"{state}: {self.reason}" if self.reason else state


def parse_nodes(document: Mapping[str, Any]) -> list[SlurmNode]:
    """The nodes of an answer, in its order. Raises :class:`SlurmUnreadable` for a form that no known version writes."""
    rows = document.get("nodes")
    if not isinstance(rows, list):
        raise SlurmUnreadable("the answer of Slurm has no list of nodes")
    try:
        return [_node(row) for row in rows]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SlurmUnreadable(f"the answer of Slurm has a node of an unknown form: {error!r}") from error


def _node(row: Mapping[str, Any]) -> SlurmNode:
    states, flags = row["state"], row.get("state_flags") or []
    # Later versions write one list: the base state first, then the flags.
    words = [states] if isinstance(states, str) else list(states)
    types: dict[str, int] = {}
    for gpus in parse_gpus(row.get("gres")):
        types[gpus.type] = types.get(gpus.type, 0) + gpus.amount
    return SlurmNode(
        name=row["name"],
        address=row.get("address") or row["name"],
        state=next((word.lower() for word in words if word.lower() in _BASE_STATES), "unknown"),
        flags=frozenset(str(word).upper() for word in (*words, *flags) if str(word).lower() not in _BASE_STATES),
        reason=row.get("reason") or "",
        gpu_types={gpu_type: count for gpu_type, count in types.items() if count > 0},
        cpus=_cpus(row),
        threads=max(1, int(number(row.get("threads")) or 1)),
        memory_mib=max(1, int((number(row.get("real_memory")) or 1) - (number(row.get("specialized_memory")) or 0))),
        partitions=_words(row.get("partitions")),
        features=_words(row.get("active_features")),
        version=row.get("slurmd_version") or row.get("version") or "",
    )


def _cpus(row: Mapping[str, Any]) -> int:
    """Those that jobs may use: tracked resources leave out cores that are kept for the system."""
    tracked = parse_tres(row.get("tres")).get("cpu", "")
    usable = number(row.get("effective_cpus")) or (float(tracked) if tracked.isdecimal() else None)
    return max(1, int(usable or number(row.get("cpus")) or 1))


def _words(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(word for word in value.split(",") if word)
    return tuple(str(word) for word in value or ())
