"""The past of an imagined Slurm cluster, by a scheduler that shares no code with the forecasts.

It differs from their model on purpose: backfill only every ``bf_interval_s``, EASY instead of conservative, priorities that grow
with age and size, delays of starts and ends, and failing jobs.
"""

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from service.advice.mirror import MirrorJob, MirrorNode
from service.advice.past import PastJob

BF_INTERVAL_S = 30.0

Fits = Callable[["_Job", list[int]], "tuple[int, ...] | None"]


@dataclass
class _Job:
    asked: MirrorJob
    length_s: float
    nodes: tuple[int, ...] = ()
    start_s: float | None = None
    end_s: float | None = None


def nodes_of(count: int) -> list[MirrorNode]:
    """Nodes with four GPUs each."""
    return [MirrorNode(f"node{number}", 4, "a100", ("main",)) for number in range(1, count + 1)]


def jobs_of(seed: int, count: int, *, servers: int, load: float, users: int = 12) -> list[_Job]:
    """Recurring jobs: each user has a few names with a typical length and size; every twentieth fails early."""
    random = np.random.default_rng(seed)
    kinds = [
        (
            f"user{user}",
            f"train{kind}",
            int(random.choice([1, 1, 2, 4, 4, 8])),
            float(np.exp(random.normal(7.6, 1.0))),
            float(random.choice([1.5, 3.0, 8.0])),
        )
        for user in range(users)
        for kind in range(int(random.integers(1, 4)))
    ]
    mean_gpu_s = float(np.mean([gpus * typical_s for _, _, gpus, typical_s, _ in kinds])) * 1.1
    gap_s = mean_gpu_s / (load * 4 * servers)
    at_s, found = 1_700_000_000.0, []
    for number in range(1, count + 1):
        at_s += float(random.exponential(gap_s))
        user, name, gpus, typical_s, padding = kinds[int(random.integers(len(kinds)))]
        length_s = typical_s * float(np.exp(random.normal(0.0, 0.35)))
        if random.random() < 0.05:
            length_s *= 0.05
        limit_s = 60.0 * np.ceil(typical_s * padding * 1.5 / 60.0)
        nodes = max(1, gpus // 4)
        asked = MirrorJob(
            str(number), (number, 0), name, user, gpus, float(int(at_s)), nodes=nodes, gpus_a_node=gpus // nodes,
            limit_s=float(limit_s),
        )  # fmt: skip
        found.append(_Job(asked, min(length_s, float(limit_s))))
    return found


def run(jobs: list[_Job], servers: int, seed: int = 0) -> list[PastJob]:
    """Run them to the end."""
    random = np.random.default_rng(seed + 1)
    free = [4] * servers
    waiting: list[_Job] = []
    running: list[_Job] = []
    order = itertools.count()
    events: list[tuple[float, int, int, _Job | None]] = []
    for job in jobs:
        heapq.heappush(events, (job.asked.submitted_at_s, 1, next(order), job))
    heapq.heappush(events, (jobs[0].asked.submitted_at_s, 2, next(order), None))

    def fits(job: _Job, on: list[int]) -> tuple[int, ...] | None:
        each = job.asked.gpus_a_node or 0
        places = [server for server, gpus in enumerate(on) if gpus >= each]
        # It prefers nodes with the fewest GPUs left over.
        places.sort(key=lambda server: (on[server], server))
        return tuple(sorted(places[: job.asked.nodes])) if len(places) >= job.asked.nodes else None

    def start(job: _Job, places: tuple[int, ...], at_s: float) -> None:
        waiting.remove(job)
        running.append(job)
        for server in places:
            free[server] -= job.asked.gpus_a_node or 0
        job.nodes, job.start_s = places, at_s + float(random.uniform(0.0, 3.0))
        heapq.heappush(events, (job.start_s + job.length_s + float(random.uniform(0.5, 4.0)), 0, next(order), job))

    def schedule(at_s: float, *, backfill: bool) -> None:
        def priority(job: _Job) -> float:
            return (at_s - job.asked.submitted_at_s) / 3600.0 + 0.5 * job.asked.gpus

        shadow_s, spare = None, list(free)
        for job in sorted(waiting, key=lambda job: (-priority(job), job.asked.serial)):
            if shadow_s is None:
                places = fits(job, free)
                if places is not None:
                    start(job, places, at_s)
                    continue
                if not backfill:
                    return
                shadow_s, spare = _shadow(job, running, free, fits)
                continue
            limit_s = job.asked.limit_s or 0.0
            usable = free if at_s + limit_s <= shadow_s else [min(a, b) for a, b in zip(free, spare, strict=True)]
            places = fits(job, usable)
            if places is not None:
                start(job, places, at_s)
                if usable is not free:
                    for server in places:
                        spare[server] -= job.asked.gpus_a_node or 0

    while events:
        at_s, kind, _, found = heapq.heappop(events)
        if found is None:
            schedule(at_s, backfill=True)
            if events or waiting:
                heapq.heappush(events, (at_s + BF_INTERVAL_S, 2, next(order), None))
            continue
        if kind == 1:
            waiting.append(found)
        else:
            running.remove(found)
            for server in found.nodes:
                free[server] += found.asked.gpus_a_node or 0
            found.end_s = at_s
        schedule(at_s, backfill=False)
        if not waiting and not running and all(event[1] == 2 for event in events):
            break
    return [_past(job) for job in jobs]


def _shadow(job: _Job, running: list[_Job], free: list[int], fits: Fits) -> tuple[float, list[int]]:
    """When the blocked job can start by the limits of running ones, and the GPUs that it leaves free then."""
    then = list(free)
    for other in sorted(running, key=_limit_end_s):
        for server in other.nodes:
            then[server] += other.asked.gpus_a_node or 0
        places = fits(job, then)
        if places is not None:
            for server in places:
                then[server] -= job.asked.gpus_a_node or 0
            return _limit_end_s(other), then
    raise AssertionError("a job that never fits")


def _limit_end_s(job: _Job) -> float:
    return (job.start_s or 0.0) + (job.asked.limit_s or 0.0)


def _past(job: _Job) -> PastJob:
    ran_on = {f"node{server + 1}": job.asked.gpus_a_node or 0 for server in job.nodes}
    return PastJob(job.asked, job.start_s, job.end_s, ran_on, "COMPLETED")
