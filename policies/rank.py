"""The rank of a job by its remaining work: SRPT for a point, Gittins for a distribution, attained service without either.

All ranks are virtual seconds: GPU-seconds / G, where G is all GPUs of the cluster. Smaller comes first. The constructions
are ours (docs/explanation/estimates-and-ranks.md); the Gittins index of a job of unknown size is Gittins' and Scully's.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache

from policies.model.estimate import Estimate, Unit
from policies.model.value import value
from policies.model.view import JobView

CHECKPOINT_RATIO = 1.2
"""A distribution's rank is refreshed when progress has grown by this factor."""

GRACE_RATIO = 1.25
"""A job that has passed a point keeps its rank until it is past the point by this factor (unless the next is nearer)."""

REFRESH_S_MIN = 1e-3
"""A rank is refreshed this much later at the least: rounding must not cause another refresh at the same instant."""

_HORIZON_S = 1e6
"""Longer than any restart."""

_TOLERANCE = 1.0 + 1e-9

_SAME_PACE = 1e-9


class OverRun(StrEnum):
    """How to rank a job whose progress exceeds its whole estimate."""

    DOUBLE = "double"
    """Remaining = the next doubling of the last point, less what is done (at least one unit)."""
    ATTAINED = "attained"
    """Remaining = done: the rank is attained service."""


@value
class Rank:
    """``value`` in virtual seconds; ``slope``: -1 falls as a job at its best placement does, +1 rises as attained service does, 0
    stands still.

    While the job runs the value changes by slope x g / G a second: at a placement that is half as fast the slope is -0.5, and a
    policy whose ranks are seconds of the job's own time gives slopes of G / g.

    ``refresh_at_done``: the progress at which the value must be computed again (None: not before a change).
    """

    value: float
    slope: float
    refresh_at_done: float | None = None


def remaining_units(points: Sequence[float], done: float, over_run: OverRun) -> tuple[float, float | None]:
    """Units left of a single-point total, and the progress at which that changes by more than progress itself.

    Past the point x the total is taken as the least x 2^k above ``done`` (rule ``double``), or the remaining work as equal
    to ``done`` (rule ``attained``). Never negative, because a negative rank would put the job first for ever.
    """
    last = points[-1]
    if done < last * _TOLERANCE:
        return max(last - done, 0.0), last * _TOLERANCE
    if over_run is OverRun.ATTAINED:
        return done, None
    # frexp is exact where a logarithm rounds: done / last = m 2^k with m in [0.5, 1).
    doubled = math.ldexp(last, math.frexp(done / last)[1])
    while doubled <= done:
        doubled *= 2.0
    return max(doubled - done, 1.0), doubled


@lru_cache(maxsize=4096)
def gittins_units(points: tuple[float, ...], done: float, alike: int = 1) -> float:
    """min over k of [ sum of (x_i - a) over a < x_i <= x_k, plus n_k (x_k - a) ] / #{ a < x_i <= x_k }, a = ``done``.

    ``n_k`` is the number of points beyond x_k. With one point it is x - a: SRPT. Needs a point beyond ``done``. O(M).

    ``alike``: how many jobs, itself included, are known to take about as long as this one as soon as it ends. What is lost if it
    does not end by x_k is lost once for all of them, so the second term is divided by their number. That is ours.
    """
    alive = [point - done for point in points if point > done]
    total = len(alive)
    spent, best = 0.0, math.inf
    for index, left in enumerate(alive):
        spent += left
        if index + 1 < total and alive[index + 1] == left:
            continue
        finished = index + 1
        best = min(best, (spent + (total - finished) * left / alike) / finished)
    return best


def _checkpoint(points: Sequence[float], done: float) -> tuple[float, float]:
    """The largest geometric checkpoint <= done (0 before the first) and the next one."""
    first = points[0] / 4.0
    if done < first:
        return 0.0, first
    steps = math.floor(math.log(done / first, CHECKPOINT_RATIO) + 1e-9)
    return first * CHECKPOINT_RATIO**steps, first * CHECKPOINT_RATIO ** (steps + 1)


def distribution_units(
    points: tuple[float, ...], done: float, over_run: OverRun, alike: int = 1
) -> tuple[float, int, float | None]:
    """The rank of a distribution in units, its slope, and the progress at which to compute it again.

    A step function of ``done``: the Gittins index at the last geometric checkpoint. Where ``done`` has just passed a
    point and the next one is far (or there is none), the index from before that point is kept. Past the whole
    distribution the over-run rule holds.
    """
    at, following = _checkpoint(points, done)
    passed = bisect_right(points, done)
    if passed:
        newest = points[passed - 1]
        ahead = points[passed] if passed < len(points) else math.inf
        if done < newest * GRACE_RATIO < ahead:
            at = _checkpoint(points, math.nextafter(newest, 0.0))[0]
            if at >= newest:
                at /= CHECKPOINT_RATIO
            return gittins_units(points, at, alike), 0, newest * GRACE_RATIO
    if at >= points[-1]:
        units, refresh = remaining_units(points, done, over_run)
        return units, -1 if refresh is not None else +1, refresh
    return gittins_units(points, at, alike), 0, following


def seconds_per_unit(job: JobView, estimate: Estimate) -> float | None:
    """Seconds that one unit takes at the best placement; None where it is not known yet."""
    if estimate.unit is Unit.SERVICE_S:
        return 1.0
    return job.seconds_per_iteration()


def attained_rank(job: JobView, now_s: float, gpus: int) -> Rank:
    """Attained GPU-seconds / G: rises while the job holds GPUs."""
    return Rank(job.attained_service_s(now_s) / gpus, +1)


def remaining_work_rank(job: JobView, now_s: float, gpus: int, over_run: OverRun, alike: int = 1) -> Rank:
    """Remaining virtual work under the job's estimate; attained service where there is no (trusted) estimate.

    ``gpus`` is G; ``alike`` as in :func:`gittins_units`. O(M) in the number of sample points.
    """
    estimate = job.estimate
    if estimate is None or not estimate.trusted:
        return attained_rank(job, now_s, gpus)
    unit_s = seconds_per_unit(job, estimate)
    if unit_s is None:
        return attained_rank(job, now_s, gpus)
    done = job.done(estimate.unit, now_s)
    scale = unit_s * job.spec.gpus / gpus
    points = estimate.points
    if len(points) == 1:
        units, refresh = remaining_units(points, done, over_run)
        slope = -1 if refresh is not None else +1
    else:
        units, slope, refresh = distribution_units(points, done, over_run, alike)
    return Rank(units * scale, slope * _pace(job, estimate.unit, unit_s), refresh)


def _pace(job: JobView, unit: Unit, unit_s: float) -> float:
    """Work of a running job per second, in seconds at its best placement; 1 for one that does not run."""
    pace = job.speed(unit) * unit_s
    # Rounding must not give each job a line of its own in the index of running jobs.
    return pace if pace > 0.0 and abs(pace - 1.0) > _SAME_PACE else 1.0


def expected_remaining_s(job: JobView, now_s: float) -> float | None:
    """Mean seconds left at the best placement under the estimate, never below zero; None without one."""
    estimate = job.estimate
    if estimate is None:
        return None
    unit_s = seconds_per_unit(job, estimate)
    if unit_s is None:
        return None
    done = job.done(estimate.unit, now_s)
    alive = [point - done for point in estimate.points if point > done]
    if not alive:
        return remaining_units(estimate.points, done, OverRun.DOUBLE)[0] * unit_s
    return unit_s * sum(alive) / len(alive)


def pause_s(job: JobView, now_s: float) -> float:
    """Seconds until the job makes progress again after a restart, derived from its progress over a long time. O(1)."""
    estimate = job.estimate
    speed = job.speed(estimate.unit) if estimate is not None else 0.0
    if estimate is None or speed <= 0.0:
        return 0.0
    gained = job.done(estimate.unit, now_s + _HORIZON_S) - job.done(estimate.unit, now_s)
    left_s = _HORIZON_S - gained / speed
    return left_s if left_s > REFRESH_S_MIN else 0.0
