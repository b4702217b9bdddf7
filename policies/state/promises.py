"""Promised ends of jobs, how they are computed, and what past ones have taught.

A promise is made once for a job. Its length is a nominal time (the work of waiting jobs that come before it, and its own
time) times a ratio that past jobs of like nominal times have needed: the quantile of their ratios at a level that moves after
each promise that is kept or broken. This is adaptive conformal inference (Gibbs and Candes, "Adaptive Conformal Inference
Under Distribution Shift", NeurIPS 2021). While the level stays inside (0, 1), the share of kept promises among T of them is
within 1 / (T x ``STEP``) of the wanted share for any ratios, also for those of jobs that end in time because of their
promise.
"""

import heapq
import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from policies.model.ids import JobId
from policies.state.sorted_list import SortedList

STEP = 0.01
"""How far one broken promise moves a level, divided by the share of promises to keep."""

RATIOS_MAX = 128
"""Newest ratios that a record holds."""

RATIOS_MIN = 16
"""A record of fewer ratios is not used."""

RATIO_AT_FIRST = 3.0
"""The ratio before anything is known."""

LATE_RATIO = 2.0
"""A job that has not ended by its promise is taken to need this many times as long, until it ends."""

CLASS_RATIO = 4.0
"""Nominal times within this factor share a record."""

HALVINGS_MAX = 10
"""A job whose slack has been halved more often counts as one whose slack has been halved so often."""

_ROUNDING = 1e-6

WORK_CLASSES_PER_OCTAVE = 4
"""Waiting work is summed by classes of ranks; this many for each factor of two."""


class Promise(NamedTuple):
    """Told at ``made_at_s``: the job ends by ``end_s``. ``slack_s`` is what that leaves beside the job's own time, at least 0."""

    made_at_s: float
    end_s: float
    slack_s: float
    nominal_s: float

    @property
    def ratio(self) -> float:
        """The promised over the nominal time."""
        return (self.end_s - self.made_at_s) / self.nominal_s


class Record:
    """The newest ratios, and the level at which promises are made from them. Updates are O(log ``RATIOS_MAX``)."""

    __slots__ = ("_ordered", "level", "ratios")

    def __init__(self, level: float, ratios: Iterable[tuple[JobId, float]] = ()) -> None:
        self.level = level
        self.ratios: dict[JobId, float] = dict(ratios)
        """By job, the oldest first."""
        self._ordered = SortedList(self.ratios.values())

    def __len__(self) -> int:
        return len(self.ratios)

    def note(self, job: JobId, ratio: float) -> None:
        """What the job has needed; known better if it is here already."""
        if (before := self.ratios.get(job)) is not None:
            self._ordered.remove(before)
        self.ratios[job] = ratio
        self._ordered.add(ratio)
        if len(self.ratios) > RATIOS_MAX:
            self._ordered.remove(self.ratios.pop(next(iter(self.ratios))))

    def correct(self, job: JobId, ratio: float) -> None:
        """The job has ended after its promise; forgotten jobs are ignored."""
        if job in self.ratios:
            self.note(job, ratio)

    def move(self, wanted: float, *, kept: bool) -> None:
        """A promise was kept or broken."""
        self.level = min(1.0, max(0.0, self.level + STEP * (wanted - kept)))

    @property
    def ratio(self) -> float:
        """The quantile at the level, of at least one ratio."""
        position = math.ceil(self.level * (len(self._ordered) + 1)) - 1
        return self._ordered[min(len(self._ordered) - 1, max(0, position))]


class Calibration:
    """Records by class of nominal times, and one of all jobs for classes with few. ``wanted``: the share of promises to keep."""

    __slots__ = ("_all", "_records", "_wanted")

    def __init__(self, wanted: float, dump: dict[str, Any] | None = None) -> None:
        self._wanted = wanted
        self._records: dict[int, Record] = {}
        self._all = Record(wanted)
        for name, (level, ratios) in (dump or {}).items():
            record = Record(level, ((JobId(job), ratio) for job, ratio in ratios))
            if name == "all":
                self._all = record
            else:
                self._records[int(name)] = record

    def dump(self) -> dict[str, Any]:
        """The levels and the ratios, as JSON."""
        records = {"all": self._all, **{str(number): record for number, record in sorted(self._records.items())}}
        return {
            name: [record.level, [[job, ratio] for job, ratio in record.ratios.items()]]
            for name, record in records.items()
        }

    def ratio(self, nominal_s: float) -> float:
        """By how much a promise exceeds its nominal time."""
        record = self._records.get(_class(nominal_s))
        if record is None or len(record) < RATIOS_MIN:
            record = self._all
        return record.ratio if len(record) >= RATIOS_MIN else RATIO_AT_FIRST

    def settle(self, job: JobId, promise: Promise, ended_at_s: float | None) -> None:
        """The job has ended in time, or (None) has not ended by its promise. Once a promise."""
        record = self._records.setdefault(_class(promise.nominal_s), Record(self._wanted))
        ratio = LATE_RATIO * promise.ratio if ended_at_s is None else _needed(promise, ended_at_s)
        for each in (record, self._all):
            each.note(job, ratio)
            each.move(self._wanted, kept=ended_at_s is not None)

    def correct(self, job: JobId, promise: Promise, ended_at_s: float) -> None:
        """The job has ended after its promise: what it has needed is known now."""
        for each in (self._records.get(_class(promise.nominal_s)), self._all):
            if each is not None:
                each.correct(job, _needed(promise, ended_at_s))


class WaitingWork:
    """Work of waiting jobs by rank, in whole virtual milliseconds: sums that do not depend on the order of their terms."""

    __slots__ = ("_of", "_sums")

    def __init__(self) -> None:
        self._of: dict[JobId, tuple[int, int]] = {}
        self._sums: dict[int, int] = {}

    def add(self, job: JobId, rank: float, work_s: float) -> None:
        """The job waits, with this rank and remaining work in virtual seconds."""
        self.remove(job)
        number, work_ms = _work_class(rank), round(1000.0 * work_s)
        self._of[job] = (number, work_ms)
        self._sums[number] = self._sums.get(number, 0) + work_ms

    def remove(self, job: JobId) -> None:
        """The job waits no more; unknown jobs are ignored."""
        if (found := self._of.pop(job, None)) is not None:
            number, work_ms = found
            left_ms = self._sums.pop(number, 0) - work_ms
            if left_ms:
                self._sums[number] = left_ms

    def ahead_s(self, job: JobId) -> float:
        """Virtual seconds of work that comes before a waiting job; of its own class half of it. O(classes): some hundred."""
        mine, work_ms = self._of[job]
        better_ms = sum(sum_ms for number, sum_ms in self._sums.items() if number < mine)
        return (better_ms + (self._sums.get(mine, 0) - work_ms) / 2.0) / 1000.0


class Promises:
    """The promises of unfinished jobs, and when each must be looked at again. Updates are O(log n)."""

    __slots__ = ("_due", "calibration", "given_up", "of", "settled", "unpromised", "urgency", "work")

    def __init__(self, wanted: float) -> None:
        self.of: dict[JobId, Promise] = {}
        self.settled: set[JobId] = set()
        """Jobs that have not ended by their promise."""
        self.given_up: set[JobId] = set()
        """Jobs that could not keep their promise even if they started at once."""
        self.urgency: dict[JobId, int] = {}
        """How often the slack of a job has been halved by waiting; jobs with at least half of it left out."""
        self.unpromised: set[JobId] = set()
        """Jobs that the cycle in progress makes a promise."""
        self.calibration = Calibration(wanted)
        self.work = WaitingWork()
        self._due: list[tuple[float, JobId]] = []
        """A heap. An entry that is out of date only causes a look in vain."""

    def dump(self) -> dict[str, Any]:
        """All promises and what was learned: nothing of it follows from the jobs."""
        return {
            "of": {str(job): list(promise) for job, promise in sorted(self.of.items())},
            "settled": sorted(self.settled),
            "given_up": sorted(self.given_up),
            "urgency": {str(job): halvings for job, halvings in sorted(self.urgency.items())},
            "calibration": self.calibration.dump(),
        }

    def make(self, job: JobId, promise: Promise) -> None:
        """Tell a job when it ends."""
        self.of[job] = promise
        self.look_at(job, promise.end_s)

    def press(self, job: JobId, slack_s: float) -> float | None:
        """A waiting job has this slack left; return at which slack to look again, None if not for its slack.

        Without any slack the promise is given up, for good.
        """
        promise = self.of[job]
        if job in self.settled or job in self.given_up:
            return None
        if slack_s <= 0.0:
            self.given_up.add(job)
            self.urgency.pop(job, None)
            return None
        halvings = math.floor(math.log2(max(1.0, promise.slack_s / slack_s)) + _ROUNDING)
        halvings = min(HALVINGS_MAX, max(halvings, self.urgency.get(job, 0)))
        if halvings:
            self.urgency[job] = halvings
        return promise.slack_s / 2.0 ** (halvings + 1) if halvings < HALVINGS_MAX else 0.0

    def end(self, job: JobId, now_s: float, *, counts: bool) -> None:
        """The job has ended; ``counts`` is False if it was cancelled."""
        promise = self.of.pop(job, None)
        if promise is not None and counts:
            if job in self.settled:
                self.calibration.correct(job, promise, now_s)
            else:
                self.calibration.settle(job, promise, now_s if now_s <= promise.end_s else None)
                if now_s > promise.end_s:
                    self.calibration.correct(job, promise, now_s)
        self.settled.discard(job)
        self.given_up.discard(job)
        self.urgency.pop(job, None)
        self.unpromised.discard(job)
        self.work.remove(job)

    def pass_end(self, job: JobId, now_s: float) -> None:
        """Settle the promise if its end has passed."""
        promise = self.of[job]
        if promise.end_s <= now_s and job not in self.settled:
            self.settled.add(job)
            self.urgency.pop(job, None)
            self.calibration.settle(job, promise, None)

    def look_at(self, job: JobId, at_s: float) -> None:
        """Have the job returned by :meth:`due` then."""
        heapq.heappush(self._due, (at_s, job))

    def due(self, now_s: float) -> Iterator[JobId]:
        """Remove and yield the promised jobs to look at, in an order that does not depend on when they were noted."""
        while self._due and self._due[0][0] <= now_s:
            job = heapq.heappop(self._due)[1]
            if job in self.of:
                yield job

    def next_due_s(self) -> float | None:
        """When the next job must be looked at."""
        while self._due and self._due[0][1] not in self.of:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None


def _needed(promise: Promise, ended_at_s: float) -> float:
    return (ended_at_s - promise.made_at_s) / promise.nominal_s


def _class(nominal_s: float) -> int:
    return math.floor(math.log(nominal_s, CLASS_RATIO))


def _work_class(rank: float) -> int:
    return math.floor(WORK_CLASSES_PER_OCTAVE * math.log2(max(rank, 1e-3)))
