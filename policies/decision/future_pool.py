"""The pool of free GPUs after the end of jobs that are being stopped, and of further jobs."""

from policies.choose import Candidate, consolidated, free_for
from policies.decision.preemption import PreemptionContext
from policies.model.ids import ServerIndex
from policies.model.view import JobView


class FuturePool:
    """Changes the pool temporarily. As a context manager it restores the pool at its end."""

    __slots__ = ("_balance", "_before", "_context", "_pool", "added_gpus", "added_jobs")

    def __init__(self, context: PreemptionContext, *, with_leaving: bool = True) -> None:
        """``with_leaving``: GPUs that are being vacated count as free."""
        self._context = context
        self._pool = context.state.pool
        self._before: dict[ServerIndex, int] = {}
        self._balance: dict[ServerIndex, int] = {}
        self.added_gpus = 0
        self.added_jobs = 0
        for server in context.state.ledger.leaving_on if with_leaving else ():
            self._add(server, 0)

    def __enter__(self) -> "FuturePool":
        return self

    def __exit__(self, *error: object) -> None:
        self.restore()

    def add_job(self, job: JobView) -> None:
        """Count the GPUs that the job holds as free. Reservations on the servers are served first."""
        assert job.placement is not None
        self.added_jobs += 1
        for share in job.placement.shares:
            self._add(share.server, share.gpus)

    def free(self, server: ServerIndex) -> int:
        """GPUs that count as free on the server now."""
        return self._pool.free(server)

    def fit(self, job: JobView, *, consolidated_only: bool = False) -> Candidate | None:
        """A placement for the job in the pool as it stands."""
        if free_for(self._pool, job.spec) < job.spec.gpus:
            return None
        candidate = self._context.policy.find(self._pool, self._context.view, job)
        if candidate is None or not consolidated_only or job.iteration_times is None:
            return candidate
        return candidate if consolidated(candidate, job.iteration_times) else None

    def restore(self) -> None:
        """Undo the changes of the pool."""
        for server, gpus in self._before.items():
            self._pool.set_free(server, gpus)
        self._before = {}
        self._balance = {}
        self.added_gpus = 0
        self.added_jobs = 0

    def _add(self, server: ServerIndex, gpus: int) -> None:
        context = self._context
        if context.view.usable_gpus(server) == 0:
            return
        if server not in self._before:
            self._before[server] = self._pool.free(server)
            self._balance[server] = context.state.ledger.balance(context.view, server)
        self._balance[server] += gpus
        free = max(0, self._balance[server])
        self.added_gpus += free - self._pool.free(server)
        self._pool.set_free(server, free)
