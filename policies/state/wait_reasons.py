"""The last published reason of each waiting job."""

from policies.model.ids import JobId
from policies.model.reasons import Reason

_OF_SERVERS = (Reason.NO_SUCH_SERVERS, Reason.RESERVED_SERVERS)


class WaitReasons:
    """The reason of each waiting job, and the jobs that may have none yet. O(1) each.

    A job that waits has a reason, or is in ``missing`` and gets one when the decision ends.
    """

    __slots__ = ("missing", "of", "unchecked")

    def __init__(self) -> None:
        self.of: dict[JobId, Reason] = {}
        self.missing: list[JobId] = []
        self.unchecked = False
        """Whether servers have changed since :meth:`forget_servers`."""

    def copy(self) -> "WaitReasons":
        """Reasons that change independently. O(n)."""
        other = WaitReasons()
        other.of, other.missing, other.unchecked = dict(self.of), list(self.missing), self.unchecked
        return other

    def require(self, job: JobId) -> None:
        """The job needs a reason unless it has one, or starts."""
        self.missing.append(job)

    def set(self, job: JobId, reason: Reason) -> bool:
        """Set the job's reason; return whether it has changed."""
        if self.of.get(job) is reason:
            return False
        self.of[job] = reason
        return True

    def drop(self, job: JobId) -> None:
        """The job does not wait any more, or waits for another reason; unknown jobs are ignored."""
        self.of.pop(job, None)

    def forget_servers(self) -> None:
        """Jobs that lacked servers need a reason again where servers have changed. O(waiting jobs) after a change, else O(1).

        The next of these jobs may not be tried for long, and would wait for servers that are there.
        """
        if self.unchecked:
            self.unchecked = False
            stale = [job for job, reason in self.of.items() if reason in _OF_SERVERS]
            for job in stale:
                del self.of[job]
            self.missing += stale

    def take_missing(self) -> list[JobId]:
        """The jobs in ``missing`` that have no reason; empties it."""
        missing, self.missing = self.missing, []
        return [job for job in missing if job not in self.of]
