"""Metrics that are read at each scrape: queue, cluster, loop, models.

O(servers + running jobs + queued jobs before the first one that waits for GPUs) under the loop's lock.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from policies.lifecycle import JobState
from policies.model.ids import ServerIndex
from predictor.serving import PredictorStatus
from service.domain.waiting import NOT_WAITING_FOR_GPUS
from service.engine.engine import Engine
from service.telemetry.metrics import NAMESPACE, Metrics

INTERVAL_LEVEL = "0.8"
"""The interval whose coverage is tracked."""


@dataclass(frozen=True, slots=True)
class QueueNow:
    """Queue and cluster between two cycles. ``oldest_queued_at_s``: submission time of the oldest job that waits for GPUs."""

    jobs: Mapping[JobState, int]
    gpus: Mapping[str, int]
    fragmentation: float
    oldest_queued_at_s: float | None
    rejected: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class LoopNow:
    """Whether this process is the leader, the end of its last cycle (seconds since the epoch), and the newest cycle's number."""

    leads: bool
    last_cycle_at_s: float | None
    cycle: int


@dataclass(frozen=True, slots=True)
class Readings:
    """The sources of a scrape. Any thread may call each of them."""

    now_s: Callable[[], float]
    loop: Callable[[], LoopNow]
    queue: Callable[[], QueueNow | None]
    """None while this process is not the leader."""
    predictor: Callable[[], PredictorStatus | None]
    retrainings: Callable[[], Mapping[str, int]]
    migrated: Callable[[], bool]
    version: str = field(default="")


def queue_now(engine: Engine[Any]) -> QueueNow:
    """Read the state of an engine between two cycles."""
    world = engine.world
    jobs = dict.fromkeys(
        (JobState.QUEUED, JobState.STARTING, JobState.RUNNING, JobState.PREEMPTING, JobState.CANCELLING), 0
    )
    held = 0
    for job_id in world.holding():
        job = world.jobs[job_id]
        jobs[job.state] += 1
        held += job.spec.gpus
    jobs[JobState.QUEUED] = len(world.jobs) - sum(jobs.values())
    waiting = (
        job.submitted_at_s
        for job in world.jobs.values()
        if job.state is JobState.QUEUED and job.reason not in NOT_WAITING_FOR_GPUS
    )
    oldest = next(waiting, None)
    total, usable, free, stranded = 0, 0, 0, 0
    for index, server in enumerate(world.cluster.servers):
        here, may = world.free_gpus(ServerIndex(index)), world.usable_gpus(ServerIndex(index))
        total += server.gpus
        usable += may
        free += here
        stranded += here if here < may else 0
    prefix = "violated_"
    rejected = {name.removeprefix(prefix): n for name, n in engine.counters.items() if name.startswith(prefix)}
    gpus = {"total": total, "held": held, "free": free, "unusable": total - usable}
    return QueueNow(jobs, gpus, stranded / free if free else 0.0, oldest, rejected)


class ScrapeCollector(Collector):
    """Registry collector of the metrics that are read at each scrape."""

    def __init__(self, readings: Readings) -> None:
        self._readings = readings

    def describe(self) -> list[Metric]:
        """Return nothing, so that registration reads nothing."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Read each source once."""
        readings = self._readings
        loop = readings.loop()
        yield InfoMetricFamily(f"{NAMESPACE}_build", "Version of the program.", {"version": readings.version})
        yield _gauge("leader", "1 if this process is the leader.", float(loop.leads))
        yield _gauge("migrations_pending", "1 while the database needs a migration.", float(not readings.migrated()))
        if loop.last_cycle_at_s is not None:
            help_text = "Time of the last scheduling cycle that ended without an exception."
            yield _gauge("cycle_last_success_timestamp_seconds", help_text, loop.last_cycle_at_s)
        yield _gauge("cycle_number", "Number of the newest cycle with changes.", float(loop.cycle))
        yield _counter("retrainings", "Trainings that have ended.", "outcome", readings.retrainings())
        queue = readings.queue()
        if queue is not None:
            yield from _queue_metrics(queue, readings.now_s())
        status = readings.predictor()
        if status is not None:
            yield from _predictor_metrics(status)


def _queue_metrics(queue: QueueNow, now_s: float) -> Iterator[Metric]:
    yield _gauges("jobs", "Unfinished jobs.", "state", {state.value: count for state, count in queue.jobs.items()})
    yield _gauges("gpus", "GPUs; unusable ones are on servers that are down or drained.", "state", queue.gpus)
    meaning = "Share of the free GPUs that are on servers with held GPUs."
    yield _gauge("gpu_fragmentation_ratio", meaning, queue.fragmentation)
    age_s = 0.0 if queue.oldest_queued_at_s is None else max(0.0, now_s - queue.oldest_queued_at_s)
    yield _gauge(
        "queue_oldest_age_seconds",
        "Age of the oldest queued job that is not held, waits for no other job and for no retry.",
        age_s,
    )
    yield _counter("decisions_rejected", "Violated invariants of rejected decisions.", "invariant", queue.rejected)


def _predictor_metrics(status: PredictorStatus) -> Iterator[Metric]:
    yield InfoMetricFamily(f"{NAMESPACE}_model", "The champion model.", {"version": status.model_version})
    coverage = GaugeMetricFamily(
        f"{NAMESPACE}_prediction_interval_coverage_ratio",
        "Share of ended jobs within the interval of that level, over the newest jobs of a history bucket.",
        labels=("level", "unit", "bucket"),
    )
    weights = GaugeMetricFamily(
        f"{NAMESPACE}_prediction_weight_ratio",
        "Weight of an expert in the median of the predictions for a history bucket.",
        labels=("expert", "unit", "bucket"),
    )
    drifting = GaugeMetricFamily(f"{NAMESPACE}_prediction_drifting", "1 while the drift alarm is on.", labels=("unit",))
    for unit, buckets in status.buckets.items():
        drifting.add_metric((unit.value,), float(status.drifting[unit]))
        for bucket in buckets:
            for expert, share in bucket.weights.items():
                weights.add_metric((expert, unit.value, bucket.bucket), share)
            if bucket.coverage is not None:
                coverage.add_metric((INTERVAL_LEVEL, unit.value, bucket.bucket), bucket.coverage)
    yield coverage
    yield weights
    yield drifting
    alarms = {unit.value: count for unit, count in status.drift_alarms.items()}
    yield _counter("prediction_drift_alarms", "Drift alarms of the prediction errors.", "unit", alarms)


def _gauge(name: str, meaning: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{NAMESPACE}_{name}", meaning, value=value)


def _gauges(name: str, meaning: str, label: str, values: Mapping[str, int]) -> Metric:
    family = GaugeMetricFamily(f"{NAMESPACE}_{name}", meaning, labels=(label,))
    for value, count in values.items():
        family.add_metric((value,), float(count))
    return family


def _counter(name: str, meaning: str, label: str, values: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(f"{NAMESPACE}_{name}", meaning, labels=(label,))
    for value, count in values.items():
        family.add_metric((value,), float(count))
    return family


def exposition(metrics: Metrics) -> bytes:
    """All metrics in the Prometheus text format."""
    return generate_latest(metrics.registry)
