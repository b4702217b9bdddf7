"""Use of GPUs by user, project and UTC day. Pure: no database, no clock.

An attempt holds its GPUs from the decision to start it until they are free again. Seconds with lasting progress are useful. The
others (launch, restart, work lost in a stop) are wasted. Their position within the attempt is unknown, so an attempt that spans
several days has the same useful share on each day.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

DAY_S = 86_400.0


class UsageKey(NamedTuple):
    """A user's use in a project on a day (days since 1970-01-01, UTC)."""

    day: int
    user: str
    project: str


@dataclass(slots=True)
class Usage:
    """Sums. ``useful_gpu_s`` <= ``held_gpu_s``. ``attempts`` and ``jobs`` are ended ones, ``preemptions`` attempts that were
    preempted."""

    held_gpu_s: float = 0.0
    useful_gpu_s: float = 0.0
    attempts: int = 0
    preemptions: int = 0
    jobs: int = 0

    def add(self, other: "Usage") -> None:
        """Add another sum to this one."""
        self.held_gpu_s += other.held_gpu_s
        self.useful_gpu_s += other.useful_gpu_s
        self.attempts += other.attempts
        self.preemptions += other.preemptions
        self.jobs += other.jobs


@dataclass(frozen=True, slots=True)
class Held:
    """GPUs that an attempt held from ``start_s`` to ``end_s`` (seconds since the Unix epoch). ``counted_s`` is the useful part.
    ``ended`` is False while it holds them."""

    user: str
    project: str
    gpus: int
    start_s: float
    end_s: float
    counted_s: float
    ended: bool = True
    preempted: bool = False


def day_of(at_s: float) -> int:
    """The UTC day of an instant, as days since 1970-01-01."""
    return int(at_s // DAY_S)


def days_between(start_s: float, end_s: float) -> Iterator[tuple[int, float]]:
    """Each UTC day of the interval with the seconds of the interval in it. An empty interval has no days."""
    for day in range(day_of(start_s), day_of(end_s) + 1):
        seconds = min(end_s, (day + 1) * DAY_S) - max(start_s, day * DAY_S)
        if seconds > 0.0:
            yield day, seconds


def usage_of(held: Iterable[Held]) -> dict[UsageKey, Usage]:
    """The sums of these attempts. An attempt that ended before its start, because a clock was set back, counts as 0 s."""
    sums: defaultdict[UsageKey, Usage] = defaultdict(Usage)
    for each in held:
        length_s = each.end_s - each.start_s
        useful = min(1.0, max(0.0, each.counted_s) / length_s) if length_s > 0.0 else 0.0
        for day, seconds in days_between(each.start_s, each.end_s):
            gpu_s = each.gpus * seconds
            sums[UsageKey(day, each.user, each.project)].add(Usage(gpu_s, gpu_s * useful))
        if each.ended:
            key = UsageKey(day_of(each.end_s), each.user, each.project)
            sums[key].add(Usage(attempts=1, preemptions=int(each.preempted)))
    return dict(sums)
