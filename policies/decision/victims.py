"""Which jobs to stop for a waiting job: the worst-ranked ones that free a placement for it, if that pays."""

from collections.abc import Sequence
from math import inf

from policies.choose import consolidated, free_for
from policies.decision.future_pool import FuturePool, may_consolidate_without
from policies.decision.preemption import PreemptionContext, freed_gpus
from policies.decision.searches import Found, VictimSearch
from policies.model.ids import ServerIndex
from policies.model.job import JobSpec
from policies.model.placement import Placement
from policies.model.resources import Amounts, demand_of, taken_by
from policies.model.view import JobView
from policies.state.keys import JobKey
from policies.throughput import times_in_reach

CANDIDATES_MAX = 256
"""Running jobs looked at, the worst first, when the GPUs of one server are sought."""


def find_victims(context: PreemptionContext, job: JobView, key: JobKey, *, consolidated_only: bool) -> Found | None:
    """A placement on GPUs that are free, being vacated, or held by jobs that are worth displacing; and those jobs.

    ``consolidated_only``: the job could start elsewhere already, so only a placement that keeps its communication local counts.
    GPUs that are being vacated are used before any further job is stopped. O(victims log n), less where the search for a job
    before it tells the answer.
    """
    alike = context.likeness(job)
    if alike is None:
        return _searched(context, job, key, consolidated_only=consolidated_only).found
    sought = alike, key.tier, key.minus_priority, key.project_level, consolidated_only
    before = context.searches.victims.get(sought)
    if before is not None and before.rank <= key.rank:
        return before.found if _also_for(context, key, before) else None
    search = context.searches.victims[sought] = _searched(context, job, key, consolidated_only=consolidated_only)
    return search.found


def _also_for(context: PreemptionContext, key: JobKey, search: VictimSearch) -> bool:
    """Whether a job that is placed alike, with a key that is no better, would find the same."""
    if search.found is None or search.last is None:
        return True
    _, victims = search.found
    return context.displaces(key, search.last) and context.pays(key, [context.view.jobs[each] for each in victims])


def _searched(context: PreemptionContext, job: JobView, key: JobKey, *, consolidated_only: bool) -> VictimSearch:
    if consolidated_only and not context.state.ledger.surplus_on:
        worst = next((each for each in context.candidates(key) if _same_type(context, job, each)), None)
        if worst is None:
            return VictimSearch(key.rank, None, None)
        if not may_consolidate_without(context, job, worst):
            # It fits already, so no further job would be picked, and this one would be in vain.
            found = on_one_server(context, job, key)
            return VictimSearch(key.rank if found is None else inf, found, None)
    with FuturePool(context) as pool:
        candidate = pool.fit(job, consolidated_only=consolidated_only) if pool.added else None
        if candidate is not None:
            return VictimSearch(key.rank, (candidate, ()), None)
        picked = _enough(context, pool, job, key, fits_already=consolidated_only)
        if picked is None:
            return VictimSearch(key.rank, None, None)
        scattered = None
        candidate = pool.fit(job, consolidated_only=consolidated_only)
        if candidate is not None:
            victims = indispensable(job.spec, candidate.placement, picked, pool)
            if context.pays(key, victims):
                scattered = VictimSearch(key.rank, (candidate, tuple(victim.id for victim in victims)), picked[-1])
                if consolidated(candidate, times_in_reach(job, context.view.cluster, candidate.placement)):
                    return scattered
        if job.iteration_times is not None:
            pool.restore()
            if (found := on_one_server(context, job, key)) is not None:
                # No job of another rank need find the same.
                return VictimSearch(inf, found, None)
        return scattered or VictimSearch(key.rank, None, None)


def _enough(
    context: PreemptionContext, pool: FuturePool, job: JobView, key: JobKey, *, fits_already: bool
) -> list[JobView] | None:
    """Add the worst running jobs to the pool until the job fits; None if those that may be displaced are too few.

    One that ``fits_already`` fits with the first of them.
    """
    picked: list[JobView] = []
    missing_gpus, demand = job.spec.gpus - free_for(context.state.pool, job.spec), demand_of(job.spec)
    for victim in context.candidates(key):
        if not _same_type(context, job, victim):
            continue
        picked.append(victim)
        missing_gpus -= freed_gpus(demand, victim)
        if missing_gpus > 0:
            # Counting is cheap, and most of the time it shows that the pool need not be tried.
            continue
        for one in picked if pool.added_jobs == 0 else picked[-1:]:
            pool.add_job(one)
        if fits_already or pool.fit(job) is not None:
            return picked
    return None


def indispensable(spec: JobSpec, placement: Placement, picked: Sequence[JobView], pool: FuturePool) -> list[JobView]:
    """The picked jobs without which the placement would lack something for ``spec``; the best-ranked are spared first."""
    spare = {share.server: pool.free(share.server) - share.gpus for share in placement.shares}
    amounts = {} if demand_of(spec) is None else _amounts_left(spec, placement, pool)
    needed = []
    for victim in reversed(picked):
        assert victim.placement is not None
        held = [(server, gpus) for server, gpus, _ in victim.placement.shares if server in spare]
        suffices = True
        for server, gpus in held:
            suffices = suffices and spare[server] >= gpus
        left = {
            server: amounts[server].plus(taken_by(victim.spec, gpus), -1) for server, gpus in held if server in amounts
        }
        if not suffices or any(each.lacking for each in left.values()):
            needed.append(victim)
            continue
        for server, gpus in held:
            spare[server] -= gpus
        amounts.update(left)
    needed.reverse()
    return needed


def _amounts_left(spec: JobSpec, placement: Placement, pool: FuturePool) -> dict[ServerIndex, Amounts]:
    """CPUs and memory that the placement leaves on each of its servers that states any."""
    found = {}
    for share in placement.shares:
        if (spare := pool.spare(share.server)) is not None:
            found[share.server] = spare.plus(taken_by(spec, share.gpus), -1)
    return found


def on_one_server(context: PreemptionContext, job: JobView, key: JobKey) -> Found | None:
    """Free enough GPUs on one server for a job that communicates: the first server that the worst jobs open.

    If displacing a set of jobs pays, so does displacing each of them alone: a server where none does is not searched.
    """
    if job.spec.gpus > context.view.cluster.server_gpus_max:
        return None
    by_server: dict[ServerIndex, list[JobView]] = {}
    freed: dict[ServerIndex, int] = {}
    paying: set[ServerIndex] = set()
    for looked_at, victim in enumerate(context.candidates(key)):
        if looked_at >= CANDIDATES_MAX:
            return None
        assert victim.placement is not None
        if context.pays_alone(key, victim):
            paying.update(victim.placement.servers)
        for server, gpus, _ in victim.placement.shares:
            by_server.setdefault(server, []).append(victim)
            freed[server] = freed.get(server, 0) + gpus
            if server not in paying:
                continue
            free = context.state.ledger.balance(context.view, server) + freed[server]
            if free < job.spec.gpus or not context.view.usable_gpus(server):
                continue
            found = _take_server(context, job, key, by_server[server])
            if found is not None:
                return found
    return None


def _take_server(context: PreemptionContext, job: JobView, key: JobKey, victims: Sequence[JobView]) -> Found | None:
    with FuturePool(context) as pool:
        for victim in victims:
            pool.add_job(victim)
        candidate = pool.fit(job, consolidated_only=True)
        if candidate is None:
            return None
        needed = indispensable(job.spec, candidate.placement, victims, pool)
        return (candidate, tuple(victim.id for victim in needed)) if context.pays(key, needed) else None


def _same_type(context: PreemptionContext, job: JobView, victim: JobView) -> bool:
    """Whether the victim's GPUs are of a type that the job takes."""
    wanted = job.spec.gpu_types
    if not wanted:
        return True
    assert victim.placement is not None
    return context.view.cluster.servers[victim.placement.servers[0]].gpu_type in wanted
