"""Quotas and pauses: who may start, who waits and why, and what happens when limits change."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.lifecycle import HOLDS_GPUS, JobState
from policies.model.reasons import Reason
from policies.registry import policy_names
from tests.scenarios.dsl import Story, cluster, policy


def story(shape: str, name: str = "fifo_backfill", **options: Any) -> Story:
    return cluster(shape, policy(name, **options))


def test_a_project_holds_no_more_gpus_than_its_quota() -> None:
    made = story("1x8").quota(2, project="nlp")
    for name in "abc":
        made.job(name, runs_s=10, project="nlp")
    made.job("other", runs_s=10, project="vision")
    made.until(0).starts("a", "b", "other").waits("c", Reason.QUOTA)
    made.until(10).finishes("a", "b", "other").starts("c")


def test_a_quota_of_a_user_and_one_of_a_project_both_hold() -> None:
    made = story("1x8").quota(3, project="nlp").quota(1, user="ann")
    made.job("ann1", runs_s=10, user="ann", project="nlp").job("ann2", runs_s=10, user="ann", project="nlp")
    made.job("bob1", runs_s=10, user="bob", project="nlp").job("bob2", runs_s=10, user="bob", project="nlp")
    made.job("bob3", runs_s=10, user="bob", project="nlp")
    made.until(0).starts("ann1", "bob1", "bob2").waits("ann2", Reason.QUOTA).waits("bob3", Reason.QUOTA)
    made.until(10).finishes("ann1", "bob1", "bob2").starts("ann2", "bob3")


def test_whom_a_users_quota_keeps_back_takes_no_room_of_the_project() -> None:
    """Else a user with nothing left could fill the project's queue and stop everyone else in it."""
    made = story("1x8").quota(2, project="nlp").quota(0, user="ann")
    made.job("ann", user="ann", project="nlp", priority=9, runs_s=10)
    made.job("bob1", user="bob", project="nlp", runs_s=10).job("bob2", user="bob", project="nlp", runs_s=10)
    made.until(0).starts("bob1", "bob2").waits("ann", Reason.QUOTA_TOO_SMALL)


def test_a_wide_gang_is_not_passed_for_ever_by_narrow_ones() -> None:
    made = story("1x8").quota(4, project="nlp")
    made.job("running", gpus=2, runs_s=100, project="nlp").until(0).starts("running")
    made.job("wide", gpus=4, runs_s=10, project="nlp").job("narrow", gpus=1, runs_s=10, at_s=60, project="nlp")
    made.until(60).waits("wide", Reason.QUOTA).waits("narrow", Reason.QUOTA)
    made.until(100).finishes("running").starts("wide")
    made.until(110).finishes("wide").starts("narrow")


def test_a_gang_wider_than_the_quota_says_so_and_keeps_nobody_waiting() -> None:
    made = story("1x8").quota(2, project="nlp")
    made.job("wide", gpus=4, runs_s=10, project="nlp").job("narrow", runs_s=10, project="nlp")
    made.until(0).starts("narrow").waits("wide", Reason.QUOTA_TOO_SMALL)
    told = made.engine.explain(made.ids["wide"])
    assert told.detail == (
        "Project 'nlp' may hold 2 of the GPUs at a time, fewer than the job needs; raise the quota or ask for fewer."
    )
    made.until(1).quota(4, project="nlp").until(2)
    made.waits("wide", Reason.QUOTA).until(10).finishes("narrow").starts("wide")


def test_a_quota_that_is_lowered_below_a_waiting_gang_says_so_also_after_a_restart() -> None:
    made = story("1x8").quota(4, project="nlp").quota(8, user="ann")
    made.job("running", gpus=4, runs_s=100, project="nlp").until(0).starts("running")
    made.job("gang", gpus=4, runs_s=10, user="ann", project="nlp", at_s=1).until(1).waits("gang", Reason.QUOTA)
    made.quota(2, user="ann").until(2).waits("gang", Reason.QUOTA_TOO_SMALL).restart().until(3)
    made.waits("gang", Reason.QUOTA_TOO_SMALL).pause(project="nlp").until(4).waits("gang", Reason.QUEUE_PAUSED)


def test_a_gang_whose_servers_are_down_takes_no_room_of_the_quota_until_they_return() -> None:
    made = cluster("1x4:V100 1x4:A100", policy("asrpt")).quota(4, project="p").drain(1).until(0)
    made.job("a", gpus=4, runs_s=10, gpu_type="A100", project="p", at_s=1)
    made.job("a2", gpus=4, runs_s=10, gpu_type="A100", project="p", at_s=1)
    for number in range(4):
        made.job(f"v{number}", runs_s=100, gpu_type="V100", project="p", at_s=2)
    made.until(2).starts("v0", "v1", "v2", "v3").waits("a", Reason.NO_SUCH_SERVERS)
    made.resume(1).until(3).starts().waits("a", Reason.QUOTA).waits("a2", Reason.QUOTA)
    made.until(102).finishes("v0", "v1", "v2", "v3").starts("a").until(112).starts("a2")


def test_a_gang_that_was_let_through_gives_its_room_back_when_its_servers_fail() -> None:
    made = cluster("1x4:V100 1x4:A100", policy("fifo_backfill")).quota(4, project="p").until(0)
    made.job("other", gpus=4, runs_s=500, gpu_type="A100").until(0).starts("other")
    made.job("a", gpus=4, runs_s=10, gpu_type="A100", project="p", at_s=1).until(1).waits("a", Reason.RESOURCES)
    made.job("v", gpus=4, runs_s=10, gpu_type="V100", project="p", at_s=2).until(2).waits("v", Reason.QUOTA)
    made.drain(1).until(3).starts("v").restart().until(13).finishes("v")
    made.resume(1).until(500).finishes("other").starts("a")


def test_the_explanation_names_the_limit_and_its_use() -> None:
    made = story("1x8").quota(3, user="ann")
    made.job("a", gpus=2, user="ann", runs_s=10).job("b", gpus=2, user="ann", runs_s=10).until(0).starts("a")
    told = made.engine.explain(made.ids["b"])
    assert told.reason is Reason.QUOTA
    assert told.numbers == {"gpus_running_max": 3, "gpus_running": 2, "gpus_promised": 0}
    assert "User 'ann' may hold 3 of the GPUs at a time: 2 held" in told.sentence


def test_a_better_job_takes_the_turn_of_one_that_has_not_started() -> None:
    made = story("1x4").quota(2, project="nlp")
    made.job("blocker", gpus=4, runs_s=100).until(0).starts("blocker")
    made.job("long", gpus=2, runs_s=1000, project="nlp").until(1).waits("long", Reason.RESOURCES)
    made.job("short", gpus=2, runs_s=10, project="nlp").until(2)
    made.waits("long", Reason.QUOTA).waits("short", Reason.RESOURCES)
    made.until(100).finishes("blocker").starts("short")
    made.until(110).finishes("short").starts("long")


def test_shorter_jobs_that_keep_coming_do_not_starve_a_long_one() -> None:
    """Jobs that come later than 4 times its remaining time find it before them."""
    made = story("1x4").quota(1, project="nlp")
    made.job("first", runs_s=50, project="nlp").until(0).starts("first")
    made.job("long", runs_s=100, at_s=1, project="nlp")
    for number in range(20):
        made.job(f"short{number}", runs_s=50, at_s=1 + 45 * number, project="nlp")
    made.until(700)
    assert made.state("long") is JobState.SUCCEEDED
    assert made.state("short15") is JobState.QUEUED


def test_nothing_is_preempted_for_a_job_beyond_its_quota() -> None:
    made = story("1x2", "asrpt", preemption="always", guard_share=0).quota(1, project="nlp")
    made.job("held", runs_s=1000, project="nlp").job("other", runs_s=1000).until(0).starts("held", "other")
    made.job("short", runs_s=10, project="nlp").until(1).waits("short", Reason.QUOTA)
    made.until(900).runs("held", "other")


def test_a_quota_lowered_below_its_use_stops_nobody() -> None:
    made = story("1x8")
    made.job("a", gpus=4, runs_s=10, project="nlp").job("b", gpus=4, runs_s=20, project="nlp").until(0).starts("a", "b")
    made.job("c", gpus=1, runs_s=10, project="nlp").until(1).waits("c", Reason.RESOURCES)
    made.quota(2, project="nlp").until(2).waits("c", Reason.QUOTA).runs("a", "b")
    made.until(10).finishes("a").waits("c", Reason.QUOTA)
    made.until(20).finishes("b").starts("c")


def test_a_raised_or_removed_quota_lets_jobs_through() -> None:
    made = story("1x8").quota(1, project="nlp")
    for name in "abc":
        made.job(name, runs_s=100, project="nlp")
    made.until(0).starts("a").quota(2, project="nlp").until(1).starts("b").waits("c", Reason.QUOTA)
    made.quota(None, project="nlp").until(2).starts("c")


def test_a_preempted_job_takes_its_turn_again() -> None:
    made = story("1x2", "asrpt", preemption="always", guard_share=0).quota(1, project="nlp")
    made.job("long", runs_s=1000, project="nlp").until(0).starts("long")
    made.job("wide", gpus=2, runs_s=10).until(1).preempts("long").starts("wide")
    made.until(11).finishes("wide").starts("long")


def test_a_paused_project_starts_nothing_and_goes_on_with_what_runs() -> None:
    made = story("1x2")
    made.job("a", runs_s=50, project="nlp").job("b", gpus=2, runs_s=10, project="nlp").job("c", gpus=2, runs_s=10)
    made.until(0).starts("a").waits("b", Reason.RESOURCES)
    made.pause("maintenance", project="nlp").until(1).waits("b", Reason.QUEUE_PAUSED).runs("a")
    assert made.engine.explain(made.ids["b"]).detail == (
        "Project 'nlp' is paused: maintenance. Nothing of it starts until it is resumed."
    )
    made.until(50).finishes("a").starts("c")
    made.until(60).finishes("c").waits("b", Reason.QUEUE_PAUSED)
    made.unpause(project="nlp").until(61).starts("b")


def test_the_whole_queue_can_be_paused() -> None:
    made = story("1x2").pause()
    made.job("a", runs_s=10).job("b", runs_s=10, project="nlp").until(0)
    made.waits("a", Reason.QUEUE_PAUSED).waits("b", Reason.QUEUE_PAUSED)
    made.unpause().until(1).starts("a", "b")


def test_a_pause_and_a_quota_of_one_project_do_not_undo_each_other() -> None:
    made = story("1x2").quota(1, project="nlp").pause(project="nlp")
    made.job("a", runs_s=10, project="nlp").job("b", runs_s=10, project="nlp")
    made.until(0).waits("a", Reason.QUEUE_PAUSED).unpause(project="nlp").until(1).starts("a").waits("b", Reason.QUOTA)


def test_a_held_or_cancelled_job_gives_its_turn_away() -> None:
    made = story("1x4").quota(2, project="nlp")
    made.job("blocker", gpus=4, runs_s=100).until(0).starts("blocker")
    for name in "abcd":
        made.job(name, runs_s=10, project="nlp")
    made.until(1).waits("b", Reason.PRIORITY).waits("c", Reason.QUOTA)
    made.hold("a").until(2).waits("a", Reason.HELD).waits("d", Reason.QUOTA)
    made.cancel("b").until(3).cancels("b")
    made.until(100).finishes("blocker").starts("c", "d")
    made.release("a").until(101).waits("a", Reason.QUOTA).until(110).finishes("c", "d").starts("a")


def test_a_priority_given_later_changes_whose_turn_it_is() -> None:
    made = story("1x4").quota(1, project="nlp")
    for name in "abc":
        made.job(name, runs_s=10, project="nlp")
    made.until(0).starts("a").prioritise("c", 5).until(10).finishes("a").starts("c")


def test_limits_survive_a_restart() -> None:
    made = story("1x8").quota(2, project="nlp").pause(user="ann")
    for name in "abc":
        made.job(name, runs_s=10, project="nlp")
    made.job("paused", user="ann").until(0).starts("a", "b")
    made.restart().until(1).waits("c", Reason.QUOTA).waits("paused", Reason.QUEUE_PAUSED)
    made.until(10).finishes("a", "b").starts("c")


def test_a_job_whose_row_went_stale_keeps_to_the_quota() -> None:
    made = story("1x8").quota(1, project="nlp")
    made.job("a", runs_s=10, project="nlp").job("b", runs_s=10, project="nlp").until(0).starts("a")
    made.memory.bump(made.ids["b"])
    made.prioritise("b", 3).until(1).waits("b", Reason.QUOTA)
    made.until(10).finishes("a").starts("b")


def test_a_limit_that_changes_in_the_pass_in_which_servers_return_forgets_nobody() -> None:
    """The policy was told of the job while no servers could hold it; now it counts, and has to wait for its project's turn."""
    made = cluster("1x4:V100 1x4:A100", policy("fifo_backfill")).quota(4, project="nlp").drain(1)
    made.job("first", gpus=4, runs_s=100, project="nlp", gpu_type="V100")
    made.job("second", gpus=4, runs_s=10, project="nlp", gpu_type="A100")
    made.until(1).waits("second", Reason.NO_SUCH_SERVERS)
    made.resume(1).quota(2, user="somebody").until(2).waits("second", Reason.QUOTA)
    made.until(100).finishes("first").starts("second")


_jobs = st.lists(
    st.tuples(
        st.integers(1, 4),
        st.integers(1, 60),
        st.integers(0, 100),
        st.sampled_from(["ann", "bob"]),
        st.sampled_from(["nlp", "cv"]),
    ),
    min_size=1,
    max_size=12,
)


@pytest.mark.parametrize("name", ["asrpt", "fifo_backfill", "las", "easy"])
@settings(max_examples=25, deadline=None)
@given(
    _jobs,
    st.integers(0, 5),
    st.integers(0, 5),
    st.integers(0, 5),
    st.integers(0, 80),
    st.tuples(st.integers(0, 80), st.integers(0, 80)),
)
def test_no_policy_breaks_a_limit_and_nobody_is_forgotten(
    name: str,
    jobs: list[tuple[int, int, int, str, str]],
    nlp: int,
    cv: int,
    ann: int,
    restart_s: int,
    drained: tuple[int, int],
) -> None:
    assert name in policy_names()
    made = story("2x4", name).quota(nlp, project="nlp").quota(cv, project="cv").quota(ann, user="ann")
    most = {("project", "nlp"): nlp, ("project", "cv"): cv, ("user", "ann"): ann}
    for number, (gpus, runs_s, at_s, user, project) in enumerate(jobs):
        made.job(f"j{number}", gpus=gpus, runs_s=runs_s, at_s=at_s, user=user, project=project)
    for at_s in sorted({*range(0, 1000, 20), restart_s, *drained}):
        made.until(at_s)
        if at_s == min(drained):
            made.drain(1)
        if at_s == max(drained):
            made.resume(1)
        if at_s == restart_s:
            made.restart()
        held: dict[tuple[str, str], int] = {}
        for job in made.engine.world.jobs.values():
            if job.state in HOLDS_GPUS:
                for owner in (("project", job.spec.project), ("user", job.spec.user)):
                    held[owner] = held.get(owner, 0) + job.spec.gpus
        assert all(held.get(owner, 0) <= limit for owner, limit in most.items())
    for number, (gpus, _, _, user, project) in enumerate(jobs):
        fits = gpus <= min(most["project", project], most.get(("user", user), 8))
        ended = made.state(f"j{number}") is JobState.SUCCEEDED
        assert ended == fits, f"j{number} of {gpus} GPUs"
