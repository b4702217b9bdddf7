"""Forecasts of starts and ends. The production engine simulates sampled futures of a snapshot of the live queue.

A future draws a total for each unfinished job from its estimate, given the job's progress. Then the engine, the live policy
and simulated machines run until all jobs have ended. Running jobs continue from their progress and placement. Further jobs
arrive, and servers and attempts fail, as in the recent past (:mod:`service.forecast.arrivals`, :mod:`service.forecast.failures`).
The forecast of a job holds quantiles over the futures. One set of futures serves all jobs. Equal snapshot, past, policy, seed and
number of futures give an equal forecast; nothing here reads a clock.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import Any, NamedTuple

import numpy as np

from policies.base import Policy
from policies.lifecycle import JobState
from policies.model.ids import JobId
from policies.model.reasons import Reason
from policies.throughput import stretch_of
from service.engine.actions import launch_of
from service.engine.cycle import EngineSettings
from service.engine.engine import Engine, Ports
from service.engine.events import JobEvent
from service.engine.memory import MemoryStore
from service.engine.ports import CycleBatch
from service.engine.record import JobRecord, StoredWorld
from service.forecast.arrivals import FIRST_ID, NO_RHYTHM, Arrival, Rhythm
from service.forecast.failures import NO_FAILURES, Failing, Failures
from service.forecast.futures import Prospect, at_level, levels, prospects_of
from service.history.snapshot import WorldSnapshot
from service.runtime.workers import Watch, WorkerLost, best_method, run_each, with_trace
from service.sim.clock import Priority, SimClock
from service.sim.drive import Drive, SimulationStuck
from service.sim.executor import ExecutorCosts, SimulatedExecutor
from service.sim.predictors import NoPredictor

RUNS_MAX = 4000
"""Largest number of jobs times futures. A preemptive policy takes about 0.6 ms of CPU each (benchmarks/forecast.py)."""

RUNS_WORTH_A_FORK = 200
"""Below this many jobs times futures, which take a tenth of a second, starting workers takes longer."""

ARRIVALS_SHARE_MIN = 0.5
"""Arrivals of a future over the jobs of the snapshot, at least: also where these alone are as many as RUNS_MAX allows."""

SAMPLES_MIN = 5
"""Smallest number of futures for quantiles. A queue too long for RUNS_MAX still gets as many."""


class NoForecast(Exception):
    """There is no forecast. The message is a sentence with the reason."""


@dataclass(frozen=True, slots=True)
class ForecastOptions:
    """``samples`` futures from ``seed``, fewer for a long queue; no forecast for more than ``jobs_max`` unfinished jobs.

    ``wake_slack``: a timed wake-up of the policy may be late by this share of the time ahead. A policy that ranks by
    distributions asks for about twenty wake-ups a job, and forecasts of an hour ahead do not depend on a minute.
    ``shared_error``: correlation of the jobs' totals, see :func:`service.forecast.futures.levels`. The default was chosen by
    ``benchmarks/forecast_accuracy.py``: with independent draws the quantiles of a queue are too narrow.
    """

    samples: int = 16
    jobs_max: int = 1000
    seed: int = 0
    wake_slack: float = 0.02
    shared_error: float = 0.25


@dataclass(frozen=True, slots=True)
class Spread:
    """Three quantiles over the futures, in seconds on the engine's clock."""

    p10_s: float
    p50_s: float
    p90_s: float


@dataclass(frozen=True, slots=True)
class JobForecast:
    """One job. ``start`` is None for a job that holds GPUs. ``reason`` is set if ``start`` or ``finish`` is missing otherwise.

    ``source`` names the source of the job's totals, ``model_version`` the model that predicted it ("": none). In a calibrated
    forecast ``drawn_start`` and ``drawn_finish`` are the quantiles of the futures. ``least_run_s``: the shortest time from its
    start to its end in any of them, 0 for a job without ``start``.
    """

    job: JobId
    start: Spread | None
    finish: Spread | None
    samples: int
    source: str
    reason: str | None = None
    gpus: int = 1
    model_version: str = ""
    drawn_start: Spread | None = None
    drawn_finish: Spread | None = None
    least_run_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Forecast:
    """All unfinished jobs of one snapshot, by id."""

    now_s: float
    samples: int
    jobs: Mapping[JobId, JobForecast]
    policy: str = ""


class Futures(NamedTuple):
    """Sampled futures of one snapshot under one policy."""

    prospects: Mapping[JobId, Prospect]
    sampled: "Sequence[Future]"


def forecast(
    snapshot: WorldSnapshot,
    policy: Policy[Any],
    policy_dump: dict[str, Any] | None = None,
    options: ForecastOptions | None = None,
    keep_going: Callable[[], bool] = lambda: True,
    rhythm: Rhythm = NO_RHYTHM,
    failures: Failures = NO_FAILURES,
    workers: int = 1,
    tick: Callable[[], None] = lambda: None,
) -> Forecast:
    """Forecast every unfinished job; see :func:`sample`. Raises :class:`NoForecast`."""
    found = sample(snapshot, policy, policy_dump, options, keep_going, rhythm, failures, workers, tick)
    return summary(snapshot.now_s, found, policy.name)


def summary(now_s: float, found: Futures, policy: str = "") -> Forecast:
    """The forecast that these futures give."""
    return Forecast(
        now_s,
        len(found.sampled),
        {job: _job_forecast(prospect, found.sampled) for job, prospect in found.prospects.items()},
        policy,
    )


def sample(
    snapshot: WorldSnapshot,
    policy: Policy[Any],
    policy_dump: dict[str, Any] | None = None,
    options: ForecastOptions | None = None,
    keep_going: Callable[[], bool] = lambda: True,
    rhythm: Rhythm = NO_RHYTHM,
    failures: Failures = NO_FAILURES,
    workers: int = 1,
    tick: Callable[[], None] = lambda: None,
) -> Futures:
    """Run the snapshot into sampled futures, with arrivals of ``rhythm``, and ``failures``. Raises :class:`NoForecast`.

    ``policy_dump`` is the live policy state. ``keep_going`` is called before each instant of each future. Once it returns
    False, the complete futures are returned if there are at least :data:`SAMPLES_MIN`. ``workers`` and ``tick``: see
    :func:`sampled`. O(samples x (jobs + arrivals) x log jobs).
    """
    sampler = Sampler(snapshot, policy, policy_dump, options, rhythm, failures)
    return sampled([sampler], keep_going, workers=workers, tick=tick)[0]


class Sampler:
    """The futures of one snapshot under one policy, each by its number below ``count``. Raises :class:`NoForecast`."""

    def __init__(
        self,
        snapshot: WorldSnapshot,
        policy: Policy[Any],
        policy_dump: dict[str, Any] | None = None,
        options: ForecastOptions | None = None,
        rhythm: Rhythm = NO_RHYTHM,
        failures: Failures = NO_FAILURES,
    ) -> None:
        options = options or ForecastOptions()
        if len(snapshot.jobs) > options.jobs_max:
            most = f"forecasts are made for at most {options.jobs_max} (forecast_jobs_max)"
            raise NoForecast(f"{len(snapshot.jobs)} jobs are unfinished; {most}.")
        self.prospects = prospects_of(snapshot)
        if not self.prospects and snapshot.jobs:
            raise NoForecast("No unfinished job has a prediction yet.")
        arriving = rhythm.repeats(snapshot.now_s)
        self.count, self._arrivals_max = _sizes(len(self.prospects), options.samples, arriving=arriving)
        self._drawn = {job: levels(job, self.count, options.seed, options.shared_error) for job in self.prospects}
        self._snapshot, self._policy, self._dump, self._options = snapshot, policy, policy_dump, options
        self._rhythm, self._failures = rhythm, failures

    @property
    def runs(self) -> int:
        """Jobs times futures."""
        return self.count * (len(self.prospects) + self._arrivals_max)

    def future(self, number: int, keep_going: Callable[[], bool]) -> "Future | None":
        """The future of this number; None if ``keep_going`` stopped it."""
        now_s, seed = self._snapshot.now_s, self._options.seed
        totals = {job: at_level(each.totals, self._drawn[job][number]) for job, each in self.prospects.items()}
        arrivals = self._rhythm.ahead(now_s, number, self.count, seed, self._arrivals_max)
        these = _Drawn(self.prospects, totals, arrivals, self._failures, seed, number)
        return _fast_forward(self._snapshot, self._policy, self._dump, these, self._options.wake_slack, keep_going)


def sampled(
    samplers: Sequence[Sampler],
    keep_going: Callable[[], bool] = lambda: True,
    on_future: Callable[[int, int], None] = lambda done, total: None,
    workers: int = 1,
    tick: Callable[[], None] = lambda: None,
) -> list[Futures]:
    """All futures of the samplers, the same for any number of ``workers``. Raises :class:`NoForecast`.

    ``on_future`` is called with the number of complete futures and of all, ``tick`` now and then while there are several workers:
    its exceptions end them. Where this process cannot fork, or where the futures are few, it makes all futures itself.
    """
    runs = [(sampler, number) for sampler in samplers for number in range(sampler.count)]
    if sum(sampler.runs for sampler in samplers) < RUNS_WORTH_A_FORK or best_method() != "fork":
        workers = 1
    watch = _Collect(len(runs), on_future, tick)
    with suppress(_Stopped):
        run_each(partial(_one, runs, keep_going), range(len(runs)), workers, watch)
    found = []
    for index, sampler in enumerate(samplers):
        before = sum(each.count for each in samplers[:index])
        futures = [watch.found[run] for run in range(before, before + sampler.count) if run in watch.found]
        if len(futures) < min(sampler.count, SAMPLES_MIN):
            raise NoForecast(
                f"The forecast of {len(sampler.prospects)} jobs exceeded its time limit (forecast_timeout_s)."
            )
        found.append(Futures(sampler.prospects, futures))
    return found


_Ends = tuple[dict[JobId, float], dict[JobId, float], dict[JobId, Reason]]
"""When jobs start and when they end in one future, and what keeps back those that do not start."""


def _one(
    runs: Sequence[tuple[Sampler, int]], keep_going: Callable[[], bool], run: int, note: Callable[[float], None]
) -> _Ends | None:
    """One future, without what it was made with."""
    sampler, number = runs[run]
    future = sampler.future(number, keep_going)
    return None if future is None else (future.started_at_s, future.ended_at_s, future.gates)


class _Stopped(Exception):
    """``keep_going`` has stopped a future."""


class _Collect(Watch[_Ends | None]):
    """The complete futures by run."""

    def __init__(self, total: int, on_future: Callable[[int, int], None], tick: Callable[[], None]) -> None:
        self.found: dict[int, Future] = {}
        self._total = total
        self._on_future = on_future
        self._tick = tick

    def ended(self, run: int, value: _Ends | None) -> None:
        if value is None:
            raise _Stopped
        self.found[run] = Future(set(), started_at_s=value[0], ended_at_s=value[1], gates=value[2])
        self._on_future(len(self.found), self._total)

    def failed(self, run: int, error: Exception, trace: str) -> None:
        if isinstance(error, WorkerLost):
            raise NoForecast(f"A sampled future has no end: {error}.") from error
        raise with_trace(error, trace)

    def tick(self) -> None:
        self._tick()


def _sizes(jobs: int, samples: int, *, arriving: bool) -> tuple[int, int]:
    """The number of futures, and of arrivals in each, so that RUNS_MAX holds as far as possible."""
    if not arriving:
        return min(samples, max(SAMPLES_MIN, RUNS_MAX // max(1, jobs))), 0
    least = int(ARRIVALS_SHARE_MIN * jobs)
    count = min(samples, max(SAMPLES_MIN, RUNS_MAX // max(1, jobs + least)))
    return count, max(least, min(RUNS_MAX // count - jobs, RUNS_MAX // (2 * count)))


class _Drawn(NamedTuple):
    """What one future holds: the jobs of the snapshot with the totals that they need, those that arrive, and what fails."""

    prospects: Mapping[JobId, Prospect]
    totals: Mapping[JobId, float]
    arrivals: Sequence[Arrival]
    failures: Failures
    seed: int
    number: int

    def failing(self, now_s: float, clock: SimClock, executor: SimulatedExecutor) -> Failing:
        """The failures, for the machines of this future."""
        jobs = len(self.prospects) + len(self.arrivals)
        last_s = max((each.job.submitted_at_s for each in self.arrivals), default=now_s)
        return Failing(self.failures, self.seed, self.number, clock, executor, jobs, last_s)


@dataclass(slots=True)
class Future:
    """Sink that records when jobs next start and when they end. ``awaited``: jobs of the snapshot that have not ended;
    ``on_start`` is called with each job that starts. ``gates``: why jobs that are left are kept from the policy.
    """

    awaited: set[JobId]
    on_start: Callable[[JobRecord], None] = field(default=lambda job: None, repr=False)
    started_at_s: dict[JobId, float] = field(default_factory=dict)
    ended_at_s: dict[JobId, float] = field(default_factory=dict)
    gates: dict[JobId, Reason] = field(default_factory=dict)

    def transition(self, event: JobEvent, job: JobRecord) -> None:
        """Record the first start, and the end of a job that ran."""
        if event.target is JobState.STARTING:
            self.on_start(job)
        if job.id >= FIRST_ID:
            return
        if job.finished:
            self.awaited.discard(job.id)
        if event.target is JobState.STARTING:
            self.started_at_s.setdefault(job.id, event.at_s)
        elif job.finished and job.attempts > 0:
            self.ended_at_s[job.id] = event.at_s

    def cycle(self, batch: CycleBatch) -> None:
        """Cycles are not recorded."""


def _fast_forward(
    snapshot: WorldSnapshot,
    policy: Policy[Any],
    policy_dump: dict[str, Any] | None,
    drawn: _Drawn,
    wake_slack: float,
    keep_going: Callable[[], bool],
) -> Future | None:
    """One future, until no job of the snapshot is left that ends in it; None if ``keep_going`` stopped it."""
    prospects = drawn.prospects
    clock, costs = SimClock(snapshot.now_s), snapshot.costs
    truths = {job: prospect.truth(drawn.totals[job]) for job, prospect in prospects.items()}
    truths |= {arrival.job.id: arrival.truth for arrival in drawn.arrivals}
    executor = SimulatedExecutor(clock, snapshot.cluster, truths, ExecutorCosts(costs.checkpoint_s, costs.restart_s))
    failing = drawn.failing(snapshot.now_s, clock, executor)
    future = Future(set(prospects), failing.started)
    store = MemoryStore(
        StoredWorld(
            [prospect.job.copy() for prospect in prospects.values()],
            [replace(record) for record in snapshot.servers],
            policy_dump=policy_dump,
            limits=dict(snapshot.limits),
            windows=snapshot.windows,
        )
    )
    engine: Engine[Any] = Engine(
        policy,
        snapshot.cluster,
        Ports(store, executor, clock, NoPredictor(), future),
        costs,
        EngineSettings(dump_every_s=inf),
    )
    for job_id in engine.world.holding():
        _take_over(executor, snapshot, prospects[job_id])
    engine.reconcile()  # sends the stops in progress again
    for arrival in drawn.arrivals:
        clock.schedule(arrival.job.submitted_at_s, Priority.ARRIVAL, partial(_submit, store, arrival.job))
    failing.begin(engine.world)
    drive = Drive(engine, clock, wake_slack)
    drive.wake(snapshot.now_s)
    try:
        while keep_going():
            if not drive.step() or not future.awaited:
                left = (engine.world.jobs[job] for job in future.awaited)
                future.gates = {job.id: job.gate for job in left if job.gate is not None}
                return future
    except SimulationStuck as error:
        raise NoForecast(f"A sampled future does not end: {error}.") from error
    return None


def _submit(store: MemoryStore, job: JobRecord) -> None:
    store.submit(job)


def _take_over(executor: SimulatedExecutor, snapshot: WorldSnapshot, prospect: Prospect) -> None:
    """Pass the job's open attempt to the simulated machines."""
    job, attempt = prospect.job, prospect.job.attempt
    assert attempt is not None
    launch = launch_of(job)
    if attempt.started_at_s is None:
        executor.send([launch])
    else:
        stretch = stretch_of(snapshot.cluster, job.spec, job.iteration_times, attempt.placement)
        executor.adopt(launch, prospect.progress_from_s(snapshot.now_s, stretch))


def _job_forecast(prospect: Prospect, futures: Sequence[Future]) -> JobForecast:
    job = prospect.job
    ends = [future.ended_at_s[job.id] for future in futures if job.id in future.ended_at_s]
    starts = [future.started_at_s[job.id] for future in futures if job.id in future.started_at_s]
    runs_s = [
        future.ended_at_s[job.id] - future.started_at_s[job.id]
        for future in futures
        if job.id in future.started_at_s and job.id in future.ended_at_s
    ]
    queued = job.state is JobState.QUEUED
    never_starts = len(futures) - len(starts) if queued else 0
    reason = None
    if never_starts:
        gates = (future.gates[job.id] for future in futures if job.id in future.gates)
        reason = _why_not(job, next(gates, None), never_starts, len(futures))
    elif len(ends) < len(futures):
        reason = f"It does not end in {len(futures) - len(ends)} of {len(futures)} sampled futures."
    return JobForecast(
        job=job.id,
        start=spread(starts) if queued and not never_starts else None,
        finish=spread(ends) if len(ends) == len(futures) else None,
        samples=len(futures),
        source=prospect.source,
        reason=reason,
        gpus=job.spec.gpus,
        model_version=job.estimate.model_version if job.estimate is not None else "",
        least_run_s=min(runs_s, default=0.0) if queued else 0.0,
    )


def _why_not(job: JobRecord, gate: Reason | None, missing: int, samples: int) -> str:
    if job.held:
        return "The job is held; it can start when it is released."
    if gate is Reason.QUEUE_PAUSED:
        return "Its queue is paused; it can start when the queue is resumed."
    if gate is Reason.QUOTA_TOO_SMALL:
        return Reason.QUOTA_TOO_SMALL.sentence
    if gate is Reason.QUOTA:
        return f"It does not start in {missing} of {samples} sampled futures: its user, project or array has reached its limit."
    if job.spec.needs:
        return f"It does not start in {missing} of {samples} sampled futures: it waits for jobs in 'after'."
    return f"It does not start in {missing} of {samples} sampled futures: the servers that are up and not drained cannot hold it."


def spread(values: Sequence[float]) -> Spread:
    """Hazen's quantiles: each value stands for the middle of its share of the mass, so both tails are treated alike."""
    p10, p50, p90 = np.quantile(values, (0.1, 0.5, 0.9), method="hazen").tolist()
    return Spread(p10, p50, p90)
