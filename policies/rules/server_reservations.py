"""Servers set aside for a time, as a policy sees them: closed to some jobs, now or soon.

Before a window opens, nobody is started there who would probably be there still: whose p90 of the remaining time, or whose
walltime, ends after that.
"""

import math
from collections.abc import Set

from policies.model.estimate import Unit
from policies.model.ids import ServerIndex
from policies.model.view import ClusterView, JobView
from policies.rank import OverRun, remaining_units, seconds_per_unit

_QUANTILE = 0.9


def closed_servers(view: ClusterView, job: JobView) -> Set[ServerIndex]:
    """Servers on which the job may not be started now. O(windows + their servers)."""
    closed: set[ServerIndex] = set()
    if not view.windows:
        return closed
    may_last_s = may_last(view, job)
    for window in view.windows:
        if window.ends_at_s <= view.now_s or window.admits(job.spec):
            continue
        # Who may last for ever may try where it would be stopped in time.
        known = math.isfinite(may_last_s)
        outlasts = view.now_s + may_last_s > window.starts_at_s if known else not window.preempt
        if window.starts_at_s <= view.now_s or outlasts:
            closed.update(window.servers)
    return closed


def may_last(view: ClusterView, job: JobView) -> float:
    """Seconds after which the job has ended with 90% chance, were it started now at its best; infinite where nobody knows."""
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
