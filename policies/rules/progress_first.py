"""Preemption rule: where preemption has no price, a job without an estimate makes some progress before it is stopped.

Our construction. Jobs ranked by attained service would otherwise displace each other for ever and only restart.
"""

from policies.model.view import JobView, PreemptionCosts
from policies.options import Options, Preemption
from policies.rules.protocols import PreemptionRule

RESTARTS_PER_ATTEMPT_MIN = 2.0
"""An attempt lasts at least this many times as long as a restart: half of it is progress."""


class ProgressFirst(PreemptionRule):
    """Attempts of jobs without a trusted estimate last at least two restarts."""

    __slots__ = ()

    @classmethod
    def under(cls, options: Options) -> "ProgressFirst | None":
        """None unless the option ``preemption`` is ``always``."""
        return cls() if options.preemption is Preemption.ALWAYS else None

    def protected_s(self, costs: PreemptionCosts, job: JobView) -> float:
        """See the class."""
        if job.estimate is None or not job.estimate.trusted:
            return RESTARTS_PER_ATTEMPT_MIN * costs.restart_s
        return 0.0
