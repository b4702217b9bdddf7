"""What one pass promises when its transaction fails, rows go stale, or a port misbehaves."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from policies.lifecycle import Cause, JobState
from policies.model.decision import Change, ChangeKind, Decision, Preempt, Reserve, Start
from policies.model.estimate import LossCurve
from policies.model.ids import JobId, ServerIndex
from policies.model.job import PROFILE_LABEL, JobSpec
from policies.model.placement import ServerShare, SpanSeconds, place
from policies.model.reasons import PROMISED_END, Reason
from policies.model.view import ClusterView
from service.engine.commands import Command, Launch
from service.engine.cycle import Cycle, EngineSettings
from service.engine.engine import Engine
from service.engine.estimates import CURVES_PER_CYCLE_MAX, note_loss
from service.engine.events import EngineRequest, Report, ReportKind, RequestKind, Warned
from service.engine.ports import CycleBatch, StoreUnavailable
from service.engine.record import JobRecord, StoredWorld
from service.sim.executor import ExecutorCosts
from tests.durable_store import DurableStore
from tests.scenarios.dsl import Story, cluster, policy


class Tampered:
    """A memory store on which a test lays its hands just before a commit, or which does not answer."""

    def __init__(self) -> None:
        self.inner = DurableStore()
        self.before_commit: Callable[[CycleBatch], None] | None = None
        self.down: set[str] = set()

    def load(self) -> StoredWorld:
        self._answer("load")
        return self.inner.load()

    def jobs(self, ids: Sequence[JobId]) -> list[JobRecord]:
        self._answer("jobs")
        return self.inner.jobs(ids)

    def pending_requests(self, limit: int) -> Sequence[EngineRequest]:
        self._answer("pending_requests")
        return self.inner.pending_requests(limit)

    def commit(self, batch: CycleBatch) -> frozenset[JobId]:
        self._answer("commit")
        if self.before_commit is not None:
            act, self.before_commit = self.before_commit, None
            act(batch)
        return self.inner.commit(batch)

    def bump_next(self, *jobs: int) -> None:
        """Somebody else changes these rows right before the next commit."""

        def act(batch: CycleBatch) -> None:
            for job in jobs:
                self.inner.bump(JobId(job))

        self.before_commit = act

    def _answer(self, call: str) -> None:
        if call in self.down:
            raise StoreUnavailable(f"{call} does not answer")


def story(shape: str, name: str = "fifo_backfill", **more: Any) -> tuple[Story, Tampered]:
    store = Tampered()
    made = cluster(shape, policy(name, **more.pop("options", {})), store=store, **more)
    made.memory = store.inner
    return made, store


def test_gpus_of_a_stale_end_are_not_given_to_the_next_job() -> None:
    """The end of ``a`` and the start of ``b`` on its GPUs are one pass; the end falls, so must the start."""
    made, store = story("1x1")
    made.job("a", runs_s=10).job("b", runs_s=10).until(9)
    store.bump_next(1)
    made.until(10)
    assert made.engine.counters["writes_dropped"] == 2
    assert made.state("a") is JobState.SUCCEEDED, "the report was not acknowledged, so the next pass saw it again"
    assert made.state("b") is JobState.RUNNING
    assert made.commands(Launch) == ["1.1", "2.1"]


def test_commands_are_sent_in_the_context_of_the_caller_if_the_engine_is_as_it_was_committed() -> None:
    """First it still holds the end of ``a`` and the start of ``b``, because another writer has changed ``a``."""
    made, store = story("1x1")
    made.job("a", runs_s=10).job("b", runs_s=10).job("c").until(9)
    seen: list[Any] = []

    @contextmanager
    def sending() -> Iterator[None]:
        seen.append({job.id: job.state for job in made.engine.world.jobs.values()})
        seen.append(made.commands(Launch))
        yield
        seen.append(made.commands(Launch))

    store.bump_next(1)
    made.clock.advance(10.0)
    made.engine.cycle(sending())
    assert seen == []
    made.engine.cycle(sending())
    assert seen == [{2: JobState.STARTING, 3: JobState.QUEUED}, ["1.1"], ["1.1", "2.1"]]


def test_a_stale_submission_is_admitted_again_with_its_prediction_and_its_dependencies() -> None:
    made, store = story("1x4")
    made.job("a", runs_s=100).until(0)
    made.job("b", runs_s=10, after=["a"])
    store.bump_next(2)
    made.until(1).waits("b", Reason.DEPENDENCY)
    assert made.record("b").estimate is not None
    made.until(100).finishes("a").starts("b")


def test_a_stale_success_does_not_release_dependents() -> None:
    made, store = story("1x1:A100 1x1:V100")
    made.job("a", runs_s=10, gpu_type="A100").job("b", after=["a"], gpu_type="V100").until(9)
    store.bump_next(1)
    made.until(10).finishes("a").starts("b")
    assert made.engine.counters["writes_dropped"] == 2
    assert made.record("b").unmet_dependencies == 0


def test_a_dependency_that_ended_before_the_admission_counts_as_met() -> None:
    made, store = story("1x4")
    made.job("a", runs_s=10).job("b", after=["a"]).until(9)
    store.bump_next(2)
    made.until(10).starts("b")
    made.job("c", max_retries=0, runs_s=100).job("d", after=["c"]).until(20)
    made.crash("c")
    store.bump_next(4)
    made.until(21).cancels("d")


def test_an_after_any_dependent_is_dropped_with_a_stale_end_and_starts_after_the_committed_one() -> None:
    """The end of the first job is not committed: neither is what it did to the job that waits for it."""
    made, store = story("1x4")
    made.job("a", runs_s=100, max_retries=0).job("b", after_any=["a"]).until(9)
    made.crash("a")
    store.bump_next(1)
    made.until(10).fails("a", Reason.CRASHED).starts("b")
    assert made.engine.counters["writes_dropped"] == 2


def test_an_after_any_dependency_that_ended_before_the_admission_counts_as_met() -> None:
    made, store = story("1x4")
    made.job("a", max_retries=0, runs_s=100).job("b", after_any=["a"]).until(9)
    made.crash("a")
    store.bump_next(2)
    made.until(10).starts("b")


def test_a_stale_requeue_keeps_its_pause() -> None:
    """The end of the pause is in a pass whose row is stale: it must come again."""
    made, store = story("1x1", settings=EngineSettings(retry_backoff_s=10.0))
    made.job("a", runs_s=1000).until(1)
    made.crash("a").until(1)
    store.bump_next(1)
    made.until(11).starts("a")


def test_a_walltime_stop_dropped_with_a_stale_row_is_repeated_in_the_next_cycle() -> None:
    made, store = story("1x1")
    made.job("a", runs_s=1000, walltime_s=100.0).until(1)
    store.bump_next(1)
    made.until(100).fails("a", Reason.WALLTIME)


def test_a_dropped_start_is_reported_as_refused_and_decided_again() -> None:
    made, store = story("1x2")
    heard: list[Change] = []
    decide = made.policy.decide
    made.policy.decide = lambda view, changes, state: (heard.extend(changes), decide(view, changes, state))[1]  # type: ignore[method-assign]
    made.job("a", hold=True).job("b", hold=True).until(0)
    made.release("a").release("b")
    store.bump_next(2)
    made.until(1).starts("a", "b")
    refused = [change.job for change in heard if change.kind is ChangeKind.REFUSED]
    assert refused == [2]
    assert made.commands(Launch) == ["1.1", "2.1"]


@pytest.mark.parametrize("stale", [1, 2])
def test_a_preemption_is_dropped_with_its_reservation(stale: int) -> None:
    made, store = story("1x1", "asrpt", options={"guard_share": 0}, costs=ExecutorCosts(checkpoint_s=5.0, restart_s=0))
    made.job("long", runs_s=1000).until(0)
    made.job("short", runs_s=10, at_s=10).until(9)
    # The pass that admits is the pass that preempts: its victim or its successor has gone stale.
    store.bump_next(stale)
    made.until(10).preempts("long")
    assert made.engine.counters["writes_dropped"] == 2
    made.until(15).starts("short")


@pytest.mark.parametrize("call", ["commit", "pending_requests", "jobs"])
def test_an_unavailable_store_changes_nothing(call: str) -> None:
    made, store = story("1x2")
    made.job("a", runs_s=100).until(0)
    made.job("b", runs_s=100)
    store.down = {call}
    made.clock.advance(0.0)
    outcome = made.engine.cycle()
    assert call in outcome.failed
    assert not outcome.committed
    assert made.commands(Launch) == ["1.1"]
    store.down = set()
    made.until(1).starts("b")


def test_a_store_that_cannot_load_is_loaded_in_the_next_cycle() -> None:
    made, store = story("1x2")
    made.job("a", runs_s=100).until(0)
    made.job("b", runs_s=100)
    made.clock.advance(0.0)
    store.down = {"commit", "load"}
    for _ in range(3):
        assert made.engine.cycle().failed
    assert made.engine.counters["recoveries_failed"] == 1
    assert made.commands(Launch) == ["1.1"]
    store.down = set()
    made.until(1).starts("b")
    assert made.commands(Launch) == ["1.1", "2.1"]


def test_a_failed_cycle_keeps_the_policy_state() -> None:
    """The virtual machine goes on where it was, though its last stored dump is long ago."""
    made, store = story("1x4", "asrpt", options={"preemption": "never"})
    made.job("a", gpus=4, runs_s=100).until(60)
    store.down = {"commit"}
    made.drain(0)
    assert made.engine.cycle().failed
    store.down = set()
    made.resume(0).until(61)
    made.until(99).starts()
    made.until(100).starts("a")


def test_after_an_exception_the_world_is_loaded_again() -> None:
    made, _ = story("1x2")
    made.job("a", runs_s=100).until(0)
    made.job("b", runs_s=100)
    made.clock.advance(0.0)
    decide = made.policy.decide

    def broken(view: ClusterView, changes: Sequence[Change], state: Any) -> Decision:
        decide(view, changes, state)
        raise ZeroDivisionError

    made.policy.decide = broken  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        made.engine.cycle()
    made.policy.decide = decide  # type: ignore[method-assign]
    made.until(1).starts("b")
    assert made.engine.counters["writes_dropped"] == 0, "the pass began with what is true"


@pytest.mark.parametrize(
    ("action", "invariant"),
    [
        (Start(JobId(1), place([ServerShare(ServerIndex(0), 1)])), "starts_waiting"),
        (Start(JobId(2), place([ServerShare(ServerIndex(0), 2)])), "no_oversubscription"),
        (Start(JobId(2), place([ServerShare(ServerIndex(0), 1)])), "whole_gang"),
        (Start(JobId(9), place([ServerShare(ServerIndex(0), 1)])), "known_job"),
        (Preempt(JobId(2)), "preempts_running"),
        (Reserve(JobId(1), None), "reserves_for_waiting"),
        (Start(JobId(2), place([ServerShare(ServerIndex(7), 2)])), "well_formed"),
    ],
)
def test_a_decision_that_breaks_an_invariant_is_not_applied(action: Any, invariant: str) -> None:
    made, _ = story("1x2")
    made.job("a", runs_s=100).job("b", gpus=2, runs_s=10).until(0)
    decide = made.policy.decide
    made.policy.decide = lambda view, changes, state: Decision([action])  # type: ignore[method-assign]
    made.engine.cycle()
    made.policy.decide = decide  # type: ignore[method-assign]
    assert [violation.invariant for violation in made.engine.violations] == [invariant]
    assert made.engine.counters[f"violated_{invariant}"] == 1
    made.runs("a")
    made.engine.violations = ()
    made.until(100).starts("b")


def test_a_request_for_an_unknown_server_or_job_is_consumed() -> None:
    made, store = story("1x1")
    store.inner.add_request(EngineRequest(0, RequestKind.SERVER_DRAINED, 0.0, server=ServerIndex(99)))
    store.inner.add_request(EngineRequest(0, RequestKind.CANCEL, 0.0, JobId(99)))
    made.until(0)
    assert not store.inner.pending_requests(10)


def test_requests_beyond_the_limit_wait_for_the_next_cycle() -> None:
    made, _ = story("1x8", settings=EngineSettings(facts_per_cycle_max=3))
    for number in range(5):
        made.job(str(number), runs_s=10)
    made.clock.advance(0.0)
    made.cycle()
    assert len(made.engine.world.jobs) == 3
    assert made.engine.cycle().wake_at_s != 0.0, "the last two were fewer than the limit: nothing is left"
    assert len(made.engine.world.jobs) == 5


def test_a_cycle_that_left_requests_wakes_at_once() -> None:
    made, _ = story("1x8", settings=EngineSettings(facts_per_cycle_max=3))
    for number in range(5):
        made.job(str(number), runs_s=10)
    made.clock.advance(0.0)
    assert made.engine.cycle().wake_at_s == 0.0


def test_the_policy_state_is_stored_and_used_at_start() -> None:
    made, _ = story("1x4", "asrpt", options={"preemption": "never"}, settings=EngineSettings(dump_every_s=0.0))
    made.job("a", gpus=4, runs_s=100).until(60)
    made.drain(0).until(60)
    made.resume(0).restart().until(99).starts()
    made.until(100).starts("a")


def _dumps(store: Tampered) -> list[float]:
    """The instants at which the state of the policy is stored from now on."""
    dumped: list[float] = []

    def commit(batch: CycleBatch) -> frozenset[JobId]:
        if batch.dump is not None:
            dumped.append(batch.at_s)
        return store.inner.commit(batch)

    store.commit = commit  # type: ignore[method-assign]
    return dumped


def test_the_policy_state_is_stored_before_an_orderly_end() -> None:
    """The promise of a job is no other one after a restart."""
    made, store = story("1x4", "promise", settings=EngineSettings(dump_every_s=1000.0))
    dumped = _dumps(store)
    made.job("a", gpus=4, runs_s=500).job("b", gpus=4, runs_s=100).until(20)
    jobs = sorted(made.engine.world.jobs)
    told = [made.engine.promised_end_s(job) for job in jobs]
    assert None not in told
    for _ in range(2):
        made.engine.store_policy_state()
    assert dumped == [20.0], "once"
    made.restart().until(60)
    assert [made.engine.promised_end_s(job) for job in jobs] == told


def test_a_job_that_may_not_start_now_is_shown_its_promised_end() -> None:
    made, _ = story("1x4", "promise")
    made.job("a", gpus=4, runs_s=500).job("b", gpus=4, runs_s=100).until(1)
    job = made.record("a").id
    told = made.engine.explain(job).numbers[PROMISED_END]
    made.hold("a").until(2)
    held = made.engine.explain(job)
    assert (held.reason, held.numbers[PROMISED_END]) == (Reason.HELD, told)


def test_the_policy_state_is_stored_once_after_the_last_change() -> None:
    made, store = story("1x4", settings=EngineSettings(dump_every_s=30.0))
    dumped = _dumps(store)
    made.job("a", runs_s=1000, at_s=5).until(5)
    for at_s in range(10, 100, 10):
        made.until(at_s)
    assert dumped == [30.0]


def test_the_policy_state_is_stored_once_in_a_while() -> None:
    made, store = story("1x4", settings=EngineSettings(dump_every_s=30.0))
    dumped = _dumps(store)
    for number in range(10):
        made.job(str(number), runs_s=1, at_s=number * 10).until(number * 10)
    assert dumped == [30.0, 60.0, 90.0]


def test_an_executor_that_fails_after_the_commit_keeps_no_end_from_the_predictor_and_the_sink() -> None:
    made, _ = story("1x1")
    made.job("x", runs_s=10).job("y", runs_s=10).until(5)
    send = made.wire.send

    def fail(commands: Sequence[Command]) -> None:
        made.wire.send = send  # type: ignore[method-assign]
        raise OSError(24, "Too many open files")

    made.wire.send = fail  # type: ignore[method-assign]
    with pytest.raises(OSError, match="Too many"):
        made.until(10)
    made.engine.cycle()
    made.engine.reconcile()
    made.until(30)
    assert [label.job for label in made.told.learnt] == [1, 2]
    for job in (1, 2):
        assert [event.target for event in made.log.events if event.job == job] == [
            JobState.STARTING,
            JobState.RUNNING,
            JobState.SUCCEEDED,
        ]


def test_a_cycle_without_changes_is_not_written() -> None:
    made, _ = story("1x1")
    made.job("a", runs_s=100).until(0)
    number = made.engine.cycle().number
    outcome = made.engine.cycle()
    assert (outcome.committed, outcome.number) == (False, number)


def test_reports_are_acknowledged_only_after_the_commit() -> None:
    made, store = story("1x1")
    made.job("a", runs_s=10).until(9)
    store.down = {"commit"}
    made.clock.advance(10.0)
    assert made.engine.cycle().failed
    assert [report.kind for report in made.executor.poll()] == [ReportKind.EXITED]
    store.down = set()
    made.until(10).finishes("a")
    assert not made.executor.poll()


def test_the_predictor_receives_labels_of_ended_jobs() -> None:
    made, _ = story("2x1")
    made.job("a", gpus=2, runs_s=100).until(50)
    made.says(
        Report(ReportKind.PROGRESS, 50.0, made.attempt("a"), iteration=10.0),
    ).until(50)
    made.says(Report(ReportKind.PROGRESS, 70.0, made.attempt("a"), iteration=20.0)).until(70)
    made.until(100)
    (label,) = made.told.learnt
    assert (label.final_state, label.service_s, label.servers_spanned, label.gpu_type) == (
        "succeeded",
        100.0,
        2,
        "V100",
    )
    assert label.seconds_per_iteration == 2.0
    assert label.seconds_by_span == SpanSeconds("V100", rack=2.0)
    assert label.iterations == 20.0


def test_the_predictor_is_told_how_far_unfinished_jobs_have_come() -> None:
    made, _ = story("1x1")
    made.job("first", runs_s=1000).job("second", runs_s=10).until(100)
    first, second = (made.ids[name] for name in ("first", "second"))
    found = made.told.attained(first, 130.0)
    assert found is not None and (found.service_s, found.iterations) == (130.0, None)
    assert (found.request.job, found.request.submitted_at_s) == (first, 0.0)
    made.says(Report(ReportKind.PROGRESS, 100.0, made.attempt("first"), iteration=50.0)).until(110)
    found = made.told.attained(first, 110.0)
    assert found is not None and found.iterations == 50.0
    assert made.told.attained(second, 130.0) is None, "it waits"
    assert made.told.attained(JobId(9), 130.0) is None, "it is not there"
    made.until(2000)
    assert made.told.attained(first, 2000.0) is None, "it has ended"


def test_a_job_that_finishes_before_its_stop_has_worked_to_the_end() -> None:
    """The stop is decided after 80 s and takes 30 s, the program 100 s."""
    made, _ = story("1x1", costs=ExecutorCosts(restart_s=0.0, stop_latency_s=30.0))
    made.job("a", runs_s=100).until(80)
    made.hold("a", preempt=True).until(80)
    assert made.state("a") is JobState.PREEMPTING
    made.says(Report(ReportKind.PROGRESS, 90.0, made.attempt("a"), iteration=9.0)).until(90)
    assert made.record("a").service_s == 90.0
    made.until(100)
    (label,) = made.told.learnt
    assert (label.final_state, label.service_s) == ("succeeded", 100.0)
    assert (made.record("a").held_gpu_s, made.record("a").wasted_gpu_s) == (100.0, 0.0)


def test_a_total_counts_where_no_past_tells_about_the_job() -> None:
    """Reported: at once. Declared: as soon as the speed is measured, but not by a profile run, which ends earlier."""
    made, _ = story("1x4")
    made.job("says", runs_s=100, predicted=None).job("declares", runs_s=100, predicted=None, declared_iterations=50)
    made.job("known", runs_s=100, predicted=80, declared_iterations=50)
    made.job("profiled", runs_s=100, predicted=80, declared_iterations=50, labels={PROFILE_LABEL: "1"}).until(1)
    for at_s, iteration in ((2, 2.0), (4, 4.0)):
        for name, total in (("says", 60.0), ("declares", None), ("known", None), ("profiled", None)):
            report = Report(ReportKind.PROGRESS, at_s, made.attempt(name), iteration=iteration, total_iterations=total)
            made.says(report)
        made.until(at_s)
    told = [(each.request.job, each.total_iterations, each.seconds_per_iteration) for each in made.told.reported]
    assert told == [(1, 60.0, None), (1, 60.0, 1.0), (2, 50.0, 1.0), (3, 50.0, 1.0)]
    assert [each.estimate is None for each in made.told.reported] == [True, True, True, False]


def test_losses_become_a_curve_that_the_predictor_is_told_and_taught() -> None:
    """A point for each quarter more iterations; reports in between, and losses that are no finite number, are left out."""
    made, _ = story("1x1")
    made.job("a", runs_s=100, predicted=50).until(1)
    for at_s, iteration, loss in ((2, 1.0, 4.0), (3, 8.0, 2.0), (4, 9.0, 1.9), (5, 10.0, math.nan), (6, 12.0, -1.0)):
        made.says(Report(ReportKind.PROGRESS, at_s, made.attempt("a"), iteration=iteration, loss=loss)).until(at_s)
    curves = [
        LossCurve((1.0,), (4.0,)),
        LossCurve((1.0, 8.0), (4.0, 2.0)),
        LossCurve((1.0, 8.0, 12.0), (4.0, 2.0, -1.0)),
    ]
    assert [each.loss_curve for each in made.told.reported] == curves
    assert all(each.curve_counts and each.total_iterations is None for each in made.told.reported)
    made.until(100)
    (label,) = made.told.learnt
    assert label.loss_curve == curves[-1]


def test_a_cycle_revises_a_limited_number_of_estimates_by_losses() -> None:
    """Ten thousand jobs that report at once must not delay a decision by seconds; none of their losses is dropped."""
    made, _ = story("1x1")
    cycle = Cycle(1, 0.0, made.engine.world, EngineSettings(), lambda at_s, job: None)
    jobs = [JobRecord(JobId(number), JobSpec("a", "u", 1), 0.0) for number in range(CURVES_PER_CYCLE_MAX + 2)]
    for job in jobs:
        note_loss(cycle, job, 2.0, 1.0)
    assert list(cycle.curves) == [job.id for job in jobs[:CURVES_PER_CYCLE_MAX]]
    assert jobs[-1].loss_curve == LossCurve((1.0,), (2.0,))


def test_a_job_with_losses_that_is_predicted_again_is_revised_in_the_same_cycle() -> None:
    """The new prediction knows nothing of the losses."""
    made, _ = story("1x2")
    made.job("a", runs_s=100, predicted=50).job("b", runs_s=20).until(1)
    made.says(Report(ReportKind.PROGRESS, 2.0, made.attempt("a"), iteration=1.0, loss=4.0)).until(2)
    made.told.outdated = [made.ids["a"]]
    made.told.points[made.ids["a"]] = (60.0,)
    made.told.reported.clear()
    made.until(19)
    assert not made.told.reported
    made.told.revised[made.ids["a"]] = (70.0,)
    made.until(20)
    (reported,) = made.told.reported
    assert reported.curve_counts
    assert reported.estimate is not None
    assert reported.estimate.points == (60.0,), "what it is told is the new prediction"
    estimate = made.record("a").estimate
    assert estimate is not None
    assert estimate.points == (70.0,)


@pytest.mark.parametrize("least", [1e-320, 1e-307])
def test_a_speed_that_is_no_finite_number_is_not_stored(least: float) -> None:
    """A document of the store holds finite numbers alone, and the commit of any other fails."""
    made, _ = story("2x1")
    made.job("a", gpus=2, runs_s=100).until(10)
    for at_s, iteration in ((20, 0.0), (60, least)):
        made.says(Report(ReportKind.PROGRESS, at_s, made.attempt("a"), iteration=iteration)).until(at_s)
    made.until(100)
    (label,) = made.told.learnt
    spans, seconds = label.seconds_by_span, label.seconds_per_iteration
    assert spans is None or (spans.rack is not None and math.isfinite(spans.rack))
    assert seconds is None or math.isfinite(seconds)


def test_explain_raises_for_jobs_that_ended() -> None:
    made, _ = story("1x1")
    made.job("a", runs_s=1).until(5)
    engine: Engine[Any] = made.engine
    with pytest.raises(KeyError):
        engine.explain(JobId(1))


@pytest.mark.parametrize("warning", [*Warned, None])
def test_a_preemption_without_a_delivered_warning_is_an_event_with_that_detail(warning: Warned | None) -> None:
    made, _ = story("1x1", costs=ExecutorCosts(checkpoint_s=100.0))
    made.job("a", runs_s=1000).until(5)
    attempt = made.attempt("a")
    made.hold("a", preempt=True).until(6)
    made.says(Report(ReportKind.EXITED, 7.0, attempt, exit_code=143, stop_signalled=True, warning=warning)).until(
        8
    ).waits("a", Reason.HELD)
    (end,) = [event for event in made.log.events if event.cause is Cause.STOPPED]
    expected = f"Attempt {attempt} was stopped without a warning: none of its processes has a handler for the signal."
    assert end.detail == (expected if warning is Warned.NOT_DELIVERED else "")
