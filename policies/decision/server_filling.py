"""Filling the servers with the smallest jobs and the largest gangs: ServerFilling-SRPT for gangs that are large beside the
cluster, and how to see that a workload has such gangs.

After ServerFilling-SRPT (Grosof, Scully, Harchol-Balter and Scheller-Wolf, "Optimal Scheduling in the Multiserver-job Model
under Heavy Traffic", SIGMETRICS 2023): take the jobs by remaining work until their GPUs would fill the cluster, and of
those serve the largest gangs first. Where gangs are powers of two and divide the cluster no GPU idles while enough work is
there; serving in the order of ranks whoever fits leaves GPUs idle beside large gangs, and queues then grow without bound at
loads that the cluster could carry. Prices, guard, priorities and the treatment of other gang sizes are our construction
(docs/explanation/a-srpt.md).
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

from policies.choose import Candidate, consolidated
from policies.decision.plan import Plan
from policies.decision.victims import FuturePool, PreemptionContext, indispensable
from policies.lifecycle import JobState
from policies.model.ids import JobId
from policies.model.view import ClusterView, JobView
from policies.options import Preemption
from policies.rank import expected_remaining_s
from policies.state.scheduler_state import Key

MEMORY_JOBS = 128
"""An arrival weighs 1/e of what it weighed so many arrivals ago."""

FILL_FROM = 0.25
"""Servers are filled once gangs of at least half the cluster bring so large a share of the work ..."""

FILL_UNTIL = 0.10
"""... and until they bring less than this."""

ARRIVALS_MIN = 8
"""Fewer arrivals than this say nothing yet."""


@dataclass(slots=True)
class GangMix:
    """The share of work that arrives in gangs of at least half the cluster, exponentially forgotten, and what follows.

    ``last`` is the latest job that was counted: numbers only grow, so each job counts once however often it comes back.
    """

    large: float = 0.0
    total: float = 0.0
    seconds: float = 0.0
    arrivals: float = 0.0
    last: int = 0
    filling: bool = False

    @property
    def share(self) -> float:
        """Between 0 and 1; 0 before the first arrival."""
        return self.large / self.total if self.total > 0.0 else 0.0

    def count(self, view: ClusterView, jobs: Sequence[JobView]) -> None:
        """These wait. Those that are new count, in the order of their numbers. O(jobs log jobs).

        A job that nobody can predict counts as long as the average of those that were.
        """
        for job in sorted(jobs, key=lambda job: job.id):
            if job.id <= self.last or not job.waiting:
                continue
            self.last = job.id
            estimate = job.estimate
            seconds = expected_remaining_s(job, view.now_s) if estimate is not None and estimate.trusted else None
            self._add(job.spec.gpus, seconds, view.cluster.gpus)

    def _add(self, gpus: int, seconds: float | None, cluster_gpus: int) -> None:
        kept = 1.0 - 1.0 / MEMORY_JOBS
        mean = self.seconds / self.arrivals if self.arrivals > 0.0 else 1.0
        work = gpus * (mean if seconds is None else seconds)
        self.large = self.large * kept + (work if 2 * gpus >= cluster_gpus and gpus > 1 else 0.0)
        self.total = self.total * kept + work
        self.seconds = self.seconds * kept + (mean if seconds is None else seconds)
        self.arrivals = self.arrivals * kept + 1.0
        if self.arrivals >= ARRIVALS_MIN * (1.0 - ARRIVALS_MIN / (2 * MEMORY_JOBS)):
            self.filling = self.share >= (FILL_UNTIL if self.filling else FILL_FROM)

    def dump(self) -> dict[str, Any]:
        """All of it: the jobs alone do not tell who came before them."""
        return {name: getattr(self, name) for name in self.__slots__}


class Standing(NamedTuple):
    """A job's place among all jobs. Running ones stand better by what stopping them would cost."""

    key: Key
    gpus: int
    runs: bool


@dataclass(frozen=True, slots=True)
class Target:
    """The jobs that shall run, in the order in which they get their GPUs.

    ``idle_gpus`` would idle if whoever fits were served in the order of standing; ``place`` is that order.
    """

    standings: Sequence[Standing]
    place: Mapping[JobId, int]
    idle_gpus: int


DelayUntil = Callable[[JobView, Candidate], float | None]
"""Until when a job should wait for better GPUs than these; None: it takes them."""


def fill_servers(bid: PreemptionContext, plan: Plan, delay_until_s: DelayUntil) -> None:
    """Choose the jobs that shall run, start those that wait, and stop whoever holds GPUs that they need.

    Nobody else is displaced in this decision; what stays free is for first fit. O((running jobs + prefix) log n).
    """
    if not bid.book.waiting:
        return
    running = {job.id: job for job in _displaceable(bid)}
    target = _target(bid, running, plan)
    chosen = {standing.key.job for standing in target.standings}
    victims = [job for job in running.values() if job.id not in chosen]
    share = bid.book.share
    victims.sort(key=lambda job: (job.priority, -share(job), -bid.rank(job), -job.submitted_at_s, -job.id))
    for standing in target.standings:
        if standing.runs:
            continue
        job = bid.view.jobs[standing.key.job]
        found = _find(
            bid, job, [victim for victim in victims if standing.key.tier == 0 or victim.priority <= job.priority]
        )
        if found is None or not _pays(bid, standing, found[1], target):
            continue
        candidate, stopped = found
        if (until_s := delay_until_s(job, candidate)) is not None:
            plan.wakes_s.append(until_s)
        elif not stopped and _free_now(bid, candidate):
            plan.start(bid.view, bid.book, job.id, candidate.placement)
        else:
            plan.reserve(bid.view, bid.book, job.id, candidate.placement, [victim.id for victim in stopped])
    bid.allowed = False


def _displaceable(bid: PreemptionContext) -> Iterator[JobView]:
    """Running jobs that may be stopped: on servers that take new work, and ripe.

    Guarded ones too: they stand before all others, but what fills the cluster comes before who stands first.
    """
    book, view = bid.book, bid.view
    guarded = [*book.guarded, *(() if book.guarded_extra is None else (book.guarded_extra,))]
    for job_id in (*book.running_keys, *guarded):
        job = view.jobs[job_id]
        if job.state not in (JobState.STARTING, JobState.RUNNING) or job_id in book.leaving or job.placement is None:
            continue
        if book.unusable and not book.unusable.isdisjoint(job.placement.servers):
            continue
        if bid.ripe(job) and not bid.settled(job):
            yield job


def _target(bid: PreemptionContext, running: Mapping[JobId, JobView], plan: Plan) -> Target:
    """The smallest prefix of all jobs whose GPUs fill what can be had; of it, the largest gangs first while they fit.

    Larger priorities, and projects of smaller levels, fill what they can first. Gangs that are no powers of two may
    leave a remainder, which smaller ones of the prefix take.
    """
    free = bid.book.pool.total + sum(bid.book.surplus(server) for server in bid.book.leaving_on)
    left = free + sum(job.spec.gpus for job in running.values())
    idle = left
    target: list[Standing] = []
    place: dict[JobId, int] = {}
    for _, equals in groupby(_in_order(bid, running, plan), key=lambda standing: standing.key[1:3]):
        prefix: list[Standing] = []
        wanted = 0
        for standing in equals:
            if standing.gpus <= left:
                place[standing.key.job] = len(place)
                prefix.append(standing)
                wanted += standing.gpus
                idle -= standing.gpus if standing.gpus <= idle else 0
                if wanted >= left:
                    break
        for standing in sorted(prefix, key=lambda it: (-it.gpus, it.key)):
            if standing.gpus <= left:
                target.append(standing)
                left -= standing.gpus
        if left == 0:
            break
    return Target(target, place, idle)


def _in_order(bid: PreemptionContext, running: Mapping[JobId, JobView], plan: Plan) -> Iterator[Standing]:
    """Running and waiting jobs, best first. Waiting ones are fetched one by one: O(log n) each."""
    book, spoken_for = bid.book, plan.placed.union(bid.book.claims)

    def stays(job: JobView) -> Standing:
        tier = book.tier(job.id)
        rank = bid.eta * bid.rank(job) - bid.price(job) if tier else 0.0
        key = Key(tier, -job.priority, book.share(job) if tier else 0, rank, job.submitted_at_s, job.id)
        return Standing(key, job.spec.gpus, runs=True)

    def waits(gpus: int, entries: Iterable[Key]) -> Iterator[Standing]:
        return (Standing(key, gpus, runs=False) for key in entries if key.job not in spoken_for)

    queues = (waits(gang[0], entries) for gang, entries in book.waiting.items())
    return heapq.merge(sorted(stays(job) for job in running.values()), *queues)


def _find(bid: PreemptionContext, job: JobView, victims: Sequence[JobView]) -> tuple[Candidate, list[JobView]] | None:
    """GPUs for the job: free ones, those being vacated, then those of as few victims as need be, the worst first.

    For a job that communicates it goes on until its traffic stays local, and takes the first place else.
    """
    soon, picked = FuturePool(bid), []
    scattered: tuple[Candidate, list[JobView]] | None = None
    try:
        for victim in (None, *victims):
            if victim is not None:
                if victim.id in bid.book.leaving:
                    continue
                soon.add_job(victim)
                picked.append(victim)
            candidate = soon.fit(job, consolidated_only=False)
            if candidate is None:
                continue
            found = candidate, indispensable(bid, candidate.placement, picked, soon)
            if job.iteration_times is None or consolidated(candidate, job.iteration_times):
                return found
            scattered = scattered or found
        return scattered
    finally:
        soon.restore()


def _pays(bid: PreemptionContext, standing: Standing, stopped: Sequence[JobView], target: Target) -> bool:
    """Whether to stop them. The order of standing has the price in it; it says nothing of those who stand better.

    They are stopped only to fill the cluster. If they went on, the GPUs that the others leave would idle until the last of
    them has ended, and every waiting job would end that much later; if they are stopped, each waits for as long as the gang
    runs. None that has just started is stopped: else two sets of jobs that fill the cluster equally could take turns at one
    instant.
    """
    place = target.place[standing.key.job]
    better = [victim for victim in stopped if target.place.get(victim.id, place) < place]
    if not better:
        return True
    if any(victim.attempt_started_at_s == bid.view.now_s for victim in better):
        return False
    cost_s = len(better) * _left_s(bid, bid.view.jobs[standing.key.job]) + sum(bid.price(victim) for victim in stopped)
    left_s = max(_left_s(bid, victim) for victim in better)
    idle_s = left_s * target.idle_gpus / bid.book.gpus
    return bid.policy.options.preemption is Preemption.ALWAYS or left_s + len(bid.book.waiting_keys) * idle_s > cost_s


def _left_s(bid: PreemptionContext, job: JobView) -> float:
    """Seconds that the job has left at its best placement, as its rank says."""
    return bid.rank(job) / bid.policy.rank_per_s(job, bid.book)


def _free_now(bid: PreemptionContext, candidate: Candidate) -> bool:
    """Whether all of it is free already."""
    return all(bid.book.pool.free(share.server) >= share.gpus for share in candidate.placement.shares)
