"""Failures, retries, yields, walltimes, dependencies, and reports that are late, doubled or foreign."""

import pytest

from policies.lifecycle import Cause, JobState
from policies.model.estimate import Unit
from policies.model.ids import AttemptId, ServerIndex
from policies.model.reasons import Reason
from service.engine.commands import Launch, Stop
from service.engine.cycle import EngineSettings
from service.engine.events import Report, ReportKind
from service.engine.ports import AttemptStatus
from service.sim.executor import ExecutorCosts
from tests.scenarios.dsl import Story, cluster, policy


def one(**settings: float) -> Story:
    return cluster("1x1", policy("fifo"), settings=EngineSettings(**settings))  # type: ignore[arg-type]


def test_a_crash_goes_back_to_the_last_checkpoint_and_is_tried_again() -> None:
    story = one().job("a", runs_s=1000, checkpoint_period_s=300).until(700)
    story.crash("a").until(700).requeues("a", Cause.RETRYABLE_FAILURE).starts("a")
    assert story.record("a").service_s == 600.0
    story.until(1100).finishes("a")


def test_retries_run_out() -> None:
    story = one().job("a", runs_s=1000, max_retries=1).until(1)
    story.crash("a").until(2).starts("a")
    story.crash("a").until(3).fails("a", Reason.RETRIES_EXHAUSTED)


def test_a_job_that_allows_no_retry_fails_with_the_reason_itself() -> None:
    story = one().job("a", max_retries=0).until(1)
    story.crash("a").until(2).fails("a", Reason.CRASHED)


def test_a_job_that_fails_or_is_cancelled_is_learnt_with_the_work_after_its_last_checkpoint() -> None:
    for period_s, kept_s in ((None, 0.0), (300.0, 600.0)):
        story = one().job("a", runs_s=1000, checkpoint_period_s=period_s, max_retries=0).until(700)
        story.crash("a").until(700).fails("a", Reason.CRASHED)
        assert story.record("a").service_s == kept_s
        (label,) = story.told.learnt
        assert (label.service_s, label.final_state, label.iterations) == (700.0, "failed", None)
    story = one().job("a", runs_s=1000, checkpoint_period_s=600).until(800)
    story.cancel("a").until(800).cancels("a")
    (label,) = story.told.learnt
    assert (label.service_s, label.final_state) == (800.0, "cancelled")


def test_the_attempts_before_the_last_count_as_far_as_their_work_was_kept() -> None:
    story = one().job("a", runs_s=1000, checkpoint_period_s=300, max_retries=1).until(700)
    story.crash("a").until(700).starts("a").until(800)
    story.crash("a").until(800).fails("a", Reason.RETRIES_EXHAUSTED)
    (label,) = story.told.learnt
    assert label.service_s == 600.0 + 100.0


def test_the_iterations_of_a_failed_job_are_those_that_it_last_reported() -> None:
    story = one().job("a", runs_s=1000, max_retries=0).until(100)
    for at_s, iteration in ((100.0, 10.0), (200.0, 20.0)):
        progress = Report(ReportKind.PROGRESS, at_s, story.attempt("a"), iteration=iteration, checkpoint_iteration=10.0)
        story.says(progress).until(at_s)
    story.says(Report(ReportKind.EXITED, 250.0, story.attempt("a"), exit_code=1)).until(250).fails("a", Reason.CRASHED)
    (label,) = story.told.learnt
    assert (label.iterations, label.service_s) == (20.0, 250.0)
    assert story.record("a").iterations == 10.0


def test_a_lost_attempt_is_learnt_as_far_as_its_work_was_kept() -> None:
    """It may have ended long before it was missed."""
    story = one().job("a", runs_s=1000, max_retries=0).until(1)
    story.says(Report(ReportKind.LOST, 500.0, story.attempt("a"))).until(500).fails("a", Reason.NODE_LOST)
    (label,) = story.told.learnt
    assert label.service_s == 0.0


def test_losing_a_server_uses_up_no_retry_and_causes_no_pause() -> None:
    story = cluster("2x1", policy("fifo"), settings=EngineSettings(retry_backoff_s=10.0))
    story.job("a", runs_s=1000, max_retries=0).until(1)
    for at_s, server in ((2, 0), (4, 1), (6, 0)):
        story.executor.fail_server(ServerIndex(server))
        story.until(at_s).requeues("a", Cause.RETRYABLE_FAILURE).starts("a").on("a", 1 - server)
        story.executor.repair_server(ServerIndex(server))
        story.until(at_s + 1)
    assert story.record("a").retries == 0
    story.crash("a").until(10).fails("a", Reason.CRASHED)


def test_a_pause_after_each_attempt_that_its_servers_do_not_start_grows_up_to_a_limit() -> None:
    """An engine that keeps it waiting may do so for ever. It uses up no retry."""
    settings, slow = EngineSettings(retry_backoff_s=10.0), ExecutorCosts(launch_latency_s=120.0)
    story = cluster("1x1", policy("fifo"), settings=settings, costs=slow).job("a", runs_s=1e6, max_retries=0).until(1)
    at_s = 100.0
    for count in range(1, 33):
        story.until(at_s)
        story.says(Report(ReportKind.LOST, at_s, story.attempt("a"), server=ServerIndex(0), reason=Reason.NODE_LOST))
        story.until(at_s).requeues("a", Cause.RETRYABLE_FAILURE).waits("a", Reason.RETRY_BACKOFF)
        pause_s = 10.0 * min(count, 30)
        story.until(at_s + pause_s - 0.1).starts()
        story.until(at_s + pause_s).starts("a")
        at_s += pause_s + 100.0
    assert story.record("a").retries == 0


def test_what_a_job_has_lost_otherwise_does_not_lengthen_the_pause_after_an_attempt_that_did_not_start() -> None:
    settings, slow = EngineSettings(retry_backoff_s=10.0), ExecutorCosts(launch_latency_s=5.0)
    story = cluster("1x1", policy("fifo"), settings=settings, costs=slow).job("a", runs_s=1e6).until(10)
    story.says(Report(ReportKind.EXITED, 10.0, story.attempt("a"), exit_code=75)).until(10)
    story.until(30).crash("a").until(30).until(42)
    assert (story.record("a").yields, story.record("a").retries) == (1, 1)
    story.says(Report(ReportKind.LOST, 42.0, story.attempt("a"), server=ServerIndex(0), reason=Reason.NODE_LOST))
    story.until(42).until(51.9).waits("a", Reason.RETRY_BACKOFF)
    story.until(52).starts("a")


def test_an_attempt_that_is_lost_on_a_server_that_answers_uses_up_a_retry() -> None:
    story = one().job("a", runs_s=1000, max_retries=0).until(1)
    story.says(Report(ReportKind.LOST, 1.0, story.attempt("a"))).until(2).fails("a", Reason.NODE_LOST)


def test_a_pause_before_each_retry_grows_and_is_explained() -> None:
    story = one(retry_backoff_s=10.0).job("a", runs_s=1000).until(1)
    story.crash("a").until(5).starts().waits("a", Reason.RETRY_BACKOFF)
    story.until(14).starts()
    story.until(15).starts("a")
    story.crash("a").until(16).waits("a", Reason.RETRY_BACKOFF)
    story.until(35.9).starts()
    story.until(36).starts("a")


def test_a_pause_outlives_a_restart_of_the_service() -> None:
    story = one(retry_backoff_s=10.0).job("a", runs_s=1000).until(1)
    story.crash("a").until(1).restart().until(10.9).waits("a", Reason.RETRY_BACKOFF)
    story.until(11).starts("a")


def test_a_hold_during_the_pause_and_its_release() -> None:
    story = one(retry_backoff_s=10.0).job("a", runs_s=1000).until(1)
    story.crash("a").until(1).hold("a").until(2).waits("a", Reason.HELD)
    story.release("a").until(3).waits("a", Reason.RETRY_BACKOFF)
    story.hold("a").until(20).starts().waits("a", Reason.HELD)
    story.release("a").until(21).starts("a")


@pytest.mark.parametrize(
    "reason", [Reason.COMMAND_NOT_FOUND, Reason.WORKING_DIR_NOT_FOUND, Reason.CHECKPOINT_UNREADABLE]
)
def test_what_a_retry_cannot_mend_is_not_retried(reason: Reason) -> None:
    story = one().job("a").until(1)
    story.says(Report(ReportKind.EXITED, 1.0, story.attempt("a"), exit_code=127, reason=reason))
    story.until(2).fails("a", reason)


def test_a_launch_that_failed_says_so() -> None:
    story = cluster("1x1", policy("fifo"), costs=ExecutorCosts(launch_latency_s=5.0)).job("a", max_retries=0).until(1)
    story.says(Report(ReportKind.LAUNCH_FAILED, 1.0, story.attempt("a"))).until(2).fails("a", Reason.LAUNCH_FAILED)


def test_yields_use_no_retry_but_are_not_endless() -> None:
    story = one(yields_max=2).job("a", runs_s=1000, max_retries=0).until(1)
    for at_s in (2.0, 3.0):
        story.says(Report(ReportKind.EXITED, at_s, story.attempt("a"), exit_code=75))
        story.until(at_s).requeues("a", Cause.YIELDED).starts("a")
    assert story.record("a").retries == 0
    story.says(Report(ReportKind.EXITED, 4.0, story.attempt("a"), exit_code=75))
    story.until(4).fails("a", Reason.YIELDS_EXHAUSTED)


def test_a_pause_after_each_yield_without_progress_grows_up_to_a_limit() -> None:
    story = one(retry_backoff_s=10.0).job("a", runs_s=1e6, max_retries=0).until(1)
    at_s = 2.0
    for count in range(1, 33):
        story.says(Report(ReportKind.EXITED, at_s, story.attempt("a"), exit_code=75))
        story.until(at_s).requeues("a", Cause.YIELDED).waits("a", Reason.RETRY_BACKOFF)
        pause_s = 10.0 * min(count, 30)
        story.until(at_s + pause_s - 0.1).starts()
        story.until(at_s + pause_s).starts("a")
        at_s += pause_s + 1.0
    assert (story.record("a").yields, story.record("a").retries) == (32, 0)


@pytest.mark.parametrize(("iterations", "runs_s", "paused"), [((), 9.0, True), ((), 11.0, False), ((5.0,), 1.0, False)])
def test_no_pause_follows_a_yield_that_brought_a_job_on(
    iterations: tuple[float, ...], runs_s: float, paused: bool
) -> None:
    story = one(retry_backoff_s=10.0).job("a", runs_s=1000).until(1)
    for iteration in iterations:
        story.says(Report(ReportKind.PROGRESS, 1.0, story.attempt("a"), iteration=iteration))
    story.says(Report(ReportKind.EXITED, runs_s, story.attempt("a"), exit_code=75)).until(runs_s)
    story.requeues("a", Cause.YIELDED).starts(*(() if paused else ("a",)))


def test_a_walltime_ends_a_job_and_counts_all_its_attempts() -> None:
    story = cluster("1x1", policy("asrpt", guard_share=0))
    story.job("a", runs_s=1000, walltime_s=100.0).until(60)
    story.job("short", runs_s=10).until(60).preempts("a")
    story.until(109.9)
    assert story.state("a") is JobState.RUNNING
    story.until(110).fails("a", Reason.WALLTIME)


def test_a_walltime_is_kept_after_a_restart_of_the_service() -> None:
    story = one().job("a", runs_s=1000, walltime_s=100.0).until(60).restart()
    story.until(99).runs("a").until(100).fails("a", Reason.WALLTIME)


def test_a_job_starts_when_all_it_waits_for_have_succeeded() -> None:
    story = cluster("1x4", policy("fifo_backfill"))
    story.job("a", runs_s=10).job("b", runs_s=20).job("c", after=["a", "b"]).until(10).waits("c", Reason.DEPENDENCY)
    story.restart().until(20).finishes("b").starts("c")


def test_a_dependency_named_twice_counts_once() -> None:
    story = cluster("1x4", policy("fifo_backfill"))
    story.job("a", runs_s=10).job("c", after=["a", "a"]).until(10).starts("a", "c")


@pytest.mark.parametrize("end", ["success", "failure", "cancel"])
def test_a_job_starts_when_what_it_waits_for_has_ended_in_whatever_way(end: str) -> None:
    story = cluster("1x4", policy("fifo_backfill"))
    story.job("a", runs_s=10, max_retries=0).job("b", after_any=["a"]).until(5).waits("b", Reason.DEPENDENCY)
    story.restart().until(6).waits("b", Reason.DEPENDENCY)
    if end == "failure":
        story.crash("a").until(7).fails("a", Reason.CRASHED)
    elif end == "cancel":
        story.cancel("a").until(7).cancels("a")
    else:
        story.until(10).finishes("a")
    story.starts("b")


def test_of_a_chain_only_those_are_cancelled_that_need_success() -> None:
    story = cluster("1x8", policy("fifo_backfill"))
    story.job("a", runs_s=100, max_retries=0).job("b", after=["a"]).job("c", after_any=["b"]).job("d", after=["b"])
    story.job("e", after_any=["d"], after=["a"]).until(1)
    story.crash("a").until(2).fails("a", Reason.CRASHED).cancels("b", "e", "d").starts("c")


def test_who_is_named_with_both_conditions_must_succeed() -> None:
    story = cluster("1x4", policy("fifo_backfill"))
    story.job("a", runs_s=100, max_retries=0).job("b", after=["a"], after_any=["a"]).until(1)
    assert story.record("b").unmet_dependencies == 1
    story.crash("a").until(2).cancels("b")


def test_a_job_submitted_when_what_it_waits_for_has_ended_badly_starts() -> None:
    story = one().job("a", max_retries=0).until(1)
    story.crash("a").until(2).fails("a", Reason.CRASHED)
    story.job("b", after_any=["a"]).until(3).starts("b")


def test_the_explanation_names_whom_a_job_waits_for_and_how() -> None:
    story = cluster("1x8", policy("fifo_backfill"))
    for number in range(8):
        story.job(str(number), runs_s=10 * (number + 1))
    story.job("x", after=["0", "1"], after_any=["2", *"01234567"]).job("y", after_any=["7"]).until(15)
    explanation = story.engine.explain(story.ids["x"])
    assert explanation.reason is Reason.DEPENDENCY
    assert explanation.waiting_for == (2, 3, 4, 5, 6, 7, 8)
    assert explanation.sentence.endswith(" It waits for job 2 to succeed and for 6 jobs (3, 4, 5, 6, 7, ...) to end.")
    assert story.engine.explain(story.ids["y"]).sentence.endswith(" It waits for job 8 to end.")


def test_a_failed_dependency_cancels_all_that_hang_on_it() -> None:
    """A chain longer than Python's recursion limit."""
    story = cluster("1x4", policy("fifo_backfill"))
    story.job("0", runs_s=100, max_retries=0).job("free", runs_s=200)
    for number in range(1, 1200):
        story.job(str(number), after=[str(number - 1)])
    story.until(1)
    story.crash("0").until(2).fails("0", Reason.CRASHED)
    assert story.record("1199").reason is Reason.DEPENDENCY_FAILED
    assert story.state("1199") is JobState.CANCELLED
    story.runs("free")


def test_a_job_that_is_submitted_after_its_dependency_has_failed() -> None:
    story = one().job("a", max_retries=0).until(1)
    story.crash("a").until(2).fails("a", Reason.CRASHED)
    story.job("b", after=["a"]).until(3).cancels("b")


def test_a_job_that_is_submitted_in_the_very_pass_in_which_its_dependency_succeeds() -> None:
    story = one().job("a", runs_s=10).until(9)
    story.job("b", after=["a"], at_s=10).until(10).finishes("a").starts("b")


def test_a_doubled_report_changes_nothing() -> None:
    story = one().job("a", runs_s=100).job("b", runs_s=100).until(50)
    attempt = story.attempt("a")
    story.crash("a").until(50)
    before = story.record("a").copy()
    story.says(Report(ReportKind.EXITED, 50.0, attempt, exit_code=1)).until(51)
    assert story.record("a") == before
    assert not story.wire.said, "it is acknowledged all the same"


def test_a_late_start_of_a_closed_attempt_is_fenced() -> None:
    story = one().job("a", runs_s=100).until(5)
    old = story.attempt("a")
    story.crash("a").until(6).starts("a")
    story.says(Report(ReportKind.STARTED, 6.0, old)).until(7).runs("a")
    assert story.commands(Stop) == [str(old)]


def test_reports_of_jobs_that_nobody_knows() -> None:
    story = one().job("a", runs_s=100).until(5)
    for kind in ReportKind:
        if kind not in (ReportKind.SERVER_DOWN, ReportKind.SERVER_UP):
            story.says(Report(kind, 5.0, AttemptId("77.1"), exit_code=0))
    story.until(6).runs("a")
    assert story.commands(Stop) == ["77.1"]


def test_the_end_may_come_before_the_start() -> None:
    story = cluster("1x1", policy("fifo"), costs=ExecutorCosts(launch_latency_s=50.0)).job("a").until(1)
    attempt = story.attempt("a")
    story.says(Report(ReportKind.EXITED, 1.0, attempt, exit_code=0)).until(2).finishes("a")
    story.to_the_end()
    assert str(attempt) in story.commands(Stop), "the start that came late is fenced"


def test_progress_is_measured_between_reports_and_survives_what_is_checkpointed() -> None:
    story = one().job("a", runs_s=1000).until(10)
    for at_s, iteration, checkpoint in ((20.0, 10.0, 0.0), (40.0, 30.0, 20.0)):
        report = Report(
            ReportKind.PROGRESS, at_s, story.attempt("a"), iteration=iteration, checkpoint_iteration=checkpoint
        )
        story.until(at_s).says(report).until(at_s)
    job = story.record("a")
    assert job.measured_s_per_iteration == 1.0
    assert (job.iterations, job.checkpoint_iteration) == (30.0, 20.0)
    story.says(Report(ReportKind.PROGRESS, 41.0, story.attempt("a"), iteration=5.0)).until(41)
    assert story.record("a").iterations == 30.0, "progress never falls"
    story.says(Report(ReportKind.EXITED, 42.0, story.attempt("a"), exit_code=9)).until(42)
    assert story.record("a").iterations == 20.0


def test_the_warm_up_of_a_profile_run_is_not_measured() -> None:
    story = one().job("a", runs_s=1000, labels={"sooner/profile": "5"}).until(10)
    for at_s, iteration in ((20.0, 1.0), (60.0, 4.0), (70.0, 6.0), (74.0, 10.0)):
        report = Report(ReportKind.PROGRESS, at_s, story.attempt("a"), iteration=iteration)
        story.until(at_s).says(report).until(at_s)
    assert story.record("a").measured_s_per_iteration == 1.0
    story.says(Report(ReportKind.PROGRESS, 78.0, story.attempt("a"), iteration=11.0)).until(78)
    assert story.record("a").measured_s_per_iteration == 8.0 / 5.0
    story.says(Report(ReportKind.EXITED, 80.0, story.attempt("a"), exit_code=75, iteration=11.0)).until(90)
    assert story.attempt("a").endswith(".2")
    for at_s, iteration in ((100.0, 12.0), (150.0, 16.0), (154.0, 18.0)):
        report = Report(ReportKind.PROGRESS, at_s, story.attempt("a"), iteration=iteration)
        story.until(at_s).says(report).until(at_s)
    assert story.record("a").measured_s_per_iteration == 2.0, "a program that starts again warms up again"


def test_a_late_progress_report_counts_no_time_twice() -> None:
    story = one().job("a", runs_s=1000).until(10)
    story.says(Report(ReportKind.PROGRESS, 10.0, story.attempt("a"), iteration=5.0)).until(10)
    story.until(20).says(Report(ReportKind.PROGRESS, 4.0, story.attempt("a"), iteration=5.0)).until(20)
    assert story.engine.world.jobs[story.ids["a"]].done(Unit.SERVICE_S, 20.0) == 20.0


def test_a_lost_server_loses_its_jobs_and_takes_no_more_until_it_is_back() -> None:
    story = cluster("2x1", policy("fifo_backfill")).job("a", runs_s=1000).job("b", runs_s=1000).until(10)
    story.executor.fail_server(ServerIndex(0))
    story.until(10).requeues("a", Cause.RETRYABLE_FAILURE).starts()
    assert story.record("a").reason is Reason.RESOURCES
    story.executor.repair_server(ServerIndex(0))
    story.until(20).starts("a").on("a", 0)


def test_a_command_that_got_lost_is_sent_again() -> None:
    story = one()
    story.wire.cut = True
    story.job("a", runs_s=10).until(0).starts("a")
    story.wire.cut = False
    story.until(5).finishes()
    story.engine.reconcile()
    story.until(15).finishes("a")
    assert story.commands(Launch) == ["1.1", "1.1"]


def test_a_stop_that_got_lost_is_sent_again_after_a_restart() -> None:
    story = one().job("a", runs_s=1000).until(5)
    story.wire.cut = True
    story.cancel("a").until(6)
    story.wire.cut = False
    story.restart().until(7).cancels("a")


def test_an_attempt_that_the_executor_has_forgotten_does_not_hold_its_gpus_for_ever() -> None:
    story = one().job("a", runs_s=1000).until(5)
    story.executor._runs.clear()
    story.restart().until(6).requeues("a", Cause.RETRYABLE_FAILURE).starts("a")


def test_a_zombie_is_stopped_when_the_service_comes_back() -> None:
    """The executor runs an attempt that the store does not know as open."""
    story = one().job("a", runs_s=1000).until(5)
    story.crash("a").until(5).requeues("a", Cause.RETRYABLE_FAILURE)
    story.wire.zombies = {AttemptId("1.1"): AttemptStatus.RUNNING, AttemptId("9.1"): AttemptStatus.PENDING}
    story.restart()
    assert story.commands(Stop) == ["1.1", "9.1"]


def test_after_a_change_of_leader_a_launch_is_repeated_under_the_new_token() -> None:
    story = cluster("1x1", policy("fifo"), settings=EngineSettings(fencing_token=3))
    story.wire.cut = True
    story.job("a", runs_s=10).until(0)
    story.wire.cut = False
    story.settings = EngineSettings(fencing_token=4)
    story.job("b", runs_s=5).restart().until(30)
    assert [command.fencing_token for command in story.wire.sent if isinstance(command, Launch)][:2] == [3, 4]
    assert story.state("a") is JobState.SUCCEEDED


def test_every_attempt_is_closed_with_its_story() -> None:
    story = cluster("1x1", policy("asrpt", guard_share=0)).job("long", runs_s=1000).until(0)
    story.job("short", runs_s=10).until(5).to_the_end()
    told = [(str(event.attempt), event.cause) for event in story.log.events if event.job == story.ids["long"]]
    assert told == [
        ("1.1", Cause.START_DECIDED),
        ("1.1", Cause.STARTED),
        ("1.1", Cause.PREEMPT_DECIDED),
        ("None", Cause.STOPPED),
        ("1.2", Cause.START_DECIDED),
        ("1.2", Cause.STARTED),
        ("None", Cause.EXITED_ZERO),
    ]


def test_a_broken_predictor_stops_nothing() -> None:
    story = one()

    def fail(*arguments: object) -> None:
        raise RuntimeError("the model is broken")

    story.told.predict = fail  # type: ignore[assignment]
    story.told.ended = fail  # type: ignore[assignment]
    story.job("a", runs_s=5).job("b", runs_s=5).to_the_end().finishes("a", "b")
    assert story.engine.counters["prediction_failures"] == 3  # one batch, two labels
