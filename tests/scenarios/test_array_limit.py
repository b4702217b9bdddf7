"""``max_running`` of a job array: how many of its elements hold GPUs at a time, under every policy and after a restart."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.lifecycle import HOLDS_GPUS, JobState
from policies.model.ids import JobId
from policies.model.job import ArrayPlace
from policies.model.reasons import Reason
from service.engine.limits import LimitOwner, Scope
from tests.scenarios.dsl import Story, cluster, policy


def add_array(
    story: Story, name: str, runs_s: list[int], max_running: int | None, gpus: int = 1, at_s: float = 0.0
) -> None:
    first = JobId(len(story.ids) + 1)
    for index, each_s in enumerate(runs_s):
        place = ArrayPlace(index, len(runs_s), first, max_running)
        story.job(f"{name}{index}", runs_s=each_s, gpus=gpus, at_s=at_s, array=place)


def test_elements_start_as_others_end_and_other_jobs_pass() -> None:
    story = cluster("1x8", policy("fifo_backfill"))
    add_array(story, "a", [10, 20, 30], 2)
    story.job("other", runs_s=10).until(0).starts("a0", "a1", "other").waits("a2", Reason.QUOTA)
    told = story.engine.explain(story.ids["a2"])
    assert told.sentence.endswith("Job array 1 has 2 of its jobs before it, as many as it may (max_running 2).")
    assert told.numbers == {"max_running": 2, "running": 2}
    story.until(10).finishes("a0", "other").starts("a2")


def test_the_limit_counts_elements_whatever_their_gpus() -> None:
    story = cluster("1x8", policy("fifo_backfill"))
    add_array(story, "a", [10, 10, 10], 2, gpus=3)
    story.until(0).starts("a0", "a1").waits("a2", Reason.QUOTA).until(10).finishes("a0", "a1").starts("a2")


def test_arrays_are_limited_each_by_itself_and_one_without_a_limit_not_at_all() -> None:
    story = cluster("1x8", policy("fifo_backfill"))
    add_array(story, "a", [10, 10], 1)
    add_array(story, "b", [10, 10], 1)
    add_array(story, "c", [10, 10, 10], None)
    story.until(0).starts("a0", "b0", "c0", "c1", "c2").waits("a1", Reason.QUOTA).waits("b1", Reason.QUOTA)


def test_the_limit_holds_after_a_restart() -> None:
    story = cluster("1x8", policy("fifo_backfill"))
    add_array(story, "a", [10, 20, 30], 2)
    story.until(0).starts("a0", "a1").until(5).restart().until(6).waits("a2", Reason.QUOTA)
    story.until(10).finishes("a0").starts("a2")


def test_a_quota_and_the_limit_of_an_array_both_hold() -> None:
    story = cluster("1x8", policy("fifo_backfill")).quota(3, user="u")
    add_array(story, "a", [10, 10, 10], 2)
    story.job("x", runs_s=10).job("y", runs_s=10)
    story.until(0).starts("a0", "a1", "x").waits("a2", Reason.QUOTA).waits("y", Reason.QUOTA)
    story.quota(None, user="u").until(1).starts("y").waits("a2", Reason.QUOTA)


def test_an_element_that_is_held_takes_no_place() -> None:
    story = cluster("1x8", policy("fifo_backfill"))
    add_array(story, "a", [10, 10, 10], 1)
    story.until(0).starts("a0").hold("a1").until(10).finishes("a0").starts("a2")
    story.release("a1").until(11).waits("a1", Reason.QUOTA).until(20).finishes("a2").starts("a1")


@pytest.mark.parametrize("leave", [Story.cancel, Story.hold])
def test_elements_that_a_quota_does_not_admit_may_all_leave_at_once(leave: Callable[[Story, str], Story]) -> None:
    story = cluster("1x8", policy("fifo_backfill")).quota(2, user="u")
    add_array(story, "a", [10, 10, 10], 2, gpus=4)
    story.until(0).waits("a0", Reason.QUOTA_TOO_SMALL)
    for element in ("a0", "a1", "a2"):
        leave(story, element)
    story.job("other", runs_s=5, at_s=1, gpus=1).until(1).starts("other")
    assert story.engine.world.admission.limits.keys() == {LimitOwner(Scope.USER, "u")}


def test_the_limit_stays_when_one_element_leaves_of_those_that_a_quota_does_not_admit() -> None:
    story = cluster("1x8", policy("fifo_backfill")).quota(1, user="u")
    add_array(story, "a", [10, 10, 10, 10], 1, gpus=2)
    story.until(0).cancel("a0").until(1)
    story.quota(None, user="u").until(2).starts("a1").waits("a2", Reason.QUOTA).waits("a3", Reason.QUOTA)


def test_nothing_is_kept_of_arrays_that_have_ended() -> None:
    story = cluster("1x8", policy("fifo_backfill"))
    add_array(story, "a", [10, 10, 10], 1)
    add_array(story, "b", [5, 5], 2)
    story.until(0).until(40)
    assert story.engine.world.admission.limits == {}
    assert story.state("a2") is JobState.SUCCEEDED


@pytest.mark.parametrize("name", ["asrpt", "fifo_backfill", "las", "easy"])
@settings(max_examples=20, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(1, 50), min_size=1, max_size=5),
            st.integers(1, 3),
            st.integers(1, 3),
            st.integers(0, 60),
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(0, 80),
)
def test_no_policy_runs_more_elements_than_asked_and_all_end(
    name: str, arrays: list[tuple[list[int], int, int, int]], restart_s: int
) -> None:
    story = cluster("2x4", policy(name))
    for number, (runs_s, most, gpus, at_s) in enumerate(arrays):
        add_array(story, f"a{number}-", runs_s, most, gpus, at_s)
    for at_s in sorted({*range(0, 900, 20), restart_s}):
        story.until(at_s)
        if at_s == restart_s:
            story.restart()
        running: dict[JobId, int] = {}
        for job in story.engine.world.jobs.values():
            if job.state in HOLDS_GPUS and job.spec.array is not None:
                running[job.spec.array.id] = running.get(job.spec.array.id, 0) + 1
                assert running[job.spec.array.id] <= (job.spec.array.max_running or 0)
    assert {story.state(job) for job in story.ids} == {JobState.SUCCEEDED}
    assert story.engine.world.admission.limits == {}
