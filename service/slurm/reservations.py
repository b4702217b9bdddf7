"""Reservations of Slurm, and what they leave of a job's time: Slurm starts no job that might still run when one begins."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import ceil
from typing import Final

CLOSED_S: Final = 600.0
"""A node gets no new jobs from so long before a reservation begins: hardly any would get anywhere."""
_START_S: Final = 30.0
"""Slurm may start a job so long after its submission."""


@dataclass(frozen=True, slots=True)
class SlurmReservation:
    """One reservation of nodes. ``starts_at_s``: seconds since the Unix epoch."""

    name: str
    nodes: frozenset[str]
    starts_at_s: float


def next_of(reservations: Sequence[SlurmReservation], nodes: Collection[str], now_s: float) -> SlurmReservation | None:
    """The next reservation of any of these nodes that has not begun. A node shows itself that it is reserved now."""
    ahead = [one for one in reservations if one.starts_at_s > now_s and not one.nodes.isdisjoint(nodes)]
    return min(ahead, key=lambda one: one.starts_at_s, default=None)


def time_limit_min(
    partition_s: float | None, wanted_s: float | None, reserved: SlurmReservation | None, now_s: float
) -> int | None:
    """The limit to ask for, in minutes, at least 1; None for none.

    ``partition_s`` is the longest that the partition admits, ``wanted_s`` what the job takes at most; None where not known.
    """
    until_s = None if reserved is None else reserved.starts_at_s - now_s - _START_S
    limits_min = [int(most_s // 60.0) for most_s in (partition_s, until_s) if most_s is not None]
    if wanted_s is not None:
        # Rounded up, for the job must not end too early.
        limits_min.append(ceil(wanted_s / 60.0))
    return max(1, min(limits_min)) if limits_min else None


def closed_for(reserved: SlurmReservation | None, now_s: float) -> str:
    """Why a node gets no new jobs because of its next reservation; empty where it does."""
    if reserved is None or reserved.starts_at_s - now_s > CLOSED_S:
        return ""
    at = datetime.fromtimestamp(reserved.starts_at_s, UTC)
    return f"Slurm's reservation {reserved.name!r} begins at {at:%H:%M} UTC"
