"""The starvation guard: the jobs that come first because they have waited longest."""

from typing import Any, NamedTuple

from policies.model.ids import JobId
from policies.model.view import JobView
from policies.state.sorted_list import SortedList


class _Wait(NamedTuple):
    """A waiting job: its entries in both orders, one object where they are equal, and its GPUs."""

    by_age: tuple[float, JobId]
    by_wait: tuple[float, JobId]
    gpus: int


class StarvationGuard:
    """The guarded jobs and the order in which others become guarded. Every update is O(log n).

    The oldest unfinished jobs are guarded while their GPUs fit ``gpus_max`` (0: no guard), and one job besides: ``extra``.
    A guarded job stays guarded until it ends, is withdrawn or its turn is over (:mod:`policies.decision.guard`).
    """

    __slots__ = ("_ages", "_waits", "extra", "gpus_max", "guarded", "guarded_gpus", "overdue_order", "waiting_order")

    def __init__(self, gpus_max: float) -> None:
        self.gpus_max = gpus_max
        self.guarded: dict[JobId, int] = {}
        """The guarded jobs but ``extra``, and their GPUs."""
        self.guarded_gpus = 0
        self.extra: JobId | None = None
        self.waiting_order: SortedList[tuple[float, JobId]] = SortedList()
        """(submission time, job) of each waiting job."""
        self.overdue_order: SortedList[tuple[float, JobId]] = SortedList()
        """(time from which its wait counts, job) of each waiting job: the first is overdue first. That time is its submission,
        later by the waiting that the time it has run is worth.
        """
        self._waits: dict[JobId, _Wait] = {}
        self._ages: SortedList[tuple[float, JobId, int]] = SortedList()
        """(submission time, job, GPUs) of each competing job that is not in ``guarded``."""

    def tier(self, job: JobId) -> int:
        """0 for guarded jobs, else 1."""
        return 0 if job in self.guarded or job == self.extra else 1

    def members(self) -> list[JobId]:
        """The guarded jobs."""
        return [*self.guarded] if self.extra is None else [*self.guarded, self.extra]

    def compete(self, job: JobView) -> None:
        """The job waits for GPUs or holds some: it may become guarded."""
        if job.id not in self.guarded:
            entry = (job.submitted_at_s, job.id, job.spec.gpus)
            self._ages.discard(entry)
            self._ages.add(entry)

    def leave(self, job: JobView) -> None:
        """The job neither waits for GPUs nor holds any."""
        if self.guarded.pop(job.id, None) is None:
            self._ages.discard((job.submitted_at_s, job.id, job.spec.gpus))
        else:
            self.guarded_gpus -= job.spec.gpus
        if self.extra == job.id:
            self.extra = None

    def start_waiting(self, job: JobView, cluster_gpus: int) -> None:
        """The job waits; it is not known as waiting yet."""
        by_age = by_wait = (job.submitted_at_s, job.id)
        if job.attempts and self.gpus_max > 0.0:
            # Time that the job has run counts as if it had run on the guarded share of the cluster.
            ran_s = job.attained_service_s(0.0) / job.spec.gpus * cluster_gpus / self.gpus_max
            by_wait = (job.submitted_at_s + ran_s, job.id)
        self._waits[job.id] = _Wait(by_age, by_wait, job.spec.gpus)
        self.waiting_order.add(by_age)
        self.overdue_order.add(by_wait)

    def stop_waiting(self, job: JobId) -> None:
        """The job does not wait any more; it was known as waiting."""
        wait = self._waits.pop(job)
        self.waiting_order.remove(wait.by_age)
        self.overdue_order.remove(wait.by_wait)

    def fill(self, overdue_since_s: float) -> list[JobId]:
        """Guard the oldest competing jobs while they fit ``gpus_max``, and one waiting job; return the new ones.

        The latter is the oldest waiting job if its gang alone would fit. Otherwise it is, whatever its size, the first job of
        ``overdue_order``, once its wait counts since ``overdue_since_s`` or before. (On a small cluster, where one gang takes
        most of the GPUs, the oldest waiting job would otherwise displace all others in turn: first in, first out.)
        O(log n) amortised.
        """
        entered = []
        while self._ages and self.guarded_gpus + self._ages[0][2] <= self.gpus_max:
            _, job, gpus = self._ages.pop_first()
            self._guard(job, gpus)
            if job == self.extra:
                self.extra = None
            entered.append(job)
        if self.extra is None and self.gpus_max > 0.0:
            found = self._first_unguarded(self.waiting_order)
            if found is None or self._waits[found[1]].gpus > self.gpus_max:
                found = self._first_unguarded(self.overdue_order)
                if found is not None and found[0] > overdue_since_s:
                    found = None
            if found is not None:
                self.extra = found[1]
                entered.append(found[1])
        return entered

    def _guard(self, job: JobId, gpus: int) -> None:
        self.guarded[job] = gpus
        self.guarded_gpus += gpus

    def _first_unguarded(self, order: SortedList[tuple[float, JobId]]) -> tuple[float, JobId] | None:
        return next((entry for entry in order if entry[1] not in self.guarded), None)

    def dump(self) -> dict[str, Any]:
        """Which jobs are guarded: it does not follow from the jobs."""
        return {"guarded": sorted(self.guarded), "guarded_extra": self.extra}

    def restore(self, dump: dict[str, Any]) -> None:
        """Guard the jobs of an earlier dump that still compete. O(competing jobs)."""
        if self.gpus_max <= 0.0:
            return
        competing = {entry[1]: entry for entry in self._ages}
        for job in dump.get("guarded", ()):
            if job in competing:
                self._ages.remove(competing[job])
                self._guard(job, competing[job][2])
        if dump.get("guarded_extra") in competing:
            self.extra = dump["guarded_extra"]

    def check(self) -> None:
        """Raise AssertionError unless all orders agree and the guarded GPUs are the sum over the guarded jobs. O(n)."""
        assert self.guarded_gpus == sum(self.guarded.values())
        assert list(self.waiting_order) == sorted(wait.by_age for wait in self._waits.values())
        assert list(self.overdue_order) == sorted(wait.by_wait for wait in self._waits.values())
        assert self.guarded.keys().isdisjoint(entry[1] for entry in self._ages)
        assert self.extra not in self.guarded
