"""Which jobs to stop for a waiting job: the worst-ranked ones that free a placement for it, if that pays."""

from collections.abc import Sequence
from typing import NamedTuple

from policies.choose import Candidate, consolidated, free_for
from policies.decision.future_pool import FuturePool
from policies.decision.preemption import PreemptionContext, freed_gpus
from policies.model.ids import JobId, ServerIndex
from policies.model.job import JobSpec
from policies.model.placement import Placement
from policies.model.resources import Amounts, demand_of, taken_by
from policies.model.view import JobView
from policies.state.keys import JobKey
from policies.throughput import times_in_reach

CANDIDATES_MAX = 256
"""Running jobs looked at, the worst first, when the GPUs of one server are sought."""

Found = tuple[Candidate, tuple[JobId, ...]]
"""A placement, and the jobs to stop for it."""


def find_victims(context: PreemptionContext, job: JobView, key: JobKey, *, consolidated_only: bool) -> Found | None:
    """A placement on GPUs that are free, being vacated, or held by jobs that are worth displacing; and those jobs.

    ``consolidated_only``: the job could start elsewhere already, so only a placement that keeps its communication local counts.
    GPUs that are being vacated are used before any further job is stopped. O(victims log n).
    """
    with FuturePool(context) as pool:
        candidate = pool.fit(job, consolidated_only=consolidated_only) if pool.added else None
        if candidate is not None:
            return candidate, ()
        picked = _enough(context, pool, job, key, fits_already=consolidated_only)
        scattered = None
        if picked is not None:
            candidate = pool.fit(job, consolidated_only=consolidated_only)
            if candidate is not None:
                victims = indispensable(job.spec, candidate.placement, picked, pool)
                if context.pays(key, victims):
                    scattered = candidate, tuple(victim.id for victim in victims)
                    if consolidated(candidate, times_in_reach(job, context.view.cluster, candidate.placement)):
                        return scattered
        if picked is None or job.iteration_times is None:
            return scattered
        pool.restore()
        return _one_server(context, job, key) or scattered


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
    spare = {share.server: _left(pool, share.server, share.gpus, spec) for share in placement.shares}
    needed = []
    for victim in reversed(picked):
        assert victim.placement is not None
        left = {
            share.server: spare[share.server].without(share.gpus, victim.spec)
            for share in victim.placement.shares
            if share.server in spare
        }
        if all(each.suffices for each in left.values()):
            spare.update(left)
        else:
            needed.append(victim)
    needed.reverse()
    return needed


class _Left(NamedTuple):
    """What stays free on a server; ``amounts`` None: CPUs and memory are not limited there, or not asked for."""

    gpus: int
    amounts: Amounts | None

    @property
    def suffices(self) -> bool:
        """Whether nothing is lacking."""
        return self.gpus >= 0 and (self.amounts is None or not self.amounts.lacking)

    def without(self, gpus: int, spec: JobSpec) -> "_Left":
        """What is left when a job with this spec keeps these GPUs, and what belongs to them."""
        amounts = None if self.amounts is None else self.amounts.plus(taken_by(spec, gpus), -1)
        return _Left(self.gpus - gpus, amounts)


def _left(pool: FuturePool, server: ServerIndex, gpus: int, spec: JobSpec) -> _Left:
    amounts = None if demand_of(spec) is None else pool.spare(server)
    return _Left(pool.free(server), amounts).without(gpus, spec)


def _one_server(context: PreemptionContext, job: JobView, key: JobKey) -> Found | None:
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
