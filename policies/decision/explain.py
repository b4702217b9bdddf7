"""Explanations of waiting jobs: reasons and numbers."""

from policies.choose import find, fits_empty, free_for
from policies.decision.decider import Decider
from policies.decision.plan import Plan
from policies.model.reasons import Reason
from policies.model.view import ClusterView, JobView
from policies.rules.server_reservations import closed_servers
from policies.state.scheduler_state import SchedulerState


def blocked_reason(view: ClusterView, state: SchedulerState, job: JobView) -> Reason:
    """Why a job that was tried could not start."""
    fits = state.reasons.of.get(job.id) in (Reason.RESOURCES, Reason.FRAGMENTED) and not state.unusable
    if not fits:
        gang = state.waiting.keys[job.id][0]
        if not fits_empty(view.cluster, job.spec) or not state.usable_fit.fits(view, gang, job.spec):
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
