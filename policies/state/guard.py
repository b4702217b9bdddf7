"""The starvation guard: the jobs that come first because they have waited longest."""

from collections.abc import Callable, Iterable, Sequence, Set
from typing import Any

from policies.model.ids import JobId
from policies.model.value import value
from policies.model.view import JobView
from policies.state.guard_turns import GuardTurns
from policies.state.sorted_list import SortedList


@value
class _Wait:
    """A waiting job: its entries in both orders, one object where they are equal, and its GPUs."""

    by_age: tuple[float, JobId]
    by_wait: tuple[float, JobId]
    gpus: int


class StarvationGuard:
    """The guarded jobs and the order in which others become guarded. Every update is O(log n).

    The oldest unfinished jobs are guarded while their GPUs fit ``gpus_max`` (0: no guard), and one job besides: ``extra``.
    A guarded job stays guarded until it ends, is withdrawn or its turn is over (:mod:`policies.decision.guard`). A job that no
    servers can hold at present is set aside: guarded, it would keep the others from being guarded for as long.
    """

    __slots__ = (
        "_aged",
        "_ages",
        "_aside",
        "_waits",
        "extra",
        "gpus_max",
        "guarded",
        "guarded_gpus",
        "overdue_order",
        "turns",
        "unchecked",
        "waiting_order",
    )

    def __init__(self, gpus_max: float) -> None:
        self.gpus_max = gpus_max
        self.guarded: dict[JobId, int] = {}
        """The guarded jobs but ``extra``, and their GPUs."""
        self.guarded_gpus = 0
        self.extra: JobId | None = None
        self.turns = GuardTurns()
        self.waiting_order: SortedList[tuple[float, JobId]] = SortedList()
        """(submission time, job) of each waiting job that is not set aside."""
        self.overdue_order: SortedList[tuple[float, JobId]] = SortedList()
        """(time from which its wait counts, job) of the same jobs: the first is overdue first. That time is the submission, later
        by the waiting that the time it has run is worth.
        """
        self._waits: dict[JobId, _Wait] = {}
        self._ages: SortedList[tuple[float, JobId, int]] = SortedList()
        """(submission time, job, GPUs) of each competing job that is neither in ``guarded`` nor set aside."""
        self._aged: set[JobId] = set()
        """The jobs in ``_ages``: a search in the order costs more, and most jobs leave it twice."""
        self._aside: dict[JobId, tuple[float, JobId, int]] = {}
        """The jobs that are set aside, and their entries in ``_ages``."""
        self.unchecked = True
        """Whether servers have changed since it was looked at whether they can hold the guarded jobs."""

    def tier(self, job: JobId) -> int:
        """0 for guarded jobs, else 1."""
        return 0 if job in self.guarded or job == self.extra else 1

    def members(self) -> list[JobId]:
        """The guarded jobs."""
        return [*self.guarded] if self.extra is None else [*self.guarded, self.extra]

    def compete(self, job: JobView) -> None:
        """The job waits for GPUs or holds some: it may become guarded."""
        if job.id not in self.guarded and job.id not in self._aside:
            self._enter_ages((job.submitted_at_s, job.id, job.spec.gpus))

    def compete_all(self, jobs: Iterable[JobView]) -> None:
        """The same for many jobs, of which none is known."""
        entries = [(job.submitted_at_s, job.id, job.spec.gpus) for job in jobs]
        self._aged.update([job for _, job, _ in entries])
        self._ages.add_all(entries)

    def leave(self, job: JobView) -> None:
        """The job neither waits for GPUs nor holds any."""
        self._aside.pop(job.id, None)
        if self.guarded.pop(job.id, None) is None:
            self._leave_ages((job.submitted_at_s, job.id, job.spec.gpus))
        else:
            self.guarded_gpus -= job.spec.gpus
        if self.extra == job.id:
            self.extra = None

    def start_waiting(self, job: JobView, cluster_gpus: int) -> None:
        """The job waits; it is not known as waiting yet."""
        wait = self._waits[job.id] = self._wait_of(job, cluster_gpus)
        if job.id not in self._aside:
            self.waiting_order.add(wait.by_age)
            self.overdue_order.add(wait.by_wait)

    def start_waiting_all(self, jobs: Sequence[JobView], cluster_gpus: int) -> None:
        """The same for many jobs. O(n log n)."""
        waits = {job.id: self._wait_of(job, cluster_gpus) for job in jobs}
        self._waits.update(waits)
        counted = [wait for job, wait in waits.items() if job not in self._aside] if self._aside else waits.values()
        self.waiting_order.add_all([wait.by_age for wait in counted])
        self.overdue_order.add_all([wait.by_wait for wait in counted])

    def _wait_of(self, job: JobView, cluster_gpus: int) -> _Wait:
        by_age = by_wait = (job.submitted_at_s, job.id)
        if job.attempts and self.gpus_max > 0.0:
            # Time that the job has run counts as if it had run on the guarded share of the cluster.
            ran_s = job.attained_service_s(0.0) / job.spec.gpus * cluster_gpus / self.gpus_max
            by_wait = (job.submitted_at_s + ran_s, job.id)
        return _Wait(by_age, by_wait, job.spec.gpus)

    def stop_waiting(self, job: JobId) -> None:
        """The job does not wait any more; it was known as waiting."""
        wait = self._waits.pop(job)
        if job not in self._aside:
            self._leave_orders(wait)

    def set_aside(self, job: JobId) -> None:
        """No servers can hold this waiting job: it is neither guarded nor overdue until :meth:`take_back`."""
        wait = self._waits[job]
        self._leave_orders(wait)
        self._aside[job] = entry = (*wait.by_age, wait.gpus)
        if self.guarded.pop(job, None) is None:
            self._leave_ages(entry)
        else:
            self.guarded_gpus -= wait.gpus
        if self.extra == job:
            self.extra = None

    def take_back(self) -> None:
        """Servers have changed: any job may be held now, or none. O(jobs that are set aside x log n)."""
        self.unchecked = True
        for job, entry in self._aside.items():
            self._enter_ages(entry)
            if (wait := self._waits.get(job)) is not None:
                self.waiting_order.add(wait.by_age)
                self.overdue_order.add(wait.by_wait)
        self._aside.clear()

    @property
    def aside(self) -> Set[JobId]:
        """The jobs that are set aside."""
        return self._aside.keys()

    def fill(self, overdue_since_s: float, fits: Callable[[JobId], bool]) -> list[JobId]:
        """Guard the oldest competing jobs while they fit ``gpus_max``, and one waiting job; return the new ones.

        The latter is the oldest waiting job if its gang alone would fit. Otherwise it is, whatever its size, the first job of
        ``overdue_order``, once its wait counts since ``overdue_since_s`` or before. (On a small cluster, where one gang takes
        most of the GPUs, the oldest waiting job would otherwise displace all others in turn: first in, first out.)
        Jobs that no servers can hold (not ``fits``) are set aside. O(log n) amortised.
        """
        entered: list[JobId] = []
        if self.gpus_max <= 0.0:
            return entered
        while self._ages:
            _, job, gpus = self._ages[0]
            if not fits(job):
                # Also one whose gang is too large: the next one may be small enough.
                self.set_aside(job)
                continue
            if self.guarded_gpus + gpus > self.gpus_max:
                break
            self._ages.pop_first()
            self._aged.remove(job)
            self._guard(job, gpus)
            if job == self.extra:
                self.extra = None
            entered.append(job)
        while self.extra is None and (found := self._next_extra(overdue_since_s, fits)) is not None:
            if fits(found):
                self.extra = found
                entered.append(found)
            else:
                self.set_aside(found)
        return entered

    def _next_extra(self, overdue_since_s: float, fits: Callable[[JobId], bool]) -> JobId | None:
        oldest = self._first_unguarded(self.waiting_order)
        while oldest is not None and not fits(oldest[1]):
            self.set_aside(oldest[1])
            oldest = self._first_unguarded(self.waiting_order)
        if oldest is not None and self._waits[oldest[1]].gpus <= self.gpus_max:
            return oldest[1]
        overdue = self._first_unguarded(self.overdue_order)
        return overdue[1] if overdue is not None and overdue[0] <= overdue_since_s else None

    def _leave_orders(self, wait: _Wait) -> None:
        self.waiting_order.remove(wait.by_age)
        self.overdue_order.remove(wait.by_wait)

    def _enter_ages(self, entry: tuple[float, JobId, int]) -> None:
        if entry[1] not in self._aged:
            self._aged.add(entry[1])
            self._ages.add(entry)

    def _leave_ages(self, entry: tuple[float, JobId, int]) -> None:
        if entry[1] in self._aged:
            self._aged.remove(entry[1])
            self._ages.remove(entry)

    def _guard(self, job: JobId, gpus: int) -> None:
        self.guarded[job] = gpus
        self.guarded_gpus += gpus

    def _first_unguarded(self, order: SortedList[tuple[float, JobId]]) -> tuple[float, JobId] | None:
        return next((entry for entry in order if entry[1] not in self.guarded), None)

    def dump(self) -> dict[str, Any]:
        """Which jobs are guarded, and their turns: neither follows from the jobs."""
        return {"guarded": sorted(self.guarded), "guarded_extra": self.extra, "guard_turns": self.turns.dump()}

    def restore(self, dump: dict[str, Any]) -> None:
        """Guard the jobs of an earlier dump that still compete. O(competing jobs)."""
        if self.gpus_max <= 0.0:
            return
        self.turns.restore(dump.get("guard_turns", {}))
        competing = {entry[1]: entry for entry in self._ages}
        for job in dump.get("guarded", ()):
            if job in competing:
                self._leave_ages(competing[job])
                self._guard(job, competing[job][2])
        if dump.get("guarded_extra") in competing:
            self.extra = dump["guarded_extra"]

    def check(self) -> None:
        """Raise AssertionError unless all orders agree and the guarded GPUs are the sum over the guarded jobs. O(n)."""
        assert self.guarded_gpus == sum(self.guarded.values())
        assert sorted(entry[1] for entry in self._ages) == sorted(self._aged)
        counted = [wait for job, wait in self._waits.items() if job not in self._aside]
        assert list(self.waiting_order) == sorted(wait.by_age for wait in counted)
        assert list(self.overdue_order) == sorted(wait.by_wait for wait in counted)
        assert self.guarded.keys().isdisjoint(entry[1] for entry in self._ages)
        assert self._aside.keys().isdisjoint((*self.members(), *(entry[1] for entry in self._ages)))
        assert self.extra not in self.guarded
