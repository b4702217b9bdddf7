"""The index of running jobs that may be preempted, or will be allowed to be."""

import heapq
import math
from collections.abc import Iterator
from itertools import islice
from typing import TypeAlias

from policies.model.ids import JobId
from policies.model.value import value
from policies.state.keys import JobKey, RankLine
from policies.state.sorted_list import SortedList


@value
class Victim:
    """A running job in the order of preemption; ``rank`` is its rank now, never too small but for rounding."""

    priority: int
    project_level: int
    rank: float
    gpus: int
    job: JobId


_Entry: TypeAlias = tuple[int, int, float, float, int, RankLine]
"""A job in the order of preemption: its priority, minus its project level, minus its rank at some time, minus when it was
submitted, minus its number, and its line."""


class RunningIndex:
    """Running jobs by the line that their rank follows, and when each rank must be computed again. Updates are O(log n).

    ``protected``: running jobs that no rule lets be stopped yet. They are on no line.

    Where networks matter, nearly every job has a line of its own. So the worst jobs of the lines are kept in the order of
    preemption, with ranks of an earlier time, and these are brought up to date only as far as the order is read. Ranks of lines
    that do not rise can only have fallen since: an entry that is up to date and still comes first is the worst.
    """

    __slots__ = (
        "_entries", "_order", "_order_at_s", "_order_gpus", "_refresh_at_s", "_refreshes", "_rising", "keys", "lines",
        "protected",
    )  # fmt: skip

    def __init__(self) -> None:
        self.lines: dict[RankLine, SortedList[JobKey]] = {}
        self.keys: dict[JobId, tuple[RankLine, JobKey]] = {}
        self.protected: dict[JobId, None] = {}
        self._rising: dict[RankLine, None] = {}
        self._order: SortedList[_Entry] = SortedList()
        """The worst job of each line that does not rise, with its rank at ``_order_at_s`` or earlier."""
        self._entries: dict[RankLine, _Entry] = {}
        """What ``_order`` holds of each line."""
        self._order_at_s = 0.0
        self._order_gpus = 0
        """GPUs of the cluster that the order was made for; 0: it was never read, and is empty."""
        self._refreshes: list[tuple[float, JobId]] = []
        """A heap. An entry counts if ``_refresh_at_s`` holds the same time for the job."""
        self._refresh_at_s: dict[JobId, float] = {}

    def copy(self) -> "RunningIndex":
        """An index that changes independently. O(n)."""
        other = RunningIndex()
        other.lines = {line: SortedList(entries) for line, entries in self.lines.items()}
        other.keys, other.protected, other._rising = dict(self.keys), dict(self.protected), dict(self._rising)
        other._refreshes, other._refresh_at_s = list(self._refreshes), dict(self._refresh_at_s)
        return other

    def add(self, line: RankLine, key: JobKey, refresh_at_s: float | None) -> None:
        """Index a job that is not indexed."""
        entries = self.lines.get(line)
        if entries is None:
            entries = self.lines[line] = SortedList()
            if line.slope > 0.0:
                self._rising[line] = None
        entries.add(key)
        if entries[-1] is key:
            self._place_worst(line)
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
            was_worst = entries[-1] is key
            entries.remove(key)
            if not entries:
                del self.lines[line]
                self._rising.pop(line, None)
            if was_worst:
                self._place_worst(line)
        else:
            self.protected.pop(job, None)
        self._refresh_at_s.pop(job, None)

    def victim_order(self, cluster_gpus: int, now_s: float) -> Iterator[Victim]:
        """Jobs that may be preempted, the worst first: smaller priorities, higher project levels, larger ranks.

        The index must not change while the iterator is in use. O(rising lines), then O(log lines) a job and for each job whose
        rank has fallen behind that of a job that comes later.
        """
        self._keep_order_for(cluster_gpus, now_s)
        heap = [self._entry(line, self.lines[line][-1], now_s) for line in self._rising]
        heapq.heapify(heap)
        # Only for lines that are followed: most decisions look at the first jobs alone.
        rests: dict[RankLine, Iterator[JobKey]] = {}
        position, ahead = 0, self._entry_at(0, now_s)
        while ahead is not None or heap:
            from_order = ahead is not None and (not heap or ahead < heap[0])
            entry = ahead if from_order else heap[0]
            assert entry is not None
            priority, minus_level, minus_rank, _, minus_job, line = entry
            yield Victim(priority, -minus_level, -minus_rank, line.gpus, JobId(-minus_job))
            if from_order:
                position += 1
                ahead = self._entry_at(position, now_s)
            else:
                heapq.heappop(heap)
            if line not in rests:
                rests[line] = islice(reversed(self.lines[line]), 1, None)
            if (key := next(rests[line], None)) is not None:
                heapq.heappush(heap, self._entry(line, key, now_s))

    def rising(self) -> bool:
        """Whether the rank of any job rises with time."""
        return bool(self._rising)

    def due_refreshes(self, now_s: float) -> list[JobId]:
        """Remove and return the jobs whose ranks must be computed again by now."""
        due: list[JobId] = []
        while self._refreshes and self._refreshes[0][0] <= now_s:
            at_s, job = heapq.heappop(self._refreshes)
            if self._refresh_at_s.get(job) == at_s:
                del self._refresh_at_s[job]
                due.append(job)
        return due

    def next_refresh_s(self) -> float | None:
        """When the next rank must be computed again."""
        while self._refreshes:
            at_s, job = self._refreshes[0]
            if self._refresh_at_s.get(job) == at_s:
                return at_s
            heapq.heappop(self._refreshes)
        return None

    def _keep_order_for(self, cluster_gpus: int, now_s: float) -> None:
        """Make the order again if it is of another cluster or of a later time."""
        if cluster_gpus == self._order_gpus and now_s >= self._order_at_s:
            self._order_at_s = now_s
            return
        self._order_gpus, self._order_at_s = cluster_gpus, now_s
        not_rising = self.lines.keys() - self._rising.keys()
        self._entries = {line: self._entry(line, self.lines[line][-1], now_s) for line in not_rising}
        self._order = SortedList(self._entries.values())

    def _place_worst(self, line: RankLine) -> None:
        """Note the worst job of the line, which has changed, in the order."""
        if self._order_gpus == 0 or line.slope > 0.0:
            return
        if (before := self._entries.pop(line, None)) is not None:
            self._order.remove(before)
        if (entries := self.lines.get(line)) is not None:
            worst = self._entries[line] = self._entry(line, entries[-1], self._order_at_s)
            self._order.add(worst)

    def _entry_at(self, position: int, now_s: float) -> _Entry | None:
        """The entry at this position of the order, with its rank now. Those before it must be up to date."""
        while position < len(self._order):
            entry = self._order[position]
            line = entry[5]
            current = self._entry(line, self.lines[line][-1], now_s)
            if current == entry:
                return entry
            self._order.remove(entry)
            self._order.add(current)
            self._entries[line] = current
        return None

    def _entry(self, line: RankLine, key: JobKey, now_s: float) -> _Entry:
        gain = line.slope * line.gpus / self._order_gpus * now_s
        _, minus_priority, level, rank, submitted_at_s, job = key
        return (-minus_priority, -level, -(rank + gain), -submitted_at_s, -job, line)

    def _refresh(self, job: JobId, at_s: float) -> None:
        self._refresh_at_s[job] = at_s
        heapq.heappush(self._refreshes, (at_s, job))

    def check(self) -> None:
        """Raise AssertionError unless lines, keys, protected jobs and refreshes agree. O(n)."""
        assert all(self.lines.values()), "a line without jobs has no entry"
        assert self._rising.keys() == {line for line in self.lines if line.slope > 0.0}
        assert list(self._order) == sorted(self._entries.values())
        if self._order_gpus:
            assert self._entries.keys() == self.lines.keys() - self._rising.keys()
            for line, entry in self._entries.items():
                now = self._entry(line, self.lines[line][-1], self._order_at_s)
                assert entry[3:] == now[3:], "an entry is of the worst job of its line"
                assert entry <= now, "ranks in the order are no smaller than now"
        assert {key.job: (line, key) for line, entries in self.lines.items() for key in entries} == self.keys
        assert self.keys.keys().isdisjoint(self.protected)
        assert set(self._refresh_at_s) <= self.keys.keys() | self.protected.keys()
        assert {(at_s, job) for job, at_s in self._refresh_at_s.items()} <= set(self._refreshes)
