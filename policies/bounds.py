"""Lower bounds on the mean job completion time of rigid gangs on a cluster; what "close to the limit" is measured by.

With n jobs of g_i GPUs for d_i seconds, released at r_i, on G GPUs, and p_i = g_i d_i / G, no schedule (preemptive or not,
on pooled or separate servers) has a mean JCT below the greatest of

1. ``(SRPT - sum r) / n``: SRPT is the least sum of completion times on one machine with jobs (r_i, p_i). Any schedule
   of the cluster becomes one of that machine by giving job i the rate g_i / G while it runs.
2. ``(sum d) / n``: no job ends sooner than d_i after its release.
3. ``(sum M + (sum d) / 2 - sum r) / n``: job i's mean busy time is at most C_i - d_i / 2 in any schedule of the cluster,
   and the one-machine preemptive schedule that always runs the available job of least p_i (its *original* size) has the
   least sum of mean busy times, M (the linear-programming argument of Goemans and others for release dates).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush, heapreplace
from math import fsum, isfinite

from policies.model.value import value


@value
class BoundJob:
    """A rigid gang: release, GPUs, and its least run time (at alpha_floor where its communication is known)."""

    release_s: float
    gpus: int
    duration_s: float


@dataclass(frozen=True, slots=True)
class Bounds:
    """The three terms and their maximum, all in seconds of mean JCT."""

    jobs: int
    gpus: int
    lower_bound_mean_jct_s: float
    srpt_mean_jct_s: float
    duration_mean_s: float
    mean_busy_mean_jct_s: float


def lower_bound(jobs: Sequence[BoundJob], gpus: int) -> Bounds:
    """The bound for these jobs on ``gpus`` GPUs. O(n log n).

    Raises ValueError for no GPUs, for a gang larger than the cluster (no schedule exists) and for a number that is not
    finite or a duration that is not positive. Without jobs every term is 0.
    """
    if gpus < 1:
        raise ValueError("a cluster needs at least one GPU")
    for job in jobs:
        if not 1 <= job.gpus <= gpus:
            raise ValueError(f"a gang of {job.gpus} GPUs has no schedule on {gpus}")
        if not isfinite(job.release_s) or not isfinite(job.duration_s) or job.duration_s <= 0:
            raise ValueError(f"release and duration must be finite, the duration positive: {job}")
    if not jobs:
        return Bounds(0, gpus, 0.0, 0.0, 0.0, 0.0)
    ordered = sorted(jobs, key=lambda job: job.release_s)
    releases_s = [job.release_s for job in ordered]
    works_s = [job.gpus * job.duration_s / gpus for job in ordered]
    duration_s = fsum(job.duration_s for job in jobs) / len(jobs)
    srpt_s = _flow_s(releases_s, works_s, by_remaining=True) / len(jobs)
    mean_busy_s = _flow_s(releases_s, works_s, by_remaining=False) / len(jobs) + duration_s / 2
    return Bounds(len(jobs), gpus, max(srpt_s, duration_s, mean_busy_s), srpt_s, duration_s, mean_busy_s)


def _flow_s(releases_s: list[float], works_s: list[float], *, by_remaining: bool) -> float:
    """Sum of flow times on one machine that always runs the available job of least work; releases ascend. O(n log n).

    ``by_remaining``: the least remaining work (SRPT), and flow ends at completion. Else the least original work, and flow ends
    at the mean busy time: a slice of job j adds (its middle - r_j) * (its share of p_j).
    """
    remaining_s = list(works_s)
    available: list[tuple[float, int]] = []  # (work to compare, job)
    terms_s: list[float] = []
    now_s = releases_s[0]
    count = len(releases_s)
    following = 0
    while following < count or available:
        if not available:
            now_s = max(now_s, releases_s[following])
        while following < count and releases_s[following] <= now_s:
            heappush(available, (works_s[following], following))
            following += 1
        work_s, job = available[0]
        slice_s = remaining_s[job]
        completes = following == count or now_s + slice_s <= releases_s[following]
        if not completes:
            slice_s = releases_s[following] - now_s
        if not by_remaining:
            terms_s.append((slice_s / works_s[job]) * (now_s + slice_s / 2 - releases_s[job]))
        elif completes:
            terms_s.append(now_s + slice_s - releases_s[job])
        if completes:
            heappop(available)
            now_s += slice_s
        else:
            remaining_s[job] -= slice_s
            heapreplace(available, (remaining_s[job] if by_remaining else work_s, job))
            now_s = releases_s[following]
    return fsum(terms_s)
