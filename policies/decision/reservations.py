"""GPUs that are set aside: claims given up, claims that have come true, and what the oldest waiting job is promised."""

from policies.decision.plan import Plan
from policies.decision.protocols import Ranking
from policies.lifecycle import JobState
from policies.model.ids import JobId, ServerIndex
from policies.model.placement import Placement
from policies.model.view import ClusterView, JobView
from policies.options import Preemption
from policies.placement.pool import FreePool
from policies.rules.minimum_run_time import RESTARTS_PER_ATTEMPT_MIN
from policies.rules.server_reservations import closed_servers
from policies.state.scheduler_state import SchedulerState


def give_up_claims(view: ClusterView, state: SchedulerState) -> list[JobId]:
    """Drop the claims on servers that take no work, or not theirs, and return their owners, who compete again. O(claims)."""
    if not state.unusable and not view.windows:
        return []
    lost = [
        job
        for job, placement in state.claims.items()
        if not state.unusable.isdisjoint(placement.servers)
        or not closed_servers(view, view.jobs[job]).isdisjoint(placement.servers)
    ]
    for job in lost:
        state.unclaim(job)
    state.sync(view)
    return sorted(lost)


def start_claimants(view: ClusterView, state: SchedulerState, plan: Plan) -> None:
    """Start each job whose claimed GPUs are all free by now, the oldest first. O(claims)."""
    taken: dict[ServerIndex, int] = {}
    for job, placement in sorted(state.claims.items()):
        enough = all(
            view.free_gpus(share.server) - taken.get(share.server, 0) >= share.gpus for share in placement.shares
        )
        if enough and view.jobs[job].waiting:
            for share in placement.shares:
                taken[share.server] = taken.get(share.server, 0) + share.gpus
            state.unclaim(job)
            plan.start(view, state, job, placement)


def reserve_for_oldest(policy: Ranking, view: ClusterView, state: SchedulerState, plan: Plan) -> None:
    """After ``guard_wait_s`` whoever is most overdue gets GPUs set aside as they free up.

    Where running jobs may be stopped it is guarded, and displaces whom it needs: GPUs set aside would only idle till then.
    """
    oldest = next(iter(state.entitled), None)
    if oldest is None or state.guard_gpus_max <= 0.0:
        return
    since_s, job_id = oldest
    if job_id in state.claims or job_id in plan.placed:
        return
    due_s = since_s + policy.options.guard_wait_s
    if due_s > view.now_s:
        plan.wakes_s.append(due_s)
        return
    if policy.options.preemption is not Preemption.NEVER:
        return
    job = view.jobs[job_id]
    if policy.find(state.pool, view, job) is not None:
        return
    placement = _drain_target(policy, view, state, job)
    if placement is not None:
        plan.reserve(view, state, job_id, placement)


def end_turn(policy: Ranking, view: ClusterView, state: SchedulerState, plan: Plan) -> JobView | None:
    """The job that has run undisturbed for as long as its wait has earned it, and may be displaced again. O(1).

    A gang beyond the guarded share that was overdue runs for ``guard_share x guard_wait_s`` (but not for less than two
    restarts), and is overdue again after a further ``guard_wait_s``: so every job runs for the guarded share of its time at
    least. Guarded until its end it could keep half a cluster idle for days, if it is large or if gangs wait that need what
    it holds.
    """
    if state.guarded_extra is None or policy.options.preemption is Preemption.NEVER:
        return None
    job = view.jobs[state.guarded_extra]
    started_at_s = job.attempt_started_at_s
    if job.state not in (JobState.STARTING, JobState.RUNNING) or started_at_s is None:
        return None
    if job.spec.gpus <= state.guard_gpus_max:
        return None
    turn_s = policy.options.guard_share * policy.options.guard_wait_s
    ends_at_s = started_at_s + max(turn_s, RESTARTS_PER_ATTEMPT_MIN * view.costs.restart_s)
    if ends_at_s > view.now_s:
        plan.wakes_s.append(ends_at_s)
        return None
    state.guarded_extra = None
    return job


def _drain_target(policy: Ranking, view: ClusterView, state: SchedulerState, job: JobView) -> Placement | None:
    """Where the job could run once the present jobs there have left, besides what others have claimed. O(servers)."""
    unclaimed = []
    for index in range(len(view.cluster.servers)):
        claimed = sum(state.claimed_on.get(ServerIndex(index), {}).values())
        unclaimed.append(max(0, view.usable_gpus(ServerIndex(index)) - claimed))
    candidate = policy.find(FreePool(view.cluster, unclaimed), view, job)
    return None if candidate is None else candidate.placement
