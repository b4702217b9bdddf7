"""Whether there is room for more jobs: in the queue, without counting it for each submission, and for those who submit them.

A count of the queue looks at every unfinished job: at a hundred thousand that is milliseconds under the write lock, for each job
that comes in. So it is made at most once a :data:`RECOUNT_S`, and what this process has let in since is added: never too low for
what comes in here. Near the limit it is made anew before anybody is refused. Jobs that come in through another service on the
same database are seen with the next count, so that the limit may be exceeded by what those accept in one such period.
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
from service.db.dialects import take_turns
from service.db.limits import locked_limits, unfinished_of
from service.engine.limits import Owner, Scope

RECOUNT_S = 1.0

RETRY_AFTER_S = 60
"""How long a client whose owner has too many jobs should wait: jobs take minutes at the least."""


class Room:
    """Safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at_most = 0
        self._counted_at_s: float | None = None

    def take(self, connection: Connection, more: int, limit: int) -> None:
        """Room for so many jobs, which are then counted in. Raises :class:`Problem` (429) where there is none.

        A transaction that fails afterwards leaves the count too high until the next one.
        """
        with self._lock:
            self._look(connection, more, limit)
            self._at_most += more

    def check(self, connection: Connection, more: int, limit: int) -> None:
        """The same for jobs that will not be submitted."""
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


class OwnersRoom:
    """How many more unfinished jobs the owners of some new jobs may have: by their quotas, else by the settings.

    Quotas are locked until the transaction ends, so that no two submissions pass together where only one may: all of them at
    once and in one order, so that nobody waits for somebody who waits for him.
    """

    def __init__(self, connection: Connection, specs: Iterable[JobSpec], settings: Settings) -> None:
        usual = {
            Scope.USER: (settings.jobs_queued_per_user_max, "setting jobs_queued_per_user_max"),
            Scope.PROJECT: (settings.jobs_queued_per_project_max, "setting jobs_queued_per_project_max"),
        }
        self._left: dict[Owner, int] = {}
        self._limits: dict[Owner, str] = {}
        owners = sorted({owner for spec in specs for owner in _owners(spec)}, key=_by_name)
        quotas = {stored.owner: stored.jobs_queued_max for stored in locked_limits(connection, owners)}
        limits = {
            owner: usual[owner.scope] if quotas.get(owner) is None else (quotas[owner], "quota jobs_queued_max")
            for owner in owners
        }
        # Where there is no row of a quota to lock.
        take_turns(
            connection,
            *(
                f"room of {owner.title}"
                for owner in owners
                if quotas.get(owner) is None and limits[owner][0] is not None
            ),
        )
        for owner, (most, limit) in limits.items():
            if most is not None:
                self._left[owner] = most - unfinished_of(connection, owner, most)
                self._limits[owner] = f"{owner.title} may have at most {most} unfinished jobs ({limit})."

    def take(self, specs: Iterable[JobSpec]) -> None:
        """Room for these jobs, which are then counted in. Raises Problem (429) where there is none."""
        more = Counter(owner for spec in specs for owner in _owners(spec) if owner in self._left)
        for owner in sorted(more, key=_by_name):
            if more[owner] > self._left[owner]:
                raise Problem(ProblemType.QUEUE_FULL, self._limits[owner], headers={"Retry-After": str(RETRY_AFTER_S)})
        for owner, jobs in more.items():
            self._left[owner] -= jobs


def _owners(spec: JobSpec) -> list[Owner]:
    both = (Owner(Scope.USER, spec.user), Owner(Scope.PROJECT, spec.project))
    return [owner for owner in both if owner.name]


def _by_name(owner: Owner) -> tuple[str, str]:
    return owner.scope.value, owner.name
