"""The ledger of GPUs: free for all, reserved for waiting jobs, about to be vacated, taken by the decision in progress.

On servers that state their CPUs or memory, these are counted in the same way.
"""

from policies.model.ids import JobId, ServerIndex
from policies.model.placement import Placement
from policies.model.resources import NOTHING, Amounts, Demand
from policies.model.view import ClusterView
from policies.placement.pool import FreePool
from policies.state.last_scan import LastScan


class GpuLedger:
    """On each server, free for all = free - (reserved - being vacated, if positive) - taken; never below zero.

    ``pool`` holds that number for each server once :meth:`sync` has run. A reservation is served by GPUs that are being
    vacated before it needs free ones. Changes that may let a waiting job start make the last scan invalid. Every update is
    O(servers of the placement).
    """

    __slots__ = (
        "_demands", "_dirty", "_scan", "_taken", "_taken_amounts", "_tentatively_leaving", "_tentatively_reserved", "leaving",
        "leaving_on", "pool", "reservations", "reserved_on", "surplus_on",
    )  # fmt: skip

    def __init__(self, pool: FreePool, scan: LastScan) -> None:
        self.pool = pool
        self.reservations: dict[JobId, Placement] = {}
        """GPUs set aside for waiting jobs."""
        self.reserved_on: dict[ServerIndex, dict[JobId, int]] = {}
        self.leaving: dict[JobId, Placement] = {}
        """Running jobs that are being stopped, and the GPUs that they will vacate."""
        self.leaving_on: dict[ServerIndex, dict[JobId, int]] = {}
        self.surplus_on: dict[ServerIndex, None] = {}
        """Servers on which GPUs, CPUs or memory are being vacated that are not reserved."""
        self._demands: dict[JobId, Demand] = {}
        """Of the jobs in ``reservations`` and ``leaving`` that need more than GPUs."""
        self._taken: dict[ServerIndex, int] = {}
        self._taken_amounts: dict[ServerIndex, Amounts] = {}
        self._tentatively_reserved: list[JobId] = []
        self._tentatively_leaving: list[JobId] = []
        self._dirty: set[ServerIndex] = set()
        self._scan = scan

    def reserve(self, job: JobId, placement: Placement, demand: Demand | None) -> None:
        """Set these GPUs aside for a waiting job, in place of an earlier reservation."""
        self.release(job)
        self._enter(job, placement, demand, self.reservations, self.reserved_on)

    def release(self, job: JobId) -> None:
        """Drop a job's reservation; unknown jobs are ignored."""
        if job in self.reservations:
            self._drop(job, self.reservations, self.reserved_on)

    def leave(self, job: JobId, placement: Placement, demand: Demand | None) -> None:
        """The job is being stopped: these GPUs will be vacated."""
        self._enter(job, placement, demand, self.leaving, self.leaving_on)

    def stay(self, job: JobId) -> None:
        """The stop is over, or was not applied; unknown jobs are ignored."""
        if job in self.leaving:
            self._drop(job, self.leaving, self.leaving_on)

    def start_tentatively(self, view: ClusterView, placement: Placement, demand: Demand | None) -> None:
        """The decision in progress starts a job on these free GPUs."""
        for share in placement.shares:
            self._taken[share.server] = self._taken.get(share.server, 0) + share.gpus
            if demand is not None:
                taken = self._taken_amounts.get(share.server, NOTHING)
                self._taken_amounts[share.server] = taken.plus(demand.of(share.gpus))
        self._sync_placement(view, placement)

    def reserve_tentatively(self, view: ClusterView, job: JobId, placement: Placement, demand: Demand | None) -> None:
        """The decision in progress reserves these GPUs for a job."""
        self.reserve(job, placement, demand)
        self._tentatively_reserved.append(job)
        self._sync_placement(view, placement)

    def leave_tentatively(self, view: ClusterView, job: JobId, placement: Placement, demand: Demand | None) -> None:
        """The decision in progress stops a job. It stays in the index of running jobs, which may be iterated over now."""
        self.leave(job, placement, demand)
        self._tentatively_leaving.append(job)
        self._sync_placement(view, placement)

    def undo_tentative(self) -> None:
        """The decision in progress is over: what was applied comes back as changes. The pool follows with :meth:`sync`."""
        if self._tentatively_reserved:
            for job in self._tentatively_reserved:
                self.release(job)
            self._tentatively_reserved = []
        if self._tentatively_leaving:
            for job in self._tentatively_leaving:
                self.stay(job)
            self._tentatively_leaving = []
        if self._taken:
            self._dirty.update(self._taken)
            self._taken, self._taken_amounts = {}, {}

    def touch(self, placement: Placement) -> None:
        """Free GPUs of these servers have changed."""
        for share in placement.shares:
            self._dirty.add(share.server)

    def touch_server(self, server: ServerIndex) -> None:
        """Free GPUs of the server have changed."""
        self._dirty.add(server)

    def surplus(self, server: ServerIndex) -> int:
        """GPUs being vacated on the server that are not reserved."""
        return max(0, _total(self.leaving_on, server) - _total(self.reserved_on, server))

    def _frees_amounts(self, server: ServerIndex) -> bool:
        """Whether CPUs or memory are being vacated on the server that are not reserved."""
        if not self.pool.states(server):
            return False
        left = self._owed(self.leaving_on, server).plus(self._owed(self.reserved_on, server), -1)
        return any(amount is not None and amount > 0 for amount in left)

    def balance(self, view: ClusterView, server: ServerIndex) -> int:
        """GPUs free for all once all stops are over; negative where GPUs are reserved that are not being vacated yet."""
        free = view.free_gpus(server) - self._taken.get(server, 0)
        return free + _total(self.leaving_on, server) - _total(self.reserved_on, server)

    def balance_amounts(self, view: ClusterView, server: ServerIndex) -> Amounts | None:
        """As :meth:`balance`, of CPUs and memory; None for a server that states neither."""
        spare = view.spare(server)
        if spare is None:
            return None
        spare = spare.plus(self._taken_amounts.get(server, NOTHING), -1)
        return spare.plus(self._owed(self.leaving_on, server)).plus(self._owed(self.reserved_on, server), -1)

    def unreserved(self, server: ServerIndex, amounts: Amounts) -> Amounts:
        """These amounts without what is reserved on the server."""
        return amounts.plus(self._owed(self.reserved_on, server), -1)

    def sync(self, view: ClusterView) -> None:
        """Bring the pool up to date on every server that was touched. O(touched x log servers)."""
        for server in self._dirty:
            self.sync_server(view, server)
        self._dirty.clear()

    def _sync_placement(self, view: ClusterView, placement: Placement) -> None:
        for share in placement.shares:
            self.sync_server(view, share.server)

    def sync_server(self, view: ClusterView, server: ServerIndex) -> None:
        """Bring the pool up to date on one server. The next unknown index appends a server."""
        free = view.free_gpus(server)
        if free and (self._taken or server in self.reserved_on):
            owed = _total(self.reserved_on, server) - _total(self.leaving_on, server)
            free = max(0, free - max(0, owed) - self._taken.get(server, 0))
        before = self.pool.free(server) if server < len(self.pool) else -1
        if free != before:
            self.pool.set_free(server, free, view.cluster)
            if free > before or self._scan.delayed:
                self._scan.valid = False
        if self.pool.states(server):
            self._sync_amounts(view, server)

    def _sync_amounts(self, view: ClusterView, server: ServerIndex) -> None:
        before, amounts = self.pool.spare(server), self._amounts(view, server)
        assert before is not None
        self.pool.set_spare(server, amounts)
        more = any((now or 0) > (then or 0) for now, then in zip(amounts, before, strict=True))
        if more or (amounts != before and self._scan.delayed):
            self._scan.valid = False

    def _amounts(self, view: ClusterView, server: ServerIndex) -> Amounts:
        """CPUs and memory free for all on a server that states any."""
        spare = view.spare(server)
        assert spare is not None
        spare = spare.plus(self._taken_amounts.get(server, NOTHING), -1)
        if self._demands and server in self.reserved_on:
            owed = self._owed(self.reserved_on, server).plus(self._owed(self.leaving_on, server), -1)
            spare = spare.plus(Amounts(max(0, owed.cpus or 0), max(0, owed.memory_mib or 0)), -1)
        return spare

    def _owed(self, on: dict[ServerIndex, dict[JobId, int]], server: ServerIndex) -> Amounts:
        """CPUs and memory of the jobs that are entered for the server."""
        total = NOTHING
        if self._demands:
            for job, gpus in on.get(server, {}).items():
                if (demand := self._demands.get(job)) is not None:
                    total = total.plus(demand.of(gpus))
        return total

    def _enter(
        self,
        job: JobId,
        placement: Placement,
        demand: Demand | None,
        by_job: dict[JobId, Placement],
        on: dict[ServerIndex, dict[JobId, int]],
    ) -> None:
        self._scan.valid = False
        by_job[job] = placement
        if demand is not None:
            self._demands[job] = demand
        for share in placement.shares:
            on.setdefault(share.server, {})[job] = share.gpus
            self._changed_on(share.server)

    def _drop(self, job: JobId, by_job: dict[JobId, Placement], on: dict[ServerIndex, dict[JobId, int]]) -> None:
        self._scan.valid = False
        for share in by_job.pop(job).shares:
            del on[share.server][job]
            if not on[share.server]:
                del on[share.server]
            self._changed_on(share.server)
        if job not in self.reservations and job not in self.leaving:
            self._demands.pop(job, None)

    def _changed_on(self, server: ServerIndex) -> None:
        """What is reserved or being vacated on the server has changed."""
        self._dirty.add(server)
        if server in self.leaving_on and (self.surplus(server) or self._frees_amounts(server)):
            self.surplus_on[server] = None
        else:
            self.surplus_on.pop(server, None)

    def check(self, view: ClusterView) -> None:
        """Raise AssertionError unless entries by job and by server agree, and the pool with both. O(n + servers)."""
        surplus_on = {server for server in self.leaving_on if self.surplus(server) or self._frees_amounts(server)}
        assert self.surplus_on.keys() == surplus_on
        for by_job, on in ((self.reservations, self.reserved_on), (self.leaving, self.leaving_on)):
            shares = {(share.server, job, share.gpus) for job, placed in by_job.items() for share in placed.shares}
            assert shares == {(server, job, gpus) for server, jobs in on.items() for job, gpus in jobs.items()}
        assert set(self._tentatively_reserved) <= self.reservations.keys()
        assert set(self._tentatively_leaving) <= self.leaving.keys()
        for index in range(len(self.pool)):
            server = ServerIndex(index)
            if server not in self._dirty:
                owed = max(0, _total(self.reserved_on, server) - _total(self.leaving_on, server))
                free = view.free_gpus(server) - owed - self._taken.get(server, 0)
                assert self.pool.free(server) == max(0, free)
                assert not self.pool.states(server) or self.pool.spare(server) == self._amounts(view, server)


def _total(by_server: dict[ServerIndex, dict[JobId, int]], server: ServerIndex) -> int:
    total = 0
    for gpus in by_server.get(server, _NONE).values():
        total += gpus
    return total


_NONE: dict[JobId, int] = {}
