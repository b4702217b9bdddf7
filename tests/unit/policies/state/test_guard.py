"""The starvation guard against a search through all jobs."""

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.model.ids import JobId
from policies.model.job import JobSpec
from policies.state.guard import StarvationGuard
from policies.state.guard_turns import GuardTurns
from service.engine.record import JobRecord

GPUS_MAX = 4.0
JOBS = st.lists(st.tuples(st.sampled_from([1, 2, 4, 8]), st.integers(0, 30)), min_size=1, max_size=8)
OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["compete", "leave", "wait", "stop", "fill", "lose", "return"]), st.integers(0, 7)),
    max_size=30,
)


@settings(max_examples=200, deadline=None)
@given(JOBS, OPERATIONS)
def test_the_guard_agrees_with_a_search_of_all_jobs(
    rows: list[tuple[int, int]], operations: list[tuple[str, int]]
) -> None:
    guard = StarvationGuard(GPUS_MAX)
    jobs = [JobRecord(JobId(n), JobSpec("j", "u", gpus), float(at_s)) for n, (gpus, at_s) in enumerate(rows, start=1)]
    competing: set[int] = set()
    waiting: set[int] = set()
    guarded: list[int] = []
    extra: int | None = None
    lost: set[int] = set()
    """Jobs whose servers are gone. One that is found waiting is set aside until servers return."""
    aside: set[int] = set()
    for operation, choice in operations:
        job = jobs[choice % len(jobs)]
        if operation == "compete":
            guard.compete(job)
            competing.add(job.id)
        elif operation == "leave":
            guard.leave(job)
            competing.discard(job.id)
            guarded = [each for each in guarded if each != job.id]
            extra = None if extra == job.id else extra
            aside.discard(job.id)
        elif operation == "wait" and job.id not in waiting and job.id in competing:
            guard.start_waiting(job, 8)
            waiting.add(job.id)
        elif operation == "stop" and job.id in waiting:
            guard.stop_waiting(job.id)
            waiting.discard(job.id)
        elif operation == "fill":
            homeless = lost & waiting
            entered, guarded, extra = _filled(
                jobs, competing - aside, waiting - aside, guarded, extra, homeless, overdue_since_s=15.0
            )
            assert guard.fill(15.0, lambda number, gone=homeless: number not in gone) == entered
            aside = set(guard.aside)
            assert aside <= lost
        elif operation == "lose":
            lost.add(job.id)
        elif operation == "return":
            guard.take_back()
            lost, aside = set(), set()
        guard.check()
        assert (list(guard.guarded), guard.extra) == (guarded, extra)
        assert guard.guarded_gpus == sum(jobs[number - 1].spec.gpus for number in guarded) <= GPUS_MAX
        assert guard.members() == [*guarded, *([] if extra is None else [extra])]
        assert [guard.tier(each.id) for each in jobs] == [
            0 if each.id in guarded or each.id == extra else 1 for each in jobs
        ]


def _filled(
    jobs: list[JobRecord],
    competing: set[int],
    waiting: set[int],
    guarded: list[int],
    extra: int | None,
    homeless: set[int],
    overdue_since_s: float,
) -> tuple[list[int], list[int], int | None]:
    """The jobs that become guarded, all guarded jobs but the extra one, and that one."""
    by_age = sorted(jobs, key=lambda job: (job.submitted_at_s, job.id))
    entered, guarded = [], list(guarded)
    for job in by_age:
        if job.id in competing - homeless and job.id not in guarded:
            if sum(jobs[number - 1].spec.gpus for number in guarded) + job.spec.gpus > GPUS_MAX:
                break
            guarded.append(job.id)
            entered.append(job.id)
            extra = None if extra == job.id else extra
    if extra is None:
        oldest = next((job for job in by_age if job.id in waiting - homeless and job.id not in guarded), None)
        if oldest is not None and (oldest.spec.gpus <= GPUS_MAX or oldest.submitted_at_s <= overdue_since_s):
            extra = oldest.id
            entered.append(oldest.id)
    return entered, guarded, extra


def test_a_dump_guards_only_jobs_that_still_compete() -> None:
    guard = StarvationGuard(GPUS_MAX)
    jobs = [JobRecord(JobId(number), JobSpec("j", "u", 1), 0.0) for number in (1, 2, 3)]
    for job in jobs:
        guard.compete(job)
    guard.restore({"guarded": [1, 9], "guarded_extra": 2})
    guard.check()
    assert guard.dump() == {"guarded": [1], "guarded_extra": 2, "guard_turns": GuardTurns().dump()}


def test_a_large_gang_without_servers_keeps_no_younger_job_from_being_guarded() -> None:
    for others_wait in (True, False):
        guard = StarvationGuard(GPUS_MAX)
        large, small = (JobRecord(JobId(n), JobSpec("j", "u", gpus), float(n)) for n, gpus in ((1, 8), (2, 4)))
        for job in (large, small):
            guard.compete(job)
        guard.start_waiting(large, 8)
        if others_wait:
            guard.start_waiting(small, 8)
        assert guard.fill(-1.0, lambda job: job != 1) == [2]
        assert (guard.members(), list(guard.aside)) == ([2], [1])
        guard.check()
