"""A policy's indexes: orders, claims, the pencil and the guard."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.model.cluster import Cluster, Server
from policies.model.ids import JobId, ServerIndex
from policies.model.job import JobSpec
from policies.model.placement import Placement, ServerShare, place
from policies.placement.pool import FreePool
from policies.rank import Rank
from policies.state.scheduler_state import SchedulerState
from policies.state.victim_order import worst_first
from service.engine.record import JobRecord
from service.engine.world import Costs, World


def make(*gpus: int, guard: float = 0.0) -> tuple[World, SchedulerState]:
    world = World(Cluster("c", tuple(Server(f"s{n}", count) for n, count in enumerate(gpus))), Costs())
    return world, SchedulerState(FreePool(world.cluster, list(gpus)), sum(gpus), guard)


def job(number: int, gpus: int = 1, submitted_at_s: float = 0.0, priority: int = 0) -> JobRecord:
    return JobRecord(JobId(number), JobSpec("j", "u", gpus), submitted_at_s, priority=priority)


def on(*shares: tuple[int, int]) -> Placement:
    return place([ServerShare(ServerIndex(server), gpus) for server, gpus in shares])


def test_waiting_jobs_stand_in_order_of_priority_rank_and_age() -> None:
    _, book = make(8)
    for record, rank in ((job(1), 5.0), (job(2), 1.0), (job(3, priority=1), 9.0), (job(4, submitted_at_s=-1.0), 5.0)):
        book.enqueue(record, rank)
    (entries,) = book.waiting.values()
    assert [key.job for key in entries] == [3, 2, 4, 1]
    assert [book.jobs_ahead(JobId(number)) for number in (3, 2, 4, 1)] == [0, 1, 2, 3]
    book.enqueue(job(1), 0.5)
    assert [key.job for key in entries] == [3, 1, 2, 4]
    for number in (1, 2, 3, 4, 4):
        book.dequeue(JobId(number))
    assert not book.waiting
    assert not book.waiting_ages


RUNNING = st.lists(
    st.tuples(st.sampled_from([1, 2, 4]), st.integers(-1, 1), st.integers(0, 100), st.integers(0, 1)), max_size=12
)


@settings(max_examples=150, deadline=None)
@given(RUNNING, st.integers(0, 50))
def test_running_jobs_come_worst_first_at_any_time(rows: list[tuple[int, int, int, int]], later_s: int) -> None:
    """Against sorting: ranks rise, fall or stand still with time, each at the pace of its gang."""
    _, book = make(8)
    expected = []
    for number, (gpus, slope, rank, priority) in enumerate(rows, start=1):
        record = job(number, gpus, priority=priority)
        book.index_running(record, Rank(float(rank), slope), 100.0, None)
        expected.append((priority, -(rank + slope * gpus / 8 * later_s), -number))
    order = [-number for *_, number in sorted(expected)]
    assert [standing.job for standing in worst_first(book, 100.0 + later_s)] == order


def test_refreshes_fall_due_once_and_follow_the_newest_index() -> None:
    _, book = make(8)
    book.index_running(job(1), Rank(1.0, 0), 0.0, 10.0)
    book.index_running(job(2), Rank(1.0, 0), 0.0, 20.0)
    book.index_running(job(1), Rank(2.0, 0), 5.0, 30.0)
    assert book.next_refresh_s() == 20.0
    assert list(book.due_refreshes(25.0)) == [2]
    assert list(book.due_refreshes(25.0)) == []
    book.vacate(JobId(1), on((0, 1)))
    assert book.next_refresh_s() is None


def test_what_is_free_for_all_is_free_less_claims_that_nobody_vacates_for() -> None:
    world, book = make(8)
    book.sync(world)
    for record, gpus in ((job(1, 3), 3), (job(2, 2), 2)):
        world.add_job(record)
        world.bind(record.id, on((0, gpus)))
        book.hold(JobId(1), on((0, gpus)))
    book.sync(world)
    assert book.pool.free(ServerIndex(0)) == 3
    book.claim(JobId(9), on((0, 4)))
    book.leave(JobId(1), on((0, 3)))
    book.sync(world)
    assert book.pool.free(ServerIndex(0)) == 2, "one of the free ones belongs to the claim"
    assert book.surplus(ServerIndex(0)) == 0
    assert book.balance(world, ServerIndex(0)) == 3 + 3 - 4
    book.unclaim(JobId(9))
    book.sync(world)
    assert (book.pool.free(ServerIndex(0)), book.surplus(ServerIndex(0))) == (3, 3)


def test_a_claim_beyond_what_is_free_or_leaving_leaves_a_debt() -> None:
    """As when GPUs are set aside for the oldest job while others still run on them."""
    world, book = make(4)
    world.add_job(job(1, 3))
    world.bind(JobId(1), on((0, 3)))
    book.claim(JobId(9), on((0, 4)))
    book.sync(world)
    assert book.pool.free(ServerIndex(0)) == 0
    assert book.balance(world, ServerIndex(0)) == -3


def test_the_pencil_leaves_no_trace() -> None:
    world, book = make(4, 4)
    world.add_job(job(1, 2))
    world.bind(JobId(1), on((0, 2)))
    book.hold(JobId(1), on((0, 2)))
    book.claim(JobId(7), on((1, 1)))
    book.sync(world)
    before = [book.pool.free(ServerIndex(server)) for server in (0, 1)]
    book.pencil_start(world, on((0, 1)))
    book.pencil_leave(world, JobId(1), on((0, 2)))
    book.pencil_claim(world, JobId(8), on((0, 3), (1, 1)))
    assert [book.pool.free(ServerIndex(server)) for server in (0, 1)] == [0, 2]
    book.erase()
    book.sync(world)
    assert [book.pool.free(ServerIndex(server)) for server in (0, 1)] == before
    assert (set(book.claims), book.leaving) == ({7}, {})


def test_the_oldest_jobs_are_guarded_while_they_fit_the_share() -> None:
    _, book = make(8, guard=3.0)
    jobs = [job(number, gpus, float(number)) for number, gpus in ((1, 2), (2, 1), (3, 2), (4, 1))]
    for record in jobs:
        book.may_guard(record)
        book.enqueue(record, float(10 - record.id))
    assert book.fill_guard(-1e9) == [1, 2, 3], "two that fit, and the oldest waiting one besides"
    assert (sorted(book.guarded), book.guarded_extra, book.guarded_gpus) == ([1, 2], 3, 3)
    assert [book.tier(record.id) for record in jobs] == [0, 0, 0, 1]
    book.forget(jobs[0])
    assert book.fill_guard(-1e9) == [3, 4]
    assert (sorted(book.guarded), book.guarded_extra) == ([2, 3], 4)


def test_a_gang_beyond_the_share_is_guarded_only_when_it_is_overdue() -> None:
    _, book = make(8, guard=3.0)
    book.may_guard(job(1, 8, 50.0))
    book.enqueue(job(1, 8, 50.0), 1.0)
    assert book.fill_guard(overdue_since_s=49.0) == []
    assert book.fill_guard(overdue_since_s=50.0) == [1]


def test_a_job_that_does_not_compete_is_not_guarded() -> None:
    _, book = make(8, guard=3.0)
    book.may_guard(job(1, 2))
    book.enqueue(job(1, 2), 1.0)
    assert book.fill_guard(-1e9) == [1]
    book.dequeue(JobId(1))
    book.leave_guard(JobId(1), 0.0, 2)
    assert (book.guarded, book.guarded_gpus, list(book.ages)) == ({}, 0, [])


def test_who_has_run_is_overdue_when_it_has_waited_for_it() -> None:
    _, book = make(8, guard=2.0)
    runner = job(1, 4)
    runner.attempts, runner.held_gpu_s = (
        1,
        40.0,
    )  # 10 s of 4 GPUs; the guarded share is a quarter: worth 40 s of waiting
    for record in (runner, job(2, 4)):
        book.may_guard(record)
        book.enqueue(record, 1.0)
    assert list(book.entitled) == [(0.0, 2), (40.0, 1)]
    assert book.fill_guard(39.0) == [2]
    book.forget(job(2, 4))
    assert book.fill_guard(39.0) == []
    assert book.fill_guard(40.0) == [1]
    book.dequeue(JobId(1))
    assert (list(book.entitled), book.entitled_since_s) == ([], {})


def test_a_guarded_job_cannot_be_displaced() -> None:
    _, book = make(8, guard=3.0)
    book.guard(job(1, 2))
    book.index_running(job(1, 2), Rank(99.0, 0), 0.0, 5.0)
    assert list(worst_first(book, 0.0)) == []
    assert book.next_refresh_s() is None


@pytest.mark.parametrize("guard", [0.0, 3.0])
def test_a_dump_names_who_is_guarded(guard: float) -> None:
    _, book = make(8, guard=guard)
    book.may_guard(job(1, 2))
    book.enqueue(job(1, 2), 1.0)
    book.fill_guard(-1e9)
    book.delayed_since_s[JobId(1)] = 12.5
    assert book.dump() == {
        "delayed_since_s": {"1": 12.5},
        "guarded": [1] if guard else [],
        "guarded_extra": None,
    }
