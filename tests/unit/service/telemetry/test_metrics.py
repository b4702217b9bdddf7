"""What the service counts: stories with known numbers, read back as a scraper would read them."""

from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from policies.lifecycle import Cause, JobState
from policies.model.estimate import Estimate, Unit
from policies.model.ids import JobId
from policies.model.job import JobSpec
from policies.model.reasons import Reason
from predictor.serving import LivePredictor
from service.engine.engine import Engine, Ports
from service.engine.events import JobEvent
from service.engine.memory import MemoryStore
from service.engine.ports import CycleBatch, StoreUnavailable
from service.engine.record import JobRecord
from service.engine.world import Costs
from service.telemetry.metrics import Metrics, MetricsSink, source_kind
from service.telemetry.phases import (
    PHASES,
    MeasuredExecutor,
    MeasuredPolicy,
    MeasuredPredictor,
    MeasuredStore,
    Phases,
)
from service.telemetry.scrape import LoopNow, Readings, ScrapeCollector, exposition, queue_now
from tests.null_sink import NullSink
from tests.scenarios.dsl import Story, policy


class Measured(Story):
    """A story whose ports are measured."""

    def __init__(self, shape: str, name: str = "fifo_backfill", **more: Any) -> None:
        self.metrics = Metrics()
        self.phases = Phases(self.metrics)
        super().__init__(shape, MeasuredPolicy(policy(name, **more), self.phases))

    def _engine(self) -> Engine[Any]:
        phases = self.phases
        ports = Ports(
            MeasuredStore(self.store, phases),
            MeasuredExecutor(self.wire, phases),
            self.clock,
            MeasuredPredictor(self.told, phases),
            MetricsSink(self.log, self.metrics),
        )
        return Engine(self.policy, self.cluster, ports, Costs(0.0, 0.0), self.settings)

    def value(self, name: str, **labels: str) -> float | None:
        """One sample of the registry."""
        return self.metrics.registry.get_sample_value(f"sooner_{name}", labels)


def test_ends_delays_and_slowdowns_computed_by_hand() -> None:
    story = Measured("1x4")
    story.job("first", gpus=4, runs_s=100).job("second", gpus=4, runs_s=20).job("third", gpus=1, runs_s=5)
    story.until(50).cancel("third").until(1000)
    assert story.value("job_ends_total", state="succeeded") == 2
    assert story.value("job_ends_total", state="cancelled") == 1
    assert story.value("job_queueing_delay_seconds_sum") == 0 + 100, (
        "the second waits for the first; the third never starts"
    )
    assert story.value("job_queueing_delay_seconds_count") == 2
    assert story.value("job_completion_time_seconds_sum") == 100 + 120
    assert story.value("job_slowdown_ratio_sum") == pytest.approx(100 / 100 + 120 / 20)
    assert story.value("executor_commands_total", command="launch", outcome="sent") == 2
    assert story.value("executor_commands_total", command="launch", outcome="started") == 2


def test_a_job_that_ended_while_the_service_was_away_was_complete_then() -> None:
    story = Measured("1x4").job("a", gpus=4, runs_s=100).until(10).away_until(4000).until(4000)
    assert story.value("job_completion_time_seconds_sum") == 100
    assert story.value("job_slowdown_ratio_sum") == pytest.approx(1.0)


@pytest.mark.parametrize("reason", [Reason.LAUNCH_FAILED, Reason.COMMAND_NOT_FOUND, Reason.RETRIES_EXHAUSTED])
def test_a_launch_has_failed_whatever_the_reason(reason: Reason) -> None:
    metrics = Metrics()
    sink = MetricsSink(NullSink(), metrics)
    job = JobRecord(JobId(1), JobSpec("a", "u", 1), 0.0, state=JobState.FAILED, attempts=1)
    for source, why in ((JobState.STARTING, reason), (JobState.RUNNING, Reason.CRASHED)):
        sink.transition(JobEvent(job.id, 10.0, source, JobState.FAILED, Cause.FATAL_FAILURE, why, 7), job)
    failed = {"command": "launch", "outcome": "failed"}
    assert metrics.registry.get_sample_value("sooner_executor_commands_total", failed) == 1


def test_a_job_that_finishes_before_it_is_stopped_is_not_preempted() -> None:
    """As the job itself counts: its attempt ended as completed."""
    metrics = Metrics()
    sink = MetricsSink(NullSink(), metrics)
    first, second = (JobRecord(JobId(number), JobSpec("a", "u", 1), 0.0, attempts=1) for number in (1, 2))
    for job in (first, second):
        told = JobEvent(job.id, 10.0, JobState.RUNNING, JobState.PREEMPTING, Cause.PREEMPT_DECIDED, Reason.PREEMPTED, 7)
        sink.transition(told, job)
    first.finished_at_s = 12.0
    ends = (
        (first, JobState.SUCCEEDED, Cause.FINISHED_FIRST, Reason.COMPLETED),
        (second, JobState.QUEUED, Cause.STOPPED, Reason.PREEMPTED),
    )
    for job, target, cause, reason in ends:
        sink.transition(JobEvent(job.id, 12.0, JobState.PREEMPTING, target, cause, reason, 8), job)
    assert metrics.registry.get_sample_value("sooner_preemptions_total", {"reason": "preempted"}) == 1


def test_a_job_that_starts_to_run_and_ends_in_one_cycle_has_one_end() -> None:
    """The record that comes with both events is the one after the cycle."""
    metrics = Metrics()
    sink = MetricsSink(NullSink(), metrics)
    job = JobRecord(JobId(1), JobSpec("a", "u", 1), 0.0, state=JobState.SUCCEEDED, attempts=1, wasted_gpu_s=5.0)
    job.finished_at_s = 12.0
    began = JobEvent(job.id, 10.0, JobState.STARTING, JobState.RUNNING, Cause.STARTED, Reason.STARTED, 7)
    sink.transition(began, job)
    ended = JobEvent(job.id, 12.0, JobState.RUNNING, JobState.SUCCEEDED, Cause.EXITED_ZERO, Reason.COMPLETED, 7)
    sink.transition(ended, job)
    count = metrics.registry.get_sample_value
    assert count("sooner_job_ends_total", {"state": "running"}) is None
    assert count("sooner_job_ends_total", {"state": "succeeded"}) == 1
    assert count("sooner_preemption_wasted_gpu_seconds_total") == 5.0


def test_a_preempted_job_counts_its_stop_its_waste_and_its_delay_once() -> None:
    story = Measured("1x4", "srsf", attempt_duration_s_min=0, preempt_unsaved="priority")
    story.job("long", gpus=4, runs_s=1000, preemption=None, checkpoint_period_s=None)
    story.until(100).job("short", gpus=4, runs_s=10, priority=1).until(5000)
    assert story.value("preemptions_total", reason="preempted") == 1
    assert story.value("executor_commands_total", command="stop", outcome="stopped") == 1
    assert story.value("preemption_wasted_gpu_seconds_total") == pytest.approx(4 * 100), "it cannot checkpoint"
    assert story.value("job_queueing_delay_seconds_count") == 2, "the second start of the long one is no queueing"
    assert story.value("decision_actions_total", action="preempt") == 1
    assert story.value("decision_actions_total", action="start") == 3


def test_every_phase_is_measured_also_if_it_fails() -> None:
    story = Measured("1x4")
    story.job("a").until(100)
    for phase in PHASES[1:]:
        assert story.value("cycle_duration_seconds_count", phase=phase), phase

    class Broken(MemoryStore):
        def commit(self, batch: CycleBatch) -> frozenset[JobId]:
            raise StoreUnavailable("gone")

    before = story.value("cycle_duration_seconds_count", phase="commit")
    assert before is not None
    with pytest.raises(StoreUnavailable):
        MeasuredStore(Broken(), story.phases).commit(None)  # type: ignore[arg-type]
    assert story.value("cycle_duration_seconds_count", phase="commit") == before + 1


def test_the_error_is_that_of_the_first_prediction() -> None:
    """The second one comes when the job has almost ended, and is right."""
    story = Measured("1x4")
    story.job("a", runs_s=100, predicted=20).until(90)
    story.told.outdated = [story.ids["a"]]
    story.told.points[story.ids["a"]] = (100.0,)
    story.job("b", runs_s=1).until(95)
    estimate = story.engine.world.jobs[story.ids["a"]].estimate
    assert estimate is not None
    assert estimate.median == 100.0
    story.until(1000)
    assert story.value("prediction_error_ratio_bucket", source="other", le="0.25") == 1


def test_prediction_errors_are_labelled_by_the_kind_of_source() -> None:
    story = Measured("1x4")
    story.job("right", runs_s=100, predicted=100).job("short", runs_s=100, predicted=20).until(1000)
    assert story.value("prediction_error_ratio_bucket", source="other", le="0.25") == 1
    assert story.value("prediction_error_ratio_bucket", source="other", le="1.0") == 2
    words = {
        "recurrence: 14 past runs, median 5,200 iterations": "recurrence",
        "recurrence on other GPU counts: 2 past runs, median 5 s": "recurrence_on_other_gpu_counts",
        "cold start: cluster median of 7 jobs, 30 s": "cold_start",
        "declared: 5 iterations, not confirmed by any past run": "declared",
        "anything: else": "other",
    }
    for said, kind in words.items():
        assert source_kind(Estimate((1.0,), Unit.SERVICE_S, said)) == kind
    assert source_kind(Estimate((1.0,), Unit.SERVICE_S, "recurrence: 1 past run", "m-7")) == "model"


def test_the_queue_metrics_equal_the_engine_state() -> None:
    story = Measured("2x4")
    story.job("big", gpus=3, runs_s=100).job("late", gpus=8, runs_s=10, at_s=7).until(10)
    now = queue_now(story.engine)
    assert now.jobs[JobState.RUNNING] == 1
    assert now.jobs[JobState.QUEUED] == 1
    assert now.gpus == {"total": 8, "held": 3, "free": 5, "unusable": 0}
    assert now.fragmentation == pytest.approx(1 / 5), "one of the five free ones is beside held ones"
    assert now.oldest_queued_at_s == 7
    story.hold("late").until(10)
    assert queue_now(story.engine).jobs[JobState.QUEUED] == 1
    assert queue_now(story.engine).oldest_queued_at_s is None, "as on the overview: a held job waits for no GPU"
    story.drain(1).until(11)
    assert queue_now(story.engine).gpus == {"total": 8, "held": 3, "free": 1, "unusable": 4}


def _readings(story: Measured | None, **other: Any) -> Readings:
    fields: dict[str, Callable[[], Any]] = {
        "now_s": lambda: 60.0,
        "loop": lambda: LoopNow(story is not None, 55.0, 3),
        "queue": lambda: queue_now(story.engine) if story is not None else None,
        "predictor": lambda: LivePredictor().status() if story is not None else None,
        "retrainings": lambda: {"promoted": 2, "failed": 1},
        "migrated": lambda: True,
    }
    return Readings(**{**fields, **other}, version="1.2.3")


def test_a_scrape_is_valid_and_names_version_and_leader() -> None:
    story = Measured("2x4")
    story.job("a", gpus=2, runs_s=100).job("b", gpus=8, at_s=10).until(20)
    story.metrics.registry.register(ScrapeCollector(_readings(story)))
    page = exposition(story.metrics).decode()
    assert "_created" not in page
    families = {family.name: family for family in text_string_to_metric_families(page)}
    assert all(family.documentation.endswith(".") for family in families.values())
    assert all(name.startswith("sooner_") for name in families)
    value = story.value
    assert value("leader") == 1
    assert value("jobs", state="queued") == 1
    assert value("gpus", state="held") == 2
    assert value("queue_oldest_age_seconds") == 50
    assert value("cycle_last_success_timestamp_seconds") == 55
    assert value("retrainings_total", outcome="promoted") == 2
    assert value("migrations_pending") == 0
    assert value("build_info", version="1.2.3") == 1
    assert value(
        "prediction_weight_ratio", expert="recurrence_median20", unit="iterations", bucket="1-4"
    ) == pytest.approx(0.3)


def test_a_standby_has_no_queue_metrics() -> None:
    registry = CollectorRegistry()
    registry.register(ScrapeCollector(_readings(None)))
    assert registry.get_sample_value("sooner_leader") == 0
    assert registry.get_sample_value("sooner_jobs", {"state": "queued"}) is None
    assert registry.get_sample_value("sooner_model_info", {"version": ""}) is None
