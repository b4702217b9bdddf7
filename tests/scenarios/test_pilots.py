"""The first run of a program goes earlier, the more others learn from its end."""

from typing import Any

from tests.scenarios.dsl import Story, cluster, policy

SHORT_OR_LONG = (100.0, 1000.0, 1000.0)
"""By itself such a job ranks as (100 + 2 x 100) / 1 = 300 seconds; the first of four as 100 + 2 x 100 / 4 = 150."""


def behind_another(**of_runs: Any) -> Story:
    """One GPU is taken for 50 seconds; a job of 200 seconds waits, and four runs."""
    story = cluster("1x1", policy("asrpt"))
    story.job("running", runs_s=50).until(0).starts("running").job("other", runs_s=200)
    for run in "abcd":
        story.job(run, runs_s=100, predicted=SHORT_OR_LONG, **of_runs)
    return story


def test_the_first_run_of_a_sweep_passes_a_job_that_each_run_alone_would_wait_for() -> None:
    told = behind_another(recurrence_key="sweep").until(0)
    assert [dict(told.engine.explain(told.ids[run]).numbers).get("alike_runs") for run in "ab"] == [4, None]
    # After its end three are left, and the next one is worth two: 100 + 2 x 100 / 2 = 200, as much as the other job.
    behind_another(recurrence_key="sweep").to_the_end().starts("a", "other", "b", "c", "d")


def test_different_programs_tell_nothing_of_each_other() -> None:
    behind_another().to_the_end().starts("other", "a", "b", "c", "d")


def test_runs_whose_total_is_known_do_not_count() -> None:
    story = behind_another(recurrence_key="sweep")
    story.told.points |= {story.ids[run]: (250.0,) for run in "bcd"}
    story.until(50).finishes("running").starts("other")


def test_a_run_that_waits_passes_the_other_job_when_more_of_its_program_arrive() -> None:
    story = cluster("1x1", policy("asrpt"))
    story.job("running", runs_s=50).until(0).starts("running")
    story.job("other", runs_s=200).job("a", runs_s=100, predicted=SHORT_OR_LONG, recurrence_key="sweep")
    for run in "bcd":
        story.job(run, at_s=20, runs_s=100, predicted=SHORT_OR_LONG, recurrence_key="sweep")
    story.to_the_end().starts("a", "other", "b", "c", "d")


def test_the_next_run_is_the_first_one_while_that_is_held() -> None:
    story = behind_another(recurrence_key="sweep")
    story.job("e", runs_s=100, predicted=SHORT_OR_LONG, recurrence_key="sweep").until(10)
    story.hold("a").until(50).finishes("running").starts("b")


def test_a_service_that_starts_again_has_the_same_first_run() -> None:
    story = behind_another(recurrence_key="sweep").until(10)
    story.restart().until(50).finishes("running").starts("a")


def test_the_next_run_is_the_first_one_when_that_has_ended() -> None:
    story = behind_another(recurrence_key="sweep")
    story.job("e", runs_s=100, predicted=SHORT_OR_LONG, recurrence_key="sweep")
    story.to_the_end().starts("a", "b", "other", "c", "d", "e")


def test_the_next_run_is_the_first_one_when_that_was_cancelled_before_it_started() -> None:
    story = behind_another(recurrence_key="sweep")
    story.job("e", runs_s=100, predicted=SHORT_OR_LONG, recurrence_key="sweep").until(10)
    story.cancel("a").until(50).finishes("running").starts("b")


def test_runs_count_from_when_their_estimates_are_distributions() -> None:
    story = cluster("1x2", policy("asrpt"))
    story.job("running", runs_s=50).job("brief", runs_s=10).until(0).starts("running", "brief")
    story.job("other", gpus=2, runs_s=200)
    for run in "abcd":
        points = SHORT_OR_LONG if run == "a" else (250.0,)
        story.job(run, gpus=2, runs_s=100, predicted=points, recurrence_key="sweep")
    story.until(5)
    story.told.outdated = [story.ids[run] for run in "bcd"]
    story.told.points |= {story.ids[run]: SHORT_OR_LONG for run in "bcd"}
    story.until(50).finishes("brief", "running").starts("a")


def test_a_running_job_ranks_by_the_runs_that_are_left() -> None:
    """After 70 seconds it ranks as about 57 while it is the first of four, and as about 113 when the others are cancelled."""
    for cancelled in ("", "bcd"):
        story = cluster("1x1", policy("asrpt", preemption="always"))
        for run in "abcd":
            story.job(run, runs_s=100, predicted=SHORT_OR_LONG, recurrence_key="sweep")
        story.until(68).starts("a")
        for run in cancelled:
            story.cancel(run)
        story.job("other", at_s=70, runs_s=100).until(70)
        if cancelled:
            story.preempts("a").starts("other")
        else:
            story.preempts().starts()
