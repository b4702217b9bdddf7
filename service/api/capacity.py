"""Queue capacity: how many more unfinished jobs the queue, each user and each project may have.

A count of the queue looks at every unfinished job: milliseconds under the write lock at a hundred thousand jobs. So the queue is
counted at most once per :data:`RECOUNT_S`, and submissions accepted here since then are added: the sum is never too low for this
process. Near the limit it is counted again before a submission is refused. Submissions to another service on the same database
appear with the next count, so the limit may be exceeded by what those accept in one period.
"""

import threading
import time
from collections import Counter
from collections.abc import Iterable

from sqlalchemy import Connection

from policies.model.job import JobSpec
from service.api.problems import Problem, ProblemType
from service.config.settings import Settings
from service.db import reads
from service.db.dialects import take_locks
from service.db.limits import limits_of, unfinished_of
from service.domain.counts import count_of
from service.engine.limits import LimitOwner, Scope

RECOUNT_S = 1.0

RETRY_AFTER_S = 60
"""How long a client should wait that has too many jobs: jobs take at least minutes."""


class QueueCapacity:
    """The capacity of the whole queue. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at_most = 0
        self._counted_at_s: float | None = None

    def take(self, connection: Connection, more: int, limit: int) -> None:
        """Count in ``more`` jobs. Raises :class:`Problem` (429) if they exceed the limit.

        If the transaction fails afterwards, the count is too high until the next count.
        """
        with self._lock:
            self._look(connection, more, limit)
            self._at_most += more

    def check(self, connection: Connection, more: int, limit: int) -> None:
        """As :meth:`take`, without counting the jobs in."""
        with self._lock:
            self._look(connection, more, limit)

    def _look(self, connection: Connection, more: int, limit: int) -> None:
        now_s = time.monotonic()
        fresh = self._counted_at_s is not None and now_s - self._counted_at_s < RECOUNT_S
        if fresh and self._at_most + more <= limit:
            return
        self._at_most = reads.unfinished_jobs(connection)
        self._counted_at_s = now_s
        if self._at_most + more > limit:
            detail = f"At most {limit} unfinished jobs (setting jobs_queued_max)."
            raise Problem(ProblemType.QUEUE_FULL, detail, headers={"Retry-After": str(RETRY_AFTER_S)})


class OwnersCapacity:
    """The capacity of the users and projects of some new jobs: by their quotas, else by the settings.

    ``for_update`` locks all quotas until the transaction ends, so that concurrent submissions cannot exceed them together, and
    in one order, so that no two transactions wait for each other.
    """

    def __init__(
        self, connection: Connection, specs: Iterable[JobSpec], settings: Settings, *, for_update: bool
    ) -> None:
        usual = {
            Scope.USER: (settings.jobs_queued_per_user_max, "setting jobs_queued_per_user_max"),
            Scope.PROJECT: (settings.jobs_queued_per_project_max, "setting jobs_queued_per_project_max"),
        }
        self._left: dict[LimitOwner, int] = {}
        self._limits: dict[LimitOwner, str] = {}
        owners = sorted({owner for spec in specs for owner in _owners(spec)}, key=_by_name)
        quotas = {
            stored.owner: stored.jobs_queued_max for stored in limits_of(connection, owners, for_update=for_update)
        }
        limits = {
            owner: usual[owner.scope] if quotas.get(owner) is None else (quotas[owner], "quota jobs_queued_max")
            for owner in owners
        }
        if for_update:
            # An owner without a quota has no row to lock.
            limited = [owner for owner in owners if quotas.get(owner) is None and limits[owner][0] is not None]
            take_locks(connection, *(f"queue capacity of {owner.title}" for owner in limited))
        for owner, (most, limit) in limits.items():
            if most is not None:
                self._left[owner] = most - unfinished_of(connection, owner, most)
                self._limits[owner] = f"{owner.title} may have at most {count_of(most, 'unfinished job')} ({limit})."

    def take(self, specs: Iterable[JobSpec]) -> None:
        """Count in these jobs. Raises Problem (429) if they exceed the limit of an owner."""
        more = Counter(owner for spec in specs for owner in _owners(spec) if owner in self._left)
        for owner in sorted(more, key=_by_name):
            if more[owner] > self._left[owner]:
                raise Problem(ProblemType.QUEUE_FULL, self._limits[owner], headers={"Retry-After": str(RETRY_AFTER_S)})
        for owner, jobs in more.items():
            self._left[owner] -= jobs


def _owners(spec: JobSpec) -> list[LimitOwner]:
    both = (LimitOwner(Scope.USER, spec.user), LimitOwner(Scope.PROJECT, spec.project))
    return [owner for owner in both if owner.name]


def _by_name(owner: LimitOwner) -> tuple[str, str]:
    return owner.scope.value, owner.name
