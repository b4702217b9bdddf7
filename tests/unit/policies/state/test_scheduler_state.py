"""The scheduler state: order of jobs, the ledger of GPUs, tentative changes and the starvation guard."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.model.cluster import Cluster, Server
from policies.model.ids import JobId, ServerIndex
from policies.model.job import JobSpec
from policies.model.placement import Placement, ServerShare, place
from policies.options import Options
from policies.rank import Rank
from policies.state.guard_turns import GuardTurns
from policies.state.scheduler_state import SchedulerState
from service.engine.record import JobRecord
from service.engine.world import Costs, World


def any_fits(job: JobId) -> bool:
    return True


def make(*gpus: int, guard: float = 0.0) -> tuple[World, SchedulerState]:
    world = World(Cluster("c", tuple(Server(f"s{n}", count) for n, count in enumerate(gpus))), Costs())
    return world, SchedulerState(world, Options(guard_share=guard / sum(gpus)))


def job(number: int, gpus: int = 1, submitted_at_s: float = 0.0, priority: int = 0) -> JobRecord:
    return JobRecord(JobId(number), JobSpec("j", "u", gpus), submitted_at_s, priority=priority)


def on(*shares: tuple[int, int]) -> Placement:
    return place([ServerShare(ServerIndex(server), gpus) for server, gpus in shares])


def test_waiting_jobs_are_ordered_by_priority_rank_and_age() -> None:
    _, state = make(8)
    for record, rank in ((job(1), 5.0), (job(2), 1.0), (job(3, priority=1), 9.0), (job(4, submitted_at_s=-1.0), 5.0)):
        state.enqueue(record, rank)
    (entries,) = state.waiting.classes.values()
    assert [key.job for key in entries] == [3, 2, 4, 1]
    assert [state.waiting.jobs_ahead(JobId(number)) for number in (3, 2, 4, 1)] == [0, 1, 2, 3]
    state.enqueue(job(1), 0.5)
    assert [key.job for key in entries] == [3, 1, 2, 4]
    for number in (1, 2, 3, 4, 4):
        state.dequeue(JobId(number))
    assert not state.waiting
    assert not state.guard.waiting_order


RUNNING = st.lists(
    st.tuples(st.sampled_from([1, 2, 4]), st.integers(-1, 1), st.integers(0, 100), st.integers(0, 1)), max_size=12
)


@settings(max_examples=150, deadline=None)
@given(RUNNING, st.integers(0, 50))
def test_running_jobs_come_worst_first_at_any_time(rows: list[tuple[int, int, int, int]], later_s: int) -> None:
    """Against sorting: ranks rise, fall or stand still with time, each at the pace of its gang."""
    _, state = make(8)
    expected = []
    for number, (gpus, slope, rank, priority) in enumerate(rows, start=1):
        record = job(number, gpus, priority=priority)
        state.index_running(record, Rank(float(rank), slope), 100.0, None)
        expected.append((priority, -(rank + slope * gpus / 8 * later_s), -number))
    order = [-number for *_, number in sorted(expected)]
    assert [victim.job for victim in state.running.victim_order(8, 100.0 + later_s)] == order


def test_refreshes_fall_due_once_and_follow_the_newest_index() -> None:
    _, state = make(8)
    state.index_running(job(1), Rank(1.0, 0), 0.0, 10.0)
    state.index_running(job(2), Rank(1.0, 0), 0.0, 20.0)
    state.index_running(job(1), Rank(2.0, 0), 5.0, 30.0)
    assert state.running.next_refresh_s() == 20.0
    assert list(state.running.due_refreshes(25.0)) == [2]
    assert list(state.running.due_refreshes(25.0)) == []
    state.vacate(JobId(1), on((0, 1)))
    assert state.running.next_refresh_s() is None


def test_free_for_all_is_free_less_reservations_beyond_what_is_being_vacated() -> None:
    world, state = make(8)
    state.ledger.sync(world)
    for record, gpus in ((job(1, 3), 3), (job(2, 2), 2)):
        world.add_job(record)
        world.bind(record.id, on((0, gpus)))
        state.hold(record, world.cluster, on((0, gpus)))
    state.ledger.sync(world)
    assert state.pool.free(ServerIndex(0)) == 3
    state.ledger.reserve(JobId(9), on((0, 4)), None)
    state.leave(job(1, 3), on((0, 3)))
    state.ledger.sync(world)
    assert state.pool.free(ServerIndex(0)) == 2, "one of the free ones belongs to the reservation"
    assert state.ledger.surplus(ServerIndex(0)) == 0
    assert state.ledger.balance(world, ServerIndex(0)) == 3 + 3 - 4
    state.ledger.release(JobId(9))
    state.ledger.sync(world)
    assert (state.pool.free(ServerIndex(0)), state.ledger.surplus(ServerIndex(0))) == (3, 3)


def test_a_reservation_beyond_free_and_leaving_gpus_makes_the_balance_negative() -> None:
    """As when GPUs are set aside for the oldest job while others still run on them."""
    world, state = make(4)
    world.add_job(job(1, 3))
    world.bind(JobId(1), on((0, 3)))
    state.ledger.reserve(JobId(9), on((0, 4)), None)
    state.ledger.sync(world)
    assert state.pool.free(ServerIndex(0)) == 0
    assert state.ledger.balance(world, ServerIndex(0)) == -3


def test_tentative_changes_are_undone() -> None:
    world, state = make(4, 4)
    held = job(1, 2)
    world.add_job(held)
    world.bind(held.id, on((0, 2)))
    state.hold(held, world.cluster, on((0, 2)))
    state.ledger.reserve(JobId(7), on((1, 1)), None)
    state.ledger.sync(world)
    before = [state.pool.free(ServerIndex(server)) for server in (0, 1)]
    state.ledger.start_tentatively(world, on((0, 1)), None)
    state.ledger.leave_tentatively(world, JobId(1), on((0, 2)), None)
    state.ledger.reserve_tentatively(world, JobId(8), on((0, 3), (1, 1)), None)
    assert [state.pool.free(ServerIndex(server)) for server in (0, 1)] == [0, 2]
    state.ledger.undo_tentative()
    state.ledger.sync(world)
    assert [state.pool.free(ServerIndex(server)) for server in (0, 1)] == before
    assert (set(state.ledger.reservations), state.ledger.leaving) == ({7}, {})


def test_the_oldest_jobs_are_guarded_while_they_fit_the_share() -> None:
    _, state = make(8, guard=3.0)
    jobs = [job(number, gpus, float(number)) for number, gpus in ((1, 2), (2, 1), (3, 2), (4, 1))]
    for record in jobs:
        state.guard.compete(record)
        state.enqueue(record, float(10 - record.id))
    assert state.guard.fill(-1e9, any_fits) == [1, 2, 3], "two that fit, and the oldest waiting one besides"
    assert (sorted(state.guard.guarded), state.guard.extra, state.guard.guarded_gpus) == ([1, 2], 3, 3)
    assert [state.guard.tier(record.id) for record in jobs] == [0, 0, 0, 1]
    state.end(jobs[0])
    assert state.guard.fill(-1e9, any_fits) == [3, 4]
    assert (sorted(state.guard.guarded), state.guard.extra) == ([2, 3], 4)


def test_a_gang_beyond_the_share_is_guarded_only_when_it_is_overdue() -> None:
    _, state = make(8, guard=3.0)
    state.guard.compete(job(1, 8, 50.0))
    state.enqueue(job(1, 8, 50.0), 1.0)
    assert state.guard.fill(49.0, any_fits) == []
    assert state.guard.fill(50.0, any_fits) == [1]


def test_a_job_that_does_not_compete_is_not_guarded() -> None:
    _, state = make(8, guard=3.0)
    state.guard.compete(job(1, 2))
    state.enqueue(job(1, 2), 1.0)
    assert state.guard.fill(-1e9, any_fits) == [1]
    state.dequeue(JobId(1))
    state.guard.leave(job(1, 2))
    assert (state.guard.guarded, state.guard.guarded_gpus, list(state.guard._ages)) == ({}, 0, [])


def test_the_wait_of_a_job_that_has_run_counts_later() -> None:
    _, state = make(8, guard=2.0)
    runner = job(1, 4)
    runner.attempts, runner.held_gpu_s = (
        1,
        40.0,
    )  # 10 s of 4 GPUs; the guarded share is a quarter: worth 40 s of waiting
    for record in (runner, job(2, 4)):
        state.guard.compete(record)
        state.enqueue(record, 1.0)
    assert list(state.guard.overdue_order) == [(0.0, 2), (40.0, 1)]
    assert state.guard.fill(39.0, any_fits) == [2]
    state.end(job(2, 4))
    assert state.guard.fill(39.0, any_fits) == []
    assert state.guard.fill(40.0, any_fits) == [1]
    state.dequeue(JobId(1))
    assert (list(state.guard.overdue_order), list(state.guard.waiting_order)) == ([], [])


def test_a_guarded_job_cannot_be_displaced() -> None:
    _, state = make(8, guard=3.0)
    state.guard.compete(job(1, 2))
    state.guard.restore({"guarded": [1]})
    state.index_running(job(1, 2), Rank(99.0, 0), 0.0, 5.0)
    assert list(state.running.victim_order(8, 0.0)) == []
    assert state.running.next_refresh_s() is None


@pytest.mark.parametrize("guard", [0.0, 3.0])
def test_a_dump_names_the_guarded_jobs(guard: float) -> None:
    _, state = make(8, guard=guard)
    state.guard.compete(job(1, 2))
    state.enqueue(job(1, 2), 1.0)
    state.guard.fill(-1e9, any_fits)
    state.delays.begin(JobId(1), 12.5)
    assert state.dump() == {
        "delayed_since_s": {"1": 12.5},
        "guarded": [1] if guard else [],
        "guarded_extra": None,
        "guard_turns": GuardTurns().dump(),
    }


QUEUE = st.lists(
    st.tuples(st.sampled_from([1, 2, 4]), st.integers(0, 5), st.integers(0, 9), st.integers(0, 1), st.integers(0, 2)),
    max_size=30,
)


def indexed(state: SchedulerState) -> object:
    """Everything that the indexes of waiting jobs hold, in the order in which they give it."""
    waiting, guard = state.waiting, state.guard
    return (
        {gang: list(keys) for gang, keys in waiting.classes.items()},
        waiting.heads,
        waiting.keys,
        {owner: jobs for owner, (_, jobs) in waiting.owned.items()},
        (list(guard.waiting_order), list(guard.overdue_order), list(guard._ages)),
    )


@settings(max_examples=150, deadline=None)
@given(QUEUE, QUEUE, st.sets(st.integers(0, 59)), st.sets(st.integers(0, 59)))
def test_jobs_that_are_gathered_are_indexed_as_one_by_one(
    before: list[tuple[int, int, int, int, int]],
    then: list[tuple[int, int, int, int, int]],
    again: set[int],
    gone: set[int],
) -> None:
    """``before`` are indexed already; some jobs are enqueued twice, and some leave again."""
    (_, state), (_, single) = make(8, guard=4.0), make(8, guard=4.0)
    records = []
    for number, (gpus, submitted_at_s, rank, priority, attempts) in enumerate([*before, *then]):
        record = JobRecord(
            JobId(number), JobSpec("j", f"u{number % 2}", gpus), float(submitted_at_s), priority=priority
        )
        record.attempts, record.held_gpu_s = attempts, 10.0 * attempts
        records.append((record, float(rank)))
    single.guard.compete_all([record for record, _ in records])
    for record, _ in records:
        state.guard.compete(record)
    for one in (state, single):
        one.guard.fill(0.0, any_fits)
        for record, rank in records[: len(before)]:
            one.enqueue(record, rank)
        one.scan.valid = True
    state.gather()
    for one in (state, single):
        for record, rank in records[len(before) :]:
            one.enqueue(record, rank)
        for record, rank in records:
            if record.id in again:
                one.enqueue(record, rank + 1.0)
        for number in sorted(gone):
            one.dequeue(JobId(number))
    state.enqueue_gathered()
    assert indexed(state) == indexed(single)
    for one in (state, single):
        one.waiting.check()
        one.guard.check()
    assert len(state.waiting) == len(records) - len({number for number in gone if number < len(records)})
