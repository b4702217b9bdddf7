"""Fill the servers with the jobs of least remaining work, the largest gangs first: for large gangs.

After ServerFilling-SRPT (Grosof, Scully, Harchol-Balter and Scheller-Wolf, "Optimal Scheduling in the Multiserver-job Model
under Heavy Traffic", SIGMETRICS 2023): take the jobs by remaining work until their GPUs would fill the cluster, and of
those serve the largest gangs first. Where gangs are powers of two and divide the cluster, no GPU idles while there is enough
work. First fit in the order of ranks leaves GPUs idle beside large gangs, and queues then grow without bound at loads that
the cluster could carry. Prices, guard, priorities and the treatment of other gang sizes are our construction
(docs/explanation/a-srpt.md).
"""

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from policies.choose import Candidate, consolidated
from policies.decision.future_pool import FuturePool
from policies.decision.plan import Plan
from policies.decision.preemption import PreemptionContext
from policies.decision.victims import find_victims, indispensable
from policies.lifecycle import JobState
from policies.model.ids import JobId
from policies.model.job import JobSpec
from policies.model.placement import Placement, type_of
from policies.model.resources import demand_of
from policies.model.view import JobView
from policies.options import Preemption
from policies.rank import REFRESH_S_MIN
from policies.state.keys import JobKey
from policies.throughput import times_in_reach

LOAD_MAX = 0.8
"""Greater loads count as this: none is known exactly, and jobs may be withdrawn."""


class Contender(NamedTuple):
    """A job in the order of all jobs, and its ``rank``: its remaining work over the GPUs that are filled, in seconds.

    In ``key`` is the rank of the policy, and a running job's is improved by what stopping it would cost. ``price``: of stopping a
    running one, as the rank. ``since_s``: when a running job started; when a waiting one was submitted, later by the time that it
    has run, and infinity if its rank is not about the work that it has left.
    """

    key: JobKey
    gpus: int
    rank: float
    runs: bool
    price: float
    since_s: float


class Queue(NamedTuple):
    """Jobs that are ``waiting`` for so many ``gpus`` of one type, and the work that arrives, as a share of what these can do.

    ``now_s`` matters only where some jobs run.
    """

    waiting: int
    gpus: int
    load: float
    now_s: float


@dataclass(frozen=True, slots=True)
class Target:
    """The jobs that shall run, in the order in which they get their GPUs.

    ``position`` is the order of the jobs that were considered; ``idle_gpus`` would idle if these were served by first fit in that
    order, and then the other waiting jobs of the ``queue``.
    """

    queue: Queue
    contenders: Sequence[Contender]
    position: Mapping[JobId, int]
    idle_gpus: int


def fill_servers(context: PreemptionContext, plan: Plan, load: float) -> None:
    """Choose the jobs that shall run, start the waiting ones, and stop the jobs that hold GPUs which these need.

    ``load`` is that of :class:`Queue`.

    GPUs of each type are filled for themselves, since a gang never mixes them. Guarded jobs have had their turn before and are
    left out. No other job is displaced in this decision; GPUs that are still free then are for first fit.
    O(types x (running jobs + prefix) log n).
    """
    pool, cluster = context.state.pool, context.view.cluster
    if not context.state.waiting:
        return
    running = [(job, type_of(cluster, placement)) for job, placement in _displaceable(context)]
    for gpu_type in pool.gpu_types:
        of_type = {job.id: job for job, name in running if name == gpu_type}
        _place(context, plan, _target(context, plan, gpu_type, of_type, load), of_type)
    context.may_preempt = False


def _place(context: PreemptionContext, plan: Plan, target: Target, running: Mapping[JobId, JobView]) -> None:
    """Start the waiting jobs of the target, and stop the running ones that are not in it where these need their GPUs.

    One that finds no GPUs even so, since they are too far apart, or closed to it, may displace others as without filling.
    """
    view, state = context.view, context.state
    chosen = {contender.key.job for contender in target.contenders}
    victims = [job for job in running.values() if job.id not in chosen]
    level = state.project_level
    victims.sort(key=lambda job: (job.priority, -level(job), -context.rank(job), -job.submitted_at_s, -job.id))
    for contender in target.contenders:
        if contender.runs:
            continue
        job = view.jobs[contender.key.job]
        found = _find(context, job, [victim for victim in victims if _gives_way(context, victim, job)])
        if found is None:
            found = _by_displacing(context, contender.key)
        elif not _pays(context, contender, found[1], target):
            continue
        if found is None:
            continue
        candidate, stopped = found
        if (until_s := state.delays.until_s(context.policy.options, view, job, candidate)) is not None:
            plan.wakes_s.append(until_s)
        elif not stopped and _free_now(context, job.spec, candidate):
            plan.start(job.id, candidate.placement)
        else:
            plan.reserve(job.id, candidate.placement, [victim.id for victim in stopped])


def _by_displacing(context: PreemptionContext, key: JobKey) -> tuple[Candidate, list[JobView]] | None:
    """GPUs for the waiting job with this key, and the jobs to stop for it by the rule of any preemption."""
    jobs = context.view.jobs
    # Jobs may have been placed since the last search.
    context.searches.forget()
    found = find_victims(context, jobs[key.job], key, consolidated_only=False)
    return None if found is None else (found[0], [jobs[victim] for victim in found[1]])


def _displaceable(context: PreemptionContext) -> Iterator[tuple[JobView, Placement]]:
    """Running jobs that may be stopped, and where they are, on servers that take new work.

    Guarded jobs may not be stopped, so they are not in the index.
    """
    state, view = context.state, context.view
    priority = max((-key.minus_priority for key in state.waiting.heads.values()), default=0)
    for job_id in state.running.keys:
        job = view.jobs[job_id]
        if job.state not in (JobState.STARTING, JobState.RUNNING) or job.placement is None:
            continue
        if job_id in state.ledger.leaving:
            continue
        if state.unusable and not state.unusable.isdisjoint(job.placement.servers):
            continue
        if context.may_stop(job) and not context.loses_repeatedly(job) and not context.spares(job, priority):
            yield job, job.placement


def _target(
    context: PreemptionContext, plan: Plan, gpu_type: str, running: Mapping[JobId, JobView], load: float
) -> Target:
    """The smallest prefix of all jobs whose GPUs fill those of the type; of it, those of :func:`served`.

    ``running``: on GPUs of the type.

    Larger priorities, and projects of lower levels, fill what they can first. Gangs that are no powers of two may leave a
    remainder, which smaller gangs of the prefix take.
    """
    state, cluster = context.state, context.view.cluster
    left_gpus = state.pool.free_of_type(gpu_type) + sum(job.spec.gpus for job in running.values())
    left_gpus += sum(
        state.ledger.surplus(server)
        for server in state.ledger.surplus_on
        if cluster.servers[server].gpu_type == gpu_type
    )
    idle_gpus = left_gpus
    behind: Counter[int] = Counter()
    for gang, entries in state.waiting.classes.items():
        if gang.takes(gpu_type):
            behind[gang.gpus] += len(entries)
    queue = Queue(behind.total(), state.gpus_by_type[gpu_type], load, context.view.now_s)
    target: list[Contender] = []
    position: dict[JobId, int] = {}
    left_out = state.ledger.reservations.keys() | plan.placed
    in_order = _in_order(context, gpu_type, running, left_out, left_gpus)
    for _, equals in groupby(in_order, key=lambda contender: contender.key[1:3]):
        prefix: list[Contender] = []
        wanted_gpus = 0
        for contender in equals:
            if contender.gpus <= left_gpus:
                position[contender.key.job] = len(position)
                prefix.append(contender)
                wanted_gpus += contender.gpus
                behind[contender.gpus] -= not contender.runs
                idle_gpus -= contender.gpus if contender.gpus <= idle_gpus else 0
                if wanted_gpus >= left_gpus:
                    break
        chosen, wait_s = served(prefix, left_gpus, queue)
        if wait_s is not None:
            plan.wakes_s.append(context.view.now_s + max(wait_s, REFRESH_S_MIN))
        target += chosen
        left_gpus -= sum(contender.gpus for contender in chosen)
        if left_gpus == 0:
            break
    for gpus in sorted(behind, reverse=True):
        idle_gpus -= gpus * min(behind[gpus], idle_gpus // gpus)
    return Target(queue, target, position, idle_gpus)


def served(prefix: Sequence[Contender], gpus: int, queue: Queue) -> tuple[list[Contender], float | None]:
    """Those of the prefix that these GPUs serve, the widest first; and when to ask again, in seconds.

    If the widest gangs have the choice, no GPU idles, but a job of seconds may wait for a gang of hours. So jobs that would wait
    may have it before them: the first by rank, the first two, four and so on. Taken is what saves most time (:func:`_saving_s`).
    O(prefix log prefix).
    """
    by_width = sorted(prefix, key=lambda each: (-each.gpus, each.key))
    widest, _ = _that_fit(by_width, gpus)
    chosen = {each.key.job for each in widest}
    by_rank, _ = _that_fit(prefix, gpus)
    passed = [each for each in by_rank if each.key.job not in chosen]
    best, most_s, ask_s, number = widest, 0.0, None, 1
    while number < 2 * len(passed):
        early = passed[:number]
        first = {each.key.job for each in early}
        others = (each for each in by_width if each.key.job not in first)
        rest, idle_gpus = _that_fit(others, gpus - sum(each.gpus for each in early))
        taken = first.union(each.key.job for each in rest)
        late = [each for each in widest if each.key.job not in taken]
        saved_s, pays_in_s = _saving_s(early, late, idle_gpus, queue)
        if saved_s > most_s and pays_in_s <= 0.0:
            best, most_s = [each for each in by_width if each.key.job in taken], saved_s
        elif saved_s > 0.0 and pays_in_s > 0.0:
            ask_s = pays_in_s if ask_s is None else min(ask_s, pays_in_s)
        number *= 2
    return best, ask_s


def _saving_s(
    early: Sequence[Contender], late: Sequence[Contender], idle_gpus: int, queue: Queue
) -> tuple[float, float]:
    """What it saves that the ``early`` jobs are served before the ``late`` ones, and in how many seconds that pays.

    The early jobs would wait as long as the late ones have left. These go on only when the early ones have ended, and the GPUs
    that idle until then, and what is lost where gangs are stopped, delay all waiting jobs. They also delay jobs that are still to
    come: at a load of rho all this counts 1 / (1 - rho) times, the length of a busy period.

    Gangs that run are stopped only for jobs with estimates, and only once these have together waited for them as long as that
    costs: otherwise each short job that comes would stop them again. So all stops together cost no more than the short jobs have
    waited. O(jobs).
    """
    early_s, late_s = (max(each.rank * queue.gpus / each.gpus for each in jobs) for jobs in (early, late))
    cost_s = sum(early_s + each.price * queue.gpus / each.gpus for each in late)
    cost_s += queue.waiting * (early_s * idle_gpus / queue.gpus + sum(each.price for each in late))
    cost_s /= 1.0 - min(queue.load, LOAD_MAX)
    saved_s = len(early) * late_s - cost_s
    begun_s = max((each.since_s for each in late if each.runs), default=None)
    if begun_s is None:
        return saved_s, 0.0
    # A job may have waited for others before, or for what is no GPU.
    since_s = [max(each.since_s, begun_s) for each in early if not each.runs]
    if not since_s or math.inf in since_s:
        return 0.0, 0.0
    return saved_s, (cost_s - sum(queue.now_s - each for each in since_s)) / len(since_s)


def _that_fit(contenders: Iterable[Contender], gpus: int) -> tuple[list[Contender], int]:
    """Those that fit on so many GPUs, in their order, and the GPUs that are left."""
    found = []
    for contender in contenders:
        if contender.gpus <= gpus:
            found.append(contender)
            gpus -= contender.gpus
    return found, gpus


def _in_order(
    context: PreemptionContext,
    gpu_type: str,
    running: Mapping[JobId, JobView],
    left_out: AbstractSet[JobId],
    gpus_max: int,
) -> Iterator[Contender]:
    """Running jobs, and waiting ones of at most ``gpus_max`` that take the type, but no guarded ones; the best first.

    Waiting jobs are fetched one by one: O(log n) each.
    """
    state, now_s = context.state, context.view.now_s
    # Ranks are remaining work over all GPUs of the cluster.
    scale = state.gpus / state.gpus_by_type[gpu_type]

    def stays(job: JobView) -> Contender:
        level, rank, price = state.project_level(job), context.rank(job), context.price(job)
        key = JobKey(1, -job.priority, level, context.eta * rank - price, job.submitted_at_s, job.id)
        started_at_s = now_s if job.attempt_started_at_s is None else job.attempt_started_at_s
        return Contender(key, job.spec.gpus, rank * scale, runs=True, price=price * scale, since_s=started_at_s)

    def waits(gpus: int, entries: Iterable[JobKey]) -> Iterator[Contender]:
        for key in entries:
            if key.tier and key.job not in left_out:
                job = context.view.jobs[key.job]
                known = job.estimate is not None and job.estimate.trusted
                since_s = job.submitted_at_s + job.attained_service_s(now_s) / gpus if known else math.inf
                yield Contender(key, gpus, key.rank * scale, runs=False, price=0.0, since_s=since_s)

    queues = [
        waits(gang.gpus, entries)
        for gang, entries in state.waiting.classes.items()
        if gang.gpus <= gpus_max and gang.takes(gpu_type)
    ]
    return heapq.merge(sorted(stays(job) for job in running.values()), *queues)


def _gives_way(context: PreemptionContext, victim: JobView, job: JobView) -> bool:
    """Whether the victim's priority allows that it is stopped for the job."""
    return victim.priority <= job.priority and not context.spares(victim, job.priority)


def _find(
    context: PreemptionContext, job: JobView, victims: Sequence[JobView]
) -> tuple[Candidate, list[JobView]] | None:
    """GPUs for the job: free ones, those being vacated, then those of as few victims as needed, the worst first.

    For a job that communicates the search goes on until its communication stays local, and falls back to the first placement.
    """
    picked: list[JobView] = []
    scattered: tuple[Candidate, list[JobView]] | None = None
    with FuturePool(context) as pool:
        for victim in (None, *victims):
            if victim is not None:
                if victim.id in context.state.ledger.leaving:
                    continue
                pool.add_job(victim)
                picked.append(victim)
            candidate = pool.fit(job)
            if candidate is None:
                continue
            found = candidate, indispensable(job.spec, candidate.placement, picked, pool)
            if consolidated(candidate, times_in_reach(job, context.view.cluster, candidate.placement)):
                return found
            scattered = scattered or found
        return scattered


def _pays(context: PreemptionContext, contender: Contender, stopped: Sequence[JobView], target: Target) -> bool:
    """Whether to stop these jobs: by the rule of any preemption, or to fill the cluster.

    Jobs that come earlier in the order are stopped only to fill it. If they went on, the contender would wait until the last of
    them has ended, and the GPUs that idle meanwhile would delay every waiting job; if they are stopped, each waits for as long as
    the contender runs, and what their restarts cost delays every waiting job as well. None that has just started is stopped:
    otherwise two sets of jobs that fill the cluster equally could take turns at one instant.
    """
    if not stopped or context.pays(contender.key, stopped):
        return True
    position = target.position[contender.key.job]
    earlier = [victim for victim in stopped if target.position.get(victim.id, position) < position]
    if not earlier or any(victim.attempt_started_at_s == context.view.now_s for victim in earlier):
        return False
    if context.policy.options.preemption is Preemption.ALWAYS:
        return True
    waiting, gpus = target.queue.waiting, target.queue.gpus
    scale = context.state.gpus / gpus
    left_s = max(_left_s(context, victim) for victim in earlier)
    cost_s = len(stopped) * _left_s(context, context.view.jobs[contender.key.job])
    cost_s += sum(context.seconds_lost(victim) + waiting * scale * context.price(victim) for victim in stopped)
    return left_s + waiting * left_s * target.idle_gpus / gpus > cost_s


def _left_s(context: PreemptionContext, job: JobView) -> float:
    """Seconds that the job has left at its best placement, by its rank."""
    return context.rank(job) / context.policy.rank_per_s(job, context.state)


def _free_now(context: PreemptionContext, spec: JobSpec, candidate: Candidate) -> bool:
    """Whether all GPUs of the candidate are free already, and what the job needs beside them."""
    pool = context.state.pool.usable_by(demand_of(spec))
    return all(pool.free(share.server) >= share.gpus for share in candidate.placement.shares)
