"""Advice on a mirrored queue: what Slurm will do, what A-SRPT would do instead, and what that would save."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from policies.lifecycle import JobState
from policies.model.estimate import Estimate
from policies.model.ids import JobId, ServerIndex
from policies.rank import expected_remaining_s
from policies.registry import make_policy
from service.advice.calibration import Calibration, end_kind, start_kind
from service.advice.mirror import Mirrored, MirrorJob
from service.engine.record import JobRecord
from service.forecast.forecast import (
    Forecast,
    ForecastOptions,
    Futures,
    JobForecast,
    NoForecast,
    Spread,
    sample,
    spread,
    summary,
)
from service.forecast.whatif import Outlooks, side_by_side
from service.history.snapshot import WorldSnapshot, restore

SLURM = "slurm"
NICE = "slurm in A-SRPT's order"
ASRPT = "asrpt"

ASRPT_OPTIONS: Mapping[str, str] = {"preemption": "never", "release": "early"}
"""Slurm does not know which jobs checkpoint, so nothing is preempted; and no job waits while GPUs are free for it."""

OVERDUE_S = 86_400.0
"""A job that has waited longer keeps its place before all shorter ones: a stream of short jobs starves none."""


@dataclass(frozen=True, slots=True)
class JobAdvice:
    """One job. Spreads are p10, p50, p90: ``run`` in seconds of its whole run, the others in Unix seconds.

    ``start`` and ``finish`` are what Slurm is expected to do, with calibrated intervals; ``start`` is None for a job that holds
    GPUs. ``place`` and ``asrpt_place`` count from 1 among the waiting jobs. ``asrpt_start`` and ``asrpt_finish`` are what A-SRPT
    would do, as simulated. ``reason`` says why a time is missing. ``raw_start`` and ``raw_finish``: before the calibration.
    """

    job: MirrorJob
    state: str
    run: Spread | None
    source: str
    start: Spread | None
    finish: Spread | None
    place: int | None
    asrpt_place: int | None
    asrpt_start: Spread | None
    asrpt_finish: Spread | None
    reason: str | None
    raw_start: Spread | None = None
    raw_finish: Spread | None = None


@dataclass(frozen=True, slots=True)
class Advice:
    """The advice on one queue. ``outlooks`` compare the mean times to completion; None where no job ends in all futures.

    ``problem``: why there is no forecast at all. ``order``: the waiting jobs as A-SRPT ranks them.
    """

    now_s: float
    mirrored: Mirrored
    gpus: int
    gpus_free: int
    jobs: Sequence[JobAdvice]
    outlooks: Outlooks | None = None
    samples: int = 0
    problem: str = ""
    order: Sequence[JobId] = field(default=())


def advise(
    mirrored: Mirrored,
    estimates: Mapping[JobId, Estimate],
    calibration: Calibration,
    options: ForecastOptions,
    keep_going: Callable[[], bool] = lambda: True,
) -> Advice:
    """Advice on the queue as it stands. ``keep_going``: see :func:`service.forecast.forecast.sample`."""
    world = mirrored.world(estimates)
    order = asrpt_order(world, mirrored.jobs)
    rank = {number: place for place, number in enumerate(order)}
    policies = {
        SLURM: mirrored.order(),
        NICE: mirrored.order(rank),
        ASRPT: make_policy("asrpt", dict(ASRPT_OPTIONS)),
    }
    found: dict[str, Futures] = {}
    problem = ""
    try:
        for label, policy in policies.items():
            found[label] = sample(world, policy, None, options, keep_going)
    except NoForecast as error:
        problem = str(error)
    forecasts = {label: summary(world.now_s, futures) for label, futures in found.items()}
    places = {number: place for place, number in enumerate(sorted(mirrored.ahead, key=mirrored.ahead.__getitem__))}
    return Advice(
        now_s=world.now_s,
        mirrored=mirrored,
        gpus=sum(server.gpus for server in world.cluster.servers),
        gpus_free=_gpus_free(world),
        jobs=[
            _job(mirrored.jobs[record.id], record, forecasts, calibration, world.now_s, places, rank)
            for record in world.jobs
        ],
        outlooks=_outlooks(world, found) if not problem else None,
        samples=min((len(futures.sampled) for futures in found.values()), default=0),
        problem=problem,
        order=order,
    )


def asrpt_order(world: WorldSnapshot, jobs: Mapping[JobId, MirrorJob]) -> list[JobId]:
    """The waiting jobs by the work that A-SRPT expects of them, GPUs times seconds; overdue ones first, by age.

    Then a job without an estimate, and last those that are held.
    """

    def key(job: JobRecord) -> tuple[int, float, JobId]:
        if jobs[job.id].held:
            return 2, job.submitted_at_s, job.id
        if world.now_s - job.submitted_at_s > OVERDUE_S:
            return 0, job.submitted_at_s, job.id
        expected_s = expected_remaining_s(job, world.now_s)
        return 1, math.inf if expected_s is None else job.spec.gpus * expected_s, job.id

    return [job.id for job in sorted((job for job in world.jobs if job.state is JobState.QUEUED), key=key)]


def _gpus_free(world: WorldSnapshot) -> int:
    """Free GPUs of the nodes that take jobs."""
    mirror = restore(world)
    return sum(mirror.free_gpus(ServerIndex(server)) for server in range(len(world.servers)))


def _outlooks(world: WorldSnapshot, found: Mapping[str, Futures]) -> Outlooks | None:
    try:
        return side_by_side(world, found)
    except NoForecast:
        return None


def _job(
    job: MirrorJob,
    record: JobRecord,
    forecasts: Mapping[str, Forecast],
    calibration: Calibration,
    now_s: float,
    places: Mapping[JobId, int],
    rank: Mapping[JobId, int],
) -> JobAdvice:
    running = job.started_at_s is not None
    slurm = _of(forecasts, SLURM, record.id)
    asrpt = _of(forecasts, ASRPT, record.id)
    start = slurm.start if slurm is not None else None
    finish = slurm.finish if slurm is not None else None
    if start is not None:
        start = calibration.apply(start_kind(start, now_s), start, now_s)
    if finish is not None:
        finish = calibration.apply(end_kind(running=running), finish, now_s)
    waiting = not running and not job.held
    return JobAdvice(
        job=job,
        state="running" if running else "held" if job.held else "pending",
        run=_run(record.estimate),
        source=record.estimate.source if record.estimate is not None else "no prediction",
        start=start,
        finish=finish if start is None else _not_before(finish, start),
        place=places[record.id] + 1 if waiting else None,
        asrpt_place=rank[record.id] + 1 if waiting else None,
        asrpt_start=asrpt.start if asrpt is not None else None,
        asrpt_finish=asrpt.finish if asrpt is not None else None,
        reason=slurm.reason if slurm is not None else None,
        raw_start=slurm.start if slurm is not None else None,
        raw_finish=slurm.finish if slurm is not None else None,
    )


def _of(forecasts: Mapping[str, Forecast], label: str, number: JobId) -> JobForecast | None:
    return forecasts[label].jobs.get(number) if label in forecasts else None


def _run(estimate: Estimate | None) -> Spread | None:
    if estimate is None:
        return None
    unit_s = estimate.seconds_per_unit or 1.0
    return spread([point * unit_s for point in estimate.points])


def _not_before(finish: Spread | None, start: Spread) -> Spread | None:
    """Calibrated apart, an end could precede its start."""
    if finish is None:
        return None
    return Spread(max(finish.p10_s, start.p10_s), max(finish.p50_s, start.p50_s), max(finish.p90_s, start.p90_s))
