"""What the service counts and measures, for Prometheus: names, units and meaning in one place, a registry of its own.

Names begin with ``sooner_``, units are base units, counters end in ``_total``, and no label holds a job, a user or anything
else that there may be any number of. What is told by events (transitions, cycles, requests) is counted as it happens; what
is a state of the service is read when somebody scrapes (:mod:`service.telemetry.scrape`).
"""

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics

from policies.lifecycle import Cause, JobState
from policies.model.estimate import Estimate, Unit
from policies.model.reasons import Reason
from service.engine.events import JobEvent
from service.engine.ports import CycleBatch, JobWrite, Sink
from service.engine.record import JobRecord

NAMESPACE = "sooner"

# A series beside each counter and histogram that says since when it counts would be half of the page; nobody reads it.
disable_created_metrics()  # type: ignore[no-untyped-call]

WAITING_BUCKETS_S = (1.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 12 * 3600.0, 86_400.0, 7 * 86_400.0)
"""From what feels like nothing to a week: queueing delays and completion times."""

SLOWDOWN_BUCKETS = (1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0, 1000.0)

PHASE_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)

ERROR_BUCKETS = (0.01, 0.1, 0.25, 0.5, 0.8, 1.0, 1.25, 2.0, 4.0, 10.0, 100.0)
"""Predicted over actual; 0.25 and below is the tail that hurts shortest-remaining-first."""

SOURCES = frozenset({"recurrence", "recurrence on other GPU counts", "cold start", "declared"})
"""What the words of an estimate without a model begin with (:mod:`predictor.fallback`)."""

SLOWDOWN_S_MIN = 10.0
"""A job of less service counts as one of ten seconds, as in the simulator's results."""


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
            "preemption_wasted_gpu_seconds", "GPU-seconds held without progress that counts, of ended jobs."
        )
        self.retries = self._counter("job_retries", "Attempts that ended in a way that is tried again.", "reason")
        self.cycle_duration = self._histogram(
            "cycle_duration_seconds", "Time of a scheduling cycle, and of its phases.", PHASE_BUCKETS_S, "phase"
        )
        self.cycles = self._counter("cycles", "Scheduling cycles.", "outcome")
        self.actions = self._counter("decision_actions", "Actions that were decided and committed.", "action")
        self.prediction_error = self._histogram(
            "prediction_error_ratio", "Predicted median over what an ended job needed.", ERROR_BUCKETS, "source"
        )
        self.commands = self._counter("executor_commands", "Commands to the executor.", "command", "outcome")
        self.webhook_attempts = self._counter("webhook_attempts", "Attempts to deliver to a webhook.", "outcome")
        self.requests = self._counter("http_requests", "Answered requests.", "method", "route", "status")
        self.request_duration = self._histogram(
            "http_request_duration_seconds", "From a request's head to its answer's end.", PHASE_BUCKETS_S, "route"
        )

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        return Counter(f"{NAMESPACE}_{name}", meaning, labels, registry=self.registry)

    def _histogram(self, name: str, meaning: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(f"{NAMESPACE}_{name}", meaning, labels, registry=self.registry, buckets=buckets)


class MetricsSink:
    """Counts the engine's story and passes it on. O(1) a transition."""

    def __init__(self, inner: Sink, metrics: Metrics) -> None:
        self._inner = inner
        self._metrics = metrics

    def transition(self, event: JobEvent, job: JobRecord) -> None:
        """Count, and pass on."""
        metrics = self._metrics
        if event.cause is Cause.STARTED:
            metrics.commands.labels("launch", "started").inc()
            if job.attempts == 1:
                metrics.queueing_delay.observe(max(0.0, event.at_s - job.submitted_at_s))
        elif event.cause is Cause.PREEMPT_DECIDED:
            metrics.preemptions.labels(event.reason.value).inc()
        elif event.cause is Cause.RETRYABLE_FAILURE:
            metrics.retries.labels(event.reason.value).inc()
        elif event.cause is Cause.STOPPED:
            metrics.commands.labels("stop", "stopped").inc()
        if event.reason is Reason.LAUNCH_FAILED:
            metrics.commands.labels("launch", "failed").inc()
        if job.finished:
            self._ended(event, job)
        self._inner.transition(event, job)

    def _ended(self, event: JobEvent, job: JobRecord) -> None:
        metrics = self._metrics
        metrics.job_ends.labels(event.target.value).inc()
        metrics.wasted.inc(max(0.0, job.wasted_gpu_s))
        if event.target is JobState.SUCCEEDED:
            jct_s = max(0.0, event.at_s - job.submitted_at_s)
            metrics.completion_time.observe(jct_s)
            metrics.slowdown.observe(jct_s / max(job.service_s, SLOWDOWN_S_MIN))

    def cycle(self, batch: CycleBatch) -> None:
        """Count, and pass on."""
        for action in batch.actions:
            self._metrics.actions.labels(type(action).__name__.lower()).inc()
        for write in batch.writes.values():
            if write.label is not None:
                self._score(write)
        self._inner.cycle(batch)

    def _score(self, write: JobWrite) -> None:
        estimate, label = write.job.estimate, write.label
        if estimate is None or label is None:
            return
        actual = label.iterations if estimate.unit is Unit.ITERATIONS else label.service_s
        if actual is not None and actual > 0.0:
            self._metrics.prediction_error.labels(source_kind(estimate)).observe(estimate.median / actual)


def source_kind(estimate: Estimate) -> str:
    """Who made an estimate, in one word of few: its own words hold numbers and would be without end."""
    if estimate.model_version:
        return "model"
    kind = estimate.source.partition(":")[0]
    return kind.lower().replace(" ", "_") if kind in SOURCES else "other"
