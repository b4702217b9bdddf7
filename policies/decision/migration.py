"""Migration: move a running job whose communication crosses servers to a consolidated placement that has become free.

The last step of a scan, and our construction: stop a scattered job iff
eta x remaining time x (stretch here - stretch there) > checkpoint_s + restart_s + lost_s, where the stretch of a placement x
is alpha(x) / alpha_min; where contention is foreseen, here at least the stretch in the present crowd. It goes back into the
queue and starts again in rank order, as after any preemption.
"""

from policies.choose import CONSOLIDATED_RATIO
from policies.decision.future_pool import FuturePool, free_without, known_fit_s, may_consolidate_without
from policies.decision.plan import Plan
from policies.decision.preemption import PreemptionContext
from policies.model.cluster import Cluster
from policies.model.placement import Placement
from policies.model.view import JobView
from policies.rank import expected_remaining_s
from policies.throughput import stretch_of, times_in_reach

TRIED_MAX = 8
"""Scattered jobs that one cycle tries, the most stretched first."""


def stretch(job: JobView, cluster: Cluster, placement: Placement) -> float | None:
    """alpha(x) / alpha_min of a job that would be faster with another placement within reach; None for other jobs."""
    best, times = job.iteration_times, times_in_reach(job, cluster, placement)
    if best is None or times is None or (times.slowdown is not None and not times.slowdown.measured):
        return None
    ratio = stretch_of(cluster, job.spec, times, placement)
    return ratio * (times.min_s / best.min_s) if ratio > CONSOLIDATED_RATIO else None


def migrate(context: PreemptionContext, plan: Plan) -> None:
    """Stop the jobs that gain by starting again elsewhere; not those of unknown remaining time. O(jobs tried x log n)."""
    view, state = context.view, context.state
    if state.pool.total == 0:
        return
    tried = 0
    for minus_stretch, _, job_id in state.placements.stretched:
        job = view.jobs[job_id]
        if tried == TRIED_MAX:
            return
        if job_id in state.ledger.leaving or not context.may_move(job, job.priority):
            continue
        tried += 1
        better = _better_stretch(context, job)
        if better is None:
            continue
        remaining_s = expected_remaining_s(job, view.now_s) or 0.0
        here = max(-minus_stretch, state.traffic.stretch(job_id))
        gain_s = context.eta * remaining_s * (here - better)
        if gain_s > context.seconds_lost(job):
            plan.preempt(job_id)


def _better_stretch(context: PreemptionContext, job: JobView) -> float | None:
    """The stretch of a consolidated placement on GPUs that are free or its own; None where there is none."""
    times = job.iteration_times
    assert times is not None
    if not may_consolidate_without(context, job, job):
        return None
    known_s = known_fit_s(context, job, free_without(context, job))
    if known_s is not None:
        return known_s / times.min_s if known_s <= CONSOLIDATED_RATIO * times.min_s else None
    with FuturePool(context, with_leaving=False) as pool:
        pool.add_job(job)
        candidate = pool.fit(job, consolidated_only=True)
    if candidate is None or candidate.iteration_s is None:
        return None
    return candidate.iteration_s / times.min_s
