"""Explanations of waiting jobs: reasons and numbers."""

import math

from policies.choose import find, fits_empty, fits_usable, free_for, kept_out, servers_wanted
from policies.decision.plan import Plan
from policies.decision.protocols import Decider
from policies.model.ids import ServerIndex
from policies.model.reasons import Explanation, Reason
from policies.model.view import ClusterView, JobView
from policies.rules.server_reservations import closed_servers
from policies.state.scheduler_state import SchedulerState


def blocked_reason(view: ClusterView, state: SchedulerState, job: JobView) -> Reason:
    """Why a job that was tried could not start."""
    fits = state.reasons.of.get(job.id) in (Reason.RESOURCES, Reason.FRAGMENTED) and not state.unusable
    if not fits and (not fits_empty(view.cluster, job.spec) or (state.unusable and not fits_usable(view, job.spec))):
        return Reason.NO_SUCH_SERVERS
    if closed_servers(view, job) and find(state.pool, view.cluster, job.spec) is not None:
        return Reason.RESERVED_SERVERS
    if free_for(state.pool, job.spec) >= job.spec.gpus:
        return Reason.FRAGMENTED
    return Reason.RESOURCES


def explain_untried(policy: Decider, view: ClusterView, state: SchedulerState, plan: Plan) -> None:
    """Give a reason to the waiting jobs that have none and were not tried: they have just arrived."""
    if not state.reasons.missing:
        return
    placed = plan.placed
    for job_id in state.reasons.take_missing():
        job = view.jobs.get(job_id)
        if job is not None and job.waiting and job_id not in placed:
            plan.explain(job_id, policy.waiting_reason(state, job_id))


def explanation(view: ClusterView, state: SchedulerState, job: JobView, reason: Reason, rank: float) -> Explanation:
    """The reason with its numbers. O(gang classes x log n + servers)."""
    free_of_type = [
        view.free_gpus(ServerIndex(index))
        for index, server in enumerate(view.cluster.servers)
        if not job.spec.gpu_types or server.gpu_type in job.spec.gpu_types
    ]
    if job.id in state.ledger.reservations:
        reason = Reason.RESERVED
    kept = reason is Reason.FRAGMENTED and kept_out(view, job.spec)
    return Explanation(
        reason=reason,
        gpus_needed=job.spec.gpus,
        gpus_free=sum(free_of_type),
        servers_with_free_gpus=sum(1 for free in free_of_type if free),
        servers_wanted=servers_wanted(view.cluster, job.spec) if job.iteration_times is not None else None,
        jobs_ahead=state.waiting.jobs_ahead(job.id) if job.id in state.waiting else None,
        rank=rank if math.isfinite(rank) else None,
        waiting_for=tuple(sorted(state.ledger.leaving)) if reason is Reason.RESERVED else (),
        detail=f"Enough GPUs are free, but on this cluster it needs {view.cluster.gangs.demand}." if kept else "",
    )
