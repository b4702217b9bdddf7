"""Servers that are closed to a job because they are set aside for others, now or soon.

Before a server reservation begins, no job is started there that would probably still run then: one whose remaining time at
p90, or whose walltime, ends later.
"""

import math
from collections.abc import Set

from policies.model.estimate import Unit
from policies.model.ids import ServerIndex
from policies.model.view import ClusterView, JobView
from policies.rank import OverRun, remaining_units, seconds_per_unit

_QUANTILE = 0.9


def closed_servers(view: ClusterView, job: JobView) -> Set[ServerIndex]:
    """Servers on which the job may not be started now. O(server reservations + their servers)."""
    closed: set[ServerIndex] = set()
    if not view.server_reservations:
        return closed
    lasts_s = may_last_s(view, job)
    for reserved in view.server_reservations:
        if reserved.ends_at_s <= view.now_s or reserved.admits(job.spec):
            continue
        # A job of unknown duration may start where it would be stopped in time.
        known = math.isfinite(lasts_s)
        outlasts = view.now_s + lasts_s > reserved.starts_at_s if known else not reserved.preempt
        if reserved.starts_at_s <= view.now_s or outlasts:
            closed.update(reserved.servers)
    return closed


def may_last_s(view: ClusterView, job: JobView) -> float:
    """Seconds in which the job ends with probability 0.9 if it starts now at its best placement; infinite if unknown."""
    lasts_s = math.inf
    estimate = job.estimate
    unit_s = seconds_per_unit(job, estimate) if estimate is not None else None
    if estimate is not None and unit_s is not None:
        points = estimate.points
        point = points[min(len(points), math.ceil(_QUANTILE * len(points))) - 1]
        done = job.done(estimate.unit, view.now_s)
        lasts_s = remaining_units((point,), done, OverRun.DOUBLE)[0] * unit_s
    if job.spec.walltime_s is not None:
        lasts_s = min(lasts_s, max(0.0, job.spec.walltime_s - job.done(Unit.SERVICE_S, view.now_s)))
    return lasts_s + (view.costs.restart_s if job.attempts else 0.0)
