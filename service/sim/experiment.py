"""A simulation: the production engine with a memory store, a simulated executor and simulated time behind its ports.

With equal workload, cluster, policy, predictor and options every run is equal, event by event: no real clock is read, and all
random numbers come from the seed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf, log
from typing import Any

from policies.base import Policy
from policies.choose import fits_usable
from policies.lifecycle import HOLDS_GPUS, TERMINAL, JobState
from policies.model.cluster import Cluster
from policies.model.estimate import Estimate, Unit
from policies.model.ids import JobId
from policies.model.placement import Placement
from policies.model.reasons import Reason
from service.engine.cycle import EngineSettings
from service.engine.engine import Engine, Ports
from service.engine.events import JobEvent
from service.engine.memory import MemoryStore
from service.engine.ports import CycleBatch, Predictor, Sink
from service.engine.record import JobRecord
from service.engine.world import Costs
from service.sim.clock import Priority, SimClock
from service.sim.drive import Drive
from service.sim.executor import ExecutorCosts, SimulatedExecutor
from service.sim.faults import NO_FAULTS, FaultCounts, FaultPlan, Faults
from service.sim.jobs import SimJob, SimJobs, bounds_of, prepare
from service.sim.locating import LocatingPredictor
from service.sim.network import network_of, parse_network
from service.sim.predictors import ListenedPredictor, Listener, make_predictor
from service.sim.results import JobOutcome, Simulation, Span, Unfinished, summarise
from service.sim.sensitivity import Sensitivity
from service.sim.work import JobTruth
from service.sim.workloads.model import Workload

PROGRESS_CALLS = 1000
"""How often a run of many jobs tells its progress."""


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """Costs and choices of a run; defaults as those of ``sooner sim run``. Seconds.

    ``network``: as :func:`service.sim.network.parse_network` takes it.
    ``sensitivity``: whether jobs without a stage graph have hidden slowdowns by span, and what their estimates say of them.
    ``faults``: the faults to inject, by default none.
    ``keep_spans``: keep every attempt of every job, which a report's pictures need and large runs have no memory for.
    """

    checkpoint_s: float = 0.0
    restart_s: float = 60.0
    checkpoint_period_s: float | None = 300.0
    launch_latency_s: float = 0.0
    stop_latency_s: float = 0.0
    network: str = "reserved"
    sensitivity: Sensitivity = Sensitivity.NONE
    seed: int = 0
    skip_invalid: bool = False
    keep_spans: bool = False
    faults: FaultPlan = NO_FAULTS


def run(
    workload: Workload,
    cluster: Cluster,
    policy: Policy[Any],
    predictor: str = "oracle",
    options: SimulationOptions | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Simulation:
    """Simulate the workload to its end.

    ``on_progress(finished, jobs)`` is called whenever a further thousandth of the jobs has ended. Raises
    :class:`~service.sim.workloads.files.WorkloadError` for a job that cannot run on the cluster, PredictorNameError for an
    unknown predictor, and :class:`~service.sim.drive.SimulationStuck`.
    """
    options = options or SimulationOptions()
    prepared = prepare(
        workload,
        cluster,
        checkpoint_period_s=options.checkpoint_period_s,
        skip_invalid=options.skip_invalid,
        slowdowns_seed=None if options.sensitivity is Sensitivity.NONE else options.seed,
    )
    return run_jobs(prepared, cluster, policy, predictor, options, on_progress)


def run_jobs(
    prepared: SimJobs,
    cluster: Cluster,
    policy: Policy[Any],
    predictor: str,
    options: SimulationOptions,
    on_progress: Callable[[int, int], None] | None = None,
    on_prediction: Listener | None = None,
) -> Simulation:
    """As :func:`run`, for jobs that do not come from a table and have more fields than its columns.

    ``on_prediction(job, prediction)`` is called with the prediction of each submitted job.
    """
    jobs = prepared.jobs
    bounds = bounds_of(jobs, cluster)
    simulator = Simulator(jobs, cluster, policy, predictor, options, on_prediction)
    simulator.run(on_progress)
    outcomes = simulator.outcomes()
    result = summarise(
        outcomes,
        policy=simulator.engine.policy.name,
        predictor=predictor,
        seed=options.seed,
        jobs=len(jobs),
        skipped=prepared.skipped,
        first_submission_s=jobs[0].row.submit_time_s if jobs else 0.0,
        bounds=bounds,
        events=simulator.clock.events,
    )
    return Simulation(result, outcomes, cluster, simulator.unfinished(), simulator.fault_counts())


class Simulator:
    """The engine and its simulated ports, driven from event to event. Tests inject faults through ``executor``."""

    def __init__(
        self,
        jobs: Sequence[SimJob],
        cluster: Cluster,
        policy: Policy[Any],
        predictor: str,
        options: SimulationOptions,
        on_prediction: Listener | None = None,
    ) -> None:
        self._jobs = jobs
        self._on_prediction = on_prediction
        self._arrivals = iter(jobs)
        self._next: SimJob | None = next(self._arrivals, None)
        self.clock = SimClock(self._next.row.submit_time_s if self._next is not None else 0.0)
        self.store = MemoryStore(needed={needed for job in jobs for needed in job.spec.needs})
        # These hold a job from its submission to its end.
        self._present: dict[JobId, SimJob] = {}
        self._truths: dict[JobId, JobTruth] = {}
        self._sink = _Ends(options.keep_spans, self._present, self._truths)
        self.executor = SimulatedExecutor(
            self.clock,
            cluster,
            self._truths,
            ExecutorCosts(options.checkpoint_s, options.restart_s, options.launch_latency_s, options.stop_latency_s),
            network_of(options.network, cluster),
        )
        # What the policy sees: it may foresee contention.
        cluster = replace(cluster, contention=parse_network(options.network))
        self._faults: Faults | None = None
        sink: Sink = self._sink
        if options.faults.eventful:
            sink = self._faults = Faults(
                options.faults, options.seed, jobs, self.clock, self.executor, self.store, self._sink
            )
        self.engine: Engine[Any] = Engine(
            policy,
            cluster,
            Ports(
                self.store,
                self.executor,
                self.clock,
                self._predictor(predictor, options),
                sink,
            ),
            Costs(options.checkpoint_s, options.restart_s),
            # A trace's walltime is for predictors and backfilling; the run times already show its effect.
            EngineSettings(enforce_walltime=False, facts_per_cycle_max=len(jobs) + 1, dump_every_s=inf),
        )
        self._sink.promised_end_s = self.engine.promised_end_s
        self._drive = Drive(self.engine, self.clock)
        self._schedule_arrival()
        if self._faults is not None:
            self._faults.begin([server.name for server in cluster.servers], self._active)

    def _predictor(self, name: str, options: SimulationOptions) -> Predictor:
        predictor = make_predictor(name, self._jobs, options.seed, self._present)
        if self._on_prediction is not None:
            predictor = ListenedPredictor(predictor, self._on_prediction)
        if options.sensitivity is Sensitivity.NONE:
            return predictor
        return LocatingPredictor(predictor, self._present, options.sensitivity)

    def _active(self) -> bool:
        """Whether a job holds GPUs or is still to arrive."""
        return self._next is not None or bool(self.engine.world.holding())

    def run(self, on_progress: Callable[[int, int], None] | None = None) -> None:
        """Simulate until no event is left."""
        ended, jobs = self._sink.ended, len(self._jobs)
        told_at = 1
        while self.step():
            if on_progress is not None and len(ended) >= told_at:
                on_progress(len(ended), jobs)
                told_at = min(jobs, len(ended) + max(1, jobs // PROGRESS_CALLS))

    def step(self) -> bool:
        """Process all events of the next instant, then run one cycle. False if no event is left that matters."""
        if self._faults is not None and self._faults.over:
            return False
        return self._drive.step()

    def _schedule_arrival(self) -> None:
        """Arrivals enter the heap one at a time, so that it stays as small as the number of running jobs."""
        if self._next is not None:
            self.clock.schedule(self._next.row.submit_time_s, Priority.ARRIVAL, self._arrive)

    def _arrive(self) -> None:
        job = self._next
        assert job is not None
        self._next = next(self._arrivals, None)
        self._present[job.id] = job
        self._truths[job.id] = job.truth()
        self.store.submit(
            JobRecord(job.id, job.spec, job.row.submit_time_s, priority=job.spec.priority, iteration_times=job.times)
        )
        self._schedule_arrival()

    def outcomes(self) -> list[JobOutcome]:
        """The jobs that ended, in order of submission."""
        return [outcome for _, outcome in sorted(self._sink.ended.items())]

    def unfinished(self) -> list[Unfinished]:
        """The jobs that did not succeed, in order of submission, each with the reason why."""
        ended, failed = self._sink.ended, self._sink.failed
        given_up = self._faults.given_up if self._faults is not None else {}
        found = []
        if len(ended) < len(self._jobs) or failed:
            for job in self._jobs:
                if job.id not in ended:
                    found.append(Unfinished(job.row.job_id, self._why_waiting(job)))
                elif job.id in failed:
                    found.append(Unfinished(job.row.job_id, given_up.get(job.id, failed[job.id])))
        return found

    def _why_waiting(self, job: SimJob) -> Reason:
        """The policy gives a reason for the jobs that it tries; for those behind them this checks whether they fit."""
        world = self.engine.world
        if job.id not in world.jobs:
            return Reason.NEW
        reason = world.jobs[job.id].reason
        return reason if fits_usable(world, job.spec) else Reason.NO_SUCH_SERVERS

    def fault_counts(self) -> FaultCounts | None:
        """The injected faults; None in a run without faults."""
        if self._faults is None:
            return None
        lost_gpu_s = self._sink.lost_gpu_s
        lost_gpu_s += sum(self._present[job].row.gpus * truth.lost_s for job, truth in self._truths.items())
        return replace(self._faults.counts, lost_gpu_s=lost_gpu_s)


@dataclass(slots=True)
class _Ends:
    """Sink: keeps the last attempt (or with ``keep_spans`` all) of running jobs, and the outcomes of those that ended."""

    keep_spans: bool
    present: dict[JobId, SimJob]
    truths: dict[JobId, JobTruth]
    ended: dict[JobId, JobOutcome] = field(default_factory=dict)
    failed: dict[JobId, Reason] = field(default_factory=dict)
    lost_gpu_s: float = 0.0
    promised_end_s: Callable[[JobId], float | None] = lambda job: None
    """Asked at each start, since the promise is forgotten at the end."""
    _promised_s: dict[JobId, float] = field(default_factory=dict)
    _spans: dict[JobId, list[Span]] = field(default_factory=dict)
    _placements: dict[Placement, Placement] = field(default_factory=dict)
    _gpu_ids: dict[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]] = field(default_factory=dict)

    def transition(self, event: JobEvent, job: JobRecord) -> None:
        """Record starts, returns to the queue and ends."""
        if event.target is JobState.STARTING and job.attempt is not None:
            span = Span(event.at_s, inf, job.attempt.placement, job.attempt.gpu_ids)
            if self.keep_spans:
                self._spans.setdefault(job.id, []).append(span)
            else:
                self._spans[job.id] = [span]
            if (end_s := self.promised_end_s(job.id)) is not None:
                self._promised_s[job.id] = end_s
        elif event.target in TERMINAL:
            self._close(event, job.id)
            self._end(job)
        elif event.target is JobState.QUEUED:
            self._close(event, job.id)

    def _end(self, record: JobRecord) -> None:
        """Reduce the job to its outcome."""
        job, truth = self.present.pop(record.id), self.truths.pop(record.id)
        spans = self._spans.pop(record.id, [])
        if spans and len(spans[-1].placement.shares) == 1:
            # Shared objects save memory: most jobs of a large run are small, with placements that others had before.
            last = spans[-1]
            placement = self._placements.setdefault(last.placement, last.placement)
            gpu_ids = self._gpu_ids.setdefault(last.gpu_ids, last.gpu_ids)
            spans[-1] = Span(last.start_s, last.end_s, placement, gpu_ids)
        promised_end_s = self._promised_s.pop(record.id, None)
        self.ended[record.id] = _outcome(job, record, spans, truth, self.keep_spans, promised_end_s)
        self.lost_gpu_s += job.row.gpus * truth.lost_s
        if record.state is not JobState.SUCCEEDED:
            self.failed[record.id] = record.reason

    def _close(self, event: JobEvent, job: JobId) -> None:
        if self.keep_spans and event.source in HOLDS_GPUS:
            spans = self._spans[job]
            last = spans[-1]
            spans[-1] = Span(last.start_s, event.at_s, last.placement, last.gpu_ids)

    def cycle(self, batch: CycleBatch) -> None:
        """Cycles are not kept."""


def _outcome(
    job: SimJob,
    record: JobRecord,
    spans: Sequence[Span],
    truth: JobTruth,
    keep_spans: bool,
    promised_end_s: float | None,
) -> JobOutcome:
    """Times from the engine, true progress from the executor (the engine sees it only through reports)."""
    assert record.finished_at_s is not None
    gpus = job.row.gpus
    held_s = record.held_gpu_s / gpus
    started_at_s = record.first_started_at_s
    return JobOutcome(
        job_id=job.row.job_id,
        submit_time_s=job.row.submit_time_s,
        start_time_s=started_at_s if started_at_s is not None else record.finished_at_s,
        finish_time_s=record.finished_at_s,
        duration_s=job.row.duration_s,
        walltime_s=job.row.walltime_s,
        succeeded=record.state is JobState.SUCCEEDED,
        gpus=gpus,
        preemptions=record.preemptions,
        held_s=held_s,
        wasted_s=max(0.0, held_s - truth.productive_s),
        placement=spans[-1].placement if spans else Placement(()),
        gpu_ids=spans[-1].gpu_ids if spans else (),
        user=job.row.user,
        prediction_log_error=_log_error(job, record.estimate),
        spans=tuple(spans) if keep_spans else (),
        promised_end_s=promised_end_s,
    )


def _log_error(job: SimJob, estimate: Estimate | None) -> float | None:
    """ln(median / truth) in the estimate's own unit."""
    if estimate is None:
        return None
    truth = job.row.duration_s if estimate.unit is Unit.SERVICE_S else job.iterations
    return log(estimate.median / truth) if truth is not None and estimate.median > 0.0 else None
