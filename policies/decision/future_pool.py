"""The pool of free GPUs after the end of jobs that are being stopped, and of further jobs."""

from collections.abc import Mapping
from typing import Any

from policies.choose import Candidate, consolidated, free_for, known_iteration_s
from policies.consolidation import may_consolidate, room_needed
from policies.decision.preemption import PreemptionContext
from policies.model.ids import JobId, ServerIndex
from policies.model.resources import NOTHING, Amounts, taken_by
from policies.model.view import JobView
from policies.options import PlacementMethod
from policies.placement.contention import Traffic
from policies.throughput import times_in_reach


class FuturePool:
    """Changes the pool temporarily. As a context manager it restores the pool at its end."""

    __slots__ = (
        "_amounts",
        "_amounts_before",
        "_balance",
        "_before",
        "_context",
        "_found",
        "_pool",
        "_traffic",
        "added",
        "added_jobs",
    )

    def __init__(self, context: PreemptionContext, *, with_leaving: bool = True) -> None:
        """``with_leaving``: GPUs that are being vacated count as free."""
        self._context = context
        self._pool = context.state.pool
        self._found: dict[object, Any] | None = None
        """What searches have found in the pool as it was before; None while it has not been changed."""
        self._before: dict[ServerIndex, int] = {}
        self._balance: dict[ServerIndex, int] = {}
        self._amounts_before: dict[ServerIndex, Amounts] = {}
        self._amounts: dict[ServerIndex, Amounts] = {}
        self._traffic: dict[JobId, Traffic | None] = {}
        self.added = False
        """Whether more counts as free than is free now."""
        self.added_jobs = 0
        for server in context.state.ledger.surplus_on if with_leaving else ():
            self._add(server, 0, NOTHING)

    def __enter__(self) -> "FuturePool":
        return self

    def __exit__(self, *error: object) -> None:
        self.restore()

    def add_job(self, job: JobView) -> None:
        """Count the GPUs that the job holds as free, and its links. Reservations on the servers are served first."""
        assert job.placement is not None
        self._traffic.setdefault(job.id, self._context.state.traffic.remove(job.id))
        self.added_jobs += 1
        for share in job.placement.shares:
            self._add(share.server, share.gpus, taken_by(job.spec, share.gpus))

    def free(self, server: ServerIndex) -> int:
        """GPUs that count as free on the server now."""
        return self._pool.free(server)

    def spare(self, server: ServerIndex) -> Amounts | None:
        """CPUs and memory that count as free; None for a server that states neither."""
        return self._pool.spare(server)

    def fit(self, job: JobView, *, consolidated_only: bool = False) -> Candidate | None:
        """A placement for the job in the pool as it stands."""
        if free_for(self._pool, job.spec) < job.spec.gpus:
            return None
        view = self._context.view
        if consolidated_only and not may_consolidate(self._pool, view.cluster, job):
            return None
        candidate = self._context.policy.find(self._pool, view, job)
        if candidate is None or not consolidated_only:
            return candidate
        times = times_in_reach(job, view.cluster, candidate.placement)
        return candidate if consolidated(candidate, times) else None

    def restore(self) -> None:
        """Undo the changes of the pool. What was found in it before holds again."""
        for server, gpus in self._before.items():
            self._pool.set_free(server, gpus)
        for server, amounts in self._amounts_before.items():
            self._pool.set_spare(server, amounts)
        for job, traffic in self._traffic.items():
            self._context.state.traffic.put_back(job, traffic)
        if self._found is not None:
            self._pool.found, self._found = self._found, None
        self._traffic = {}
        self._before, self._balance = {}, {}
        self._amounts_before, self._amounts = {}, {}
        self.added = False
        self.added_jobs = 0

    def _add(self, server: ServerIndex, gpus: int, amounts: Amounts) -> None:
        context = self._context
        if context.view.usable_gpus(server) == 0:
            return
        if self._found is None:
            self._found, self._pool.found = self._pool.found, {}
        if server not in self._before:
            self._before[server] = self._pool.free(server)
            self._balance[server] = context.state.ledger.balance(context.view, server)
        self._balance[server] += gpus
        free = max(0, self._balance[server])
        self.added |= free > self._pool.free(server)
        self._pool.set_free(server, free)
        if (before := self._pool.spare(server)) is not None:
            self._add_amounts(server, before, amounts)

    def _add_amounts(self, server: ServerIndex, before: Amounts, amounts: Amounts) -> None:
        context = self._context
        balance = self._amounts.get(server)
        if balance is None:
            self._amounts_before[server] = before
            balance = context.state.ledger.balance_amounts(context.view, server)
            assert balance is not None
        after = self._amounts[server] = balance.plus(amounts)
        self.added |= any((now or 0) > (then or 0) for now, then in zip(after, before, strict=True))
        self._pool.set_spare(server, after)


def free_without(context: PreemptionContext, job: JobView) -> dict[ServerIndex, int]:
    """GPUs that count as free on the servers of a running job if its own become free. O(servers of the job)."""
    assert job.placement is not None
    view, ledger = context.view, context.state.ledger
    return {
        share.server: max(0, ledger.balance(view, share.server) + share.gpus)
        for share in job.placement.shares
        if view.usable_gpus(share.server)
    }


def may_consolidate_without(context: PreemptionContext, job: JobView, leaver: JobView) -> bool:
    """Whether a placement of the job may be consolidated if the GPUs of ``leaver``, a running job, become free: what
    :func:`may_consolidate` says if its servers have what :func:`free_without` says, or what is free there now if that is more.

    O(GPU types x (GPUs of a server + servers of ``leaver``)) beside memos, and mostly much less: nearly always the GPUs that it
    holds and those that are free beside them are too few, and then nothing else is read of a server.
    """
    assert leaver.placement is not None
    view, pool, ledger, shares = context.view, context.state.pool, context.state.ledger, leaver.placement.shares
    for name in job.spec.gpu_types or pool.gpu_types:
        servers, gpus = room_needed(view.cluster, job, name)
        lacking = servers - pool.servers_with(gpus, name) if servers else 0
        if lacking <= 0:
            return True
        if lacking > len(shares):
            continue
        for server, held, _ in shares:
            free = pool.free(server)
            if free >= gpus or (free + held < gpus and server not in ledger.surplus_on):
                continue
            if view.usable_gpus(server) and ledger.balance(view, server) + held >= gpus:
                lacking -= 1
        if lacking <= 0:
            return True
    return False


def known_fit_s(context: PreemptionContext, job: JobView, free: Mapping[ServerIndex, int]) -> float | None:
    """``iteration_s`` of what :meth:`FuturePool.fit` would find for the job if these servers had so many GPUs free.

    Infinite if it would find nothing, None if that is not known without a search. O(levels + ``free``).
    """
    view, times = context.view, job.iteration_times
    if context.policy.options.placement is PlacementMethod.RANDOM or view.server_reservations:
        return None
    if times is None or times.slowdown is not None:
        return None
    return known_iteration_s(context.state.pool, view.cluster, job.spec, free)
