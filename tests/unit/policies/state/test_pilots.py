"""Pilots against a count of all jobs."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.lifecycle import JobState
from policies.model.estimate import Estimate, Unit
from policies.model.ids import JobId
from policies.model.job import JobSpec
from policies.state.pilots import Pilots
from service.engine.record import JobRecord

ESTIMATES = {
    "distribution": Estimate((1.0, 2.0), Unit.SERVICE_S, "test"),
    "point": Estimate((1.0,), Unit.SERVICE_S, "test"),
    "untrusted": Estimate((1.0, 2.0), Unit.SERVICE_S, "test", trusted=False),
    "none": None,
}
JOBS = 12

CHANGES = st.tuples(
    st.integers(1, JOBS), st.sampled_from(["x", "y", ""]), st.booleans(), st.sampled_from([*ESTIMATES, "distribution"])
)


@settings(max_examples=200, deadline=None)
@given(st.lists(CHANGES, max_size=60))
def test_the_first_run_of_each_program_counts_the_runs_that_compete(changes: list[tuple[int, str, bool, str]]) -> None:
    pilots, jobs, before = Pilots(), dict[int, JobRecord](), Counter[int]()
    for number, name, waits, estimate in changes:
        job = JobRecord(JobId(number), JobSpec(name, "user", gpus=1), 0.0, held=not waits)
        job.estimate = ESTIMATES[estimate]
        jobs[number] = job
        pilots.note(job)

        counting = [
            (of.spec.name, number)
            for number, of in sorted(jobs.items())
            if of.waiting and of.spec.name and of.estimate is ESTIMATES["distribution"]
        ]
        runs = Counter(name for name, _ in counting)
        first = dict(reversed(counting))
        for number in jobs:
            name = jobs[number].spec.name
            is_pilot = first.get(name) == number
            alike = pilots.alike(JobId(number))
            assert alike <= runs[name] < 2 * alike if is_pilot else alike == 1
        now = Counter({number: pilots.alike(JobId(number)) for number in jobs})
        assert {number for number in jobs if now[number] != (before[number] or 1)} <= set(pilots.changed())
        assert not pilots.changed()
        before = now


def test_a_run_counts_while_it_holds_gpus_and_not_when_it_has_ended() -> None:
    pilots = Pilots()
    jobs = [JobRecord(JobId(number), JobSpec("x", "user", gpus=1), 0.0) for number in (1, 2, 3, 4)]
    for job in jobs:
        job.estimate = ESTIMATES["distribution"]
        pilots.note(job)
    assert [pilots.alike(job.id) for job in jobs] == [4, 1, 1, 1]
    jobs[0].state = JobState.SUCCEEDED
    pilots.note(jobs[0])
    assert [pilots.alike(job.id) for job in jobs] == [1, 2, 1, 1]


@settings(max_examples=100, deadline=None)
@given(st.lists(CHANGES, max_size=30))
def test_runs_that_are_noted_together_count_as_one_by_one_and_none_has_changed(
    changes: list[tuple[int, str, bool, str]],
) -> None:
    jobs = {}
    for number, name, waits, estimate in changes:
        job = jobs[number] = JobRecord(JobId(number), JobSpec(name, "user", gpus=1), 0.0, held=not waits)
        job.estimate = ESTIMATES[estimate]
    together, single = Pilots(), Pilots()
    together.note_all(jobs.values())
    for job in jobs.values():
        single.note(job)
    assert not together.changed()
    for job in [*jobs.values(), JobRecord(JobId(JOBS + 1), JobSpec("x", "user", gpus=1), 0.0)]:
        job.held, job.estimate = not job.held, ESTIMATES["distribution"]
        assert [together.alike(each) for each in jobs] == [single.alike(each) for each in jobs]
        single.changed()
        together.note(job)
        single.note(job)
        assert together.changed() == single.changed()
