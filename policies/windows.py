"""Servers set aside for a time, as a policy sees them: closed to some jobs, now or soon.

Before a window opens, nobody is started there who would probably be there still: whose p90 of the remaining time, or whose
walltime, ends after that.
"""

import math
from collections.abc import Set
from typing import TYPE_CHECKING

from policies.model.estimate import Unit
from policies.model.ids import ServerIndex
from policies.model.view import ClusterView, JobView
from policies.placement.choose import Candidate, find
from policies.placement.pool import FreePool
from policies.rank import OverRun, remaining_units, seconds_per_unit

if TYPE_CHECKING:
    from policies.book import Book

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


def find_open(pool: FreePool, view: ClusterView, job: JobView, salt: int | None) -> Candidate | None:
    """What the job would get of that pool on servers that are open to it."""
    if not view.windows:
        return find(pool, view.cluster, job.spec, salt)
    closed = closed_servers(view, job)
    taken = {server: pool.free(server) for server in sorted(closed) if server < len(pool) and pool.free(server)}
    if not taken:
        return find(pool, view.cluster, job.spec, salt)
    try:
        for server in taken:
            pool.set_free(server, 0)
        return find(pool, view.cluster, job.spec, salt)
    finally:
        for server, gpus in taken.items():
            pool.set_free(server, gpus)


def follow_windows(view: ClusterView, state: "Book") -> None:
    """Index waiting jobs anew when windows have been made or have gone: who is let in is a class of its own. O(n log n)."""
    if view.windows is state.windows:
        return
    state.windows = view.windows
    state.restless = state.swayed = True
    for job_id in list(state.waiting_keys):
        state.enqueue(view.jobs[job_id], state.waiting_keys[job_id][1].rank)
