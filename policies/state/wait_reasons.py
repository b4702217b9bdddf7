"""The last published reason of each waiting job."""

from policies.model.ids import JobId
from policies.model.reasons import Reason


class WaitReasons:
    """The reason of each waiting job, and the jobs that may have none yet. O(1) each.

    A job that waits has a reason, or is in ``missing`` and gets one when the decision ends.
    """

    __slots__ = ("missing", "of")

    def __init__(self) -> None:
        self.of: dict[JobId, Reason] = {}
        self.missing: list[JobId] = []

    def copy(self) -> "WaitReasons":
        """Reasons that change independently. O(n)."""
        other = WaitReasons()
        other.of, other.missing = dict(self.of), list(self.missing)
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

    def take_missing(self) -> list[JobId]:
        """The jobs in ``missing`` that have no reason; empties it."""
        missing, self.missing = self.missing, []
        return [job for job in missing if job not in self.of]
