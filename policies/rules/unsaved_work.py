"""Preemption rule: a job that cannot checkpoint is not stopped for another one, because it would lose all its work."""

import math

from policies.model.view import JobView, PreemptionCosts
from policies.options import Options, PreemptUnsaved
from policies.rules.protocols import PreemptionRule


def cannot_save(job: JobView) -> bool:
    """Whether a stop certainly loses the work of the job's attempt: the job states that it cannot checkpoint
    (``checkpoint_period_s`` is None), asks for no warning signal, and has never reported a checkpoint. O(1)."""
    return job.spec.checkpoint_period_s is None and not job.graceful


class UnsavedWork(PreemptionRule):
    """Under ``preempt_unsaved = never`` such a job runs to its end. Under ``priority`` the protection depends on the job that
    waits, so :class:`policies.decision.preemption.PreemptionContext` applies it."""

    __slots__ = ()

    @classmethod
    def under(cls, options: Options) -> "UnsavedWork | None":
        """None unless the option ``preempt_unsaved`` is ``never``."""
        return cls() if options.preempt_unsaved is PreemptUnsaved.NEVER else None

    def protected_s(self, costs: PreemptionCosts, job: JobView) -> float:
        """See the class."""
        # Nearly all jobs state a period: the rest is a call more for each of them.
        return math.inf if job.spec.checkpoint_period_s is None and cannot_save(job) else 0.0
