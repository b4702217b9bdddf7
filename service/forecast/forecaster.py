"""Forecasts and plans of the live service, computed in another process from a snapshot taken between two cycles.

The scheduling loop waits only while records are copied. One forecast serves all readers until the next cycle. Readers that
arrive during its computation wait for it. Each new forecast is passed to ``keep`` once.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from policies.base import Policy
from policies.choose import Candidate, find
from policies.model.estimate import Estimate, Prediction, PredictionRequest
from policies.model.ids import JobId, ServerIndex
from policies.model.job import JobSpec
from policies.model.reasons import Reason
from policies.model.resources import Amounts
from policies.model.view import ClusterView
from policies.placement.pool import FreePool
from policies.rules.server_reservations import closed_servers
from policies.throughput import NeverFits, times_of
from service.config.settings import Settings
from service.engine.engine import Engine
from service.engine.record import JobRecord
from service.engine.watch import EngineReader, unwatched
from service.engine.world import World
from service.forecast.forecast import Forecast, ForecastOptions, JobForecast, NoForecast
from service.forecast.past import Past, calibrated
from service.forecast.worker import Question
from service.history.snapshot import WorldSnapshot, take

KEPT_S = 60.0
"""Longest life of a forecast without a new cycle. Meanwhile running jobs may exceed their predicted points."""

_FIRST_PLANNED = 2**31
"""First number of planned jobs. It is above the numbers of real jobs, so planned jobs lose every tie."""

Preview = Callable[[float, Sequence[PredictionRequest]], Sequence[Prediction | None]]
Compute = Callable[[Question], Forecast]
"""Makes a forecast, or raises :class:`NoForecast`."""
Keep = Callable[[int, Forecast], None]
"""(cycle, forecast): called with each forecast that is made."""


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """The forecast of a job as if it were submitted now.

    ``best`` is its placement in an otherwise idle cluster; None if the usable servers cannot hold it. ``now`` is that on the GPUs
    that are free, on servers that no reservation closes to the job; None if they cannot. ``outlook`` is None if ``reason`` is
    set.
    """

    spec: JobSpec
    estimate: Estimate | None
    best: Candidate | None
    now: Candidate | None
    outlook: JobForecast | None
    reason: str | None


class Standing(NamedTuple):
    """Where an unfinished job stands: why it is there, and whether it competes for GPUs."""

    reason: Reason
    waiting: bool


class Planned(NamedTuple):
    """The jobs of one submission, planned together at ``now_s``."""

    now_s: float
    jobs: Sequence[PlannedJob]


class _Look(NamedTuple):
    """Data copied from the engine. ``refusal`` is set if there are too many jobs for a forecast; ``world`` then has no jobs."""

    cycle: int
    refusal: str | None
    policy: Policy[Any]
    dump: dict[str, Any]
    world: WorldSnapshot
    usable_gpus: Sequence[int]
    free_gpus: Sequence[int]
    spare: Mapping[ServerIndex, Amounts]


@dataclass(frozen=True, slots=True)
class _Kept:
    cycle: int
    done_at_s: float
    answer: Forecast | NoForecast


class Forecaster:
    """Forecasts of one live engine. Methods may be called from any thread, but not inside a writing transaction."""

    def __init__(
        self,
        loop: EngineReader,
        now_s: Callable[[], float],
        preview: Preview,
        settings: Settings,
        compute: Compute,
        keep: Keep | None = None,
        past: Past | None = None,
    ) -> None:
        self._compute = compute
        self._keep = keep
        self._past = past
        self._loop = loop
        self._now_s = now_s
        self._preview = preview
        self._options = ForecastOptions(settings.forecast_samples, settings.forecast_jobs_max)
        self._timeout_s = settings.forecast_timeout_s
        self._lock = threading.Lock()
        self._kept: _Kept | None = None

    def current(self) -> Forecast:
        """The forecast of the newest cycle. Raises :class:`NoForecast`."""
        asked_at_s = time.monotonic()
        made = False
        with self._lock:
            if not self._is_current(asked_at_s):
                self._kept = self._make()
                made = True
            assert self._kept is not None
            cycle, answer = self._kept.cycle, self._kept.answer
        if isinstance(answer, NoForecast):
            raise NoForecast(str(answer))
        if made and self._keep is not None:
            self._keep(cycle, answer)
        return answer

    def kept(self) -> Forecast | None:
        """The last forecast, of whichever cycle; None without one. Makes none, and waits for none that is being made."""
        kept = self._kept
        return kept.answer if kept is not None and isinstance(kept.answer, Forecast) else None

    def unfinished(self) -> Mapping[JobId, Standing]:
        """The jobs that are unfinished after the newest cycle."""
        return self._loop.read(
            lambda engine: {job.id: Standing(job.reason, job.waiting) for job in engine.world.jobs.values()}
        )

    def plan(self, specs: Sequence[JobSpec]) -> Planned:
        """Forecast these jobs as if they were submitted now. Stores nothing."""
        look = self._look(planned=len(specs))
        now_s = look.world.now_s
        ids = [JobId(_FIRST_PLANNED + index) for index in range(len(specs))]
        requests = [PredictionRequest(job, spec, now_s) for job, spec in zip(ids, specs, strict=True)]
        estimates = [found.estimate if found is not None else None for found in self._preview(now_s, requests)]
        records = [
            _record(look, job, spec, estimate) for job, spec, estimate in zip(ids, specs, estimates, strict=True)
        ]
        outlooks, reason = self._outlooks(look, records)
        view = _empty(look.world)
        return Planned(now_s, [_planned(look, view, record, outlooks.get(record.id), reason) for record in records])

    def _is_current(self, asked_at_s: float) -> bool:
        kept = self._kept
        if kept is None:
            return False
        # A forecast that was completed while this reader waited is new enough.
        same = kept.cycle == self._loop.cycle_number and time.monotonic() - kept.done_at_s < KEPT_S
        return same or kept.done_at_s >= asked_at_s

    def _make(self) -> _Kept:
        cycle = self._loop.cycle_number
        try:
            look = self._look()
            cycle = look.cycle
            answer: Forecast | NoForecast = self._forecast(look, look.world)
        except NoForecast as error:
            answer = error
        return _Kept(cycle, time.monotonic(), answer)

    def _look(self, planned: int = 0) -> _Look:
        jobs_max = self._options.jobs_max

        def look(engine: Engine[Any]) -> _Look:
            world = engine.world
            servers = [ServerIndex(index) for index in range(len(world.cluster.servers))]
            count = len(world.jobs) + planned
            refusal = None
            if count > jobs_max:
                refusal = f"{count} jobs are unfinished; forecasts are made for at most {jobs_max} (forecast_jobs_max)."
            return _Look(
                self._loop.cycle_number,
                refusal,
                unwatched(engine.policy),
                engine.dump() if refusal is None else {},
                take(world, self._now_s(), with_jobs=refusal is None),
                [world.usable_gpus(server) for server in servers],
                [world.free_gpus(server) for server in servers],
                world.spares(),
            )

        return self._loop.read(look)

    def _forecast(self, look: _Look, world: WorldSnapshot) -> Forecast:
        if look.refusal is not None:
            raise NoForecast(look.refusal)
        question = Question(world, look.policy, look.dump, self._options, self._timeout_s)
        if self._past is None:
            return self._compute(question)
        rhythm, failures = self._past.rhythm(world.now_s), self._past.failures(world.now_s)
        found = self._compute(replace(question, rhythm=rhythm, failures=failures))
        return calibrated(found, self._past.calibration(world.now_s))

    def _outlooks(self, look: _Look, records: Sequence[JobRecord]) -> tuple[dict[JobId, JobForecast], str | None]:
        """Forecasts of the planned jobs beside all others, or the reason without them."""
        try:
            found = self._forecast(look, replace(look.world, jobs=(*look.world.jobs, *records)))
        except NoForecast as error:
            return {}, str(error)
        return {record.id: found.jobs[record.id] for record in records}, None


def _record(look: _Look, job: JobId, spec: JobSpec, estimate: Estimate | None) -> JobRecord:
    now_s = look.world.now_s
    record = JobRecord(job, spec, now_s, priority=spec.priority, held=spec.hold, anchor_s=now_s, estimate=estimate)
    with suppress(NeverFits):
        record.iteration_times = times_of(spec, look.world.cluster, record.slowdown)
    return record


def _empty(snapshot: WorldSnapshot) -> ClusterView:
    """Its servers and their reservations at that time, without jobs."""
    view = World(snapshot.cluster, snapshot.costs)
    view.now_s, view.server_reservations = snapshot.now_s, snapshot.windows
    return view


def _planned(
    look: _Look, view: ClusterView, record: JobRecord, outlook: JobForecast | None, reason: str | None
) -> PlannedJob:
    cluster, spec, estimate = look.world.cluster, record.spec, record.estimate
    slowdown = estimate.slowdown if estimate is not None else None
    best = find(FreePool(cluster, list(look.usable_gpus)), cluster, spec, slowdown=slowdown)
    closed = closed_servers(view, record)
    free_gpus = [0 if server in closed else gpus for server, gpus in enumerate(look.free_gpus)]
    now = find(FreePool(cluster, free_gpus, look.spare), cluster, spec)
    return PlannedJob(spec, estimate, best, now, outlook, outlook.reason if outlook is not None else reason)
