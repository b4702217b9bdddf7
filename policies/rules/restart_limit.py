"""Preemption rule: a job that has restarted often runs longer before it may be stopped again.

Our construction. Without it the worst-ranked job is preempted by every arrival, hundreds of times a day on a busy cluster.
"""

from policies.model.view import JobView, PreemptionCosts
from policies.options import Options
from policies.rules.protocols import PreemptionRule


class RestartLimit(PreemptionRule):
    """After ``restarts_free`` restarts each attempt lasts at least ``restarted_attempt_s_min``."""

    __slots__ = ("_attempt_s_min", "_restarts_free")

    def __init__(self, restarts_free: float, attempt_s_min: float) -> None:
        self._restarts_free = restarts_free
        self._attempt_s_min = attempt_s_min

    @classmethod
    def under(cls, options: Options) -> "RestartLimit | None":
        """None where the option ``restarted_attempt_s_min`` is 0."""
        if options.restarted_attempt_s_min <= 0.0:
            return None
        return cls(options.restarts_free, options.restarted_attempt_s_min)

    def protected_s(self, costs: PreemptionCosts, job: JobView) -> float:
        """See the class."""
        return self._attempt_s_min if job.attempts > self._restarts_free else 0.0
