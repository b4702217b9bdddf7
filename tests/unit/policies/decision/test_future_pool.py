"""The pool is lent: afterwards it is as it was, and so is what searches have found in it."""

import pytest

from policies.decision.future_pool import FuturePool
from policies.decision.preemption import PreemptionContext
from policies.model.ids import JobId
from policies.model.job import JobSpec
from policies.model.parallelism import ParallelismConfig
from policies.throughput import iteration_times
from service.engine.record import JobRecord
from tests.unit.policies.decision.test_victims import CHATTY, Scene


@pytest.mark.parametrize("searched_before", [True, False])
def test_what_was_found_before_holds_afterwards_and_nothing_else(searched_before: bool) -> None:
    scene = Scene(4, 4).runs(1000, (0, 4)).runs(1000, (1, 2))
    config = ParallelismConfig((4,), (1,))
    waits = JobRecord(JobId(9), JobSpec("waits", "u", 4, stage_graph=CHATTY, parallelism=config), 1.0)
    waits.iteration_times = iteration_times(CHATTY, config, scene.world.cluster, None)
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
