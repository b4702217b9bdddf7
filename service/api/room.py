"""Whether the queue has room for more jobs, without counting it for every submission.

A count looks at every unfinished job: at a hundred thousand that is milliseconds under the write lock, for each job that comes
in. So it is counted at most once a :data:`RECOUNT_S`, and what this process has let in since is added: never too low for what
comes in here. Near the limit it is counted anew before anybody is refused. Jobs that come in through another service on the
same database are seen with the next count, so that the limit may be exceeded by what those accept in one such period.
"""

import threading
import time

from sqlalchemy import Connection

from service.api.problems import Problem, ProblemType
from service.db import reads

RECOUNT_S = 1.0


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
            raise Problem(ProblemType.QUEUE_FULL, detail, headers={"Retry-After": "60"})
