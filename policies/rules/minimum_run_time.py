"""For how long a running job is left alone, whoever is better: our construction against jobs that only ever restart."""

import math

from policies.model.view import JobView, PreemptionCosts
from policies.options import Options, Preemption

RESTARTS_PER_ATTEMPT_MIN = 2.0
"""Where preemption is free of charge, an attempt of a job that nobody can predict lasts at least so many restarts: half of
it is progress."""


def ripe_at_s(options: Options, costs: PreemptionCosts, job: JobView) -> float:
    """When the job's present attempt may be stopped at the earliest; infinite where it has none. O(1)."""
    started_at_s = job.attempt_started_at_s
    if started_at_s is None:
        return math.inf
    attempt_s_min = options.attempt_duration_s_min
    if job.spec.min_run_s > attempt_s_min:
        attempt_s_min = job.spec.min_run_s
    if job.attempts > options.restarts_free:
        # The worst-ranked job would else make way for everyone who comes: hundreds of times a day on a busy cluster.
        attempt_s_min = max(attempt_s_min, options.restarted_attempt_s_min)
    if options.preemption is Preemption.ALWAYS and (job.estimate is None or not job.estimate.trusted):
        # Without a price, jobs ranked by attained service would swap for ever and only restart.
        attempt_s_min = max(attempt_s_min, RESTARTS_PER_ATTEMPT_MIN * costs.restart_s)
    return started_at_s + attempt_s_min
