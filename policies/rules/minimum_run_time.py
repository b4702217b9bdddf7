"""Preemption rule: each attempt runs for a minimum time before it may be stopped for another job."""

from policies.model.view import JobView, PreemptionCosts
from policies.options import Options
from policies.rules.protocols import PreemptionRule


class MinimumRunTime(PreemptionRule):
    """The longer of the job's ``min_run_s`` and the option ``attempt_duration_s_min``."""

    __slots__ = ("_attempt_s_min",)

    def __init__(self, options: Options) -> None:
        self._attempt_s_min = options.attempt_duration_s_min

    def protected_s(self, costs: PreemptionCosts, job: JobView) -> float:
        """See the class."""
        asked_s = job.spec.min_run_s
        return asked_s if asked_s > self._attempt_s_min else self._attempt_s_min
