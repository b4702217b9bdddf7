"""The history store: what has *ended*, per recurrence level. It changes only when a job ends, so causality holds by construction.

Labels are natural logarithms of the total (iterations or seconds). Every number that a feature needs is summed up once when a
job ends, so that a submission costs look-ups only.
"""

import math
from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence
from typing import Final

from sortedcontainers import SortedList

from predictor.recurrence import Level

LABELS_KEPT: Final = 20
"""Recency beats depth: the newest labels of a group that are remembered."""
CLUSTER_LABELS_KEPT: Final = 2_000
"""Labels behind the cluster-wide median and the cold-start distribution."""
EWMA_WEIGHT: Final = 0.3
"""Weight of the newest label in a group's exponentially weighted mean."""
GROUPS_MAX: Final = 200_000
"""Groups remembered per level (the least recently ended goes first): names are chosen by users, so they are unbounded."""
OPEN_MAX_AGE_S: Final = 14 * 86_400.0
"""An unfinished job older than this no longer counts as "running now": its end may have been lost."""


def median_of(ordered: Sequence[float]) -> float:
    """The median of ascending values."""
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2.0


class Group:
    """The past of one group: count, newest labels, and their summary. All labels are log units."""

    __slots__ = (
        "_total",
        "count",
        "ended_at_s",
        "ewma",
        "failed",
        "failed_ratio",
        "high",
        "labels",
        "last",
        "last2",
        "log_count",
        "low",
        "mean",
        "median",
        "previous",
        "spread",
    )

    def __init__(self) -> None:
        self.count = 0
        self.labels: deque[float] = deque(maxlen=LABELS_KEPT)
        self.failed: deque[bool] = deque(maxlen=LABELS_KEPT)
        self.ewma = 0.0
        self.median = 0.0
        self.low = 0.0
        self.high = 0.0
        self.spread = 0.0
        self.failed_ratio = 0.0
        """Share of the remembered jobs that did not succeed."""
        self.ended_at_s = 0.0
        self.log_count = 0.0
        """ln(1 + count)."""
        self.last = 0.0
        """The newest label."""
        self.previous = 0.0
        """The label before the newest (the newest itself where there is one)."""
        self.last2 = 0.0
        """Log of the mean of the last two totals: the classic two-run predictor (Tsafrir, Etsion, Feitelson, TPDS 2007)."""
        self.mean = 0.0
        """Log of the mean of all totals of the group, not only the remembered ones."""
        self._total = 0.0

    def add(self, label: float, ended_at_s: float, failed: bool) -> None:
        """One more job of the group has ended. O(labels kept)."""
        total = math.exp(label)
        self.previous = self.last if self.count else label
        self.last = label
        self.last2 = math.log((total + math.exp(self.previous)) / 2.0)
        self.count += 1
        self.log_count = math.log1p(self.count)
        self._total += total
        self.mean = math.log(self._total / self.count)
        self.labels.append(label)
        self.failed.append(failed)
        self.ewma = label if self.count == 1 else (1.0 - EWMA_WEIGHT) * self.ewma + EWMA_WEIGHT * label
        self.ended_at_s = ended_at_s
        ordered = sorted(self.labels)
        self.median = median_of(ordered)
        self.low = ordered[len(ordered) // 10]
        self.high = ordered[len(ordered) - 1 - len(ordered) // 10]
        mean = sum(ordered) / len(ordered)
        self.spread = math.sqrt(sum((x - mean) ** 2 for x in ordered) / len(ordered))
        self.failed_ratio = sum(self.failed) / len(self.failed)


class ClusterLabels:
    """The newest labels of the whole cluster, in order of size: median and quantiles in O(log n)."""

    def __init__(self) -> None:
        self._newest: deque[float] = deque()
        self._ordered: SortedList = SortedList()
        self._median: float | None = None

    def __len__(self) -> int:
        return len(self._newest)

    def add(self, label: float) -> None:
        """One more job has ended."""
        if len(self._newest) == CLUSTER_LABELS_KEPT:
            self._ordered.remove(self._newest.popleft())
        self._newest.append(label)
        self._ordered.add(label)
        self._median = None

    @property
    def median(self) -> float:
        """The median label, looked up once between two ends: a batch of new jobs asks for it many times a job."""
        if self._median is None:
            self._median = median_of(self._ordered)
        return self._median

    def points(self, count: int) -> list[float]:
        """``count`` equal-mass points of the empirical distribution, ascending."""
        size = len(self._ordered)
        return [float(self._ordered[min(size - 1, int((i + 0.5) * size / count))]) for i in range(count)]


class _Groups(OrderedDict[Hashable | None, Group]):
    """Groups by key, the least recently ended forgotten beyond :data:`GROUPS_MAX`. None is the key of none."""

    def add(self, key: Hashable | None, label: float, ended_at_s: float, failed: bool) -> None:
        if key is None:
            return
        group = self.get(key)
        if group is None:
            group = self[key] = Group()
            if len(self) > GROUPS_MAX:
                self.popitem(last=False)
        else:
            self.move_to_end(key)
        group.add(label, ended_at_s, failed)


class HistoryStore:
    """Groups at every level for one unit, all labels of the cluster, and those of programs' first runs.

    A program that was never seen is one more *program*, not one more job: most jobs are runs of the few popular programs,
    and taking their median for a stranger's was measured to be wrong by far more than the median of first runs.
    """

    def __init__(self) -> None:
        self._groups = {level: _Groups() for level in Level}
        self._first_runs_by_user = _Groups()
        self.cluster = ClusterLabels()
        self.first_runs = ClusterLabels()

    def group(self, level: Level, key: Hashable | None) -> Group | None:
        """The group's past, or None if nothing of it has ended."""
        return self._groups[level].get(key)

    def first_runs_of(self, user: Hashable | None) -> Group | None:
        """The first runs of a user's programs, or None."""
        return self._first_runs_by_user.get(user)

    def add(self, keys: dict[Level, Hashable | None], label: float, ended_at_s: float, failed: bool) -> None:
        """A job ended with this log label."""
        recurrence = keys[Level.RECURRENCE]
        if recurrence is not None and self.group(Level.RECURRENCE, recurrence) is None:
            self._first_runs_by_user.add(keys[Level.USER], label, ended_at_s, failed)
            self.first_runs.add(label)
        for level, key in keys.items():
            self._groups[level].add(key, label, ended_at_s, failed)
        self.cluster.add(label)


class OpenJobs:
    """Jobs that were submitted and have not ended, per recurrence and per user: the "running now in this group" features.

    Answers depend only on jobs submitted before the one that asks, so asking twice, or in a batch, changes nothing.
    """

    def __init__(self) -> None:
        # Plain lists: jobs come nearly in order, so most are appended, and a list of 100,000 still moves in 40 microseconds.
        self._groups: dict[Hashable, list[tuple[float, int]]] = {}
        self._members: OrderedDict[int, tuple[float, tuple[Hashable, ...]]] = OrderedDict()

    def add(self, job: int, submitted_at_s: float, keys: Sequence[Hashable]) -> None:
        """A job was submitted. Adding it twice changes nothing."""
        if job in self._members:
            return
        while self._members and next(iter(self._members.values()))[0] < submitted_at_s - OPEN_MAX_AGE_S:
            self.remove(next(iter(self._members)))
        self._members[job] = (submitted_at_s, tuple(keys))
        for key in keys:
            insort(self._groups.setdefault(key, []), (submitted_at_s, job))

    def remove(self, job: int) -> None:
        """It ended, or is no longer believed to be open."""
        submitted_at_s, keys = self._members.pop(job, (0.0, ()))
        for key in keys:
            members = self._groups[key]
            del members[bisect_left(members, (submitted_at_s, job))]
            if not members:
                del self._groups[key]

    def before(self, key: Hashable, submitted_at_s: float, job: int) -> tuple[int, float]:
        """How many open jobs of the group were submitted earlier, and the age in seconds of the oldest (0.0: none)."""
        members = self._groups.get(key)
        if members is None:
            return 0, 0.0
        first = bisect_left(members, (submitted_at_s - OPEN_MAX_AGE_S, -1))
        count = bisect_left(members, (submitted_at_s, job)) - first
        return (count, submitted_at_s - members[first][0]) if count > 0 else (0, 0.0)

    def ages_s(self, key: Hashable, submitted_at_s: float, job: int, limit: int) -> tuple[float, ...]:
        """Seconds since the newest ``limit`` of those jobs were submitted, ascending."""
        members = self._groups.get(key)
        if members is None:
            return ()
        oldest = bisect_left(members, (submitted_at_s - OPEN_MAX_AGE_S, -1))
        end = bisect_left(members, (submitted_at_s, job))
        newest = members[max(oldest, end - limit) : end]
        return tuple(submitted_at_s - each_s for each_s, _ in reversed(newest))
