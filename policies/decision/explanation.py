"""The explanation of one job: its reason, the numbers, the jobs that it waits for, and the preemption to come."""

import math
from collections.abc import Sequence

from policies.choose import kept_out, servers_wanted
from policies.decision.foresight import foresee
from policies.decision.future_pool import FuturePool
from policies.decision.preemption import PreemptionContext
from policies.decision.reservations import unsaved_jobs
from policies.decision.scan import Scanner
from policies.decision.victims import indispensable
from policies.lifecycle import JobState
from policies.model.ids import JobId, ServerIndex
from policies.model.reasons import Explanation, Reason
from policies.model.resources import demand_of, needs_in_words
from policies.model.view import ClusterView, JobView
from policies.options import Preemption
from policies.state.scheduler_state import SchedulerState

NAMED_MAX = 5
"""Jobs that a sentence lists before it counts the others."""


def explanation(
    policy: Scanner, view: ClusterView, state: SchedulerState, job: JobView, reason: Reason, rank: float
) -> Explanation:
    """The reason with its numbers, and the preemption to come. O(running + gang classes x log n + servers + foresight)."""
    gpu_type, free_of_type = _free_of_type(view, job)
    gpus_free, servers_with_free_gpus = sum(free_of_type), sum(1 for free in free_of_type if free)
    if job.state in (JobState.PREEMPTING, JobState.CANCELLING):
        return Explanation(job.reason, job.spec.gpus, gpus_free, servers_with_free_gpus, stopping=True)
    if job.id in state.ledger.reservations:
        reason = Reason.RESERVED
    reserved = reason is Reason.RESERVED
    spared = spared_jobs(policy, view, state, job) if not reserved else ()
    holders = _holders(view, state, job) if reserved else ()
    if state.foreseen is None:
        state.foreseen = foresee(policy, view, state)
    ahead = _jobs_ahead(policy, state, job.id)
    if holders:
        detail = _set_aside(holders)
    else:
        detail = _detail(policy, view, job, reason, spared, gpus_free)
        detail = detail or _passed_over(state, job.id, reason, ahead)
    victims, successor = state.foreseen.victims(job.id), state.foreseen.successor(job.id)
    return Explanation(
        reason=reason,
        gpus_needed=job.spec.gpus,
        gpus_free=gpus_free,
        servers_with_free_gpus=servers_with_free_gpus,
        gpu_type=gpu_type if len(view.cluster.gpus_by_type) > 1 else "",
        servers_wanted=servers_wanted(view.cluster, job.spec) if job.iteration_times is not None else None,
        jobs_ahead=ahead,
        rank=rank if math.isfinite(rank) else None,
        waiting_for=tuple(sorted({*state.ledger.leaving, *holders})) if reserved else spared,
        detail=detail,
        will_preempt=victims,
        will_be_preempted_by=successor,
        preemption_at_s=state.foreseen.at_s if victims or successor is not None else None,
    )


def _free_of_type(view: ClusterView, job: JobView) -> tuple[str, Sequence[int]]:
    """The GPU type that the job takes with most free GPUs, and those of each of its servers: a gang never mixes types."""
    by_type: dict[str, list[int]] = {}
    for index, server in enumerate(view.cluster.servers):
        if not job.spec.gpu_types or server.gpu_type in job.spec.gpu_types:
            by_type.setdefault(server.gpu_type, []).append(view.free_gpus(ServerIndex(index)))
    return max(by_type.items(), key=lambda found: sum(found[1]), default=("", ()))


def spared_jobs(policy: Scanner, view: ClusterView, state: SchedulerState, job: JobView) -> tuple[JobId, ...]:
    """The running jobs that cannot checkpoint and whose GPUs the job would otherwise take: it waits for their end. O(running)."""
    found = state.waiting.keys.get(job.id)
    if found is None or policy.options.preemption is Preemption.NEVER:
        return ()
    key = found[1]
    context = PreemptionContext(policy, view, state)
    with FuturePool(context) as pool:
        for victim in context.candidates(key):
            pool.add_job(victim)
        if pool.fit(job) is not None:
            return ()
        spared = [other for other in unsaved_jobs(policy, view, state, job) if context.precedes(key, other)]
        for other in sorted(spared, key=lambda other: (other.priority, -context.rank(other), other.id)):
            pool.add_job(other)
            if (candidate := pool.fit(job)) is not None:
                needed = indispensable(job.spec, candidate.placement, spared, pool)
                return tuple(sorted(each.id for each in needed))
    return ()


def _jobs_ahead(policy: Scanner, state: SchedulerState, job: JobId) -> int | None:
    """Waiting jobs that get GPUs before it; None for a job that does not wait for GPUs."""
    if job not in state.waiting:
        return None
    return policy.jobs_ahead(state, job)


def _passed_over(state: SchedulerState, job: JobId, reason: Reason, ahead: int | None) -> str:
    """That gangs of worse ranks go before the job because they are wide; empty where they do not make more of those before it."""
    if ahead is None or reason not in (Reason.RESOURCES, Reason.PRIORITY) or ahead <= state.waiting.jobs_ahead(job):
        return ""
    first = "Wide gangs that fill the servers go before it, whatever their ranks; the job starts when they leave enough GPUs free"
    return f"{first}, or comes first when it is overdue." if state.guard.gpus_max > 0.0 else f"{first}."


def _holders(view: ClusterView, state: SchedulerState, job: JobView) -> tuple[JobId, ...]:
    """The jobs that run on, where more is reserved for the job than is free or being vacated. O(jobs there)."""
    placement = state.ledger.reservations.get(job.id)
    lacking = [
        share.server
        for share in (placement.shares if placement is not None else ())
        if state.ledger.balance(view, share.server) < 0
        or ((amounts := state.ledger.balance_amounts(view, share.server)) is not None and amounts.lacking)
    ]
    on_server = (other for server in lacking for other in state.placements.on_server.get(server, ()))
    return tuple(sorted({other for other in on_server if other not in state.ledger.leaving}))


def _set_aside(holders: Sequence[JobId]) -> str:
    verb = "has" if len(holders) == 1 else "have"
    return f"GPUs are set aside for it; it starts when {_named(holders)} {verb} ended."


def _named(jobs: Sequence[JobId]) -> str:
    """``job 1``, ``jobs 1, 2 and 3``, ``jobs 1, 2, 3, 4, 5 and 40 more``."""
    if len(jobs) == 1:
        return f"job {jobs[0]}"
    few = len(jobs) <= NAMED_MAX + 1
    listed = jobs[:-1] if few else jobs[:NAMED_MAX]
    return f"jobs {', '.join(map(str, listed))} and {jobs[-1] if few else f'{len(jobs) - NAMED_MAX} more'}"


def _detail(
    policy: Scanner, view: ClusterView, job: JobView, reason: Reason, spared: Sequence[JobId], gpus_free: int
) -> str:
    if spared:
        names = _named(spared).capitalize()
        verb, pronoun = ("is", "it") if len(spared) == 1 else ("are", "they")
        setting = f"preempt_unsaved={policy.options.preempt_unsaved}"
        return f"{names} cannot checkpoint, so {pronoun} {verb} not stopped for it ({setting})."
    if reason is Reason.FRAGMENTED and kept_out(view, job.spec):
        return f"Enough GPUs are free, but on this cluster it needs {view.cluster.gangs.demand}."
    if reason is Reason.RESOURCES and gpus_free >= job.spec.gpus and demand_of(job.spec) is not None:
        return f"Enough GPUs are free, but not beside {needs_in_words(job.spec)}."
    return ""
