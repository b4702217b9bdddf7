"""Moving a running job whose traffic crosses servers to where it stays inside, when such a place has come free.

The last and most disruptive thing a decision does, and our construction: stop a scattered job iff
eta x remaining time x (stretch here - stretch there) > checkpoint_s + restart_s + lost_s, where the stretch of a placement x
is alpha(x) / alpha_min. It goes back into the queue and starts again in rank order, as after any preemption.
"""

from policies.choose import CONSOLIDATED_RATIO
from policies.decision.plan import Plan
from policies.decision.victims import FuturePool, PreemptionContext
from policies.model.cluster import Cluster
from policies.model.decision import Preempt
from policies.model.placement import Placement
from policies.model.view import ClusterView, JobView
from policies.rank import expected_remaining_s
from policies.throughput import iteration_time_s

TRIED_MAX = 8
"""Scattered jobs that one cycle looks at, the most stretched first."""


def stretch(job: JobView, cluster: Cluster, placement: Placement) -> float | None:
    """alpha(x) / alpha_min of a job that would gain by another placement; None for every other job."""
    spec, times = job.spec, job.iteration_times
    if times is None or spec.stage_graph is None or spec.parallelism is None:
        return None
    ratio = iteration_time_s(spec.stage_graph, spec.parallelism, cluster, placement) / times.min_s
    return ratio if ratio > CONSOLIDATED_RATIO else None


def migrate(bid: PreemptionContext, view: ClusterView, plan: Plan) -> None:
    """Stop the scattered jobs that gain by starting again. O(jobs tried x log n)."""
    state = bid.book
    if state.pool.total == 0:
        return
    tried = 0
    for minus_stretch, _, job_id in list(state.scattered):
        job = view.jobs[job_id]
        if tried == TRIED_MAX:
            return
        if job_id in state.leaving or not bid.may_move(job):
            continue
        tried += 1
        better = _better_stretch(bid, job)
        if better is None:
            continue
        remaining_s = expected_remaining_s(job, view.now_s)
        if remaining_s is not None and bid.eta * remaining_s * (-minus_stretch - better) > bid.seconds_lost(job):
            assert job.placement is not None
            state.pencil_leave(view, job_id, job.placement)
            plan.actions.append(Preempt(job_id))


def _better_stretch(bid: PreemptionContext, job: JobView) -> float | None:
    """The stretch of a consolidated placement on GPUs that are free or its own; None where there is none."""
    times, held = job.iteration_times, job.placement
    assert times is not None
    assert held is not None
    soon = FuturePool(bid, also_leaving=False)
    try:
        soon.add_job(job)
        candidate = soon.fit(job, consolidated_only=True)
    finally:
        soon.restore()
    if candidate is None or candidate.iteration_s is None:
        return None
    return candidate.iteration_s / times.min_s
