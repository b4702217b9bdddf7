"""Prometheus metrics of the service: names, units and descriptions, in a registry of their own.

Names begin with ``sooner_``, units are base units, and counters end in ``_total``. No label holds a job, a user or another value
of unbounded number. Events (transitions, cycles, requests) are counted when they happen. The state of the service is read at
each scrape (:mod:`service.telemetry.scrape`).
"""

from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics

from policies.lifecycle import TERMINAL, Cause, JobState
from policies.model.estimate import Estimate, Unit
from policies.model.ids import JobId
from policies.model.reasons import Reason
from service.engine.events import JobEvent
from service.engine.ports import CycleBatch, JobWrite, Sink
from service.engine.record import JobRecord

NAMESPACE = "sooner"

# The ``_created`` series of each counter and histogram would be half of the page and are not used.
disable_created_metrics()  # type: ignore[no-untyped-call]

WAITING_BUCKETS_S = (1.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 12 * 3600.0, 86_400.0, 7 * 86_400.0)
"""From a second to a week: queueing delays and completion times."""

SLOWDOWN_BUCKETS = (1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0, 1000.0)

PHASE_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)

ERROR_BUCKETS = (0.01, 0.1, 0.25, 0.5, 0.8, 1.0, 1.25, 2.0, 4.0, 10.0, 100.0)
"""Predicted over actual. Ratios of 0.25 and below harm shortest-remaining-first most."""

SOURCES = frozenset({"recurrence", "recurrence on other GPU counts", "cold start", "declared"})
"""Prefixes of the source of an estimate without a model (:mod:`predictor.fallback`)."""

SLOWDOWN_S_MIN = 10.0
"""Lower limit of the service time in the slowdown (bounded slowdown), as in the simulator's results."""


class Metrics:
    """The counters and histograms of one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.job_ends = self._counter("job_ends", "Jobs that reached a terminal state.", "state")
        self.queueing_delay = self._histogram(
            "job_queueing_delay_seconds", "From submission to the first start.", WAITING_BUCKETS_S
        )
        self.completion_time = self._histogram(
            "job_completion_time_seconds", "From submission to a successful end.", WAITING_BUCKETS_S
        )
        self.slowdown = self._histogram(
            "job_slowdown_ratio",
            f"Completion time over the time of work that counted (at least {SLOWDOWN_S_MIN:g} s), of successful jobs.",
            SLOWDOWN_BUCKETS,
        )
        self.preemptions = self._counter("preemptions", "Running jobs stopped so that they resume later.", "reason")
        self.wasted = self._counter(
            "preemption_wasted_gpu_seconds", "GPU-seconds of ended jobs that were held without lasting progress."
        )
        self.retries = self._counter("job_retries", "Attempts that failed with a retryable reason.", "reason")
        self.cycle_duration = self._histogram(
            "cycle_duration_seconds", "Time of a scheduling cycle and of its phases.", PHASE_BUCKETS_S, "phase"
        )
        self.cycles = self._counter("cycles", "Scheduling cycles.", "outcome")
        self.actions = self._counter("decision_actions", "Actions of decisions that were committed.", "action")
        self.server_events = self._counter("server_events", "Changes of servers.", "kind")
        self.health_signs = self._counter("health_signs", "Signs of faulty servers that became events.", "sign")
        self.prediction_error = self._histogram(
            "prediction_error_ratio",
            "First predicted median of an ended job over the actual value.",
            ERROR_BUCKETS,
            "source",
        )
        self.commands = self._counter("executor_commands", "Commands to the executor.", "command", "outcome")
        self.webhook_attempts = self._counter("webhook_attempts", "Attempts to deliver to a webhook.", "outcome")
        self.requests = self._counter("http_requests", "Answered requests.", "method", "route", "status")
        self.request_duration = self._histogram(
            "http_request_duration_seconds",
            "From the head of a request to the end of its answer.",
            PHASE_BUCKETS_S,
            "route",
        )

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        return Counter(f"{NAMESPACE}_{name}", meaning, labels, registry=self.registry)

    def _histogram(self, name: str, meaning: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(f"{NAMESPACE}_{name}", meaning, labels, registry=self.registry, buckets=buckets)


class _FirstPrediction(NamedTuple):
    """Its median and unit, and the kind of its source: all that its error needs."""

    median: float
    unit: Unit
    kind: str


class MetricsSink:
    """Counts transitions and cycles, then passes them on. O(1) per transition."""

    def __init__(self, inner: Sink, metrics: Metrics) -> None:
        self._inner = inner
        self._metrics = metrics
        self._first: dict[JobId, _FirstPrediction] = {}

    def predicted(self, job: JobId, estimate: Estimate) -> None:
        """Note the first prediction of an unfinished job. Later ones are ignored."""
        if job not in self._first:
            self._first[job] = _FirstPrediction(estimate.median, estimate.unit, source_kind(estimate))

    def transition(self, event: JobEvent, job: JobRecord) -> None:
        """Count the transition, then pass it on."""
        metrics = self._metrics
        if event.cause is Cause.STARTED:
            metrics.commands.labels("launch", "started").inc()
            if job.attempts == 1:
                metrics.queueing_delay.observe(max(0.0, event.at_s - job.submitted_at_s))
        elif event.cause is Cause.RETRYABLE_FAILURE:
            metrics.retries.labels(event.reason.value).inc()
        elif event.cause is Cause.STOPPED:
            metrics.commands.labels("stop", "stopped").inc()
            if event.target is JobState.QUEUED:
                metrics.preemptions.labels(event.reason.value).inc()
        failed = event.cause in (Cause.RETRYABLE_FAILURE, Cause.FATAL_FAILURE)
        if event.reason is Reason.LAUNCH_FAILED or (failed and event.source is JobState.STARTING):
            metrics.commands.labels("launch", "failed").inc()
        if event.target in TERMINAL:
            self._ended(event, job)
        self._inner.transition(event, job)

    def _ended(self, event: JobEvent, job: JobRecord) -> None:
        metrics = self._metrics
        metrics.job_ends.labels(event.target.value).inc()
        metrics.wasted.inc(max(0.0, job.wasted_gpu_s))
        if event.target is JobState.SUCCEEDED:
            # The event has the time at which the service learned of the end.
            assert job.finished_at_s is not None
            jct_s = max(0.0, job.finished_at_s - job.submitted_at_s)
            metrics.completion_time.observe(jct_s)
            metrics.slowdown.observe(jct_s / max(job.service_s, SLOWDOWN_S_MIN))

    def cycle(self, batch: CycleBatch) -> None:
        """Count the cycle's actions and score its labels, then pass it on."""
        for action in batch.actions:
            self._metrics.actions.labels(type(action).__name__.lower()).inc()
        for event in batch.server_events:
            self._metrics.server_events.labels(event.kind.value).inc()
        for job, write in batch.writes.items():
            if write.prediction is not None:
                self.predicted(job, write.prediction.estimate)
            if write.job.finished:
                self._score(write, self._first.pop(job, None))
        self._inner.cycle(batch)

    def _score(self, write: JobWrite, first: _FirstPrediction | None) -> None:
        """Later estimates have seen how the job ran: shortly before its end they are always right."""
        label = write.label
        if first is None or label is None:
            return
        actual = label.iterations if first.unit is Unit.ITERATIONS else label.service_s
        if actual is not None and actual > 0.0:
            self._metrics.prediction_error.labels(first.kind).observe(first.median / actual)


def source_kind(estimate: Estimate) -> str:
    """The kind of an estimate's source, one of a few words. The source itself holds numbers, so it cannot be a label."""
    if estimate.model_version:
        return "model"
    kind = estimate.source.partition(":")[0]
    return kind.lower().replace(" ", "_") if kind in SOURCES else "other"
