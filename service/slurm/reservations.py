"""Reservations of Slurm, and what they leave of a job's time: Slurm starts no job that might still run when one begins."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from typing import Final

CLOSED_S: Final = 600.0
"""A node gets no new jobs from so long before a reservation begins: hardly any would get anywhere."""
_START_S: Final = 30.0
"""Slurm may start a job so long after its submission."""


@dataclass(frozen=True, slots=True)
class SlurmReservation:
    """One reservation of nodes; seconds since the Unix epoch."""

    name: str
    nodes: frozenset[str]
    starts_at_s: float
    ends_at_s: float


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
    until_s = inf if reserved is None else reserved.starts_at_s - now_s - _START_S
    limit_s = min(partition_s or inf, until_s)
    if wanted_s is not None:
        # Rounded up, for it must not end too early.
        limit_s = min(limit_s, wanted_s + 59.0)
    return None if limit_s == inf else max(1, int(limit_s // 60.0))


def closed_for(reserved: SlurmReservation | None, now_s: float) -> str:
    """Why a node gets no new jobs because of its next reservation; empty where it does."""
    if reserved is None or reserved.starts_at_s - now_s > CLOSED_S:
        return ""
    at = datetime.fromtimestamp(reserved.starts_at_s, UTC)
    return f"Slurm's reservation {reserved.name!r} begins at {at:%H:%M} UTC"
