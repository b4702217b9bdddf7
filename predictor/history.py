"""The history store: the jobs that have ended, per recurrence level. It changes only when a job ends, so features are causal.

Labels are natural logarithms of the total (iterations or seconds). Every statistic that a feature needs is computed once when a
job ends, so that a submission costs look-ups only.
"""

import math
from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import numpy as np

from predictor.arguments import ArgumentRuns
from predictor.intervals import LEVELS
from predictor.recurrence import Level, keys_of
from predictor.rows import Submission

Quantiles = tuple[float, ...]
"""Log quantiles at the predictor's levels."""

LABELS_KEPT: Final = 20
"""The newest labels kept per group: recent runs predict better than many runs."""
CLUSTER_LABELS_KEPT: Final = 2_000
"""Labels behind the cluster-wide median and the cold-start distribution."""
RECENT_LABELS: Final = 50
"""Labels behind the distribution of the cluster's newest jobs."""
QUANTILE_LABELS_MIN: Final = 5
"""Labels that make a distribution."""
EWMA_WEIGHT: Final = 0.3
"""Weight of the newest label in a group's exponentially weighted mean."""
GROUPS_MAX: Final = 200_000
"""Groups kept per level, the least recently ended evicted first: users choose the names, so their number is unbounded."""
PROGRAMS_MAX: Final = 20_000
"""Programs whose command lines are kept, the least recently ended evicted first."""
OPEN_MAX_AGE_S: Final = 14 * 86_400.0
"""An unfinished job older than this no longer counts as "running now": its end may have been lost."""


def median_of(ordered: Sequence[float]) -> float:
    """The median of ascending values."""
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2.0


def _quantiles_of(labels: Sequence[float]) -> Quantiles | None:
    """The empirical distribution of some labels; None for too few."""
    if len(labels) < QUANTILE_LABELS_MIN:
        return None
    ordered = np.sort(np.fromiter(labels, dtype=float))
    # Each label has an equal share of the mass and stands in the middle of it.
    position = np.clip(LEVELS * len(ordered) - 0.5, 0.0, len(ordered) - 1.0)
    return tuple(np.interp(position, np.arange(len(ordered)), ordered).tolist())


@dataclass(slots=True, eq=False)
class Group:
    """The past of one group: count, newest labels, and their summary. All labels are log units.

    ``log_count`` is ln(1 + count), ``failed_ratio`` the share of the kept jobs that did not succeed, ``last`` the newest label
    and ``previous`` the one before it (the newest itself where there is one). ``last2`` is the log of the mean of the last two
    totals, the classic two-run predictor (Tsafrir, Etsion, Feitelson, TPDS 2007); ``mean`` that of all totals of the group.
    ``last_submitted`` is the label of the job that was submitted last, at ``last_submitted_at_s``.
    """

    count: int = 0
    labels: deque[float] = field(default_factory=lambda: deque(maxlen=LABELS_KEPT))
    failed: deque[bool] = field(default_factory=lambda: deque(maxlen=LABELS_KEPT))
    ewma: float = 0.0
    median: float = 0.0
    low: float = 0.0
    high: float = 0.0
    spread: float = 0.0
    failed_ratio: float = 0.0
    ended_at_s: float = 0.0
    log_count: float = 0.0
    last: float = 0.0
    previous: float = 0.0
    last2: float = 0.0
    mean: float = 0.0
    last_submitted: float = 0.0
    last_submitted_at_s: float = -math.inf
    _total: float = 0.0
    _quantiles: Quantiles | None = None

    @property
    def quantiles(self) -> Quantiles | None:
        """The distribution of the kept labels; None while there are fewer than 5."""
        if self._quantiles is None:
            self._quantiles = _quantiles_of(self.labels)
        return self._quantiles

    def add(self, label: float, submitted_at_s: float, ended_at_s: float, failed: bool) -> None:
        """One more job of the group has ended. O(labels kept)."""
        self._quantiles = None
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
        if submitted_at_s >= self.last_submitted_at_s:
            self.last_submitted, self.last_submitted_at_s = label, submitted_at_s
        ordered = sorted(self.labels)
        self.median = median_of(ordered)
        self.low = ordered[len(ordered) // 10]
        self.high = ordered[len(ordered) - 1 - len(ordered) // 10]
        mean = sum(ordered) / len(ordered)
        self.spread = math.sqrt(sum((x - mean) ** 2 for x in ordered) / len(ordered))
        self.failed_ratio = sum(self.failed) / len(self.failed)


class ClusterLabels:
    """The newest labels of the whole cluster, sorted: median and quantiles in O(log n)."""

    def __init__(self) -> None:
        self._newest: deque[float] = deque()
        self._ordered: list[float] = []
        self._median: float | None = None
        self._quantiles: Quantiles | None = None

    def __len__(self) -> int:
        return len(self._newest)

    def add(self, label: float) -> None:
        """One more job has ended."""
        if len(self._newest) == CLUSTER_LABELS_KEPT:
            del self._ordered[bisect_left(self._ordered, self._newest.popleft())]
        self._newest.append(label)
        insort(self._ordered, label)
        self._median = self._quantiles = None

    @property
    def median(self) -> float:
        """The median label, cached until the next job ends: a batch of new jobs reads it many times per job."""
        if self._median is None:
            self._median = median_of(self._ordered)
        return self._median

    @property
    def quantiles(self) -> Quantiles | None:
        """The distribution of the newest 50 labels; None while there are fewer than 5."""
        if self._quantiles is None:
            start = max(0, len(self._newest) - RECENT_LABELS)
            self._quantiles = _quantiles_of(list(islice(self._newest, start, None)))
        return self._quantiles


class _Groups(OrderedDict[Hashable | None, Group]):
    """Groups by key; beyond :data:`GROUPS_MAX` the least recently ended is evicted. The key None is ignored."""

    def add(self, key: Hashable | None, label: float, submitted_at_s: float, ended_at_s: float, failed: bool) -> None:
        if key is None:
            return
        group = self.get(key)
        if group is None:
            group = self[key] = Group()
            if len(self) > GROUPS_MAX:
                self.popitem(last=False)
        else:
            self.move_to_end(key)
        group.add(label, submitted_at_s, ended_at_s, failed)


class HistoryStore:
    """Groups at every level for one unit, all labels of the cluster, and the labels of programs' first runs.

    First runs predict a new program better than all jobs do: most jobs are runs of a few popular programs, whose median was
    measured to be far more wrong for a new one.
    """

    def __init__(self) -> None:
        self._groups = {level: _Groups() for level in Level}
        self._first_runs_by_user = _Groups()
        self._argument_runs: OrderedDict[Hashable, ArgumentRuns] = OrderedDict()
        self.cluster = ClusterLabels()
        self.first_runs = ClusterLabels()

    def group(self, level: Level, key: Hashable | None) -> Group | None:
        """The group's past, or None if nothing of it has ended."""
        return self._groups[level].get(key)

    def first_runs_of(self, user: Hashable | None) -> Group | None:
        """The first runs of a user's programs, or None."""
        return self._first_runs_by_user.get(user)

    def by_arguments(self, submission: Submission) -> float:
        """The log total that the runs of the job's program say for its command line; NaN where neither is known."""
        runs = self._argument_runs.get(keys_of(submission)[Level.RECURRENCE]) if submission.arguments else None
        return math.nan if runs is None else runs.point(submission.gpus, submission.arguments)

    def add(self, submission: Submission, label: float, ended_at_s: float, failed: bool) -> None:
        """A job ended with this log label."""
        keys = keys_of(submission)
        recurrence, submitted_at_s = keys[Level.RECURRENCE], submission.submitted_at_s
        if recurrence is not None and self.group(Level.RECURRENCE, recurrence) is None:
            self._first_runs_by_user.add(keys[Level.USER], label, submitted_at_s, ended_at_s, failed)
            self.first_runs.add(label)
        for level, key in keys.items():
            self._groups[level].add(key, label, submitted_at_s, ended_at_s, failed)
        self.cluster.add(label)
        if submission.arguments and recurrence is not None:
            runs = self._argument_runs.setdefault(recurrence, ArgumentRuns())
            self._argument_runs.move_to_end(recurrence)
            runs.add(submission.gpus, submission.arguments, label)
            if len(self._argument_runs) > PROGRAMS_MAX:
                self._argument_runs.popitem(last=False)


_OpenJob = tuple[float, int, tuple[Hashable, ...]]
"""Submission time, job, and the keys of its groups. No job is in a group twice, so the keys are never compared."""


class OpenJobs:
    """Jobs that were submitted and have not ended, per group: the "running now in this group" features.

    A result depends only on jobs submitted before the job in question, so the order of a batch changes nothing.
    """

    def __init__(self) -> None:
        # Plain lists: jobs arrive nearly in order, so most are appended; inserting into a list of 100,000 takes 40 microseconds.
        self._groups: dict[Hashable, list[_OpenJob]] = {}
        self._members: OrderedDict[int, _OpenJob] = OrderedDict()

    def add(self, job: int, submitted_at_s: float, keys: Sequence[Hashable]) -> None:
        """A job was submitted. Adding it twice changes nothing."""
        if job in self._members:
            return
        while self._members and next(iter(self._members.values()))[0] < submitted_at_s - OPEN_MAX_AGE_S:
            self.remove(next(iter(self._members)))
        groups = [self._groups.setdefault(key, []) for key in keys]
        entry = (submitted_at_s, job, tuple(keys))
        if groups and groups[0] and groups[0][-1][2] == entry[2]:
            # A hundred thousand jobs of a few programs share a few tuples of keys.
            entry = (submitted_at_s, job, groups[0][-1][2])
        self._members[job] = entry
        for group in groups:
            insort(group, entry)

    def remove(self, job: int) -> None:
        """The job ended, or is too old to count as open."""
        entry = self._members.pop(job, None)
        if entry is None:
            return
        for key in entry[2]:
            members = self._groups[key]
            del members[bisect_left(members, entry)]
            if not members:
                del self._groups[key]

    def all(self) -> list[int]:
        """All open jobs, in the order in which they became known."""
        return list(self._members)

    def members(self, key: Hashable) -> list[int]:
        """The open jobs of the group, earliest submitted first."""
        return [job for _, job, _ in self._groups.get(key, ())]

    def before(self, key: Hashable, submitted_at_s: float, job: int) -> tuple[int, float, float]:
        """How many open jobs of the group were submitted earlier, and the ages in seconds of the oldest and of the newest (0.0:
        none).
        """
        if key not in self._groups:
            return 0, 0.0, 0.0
        members, first, end = self._earlier(key, submitted_at_s, job)
        others = end - first - self._counts(key, submitted_at_s, job)
        if others <= 0:
            return 0, 0.0, 0.0
        oldest = members[first] if members[first][1] != job else members[first + 1]
        newest = members[end - 1] if members[end - 1][1] != job else members[end - 2]
        return others, submitted_at_s - oldest[0], submitted_at_s - newest[0]

    def ages_s(self, key: Hashable, submitted_at_s: float, job: int, limit: int) -> tuple[float, ...]:
        """Seconds since the newest ``limit`` of those jobs were submitted, ascending."""
        if key not in self._groups:
            return ()
        members, first, end = self._earlier(key, submitted_at_s, job)
        newest = members[max(first, end - limit) : end]
        return tuple(submitted_at_s - each_s for each_s, number, _ in reversed(newest) if number != job)

    def _counts(self, key: Hashable, submitted_at_s: float, job: int) -> bool:
        """Whether the job itself is among the group's earlier ones: it is asked about again, as if it were submitted now."""
        own = self._members.get(job)
        return own is not None and submitted_at_s - OPEN_MAX_AGE_S <= own[0] < submitted_at_s and key in own[2]

    def _earlier(self, key: Hashable, submitted_at_s: float, job: int) -> tuple[list[_OpenJob], int, int]:
        """The group's jobs, and the range of those that were submitted before the job and are not too old."""
        members = self._groups[key]
        first = bisect_left(members, (submitted_at_s - OPEN_MAX_AGE_S, -1, ()))
        return members, first, bisect_left(members, (submitted_at_s, job, ()))
