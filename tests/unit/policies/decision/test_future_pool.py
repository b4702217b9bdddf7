"""The pool is lent: afterwards it is as it was, and so is what searches have found in it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.consolidation import may_consolidate
from policies.decision.future_pool import FuturePool, free_without, may_consolidate_without
from policies.decision.preemption import PreemptionContext
from policies.lifecycle import JobState
from policies.model.ids import JobId, ServerIndex
from policies.model.job import JobSpec
from policies.model.parallelism import ParallelismConfig
from policies.model.placement import ServerShare, place
from policies.placement.pool import FreePool
from policies.throughput import iteration_times
from service.engine.record import JobRecord
from tests.unit.policies.decision.test_victims import CHATTY, Scene


def waiting(scene: Scene, gpus: int) -> JobRecord:
    """A job that waits, and communicates much."""
    config = ParallelismConfig((gpus,), (1,))
    job = JobRecord(JobId(99), JobSpec("waits", "u", gpus, stage_graph=CHATTY, parallelism=config), 1.0)
    job.iteration_times = iteration_times(CHATTY, config, scene.world.cluster, None)
    return job


@pytest.mark.parametrize("searched_before", [True, False])
def test_what_was_found_before_holds_afterwards_and_nothing_else(searched_before: bool) -> None:
    scene = Scene(4, 4).runs(1000, (0, 4)).runs(1000, (1, 2))
    waits = waiting(scene, 4)
    state = scene.policy.rebuild(scene.world)
    state.ledger.sync(scene.world)
    context = PreemptionContext(scene.policy, scene.world, state)
    if searched_before:
        assert scene.policy.find(state.pool, scene.world, waits) is None
    before = dict(state.pool.found)
    assert bool(before) is searched_before
    with FuturePool(context) as future:
        future.add_job(scene.world.jobs[JobId(1)])
        assert future.fit(waits) is not None
    assert state.pool.found == before
    assert scene.policy.find(state.pool, scene.world, waits) is None


@settings(max_examples=300, deadline=None)
@given(
    jobs=st.lists(
        st.tuples(st.lists(st.integers(0, 4), min_size=4, max_size=4), st.booleans()), min_size=1, max_size=6
    ),
    reserved=st.integers(0, 4),
    drained=st.integers(-1, 3),
    gpus=st.sampled_from([2, 4, 8, 12, 16]),
)
def test_the_room_that_a_leaver_makes_is_counted_as_if_it_had_left(
    jobs: list[tuple[list[int], bool]], reserved: int, drained: int, gpus: int
) -> None:
    scene = Scene(4, 4, 4, 4)
    for sizes, leaving in jobs:
        shares = [(n, min(size, scene.world.free_gpus(ServerIndex(n)))) for n, size in enumerate(sizes)]
        if shares := [share for share in shares if share[1]]:
            scene.runs(1000, *shares)
            if leaving:
                scene.world.jobs[JobId(len(scene.world.jobs))].state = JobState.PREEMPTING
    job, leavers = waiting(scene, gpus), list(scene.world.jobs.values())
    if reserved:
        oldest = JobRecord(JobId(98), JobSpec("o", "u", reserved), -5.0)
        oldest.reservation = place([ServerShare(ServerIndex(0), reserved)])
        scene.world.jobs[oldest.id] = oldest
    if drained >= 0:
        scene.world.servers[drained].drained = True
    state = scene.policy.rebuild(scene.world)
    state.ledger.sync(scene.world)
    context = PreemptionContext(scene.policy, scene.world, state)
    for leaver in leavers:
        without = free_without(context, leaver)
        # The GPUs of a leaver that is being stopped already are counted twice.
        free = [min(4, max(state.pool.free(server), without.get(server, 0))) for server in map(ServerIndex, range(4))]
        expected = may_consolidate(FreePool(scene.world.cluster, free), scene.world.cluster, job)
        assert may_consolidate_without(context, job, leaver) is expected
