"""Any web of jobs that wait for each other, whatever becomes of each, ends as a look at the web alone says it must."""

from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.lifecycle import JobState
from policies.model.ids import JobId
from policies.model.job import ArrayPlace
from tests.scenarios.dsl import cluster, policy


class Planned(NamedTuple):
    """A job: which of those before it must succeed and which must end, and what its program does."""

    after: frozenset[int]
    after_any: frozenset[int]
    succeeds: bool
    runs_s: int
    at_s: int


@st.composite
def webs(draw: st.DrawFn) -> list[Planned]:
    jobs = []
    for number in range(draw(st.integers(1, 9))):
        earlier = st.frozensets(st.integers(0, number - 1), max_size=3) if number else st.just(frozenset[int]())
        # A job is submitted when those that it waits for are known already.
        least = jobs[-1].at_s if jobs else 0
        jobs.append(
            Planned(
                draw(earlier),
                draw(earlier),
                draw(st.booleans()),
                draw(st.integers(1, 30)),
                least + draw(st.integers(0, 20)),
            )
        )
    return jobs


def outcomes(jobs: list[Planned]) -> list[JobState]:
    """What must become of each, in their order: nobody waits for a later one."""
    found: list[JobState] = []
    for job in jobs:
        doomed = any(found[needed] is not JobState.SUCCEEDED for needed in job.after)
        ran = JobState.SUCCEEDED if job.succeeds else JobState.FAILED
        found.append(JobState.CANCELLED if doomed else ran)
    return found


@settings(max_examples=60, deadline=None)
@given(webs(), st.sets(st.integers(0, 40), max_size=3))
def test_every_web_of_jobs_ends_as_it_must(jobs: list[Planned], restarts_s: set[int]) -> None:
    story = cluster("1x16", policy("fifo_backfill"))
    names = [f"j{number}" for number in range(len(jobs))]
    for name, job in zip(names, jobs, strict=True):
        story.until(job.at_s)
        story.job(
            name,
            runs_s=job.runs_s if job.succeeds else 1e6,
            max_retries=0,
            after=[names[needed] for needed in sorted(job.after)],
            after_any=[names[needed] for needed in sorted(job.after_any)],
        )
    crashed: set[str] = set()
    for at_s in range(jobs[-1].at_s, jobs[-1].at_s + 340, 5):
        story.until(at_s)
        if (at_s - jobs[-1].at_s) // 5 in restarts_s:
            story.restart()
        for name, job in zip(names, jobs, strict=True):
            if not job.succeeds and name not in crashed and story.state(name) is JobState.RUNNING:
                story.crash(name)
                crashed.add(name)
    assert [story.state(name) for name in names] == outcomes(jobs)
    for name, job in zip(names, jobs, strict=True):
        record = story.record(name)
        ended_s = [story.record(names[needed]).finished_at_s for needed in job.after | job.after_any]
        if record.first_started_at_s is not None:
            assert all(end_s is not None and end_s <= record.first_started_at_s for end_s in ended_s)


def test_the_elements_of_an_array_wait_as_one_entry_that_all_needed_jobs_share() -> None:
    story = cluster("1x16", policy("fifo_backfill"))
    needed = [f"n{number}" for number in range(5)]
    for number, name in enumerate(needed):
        story.job(name, runs_s=10 * (number + 1))
    story.until(0)
    array = JobId(story.ids[needed[-1]] + 1)
    for index in range(4):  # the last one is admitted when some of the needed jobs have ended
        at_s = 25 if index == 3 else 1
        story.job(f"e{index}", runs_s=5, after=needed, at_s=at_s, array=ArrayPlace(index, 4, array))
    story.job("single", runs_s=5, after=needed[-2:], at_s=26).until(30)
    dependents = story.engine.world.dependents
    assert [list(dependents[story.ids[name]]) for name in needed[3:]] == [[array, story.ids["single"]]] * 2
    entries = {id(dependents[story.ids[name]][array]): dependents[story.ids[name]][array] for name in needed[3:]}
    assert [list(entry) for entry in entries.values()] == [[story.ids[f"e{index}"] for index in range(4)]]
    story.until(49).until(50)
    assert all(story.state(name) is JobState.RUNNING for name in ("e0", "e1", "e2", "e3", "single"))


def test_the_elements_of_an_array_are_cancelled_with_the_job_that_they_wait_for() -> None:
    story = cluster("1x16", policy("fifo_backfill"))
    story.job("a", runs_s=100).job("b", runs_s=10, max_retries=0).until(0)
    array = JobId(story.ids["b"] + 1)
    for index in range(3):
        story.job(f"e{index}", after=["a", "b"], at_s=1, array=ArrayPlace(index, 3, array))
    story.until(5).crash("b").until(6)
    assert {story.state(f"e{index}") for index in range(3)} == {JobState.CANCELLED}
