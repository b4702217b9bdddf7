"""The index of running jobs that may be preempted, or will be allowed to be."""

import heapq
import math
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from policies.model.ids import JobId
from policies.state.keys import JobKey, RankLine
from policies.state.sorted_list import SortedList


class Victim(NamedTuple):
    """A running job in the order of preemption; ``rank`` is its rank now, never too small but for rounding."""

    priority: int
    project_level: int
    rank: float
    gpus: int
    job: JobId


class RunningIndex:
    """Running jobs by the line that their rank follows, and when each rank must be computed again. Updates are O(log n).

    ``protected``: running jobs that no rule lets be stopped yet. They are on no line.
    """

    __slots__ = ("_refresh_at_s", "_refreshes", "keys", "lines", "protected")

    def __init__(self) -> None:
        self.lines: dict[RankLine, SortedList[JobKey]] = {}
        self.keys: dict[JobId, tuple[RankLine, JobKey]] = {}
        self.protected: dict[JobId, None] = {}
        self._refreshes: list[tuple[float, JobId]] = []
        """A heap. An entry counts if ``_refresh_at_s`` holds the same time for the job."""
        self._refresh_at_s: dict[JobId, float] = {}

    def copy(self) -> "RunningIndex":
        """An index that changes independently. O(n)."""
        other = RunningIndex()
        other.lines = {line: SortedList(entries) for line, entries in self.lines.items()}
        other.keys, other.protected = dict(self.keys), dict(self.protected)
        other._refreshes, other._refresh_at_s = list(self._refreshes), dict(self._refresh_at_s)
        return other

    def add(self, line: RankLine, key: JobKey, refresh_at_s: float | None) -> None:
        """Index a job that is not indexed."""
        entries = self.lines.get(line)
        if entries is None:
            entries = self.lines[line] = SortedList()
        entries.add(key)
        self.keys[key.job] = (line, key)
        if refresh_at_s is not None:
            self._refresh(key.job, refresh_at_s)

    def protect(self, job: JobId, until_s: float) -> None:
        """Note a job that is not indexed, and may not be stopped until then."""
        self.protected[job] = None
        if until_s < math.inf:
            self._refresh(job, until_s)

    def remove(self, job: JobId) -> None:
        """The job cannot be preempted any more; unknown jobs are ignored."""
        found = self.keys.pop(job, None)
        if found is not None:
            line, key = found
            entries = self.lines[line]
            entries.remove(key)
            if not entries:
                del self.lines[line]
        else:
            self.protected.pop(job, None)
        self._refresh_at_s.pop(job, None)

    def victim_order(self, cluster_gpus: int, now_s: float) -> Iterator[Victim]:
        """Jobs that may be preempted, the worst first: smaller priorities, higher project levels, larger ranks.

        The index must not change while the iterator is in use. O(lines), then O(log lines) a job.
        """
        heap = []
        for line, entries in self.lines.items():
            gain = line.slope * line.gpus / cluster_gpus * now_s
            _, minus_priority, level, rank, submitted_at_s, job = entries[-1]
            heap.append((-minus_priority, -level, -(rank + gain), -submitted_at_s, -job, line))
        heapq.heapify(heap)
        # Only for lines that are followed: most decisions look at the first jobs alone.
        rests: dict[RankLine, Iterator[JobKey]] = {}
        while heap:
            priority, minus_level, minus_rank, _, minus_job, line = heap[0]
            yield Victim(priority, -minus_level, -minus_rank, line.gpus, JobId(-minus_job))
            if line not in rests:
                rests[line] = islice(reversed(self.lines[line]), 1, None)
            key = next(rests[line], None)
            if key is None:
                heapq.heappop(heap)
                continue
            gain = line.slope * line.gpus / cluster_gpus * now_s
            _, minus_priority, level, rank, submitted_at_s, job = key
            heapq.heapreplace(heap, (-minus_priority, -level, -(rank + gain), -submitted_at_s, -job, line))

    def rising(self) -> bool:
        """Whether the rank of any job rises with time. O(lines)."""
        return any(line.slope > 0.0 for line in self.lines)

    def due_refreshes(self, now_s: float) -> Iterator[JobId]:
        """Remove and yield the jobs whose ranks must be computed again by now."""
        while self._refreshes and self._refreshes[0][0] <= now_s:
            at_s, job = heapq.heappop(self._refreshes)
            if self._refresh_at_s.get(job) == at_s:
                del self._refresh_at_s[job]
                yield job

    def next_refresh_s(self) -> float | None:
        """When the next rank must be computed again."""
        while self._refreshes:
            at_s, job = self._refreshes[0]
            if self._refresh_at_s.get(job) == at_s:
                return at_s
            heapq.heappop(self._refreshes)
        return None

    def _refresh(self, job: JobId, at_s: float) -> None:
        self._refresh_at_s[job] = at_s
        heapq.heappush(self._refreshes, (at_s, job))

    def check(self) -> None:
        """Raise AssertionError unless lines, keys, protected jobs and refreshes agree. O(n)."""
        assert all(self.lines.values()), "a line without jobs has no entry"
        assert {key.job: (line, key) for line, entries in self.lines.items() for key in entries} == self.keys
        assert self.keys.keys().isdisjoint(self.protected)
        assert set(self._refresh_at_s) <= self.keys.keys() | self.protected.keys()
        assert {(at_s, job) for job, at_s in self._refresh_at_s.items()} <= set(self._refreshes)
