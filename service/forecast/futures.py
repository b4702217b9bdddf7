"""The possible totals of each job of a snapshot, given its progress, and draws from them.

A sampled future has one total for each job. Draws are stratified: over the K futures of a forecast a job gets K evenly spread
levels of its distribution, in its own random order. So 20 futures represent the distribution of a single job well.
"""

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

import numpy as np

from policies.model.estimate import Unit
from policies.model.ids import JobId
from policies.rank import OverRun, remaining_units, seconds_per_unit
from policies.throughput import stretch_of
from service.engine.record import JobRecord
from service.history.snapshot import WorldSnapshot
from service.sim.work import JobTruth

POOL_POINTS = 20
"""Points that each predicted job contributes to the pool for jobs without a prediction. All contribute equally many."""

_COMMON = 2**32
"""Seed of the draws that all jobs share, in place of a job's number. No job has this number."""

_ROUNDING = 1e-12
"""Relative difference below which two speeds are equal."""

OVER_RUN_POINTS = 10
"""Points of the remaining work of a job whose progress exceeds all predicted points."""


@dataclass(frozen=True, slots=True)
class Prospect:
    """The possible totals of one job: equal-mass points in ``unit``, ascending, all above the job's progress.

    ``seconds_per_unit`` is that of the job's best placement. ``source`` names the source of the totals.
    """

    job: JobRecord
    totals: tuple[float, ...]
    unit: Unit
    seconds_per_unit: float
    source: str

    @property
    def kept(self) -> float:
        """Units that a stop without a checkpoint would keep."""
        job, attempt = self.job, self.job.attempt
        if self.unit is Unit.SERVICE_S:
            return max(attempt.resume_service_s, job.checkpoint_service_s) if attempt is not None else job.service_s
        return max(attempt.resume_iteration, job.checkpoint_iteration) if attempt is not None else job.iterations

    def truth(self, total: float) -> JobTruth:
        """The job's true work in a future in which it needs ``total`` units."""
        iterations = total if self.unit is Unit.ITERATIONS else None
        duration_s = total * self.seconds_per_unit
        done_s = min(duration_s, self.kept * self.seconds_per_unit)
        return JobTruth(duration_s, iterations, self.job.iteration_times, done_s)

    def progress_from_s(self, now_s: float, stretch: float) -> float:
        """When the open attempt's work began. The executor derives all later progress from it.

        For a progressing job it is computed from the anchor, because rounding from ``now_s`` would move the job's end.
        """
        job = self.job
        if job.progressing and job.anchor_s > now_s:
            return job.anchor_s
        from_s = job.anchor_s if job.progressing else now_s
        gained = job.done(self.unit, from_s) - self.kept
        # A unit of service is a second. An iteration takes its seconds at the best placement, times this placement's stretch.
        unit_s = 1.0 if self.unit is Unit.SERVICE_S else self.seconds_per_unit * stretch
        return min(now_s, from_s - gained * unit_s)


def prospects_of(snapshot: WorldSnapshot) -> dict[JobId, Prospect]:
    """A prospect for each job; empty if no job has a usable estimate.

    A job without an estimate, or with one in iterations of unknown speed, gets the totals of all predicted jobs of the
    snapshot.
    """
    present = {job.id for job in snapshot.jobs}
    jobs = [_prepared(job, present) for job in snapshot.jobs]
    predicted = {job.id: _predicted(job, snapshot) for job in jobs}
    known = [prospect for prospect in predicted.values() if prospect is not None]
    if not known:
        return {}
    pool = _pool(known)
    return {job.id: predicted[job.id] or _borrowed(job, snapshot.now_s, pool, len(known)) for job in jobs}


def levels(job: JobId, samples: int, seed: int, shared_error: float = 0.0) -> Sequence[float]:
    """One level in (0, 1) for each future, one in each of ``samples`` equal strata, in an order drawn from (seed, job).

    ``shared_error`` is the correlation of the orders of two jobs, in normal scores: a predictor's errors often have the same
    direction for many jobs of a queue. The draws of a single job are stratified in any case.
    """
    generator = np.random.default_rng((seed, int(job)))
    own = generator.standard_normal(samples)
    common = np.random.default_rng((seed, _COMMON)).standard_normal(samples)
    mixed = np.sqrt(shared_error) * common + np.sqrt(1.0 - shared_error) * own
    strata = mixed.argsort().argsort()
    drawn: list[float] = ((strata + generator.uniform(1e-9, 1.0 - 1e-9, samples)) / samples).tolist()
    return drawn


def at_level(points: Sequence[float], level: float) -> float:
    """The equal-mass point that holds this level."""
    return points[min(len(points) - 1, int(level * len(points)))]


def _prepared(job: JobRecord, present: Container[JobId]) -> JobRecord:
    """A copy without dependencies on ended jobs, and with the live job's loss of work at a stop."""
    # A dependency that is not present has ended as required: otherwise the engine would have cancelled the job.
    spec = job.spec
    if spec.needs and not all(needed in present for needed in spec.needs):
        spec = replace(
            spec,
            after=tuple(needed for needed in spec.after if needed in present),
            after_any=tuple(needed for needed in spec.after_any if needed in present),
        )
    if not job.graceful:
        # The job has not been seen to checkpoint, so a stop loses its work, as in the engine. If the job states that it can
        # checkpoint, it may be stopped even so (rules/unsaved_work.py).
        spec = replace(spec, checkpoint_period_s=None if spec.checkpoint_period_s is None else math.inf)
    copy = job.copy()
    copy.spec = spec
    return copy


def _predicted(job: JobRecord, snapshot: WorldSnapshot) -> Prospect | None:
    estimate = job.estimate
    if estimate is None:
        return None
    unit_s = _seconds_at_best(job, snapshot) if estimate.unit is Unit.ITERATIONS else seconds_per_unit(job, estimate)
    if unit_s is None or unit_s <= 0.0:
        return None
    done = job.done(estimate.unit, snapshot.now_s)
    totals, outrun = _above(estimate.points, done)
    source = f"{estimate.source}; the job has exceeded all predicted points" if outrun else estimate.source
    return Prospect(job, totals, estimate.unit, unit_s, source)


def _seconds_at_best(job: JobRecord, snapshot: WorldSnapshot) -> float | None:
    """Seconds of an iteration at the best placement, computed from the present speed and placement if the job progresses.

    A speed equal to the expected one gives exactly the expected seconds. With rounding, an end could move past a wake-up of the
    policy at the same instant and change a decision.
    """
    expected_s = job.seconds_per_iteration()
    if job.attempt is not None and job.progressing and job.iterations_per_s > 0.0:
        stretch = stretch_of(snapshot.cluster, job.spec, job.iteration_times, job.attempt.placement)
        measured_s = 1.0 / (job.iterations_per_s * stretch)
        if expected_s is None or not math.isclose(measured_s, expected_s, rel_tol=_ROUNDING):
            return measured_s
    return expected_s


def _above(points: Sequence[float], done: float) -> tuple[tuple[float, ...], bool]:
    """The points above ``done``, and whether none is: then points up to twice the remaining work of the rank's over-run rule."""
    alive = tuple(point for point in points if point > done)
    if alive:
        return alive, False
    left = remaining_units(points, done, OverRun.DOUBLE)[0]
    return tuple(done + 2.0 * left * (index + 0.5) / OVER_RUN_POINTS for index in range(OVER_RUN_POINTS)), True


def _pool(known: Sequence[Prospect]) -> list[float]:
    """Totals of all predicted jobs in seconds, ascending; equally many of each."""
    pool: list[float] = []
    for prospect in known:
        assert prospect.job.estimate is not None
        points = prospect.job.estimate.points
        pool += [
            at_level(points, (index + 0.5) / POOL_POINTS) * prospect.seconds_per_unit for index in range(POOL_POINTS)
        ]
    return sorted(pool)


def _borrowed(job: JobRecord, now_s: float, pool: Sequence[float], lenders: int) -> Prospect:
    totals, outrun = _above(pool, job.done(Unit.SERVICE_S, now_s))
    cause = "no prediction" if job.estimate is None else "iterations are predicted, but the speed is unknown"
    longer = "; the job has run longer than all of them" if outrun else ""
    source = "the one predicted job" if lenders == 1 else f"the {lenders} predicted jobs"
    return Prospect(job, totals, Unit.SERVICE_S, 1.0, f"{cause}: drawn from {source} in the queue{longer}")
