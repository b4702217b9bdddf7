"""When a better job displaces others, what it costs, and what happens to the GPUs in between."""

import pytest

from policies.lifecycle import Cause, JobState
from policies.model.reasons import Reason
from service.sim.executor import ExecutorCosts
from tests.scenarios.dsl import Story, cluster, policy

FREE = ExecutorCosts(restart_s=0.0)


def test_a_shorter_gang_preempts_and_the_longer_one_resumes_where_it_was() -> None:
    story = cluster("1x4", policy("asrpt", guard_share=0))
    story.job("long", gpus=4, runs_s=1000).until(0).starts("long")
    story.job("short", gpus=4, runs_s=50, at_s=100).until(100).preempts("long").starts("short").waits(
        "long", Reason.RESOURCES
    )
    assert story.record("long").service_s == 100.0
    story.until(150).finishes("short").starts("long")
    story.until(1049).finishes()
    story.until(1050).finishes("long")
    assert story.record("long").preemptions == 1


@pytest.mark.parametrize(("name", "preemption"), [("asrpt", "guided"), ("asrpt", "always"), ("srtf", "always")])
def test_an_attempt_that_a_slow_engine_is_starting_is_stopped_for_no_better_job(name: str, preemption: str) -> None:
    """Ever shorter jobs arrive, one a second, while each start takes five seconds."""
    slow = ExecutorCosts(restart_s=0.0, launch_latency_s=5.0)
    story = cluster("1x4", policy(name, guard_share=0, preemption=preemption), costs=slow)
    names = [f"job{number}" for number in range(8)]
    for number, job in enumerate(names):
        story.job(job, gpus=4, runs_s=1000 / 2**number, at_s=number)
    story.until(4.9).preempts().starts("job0")
    story.until(5).preempts("job0").starts("job5")
    story.until(9.9).preempts()
    story.to_the_end()
    assert max(record.attempts for record in story.records.values()) == 2


def test_an_attempt_that_is_starting_is_stopped_by_its_own_cancellation() -> None:
    story = cluster("1x4", policy("asrpt"), costs=ExecutorCosts(launch_latency_s=50.0)).job("a").until(1)
    story.cancel("a").until(2).cancels("a")


def test_the_minimum_run_time_begins_with_the_program() -> None:
    slow = ExecutorCosts(restart_s=0.0, launch_latency_s=50.0)
    story = cluster("1x4", policy("asrpt", guard_share=0), costs=slow)
    story.job("long", gpus=4, runs_s=1000, min_run_s=60.0).until(1)
    story.job("short", gpus=4, runs_s=10, at_s=1)
    story.until(109.9).preempts().until(110).preempts("long")


def test_a_preemption_that_does_not_pay_its_price_is_left() -> None:
    """Ranks in virtual seconds on 4 of 4 GPUs: 700 < 0.8 x 1000 - 60 = 740, but 745 is not."""
    story = cluster("1x4", policy("asrpt", guard_share=0), costs=ExecutorCosts(restart_s=60.0))
    story.job("long", gpus=4, runs_s=1000).until(0)
    story.job("dear", gpus=4, runs_s=745, at_s=0).until(0).preempts().waits("dear", Reason.RESOURCES)
    story.job("cheap", gpus=4, runs_s=739, at_s=0).until(0).preempts("long").starts("cheap")


def test_hysteresis_keeps_jobs_of_like_length_apart() -> None:
    story = cluster("1x4", policy("asrpt", guard_share=0))
    story.job("long", gpus=4, runs_s=1000).until(0)
    story.job("like", gpus=4, runs_s=800).until(0).preempts()
    story.job("less", gpus=4, runs_s=799).until(0).preempts("long").starts("less")


def test_always_preempts_at_no_price() -> None:
    story = cluster("1x4", policy("asrpt", guard_share=0, preemption="always"), costs=ExecutorCosts(restart_s=60.0))
    story.job("long", gpus=4, runs_s=1000).until(0)
    story.job("like", gpus=4, runs_s=999).until(0).preempts("long").starts("like")


def test_equal_jobs_that_nobody_can_predict_do_not_swap_for_ever() -> None:
    """Ranked by attained service, free of charge, with a restart of a minute: each attempt still makes progress."""
    story = cluster("1x1", policy("srsf", guard_share=0), costs=ExecutorCosts(restart_s=60.0))
    story.job("a", runs_s=600, predicted=None).job("b", runs_s=600, predicted=None)
    story.to_the_end()
    assert story.clock.now_s() < 3000


def test_never_preempts_nobody() -> None:
    story = cluster("1x4", policy("srsf", preemption="never"))
    story.job("long", gpus=4, runs_s=1000).until(0)
    story.job("short", gpus=4, runs_s=1).until(1).preempts()


def test_a_job_without_checkpoints_is_dearer_by_the_work_that_it_would_lose() -> None:
    story = cluster("1x4", policy("asrpt", guard_share=0))
    story.job("long", gpus=4, runs_s=2000, preemption=None).until(600)
    # 1,400 s are left and 600 s would be lost: 0.8 x 1400 - 600 = 520.
    story.job("dear", gpus=4, runs_s=530).until(600).preempts()
    story.job("cheap", gpus=4, runs_s=519).until(600).preempts("long")


def test_vacated_gpus_are_kept_for_the_job_they_were_vacated_for() -> None:
    story = cluster("1x4", policy("asrpt", guard_share=0), costs=ExecutorCosts(checkpoint_s=30.0, restart_s=0.0))
    story.job("a", gpus=2, runs_s=1000).job("b", gpus=2, runs_s=1100).until(0).starts("a", "b")
    story.job("wide", gpus=4, runs_s=100, at_s=10).until(10).preempts("b", "a").waits("wide", Reason.RESERVED)
    story.job("thief", gpus=1, runs_s=350, at_s=20).until(39).starts()
    story.until(40).starts("wide")


def test_the_better_of_two_reservations_is_not_given_to_a_third() -> None:
    """One GPU is free and two are being vacated for three: the free one is part of the reservation."""
    story = cluster("1x3", policy("asrpt", guard_share=0), costs=ExecutorCosts(checkpoint_s=30.0, restart_s=0.0))
    story.job("long", gpus=2, runs_s=9000).until(0)
    story.job("wide", gpus=3, runs_s=100, at_s=10).until(10).preempts("long").waits("wide", Reason.RESERVED)
    story.job("small", gpus=1, runs_s=200, at_s=15).until(15).starts()
    story.until(40).starts("wide")


def test_an_attempt_is_left_alone_for_its_least_duration_and_then_looked_at_again() -> None:
    story = cluster("1x1", policy("asrpt", guard_share=0, attempt_duration_s_min=120))
    story.job("long", runs_s=10_000).until(0)
    story.job("short", runs_s=10, at_s=50).until(119).preempts()
    story.until(300).preempts("long").starts("short", "long")
    assert [event.at_s for event in story.log.events if event.target is JobState.PREEMPTING] == [120.0]


@pytest.mark.parametrize("name", ["asrpt", "srsf", "srtf", "las", "gittins"])
@pytest.mark.parametrize("preemption", ["guided", "always"])
def test_a_job_runs_undisturbed_for_as_long_as_it_was_promised(name: str, preemption: str) -> None:
    story = cluster("1x4", policy(name, guard_share=0, preemption=preemption))
    story.job("long", gpus=4, runs_s=5000, min_run_s=300.0, user="ann").until(0).starts("long")
    story.job("short", gpus=4, runs_s=10, at_s=1, user="bob")
    story.until(299).waits("short", Reason.RESOURCES).until(300).preempts("long").starts("short")
    story.job("other", gpus=4, runs_s=10, at_s=400, user="bob")
    story.until(310).finishes("short").starts("long").until(609).preempts()
    story.until(610).preempts("long").starts("other")


def test_neither_a_larger_priority_nor_the_guard_breaks_the_promise_but_an_operator_does() -> None:
    story = cluster("1x4", policy("asrpt", guard_wait_s=60))
    story.job("long", gpus=4, runs_s=5000, min_run_s=300.0).until(0).starts("long")
    story.job("urgent", gpus=4, runs_s=4000, priority=9).until(200).preempts()
    story.hold("long", preempt=True).until(201).preempts("long").starts("urgent")


def test_the_victims_are_no_more_than_needed_and_the_worst() -> None:
    story = cluster("1x4", policy("asrpt", guard_share=0))
    story.job("a", runs_s=1000).job("b", runs_s=4000).job("c", runs_s=2000).job("d", runs_s=3000).until(0)
    story.job("two", gpus=2, runs_s=100).until(1).preempts("b", "d").starts("two").runs("a", "c", "two")


def test_priority_beats_rank_in_a_preemption_and_lower_priorities_never_displace() -> None:
    story = cluster("1x1", policy("asrpt", guard_share=0))
    story.job("short", runs_s=10, priority=1).until(0)
    story.job("shorter", runs_s=1).until(1).preempts()
    story.job("urgent", runs_s=5000, priority=2).until(2).preempts("short").starts("urgent")


def test_las_gives_way_level_by_level_without_any_prediction() -> None:
    story = cluster("1x1", policy("las", guard_share=0), costs=ExecutorCosts(restart_s=0.0))
    story.job("old", runs_s=1000, predicted=None).until(0)
    story.job("new", runs_s=30, predicted=None, at_s=10).until(59).preempts()
    story.until(60).preempts("old").starts("new")
    story.to_the_end().finishes("new", "old")


def test_a_finish_that_beats_the_stop_counts() -> None:
    story = cluster("1x1", policy("asrpt", guard_share=0), costs=ExecutorCosts(stop_latency_s=20.0, restart_s=0.0))
    # Its estimate is far too long, so it looks worth stopping 5 s before its end.
    story.job("sly", runs_s=100, predicted=5000).until(94)
    story.job("short", runs_s=10).until(95).preempts("sly")
    assert story.state("sly") is JobState.PREEMPTING
    story.until(100).finishes("sly").starts("short")


def test_a_cancel_overtakes_a_preemption() -> None:
    story = cluster("1x1", policy("asrpt", guard_share=0), costs=ExecutorCosts(checkpoint_s=30.0, restart_s=0.0))
    story.job("long", runs_s=1000).until(0)
    story.job("short", runs_s=10, at_s=5).until(5).preempts("long")
    story.cancel("long").until(6)
    assert story.state("long") is JobState.CANCELLING
    story.until(35).cancels("long").starts("short")


def test_the_successor_that_goes_away_frees_its_reservation() -> None:
    story = cluster("1x2", policy("asrpt", guard_share=0), costs=ExecutorCosts(checkpoint_s=30.0, restart_s=0.0))
    story.job("long", gpus=2, runs_s=1000).until(0)
    story.job("short", gpus=2, runs_s=10, at_s=5).until(5).preempts("long")
    story.cancel("short").until(6).cancels("short")
    story.until(35).requeues("long", Cause.STOPPED).starts("long")


def test_a_reservation_on_a_server_that_is_drained_meanwhile_is_given_up() -> None:
    story = cluster("2x2", policy("asrpt", guard_share=0), costs=ExecutorCosts(checkpoint_s=30.0, restart_s=0.0))
    story.job("a", gpus=2, runs_s=1000).job("b", gpus=2, runs_s=500).until(0)
    story.job("short", gpus=2, runs_s=10, at_s=5).until(5).preempts("a").waits("short", Reason.RESERVED)
    story.drain(1).until(6).preempts("b")
    story.restart().until(7)
    assert story.record("short").reservation is not None
    story.until(36).starts("short").on("short", 0)


def test_a_reservation_that_nothing_replaces_is_cleared() -> None:
    story = cluster("1x2", policy("asrpt", guard_share=0), costs=ExecutorCosts(checkpoint_s=30.0, restart_s=0.0))
    story.job("long", gpus=2, runs_s=1000).until(0)
    story.job("short", gpus=2, runs_s=10, at_s=5).until(5).waits("short", Reason.RESERVED)
    story.drain(0).until(6).waits("short", Reason.NO_SUCH_SERVERS)
    assert story.record("short").reservation is None
    story.until(40).resume(0).until(41).starts("short")


def test_a_reservation_survives_a_restart_of_the_service() -> None:
    story = cluster("1x2", policy("asrpt", guard_share=0), costs=ExecutorCosts(checkpoint_s=30.0, restart_s=0.0))
    story.job("long", gpus=2, runs_s=1000).until(0)
    story.job("short", gpus=2, runs_s=10, at_s=5).until(5).preempts("long")
    story.restart().job("thief", gpus=1, runs_s=11).until(6).starts()
    story.until(35).starts("short")


def test_the_guard_lets_the_oldest_job_go_first_and_nobody_displaces_it() -> None:
    story = _crowd("asrpt", guard_share=1)
    story.until(200)
    assert story.record("old").attempts == 1
    story.to_the_end()
    assert story.record("old").preemptions == 0


def test_without_a_guard_a_stream_of_short_jobs_starves_the_long_one() -> None:
    story = _crowd("asrpt", guard_share=0)
    story.until(5000)
    assert story.record("old").attempts == 0


def test_after_the_guards_wait_gpus_are_set_aside_as_they_free_up() -> None:
    """A gang of the whole cluster among single jobs that keep it partly busy for ever: backfill would starve it."""
    for wait_s, started in ((300, True), (86_400, False)):
        story = cluster("1x2", policy("fifo_backfill", guard_wait_s=wait_s))
        story.job("first", runs_s=100).until(0)
        story.job("wide", gpus=2, runs_s=10)
        for number in range(40):
            story.job(f"n{number}", runs_s=100, at_s=50.0 * (number + 1))
        story.until(1000)
        assert bool(story.record("wide").attempts) is started
    # 300 s: whoever runs then ends within 100 s, and nobody new starts on the GPUs in between.


def _crowd(name: str, **options: object) -> Story:
    """One long job of two GPUs, and every 50 s a short one that takes both for 50 s."""
    story = cluster("1x2", policy(name, **options))
    for number in range(101):
        story.job(f"n{number}", gpus=2, runs_s=50, at_s=50.0 * number)
    story.job("old", gpus=2, runs_s=400, at_s=0)
    return story


def test_jobs_that_do_not_checkpoint_do_not_undo_each_others_work_for_ever() -> None:
    """Predicted to take 10 or 200 s, and they take 150: past 10 s each looks worse than the other looks afresh."""
    story = cluster("1x1", policy("asrpt", guard_share=0), costs=ExecutorCosts(restart_s=0.0))
    for name in ("a", "b"):
        story.job(name, runs_s=150, predicted=(10.0, 200.0), preemption=None, checkpoint_period_s=1000.0)
    story.to_the_end()
    assert story.clock.now_s() <= 2 * 150 + 2 * 20


def test_overdue_gangs_do_not_end_each_others_turns_at_one_instant() -> None:
    options = {"guard_wait_s": 0, "restarts_free": 1e6, "preemption": "always"}
    story = cluster("1x4", policy("srsf", **options)).job("a", gpus=4, runs_s=10).job("b", gpus=3, runs_s=5)
    story.to_the_end()
    assert story.record("a").attempts + story.record("b").attempts < 20


@pytest.mark.parametrize(
    ("why", "state", "reason"),
    [
        ("hold", JobState.PREEMPTING, Reason.HELD),
        ("cancel", JobState.CANCELLING, Reason.CANCELLED_BY_USER),
        ("short", JobState.PREEMPTING, Reason.PREEMPTED),
    ],
)
def test_while_a_job_is_being_stopped_it_is_explained_by_why(why: str, state: JobState, reason: Reason) -> None:
    story = cluster("1x2 1x2:A100", policy("srsf"), costs=ExecutorCosts(restart_s=0.0, stop_latency_s=20.0))
    story.job("a", gpus=2, runs_s=1000, gpu_type="V100").until(100)
    if why == "hold":
        story.hold("a", preempt=True)
    elif why == "cancel":
        story.cancel("a")
    else:
        story.job("short", gpus=2, runs_s=10, gpu_type="V100")
    story.until(100)
    told = story.engine.explain(story.ids["a"])
    assert (story.state("a"), told.reason, story.record("a").reason) == (state, reason, reason)
    assert told.sentence == f"Holds 2 GPUs until its program has stopped. {reason.sentence}"
