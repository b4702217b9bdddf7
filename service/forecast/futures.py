"""What the jobs of a snapshot may still need: each job's possible totals, given what it has done, and draws from them.

A sampled future gives every job one total. Draws are stratified: over the K futures of a forecast a job meets K evenly
spread levels of its distribution, in an order of its own, so 20 futures show a job's own spread without luck.
"""

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

import numpy as np

from policies.model.estimate import Unit
from policies.model.ids import JobId
from policies.rank import OverRun, remaining_units, seconds_per_unit
from service.engine.record import JobRecord
from service.history.snapshot import WorldSnapshot
from service.sim.executor import stretch_of
from service.sim.work import JobTruth

POOL_POINTS = 20
"""Points that each predicted job lends to jobs without a prediction: enough for its shape, and no job outweighs another."""

_COMMON = 2**32
"""In the place of a job's number for what all jobs share: no job has it."""

_ROUNDING = 1e-12
"""Speeds that differ by less, relatively, are equal."""

OVER_RUN_POINTS = 10
"""Points of the remaining work of a job that has outrun its whole prediction."""


@dataclass(frozen=True, slots=True)
class Prospect:
    """What one job may still need. ``totals`` are equal-mass points in ``unit``, ascending, all above what is done.

    ``seconds_per_unit`` is at the job's best placement; ``source`` says in words where the totals come from.
    """

    job: JobRecord
    totals: tuple[float, ...]
    unit: Unit
    seconds_per_unit: float
    source: str

    @property
    def kept(self) -> float:
        """Units that a stop without a checkpoint would leave: what the open attempt builds on."""
        job, attempt = self.job, self.job.attempt
        if self.unit is Unit.SERVICE_S:
            return max(attempt.resume_service_s, job.checkpoint_service_s) if attempt is not None else job.service_s
        return max(attempt.resume_iteration, job.checkpoint_iteration) if attempt is not None else job.iterations

    def truth(self, total: float) -> JobTruth:
        """What the executor is told in a future in which the job needs ``total`` units."""
        iterations = total if self.unit is Unit.ITERATIONS else None
        duration_s = total * self.seconds_per_unit
        done_s = min(duration_s, self.kept * self.seconds_per_unit)
        return JobTruth(duration_s, iterations, self.job.iteration_times, done_s)

    def progress_from_s(self, now_s: float, stretch: float) -> float:
        """When the open attempt's work began: the executor derives all later progress from it.

        Counted from the anchor where the job progresses: from now, rounding would move its end.
        """
        job = self.job
        if job.progressing and job.anchor_s > now_s:
            return job.anchor_s
        from_s = job.anchor_s if job.progressing else now_s
        gained = job.done(self.unit, from_s) - self.kept
        # Service is time itself; an iteration takes its seconds at the best placement, stretched by this one.
        unit_s = 1.0 if self.unit is Unit.SERVICE_S else self.seconds_per_unit * stretch
        return min(now_s, from_s - gained * unit_s)


def prospects(snapshot: WorldSnapshot) -> dict[JobId, Prospect]:
    """A prospect for each job; empty if not one of them has an estimate to start from.

    A job without an estimate (or with one in iterations of unknown speed) is taken to need what the others here are
    predicted to need, and its source says so.
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

    ``shared_error`` is how much of the order all jobs have in common, as the correlation of two jobs' normal scores: a
    predictor that is wrong is often wrong about many jobs of a queue in the same direction. Each job's own distribution is
    met as evenly as without.
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
    """A copy that says nothing of jobs which have ended, and loses in a stop what the live job would lose."""
    # A queued job's dependency that is not here has succeeded: had it ended otherwise, the job would have been cancelled.
    # One that may end in any way and is not here has ended.
    spec = job.spec
    if spec.needs and not all(needed in present for needed in spec.needs):
        spec = replace(
            spec,
            after=tuple(needed for needed in spec.after if needed in present),
            after_any=tuple(needed for needed in spec.after_any if needed in present),
        )
    if not job.graceful:
        # Nothing has shown that it checkpoints, and the engine counts on nothing else either.
        spec = replace(spec, checkpoint_period_s=None)
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
    source = f"{estimate.source}; it has outrun the whole prediction" if outrun else estimate.source
    return Prospect(job, totals, estimate.unit, unit_s, source)


def _seconds_at_best(job: JobRecord, snapshot: WorldSnapshot) -> float | None:
    """Seconds an iteration at the best placement: from the present speed, where there is one, less what this placement costs.

    A speed that is as expected gives the expected seconds exactly: a rounded end may come after an instant of the policy with
    which it coincides, and then another decision is made.
    """
    expected_s = job.seconds_per_iteration()
    if job.attempt is not None and job.progressing and job.iterations_per_s > 0.0:
        stretch = stretch_of(snapshot.cluster, job.spec, job.iteration_times, job.attempt.placement)
        measured_s = 1.0 / (job.iterations_per_s * stretch)
        if expected_s is None or not math.isclose(measured_s, expected_s, rel_tol=_ROUNDING):
            return measured_s
    return expected_s


def _above(points: Sequence[float], done: float) -> tuple[tuple[float, ...], bool]:
    """The points beyond ``done``. Past all of them, as the rank's over-run rule has it on average: up to twice what it says."""
    alive = tuple(point for point in points if point > done)
    if alive:
        return alive, False
    left = remaining_units(points, done, OverRun.DOUBLE)[0]
    return tuple(done + 2.0 * left * (index + 0.5) / OVER_RUN_POINTS for index in range(OVER_RUN_POINTS)), True


def _pool(known: Sequence[Prospect]) -> list[float]:
    """Totals in seconds of all predicted jobs, as many of each; ascending."""
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
    what = "no prediction" if job.estimate is None else "iterations are predicted, but nobody knows its speed"
    longer = "; it has run longer than any of them" if outrun else ""
    who = "the one predicted job" if lenders == 1 else f"the {lenders} predicted jobs"
    return Prospect(job, totals, Unit.SERVICE_S, 1.0, f"{what}: drawn from {who} in the queue{longer}")
