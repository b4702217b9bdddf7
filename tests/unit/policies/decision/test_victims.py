"""Which victims are found: the worst that free the needed placement, no more than needed, and only if it pays."""

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.choose import Candidate
from policies.decision.future_pool import FuturePool
from policies.decision.preemption import PreemptionContext
from policies.decision.victims import find_victims, indispensable, on_one_server
from policies.lifecycle import AttemptState, JobState
from policies.model.cluster import Cluster, Server
from policies.model.estimate import Estimate, Unit
from policies.model.graph import Stage, StageGraph
from policies.model.ids import JobId, ServerIndex, attempt_id
from policies.model.job import JobSpec, PreemptionSignal
from policies.model.parallelism import ParallelismConfig
from policies.model.placement import ServerShare, place
from policies.model.view import JobView
from policies.state.keys import JobKey
from policies.throughput import iteration_times
from service.engine.record import AttemptRecord, JobRecord
from service.engine.world import Costs, World
from tests.scenarios.dsl import policy

Found = tuple[Candidate, tuple[JobId, ...]] | None
CHATTY = StageGraph((Stage("s", 0.05, 0.05, 1_000_000_000),), ())


def any_victims(context: PreemptionContext, job: JobView, key: JobKey) -> Found:
    return find_victims(context, job, key, consolidated_only=False)


class Scene:
    """A cluster of servers, jobs that run on it with some seconds left, and one waiting job."""

    def __init__(self, *gpus: int, restart_s: float = 0.0, types: tuple[str, ...] = (), **options: object) -> None:
        kinds = types or ("V100",) * len(gpus)
        machines = tuple(Server(f"s{n}", size, kind) for n, (size, kind) in enumerate(zip(gpus, kinds, strict=True)))
        self.world = World(Cluster("c", machines), Costs(restart_s=restart_s))
        self.policy: Any = policy("asrpt", guard_share=0, **options)

    def runs(self, left_s: float, *shares: tuple[int, int], priority: int = 0) -> "Scene":
        """A job that holds these (server, GPUs) and has so many seconds left."""
        number = JobId(len(self.world.jobs) + 1)
        here = place([ServerShare(ServerIndex(server), gpus) for server, gpus in shares])
        spec = JobSpec("j", "u", here.gpus, preemption=PreemptionSignal())
        job = JobRecord(number, spec, 0.0, JobState.RUNNING, priority=priority, attempts=1, progressing=True)
        job.estimate = Estimate((left_s,), Unit.SERVICE_S, "test")
        self.world.add_job(job)
        gpu_ids = self.world.bind(number, here)
        job.attempt = AttemptRecord(attempt_id(number, 1), number, 1, AttemptState.RUNNING, here, gpu_ids, 0.0)
        return self

    def victims_for(self, left_s: float, gpus: int, priority: int = 0, chatty: bool = False, **spec: Any) -> Found:
        """What a waiting job finds."""
        return self.victims_of_each([(left_s, priority)], gpus, chatty, **spec)[0]

    def victims_of_each(
        self,
        waiting: Sequence[tuple[float, int]],
        gpus: int,
        chatty: bool = False,
        search: Callable[[PreemptionContext, JobView, JobKey], Found] = any_victims,
        **spec: Any,
    ) -> list[Found]:
        """What each of the waiting jobs with these seconds left and priorities finds, one after the other in one decision."""
        config = ParallelismConfig((gpus,), (1,))
        if chatty:
            spec |= {"stage_graph": CHATTY, "parallelism": config}
        jobs = []
        for left_s, priority in waiting:
            job = JobRecord(
                JobId(len(self.world.jobs) + 1), JobSpec("waits", "u", gpus, **spec), 1.0, priority=priority
            )
            job.estimate = Estimate((left_s,), Unit.SERVICE_S, "test")
            if chatty:
                job.iteration_times = iteration_times(CHATTY, config, self.world.cluster, None)
            self.world.jobs[job.id] = job
            jobs.append(job)
        state = self.policy.rebuild(self.world)
        state.ledger.sync(self.world)
        before = [state.pool.free(ServerIndex(server)) for server in range(len(self.world.servers))]
        context = PreemptionContext(self.policy, self.world, state)
        keys = [state.waiting.keys[job.id][1] for job in jobs]
        found = [search(context, job, key) for job, key in zip(jobs, keys, strict=True)]
        assert [state.pool.free(ServerIndex(server)) for server in range(len(before))] == before, "the pool was lent"
        for job in jobs:
            del self.world.jobs[job.id]
        return found


def victims(found: Found) -> list[int]:
    assert found is not None
    return sorted(found[1])


def test_the_worst_jobs_are_preempted_first_and_no_more_than_needed() -> None:
    scene = Scene(4).runs(1000, (0, 1)).runs(4000, (0, 1)).runs(2000, (0, 1)).runs(3000, (0, 1))
    assert victims(scene.victims_for(10, 1)) == [2]
    assert victims(scene.victims_for(10, 2)) == [2, 4]
    assert victims(scene.victims_for(10, 3)) == [2, 3, 4]


def test_a_chosen_victim_that_is_not_needed_is_spared() -> None:
    # Worst first: 1 GPU of job 1, then the 4 of job 2, which alone are enough.
    scene = Scene(5).runs(9000, (0, 1)).runs(2000, (0, 4))
    assert victims(scene.victims_for(10, 4)) == [2]


def test_free_gpus_are_used_before_victims() -> None:
    scene = Scene(4).runs(1000, (0, 2))
    assert victims(scene.victims_for(10, 3)) == [1]


def test_the_price_is_that_of_all_victims_together() -> None:
    """Two jobs of 2 of 4 GPUs: 0.8 x 500 - 2 x (2 / 4 x 60) = 340 virtual seconds."""
    scene = Scene(4, restart_s=60.0).runs(1000, (0, 2)).runs(1000, (0, 2))
    assert scene.victims_for(341, 4) is None
    assert victims(scene.victims_for(339, 4)) == [1, 2]
    assert victims(Scene(4, restart_s=60.0, preemption="always").runs(1000, (0, 4)).victims_for(999, 4)) == [1]


def test_smaller_priorities_are_preempted_without_a_price_and_larger_ones_never() -> None:
    scene = Scene(4, restart_s=60.0).runs(5, (0, 2)).runs(9000, (0, 2), priority=2)
    assert victims(scene.victims_for(5000, 2, priority=1)) == [1]
    assert scene.victims_for(5, 4, priority=1) is None


def test_a_victim_of_equal_priority_must_pay_off_also_with_one_of_smaller_priority() -> None:
    scene = Scene(4).runs(5, (0, 2)).runs(100, (0, 2), priority=1)
    assert scene.victims_for(5000, 4, priority=1) is None
    assert victims(scene.victims_for(39, 4, priority=1)) == [1, 2]


def test_only_gpus_of_the_wanted_type_are_vacated() -> None:
    scene = Scene(4, 4, types=("A100", "V100")).runs(9000, (0, 4)).runs(2000, (1, 4))
    assert victims(scene.victims_for(10, 4, gpu_type="V100")) == [2]
    assert scene.victims_for(10, 8) is None, "a gang never mixes types"


def test_no_job_is_stopped_on_an_unusable_server() -> None:
    scene = Scene(4, 4).runs(9000, (0, 4)).runs(2000, (1, 4))
    scene.world.servers[0].drained = True
    assert victims(scene.victims_for(10, 4)) == [2]


def test_gpus_being_vacated_are_used_before_further_victims() -> None:
    scene = Scene(4).runs(9000, (0, 2)).runs(2000, (0, 2))
    scene.world.jobs[JobId(2)].state = JobState.PREEMPTING
    found = scene.victims_for(10, 2)
    assert found is not None
    assert found[1] == ()
    assert victims(scene.victims_for(10, 4)) == [1]


def test_gpus_set_aside_for_another_are_not_counted() -> None:
    """All four are claimed for the oldest job while another still runs on three: stopping it would help nobody else."""
    scene = Scene(4, 4).runs(90_000, (0, 3)).runs(8000, (1, 4))
    number = JobId(3)
    oldest = JobRecord(number, JobSpec("o", "u", 4), -5.0)
    oldest.reservation = place([ServerShare(ServerIndex(0), 4)])
    scene.world.jobs[number] = oldest
    assert victims(scene.victims_for(10, 3)) == [2]


def test_a_job_that_communicates_opens_one_server() -> None:
    # The worst two sit on different servers; on server 1 the second and third worst free it all.
    scene = Scene(4, 4).runs(9000, (0, 2)).runs(500, (0, 2)).runs(8000, (1, 2)).runs(7000, (1, 2))
    found = scene.victims_for(100, 4, chatty=True)
    assert found is not None
    assert found[0].placement.servers == (1,)
    assert set(found[1]) == {3, 4}
    plain = scene.victims_for(100, 4)
    assert victims(plain) == [1, 3]


def test_a_server_is_opened_at_no_cost_where_jobs_have_smaller_priorities() -> None:
    scene = Scene(4, 4, restart_s=60.0).runs(9, (0, 2)).runs(300, (0, 2), priority=1).runs(8, (1, 2)).runs(7, (1, 2))
    found = scene.victims_for(100, 4, priority=1, chatty=True)
    assert found is not None
    assert (found[0].placement.servers, set(found[1])) == ((1,), {3, 4})


def test_a_server_is_not_opened_where_only_each_job_alone_would_pay() -> None:
    """One of 2 of 8 GPUs: 0.8 x 90 - 2 / 8 x 60 = 57 virtual seconds; two of them: 42."""
    scene = Scene(4, 4, restart_s=60.0).runs(360, (0, 2)).runs(360, (0, 2)).runs(360, (1, 2)).runs(360, (1, 2))
    assert scene.victims_for(84.1, 4, chatty=True) is None
    found = scene.victims_for(83.9, 4, chatty=True)
    assert found is not None
    assert len(found[0].placement.servers) == 1


LEFT = st.lists(st.tuples(st.integers(1, 2000), st.sampled_from([1, 2, 4]), st.integers(0, 1)), max_size=8)


@settings(max_examples=150, deadline=None)
@given(LEFT, st.integers(1, 1000), st.sampled_from([1, 2, 4, 8]))
def test_chosen_victims_suffice_pay_off_and_are_needed(
    rows: list[tuple[int, int, int]], left_s: int, gpus: int
) -> None:
    scene = Scene(8, 8)
    for seconds, size, server in rows:
        if scene.world.free_gpus(ServerIndex(server)) >= size:
            scene.runs(float(seconds), (server, size))
    found = scene.victims_for(float(left_s), gpus)
    running = dict(scene.world.jobs)
    free = [scene.world.free_gpus(ServerIndex(server)) for server in (0, 1)]
    if found is None:
        rank = left_s * gpus / 16
        worse = [job for job in running.values() if rank < 0.8 * job.estimate.points[0] * job.spec.gpus / 16]  # type: ignore[union-attr]
        # Without communication a count is enough, so it must have been short of GPUs (or of nothing).
        assert sum(free) + sum(job.spec.gpus for job in worse) < gpus or sum(free) >= gpus
        return
    placement, stopped = found[0].placement, found[1]
    assert placement.gpus == gpus
    for victim in stopped:
        job = running[victim]
        assert left_s * gpus < 0.8 * job.estimate.points[0] * job.spec.gpus  # type: ignore[union-attr]
        for share in job.placement.shares:  # type: ignore[union-attr]
            free[share.server] += share.gpus
    assert all(free[share.server] >= share.gpus for share in placement.shares)
    for victim in stopped:
        rest = list(free)
        for share in running[victim].placement.shares:  # type: ignore[union-attr]
            rest[share.server] -= share.gpus
        assert any(rest[share.server] < share.gpus for share in placement.shares), "one more than needed"


@settings(max_examples=150, deadline=None)
@given(LEFT, st.lists(st.integers(1, 1000), min_size=2, max_size=4), st.sampled_from([1, 2, 4, 8]), st.booleans())
def test_a_job_finds_after_others_that_are_placed_alike_what_it_would_find_alone(
    rows: list[tuple[int, int, int]], lefts_s: list[int], gpus: int, chatty: bool
) -> None:
    scene = Scene(8, 8, restart_s=200.0)
    for seconds, size, server in rows:
        if scene.world.free_gpus(ServerIndex(server)) >= size:
            scene.runs(float(seconds), (server, size))
    waiting = [(float(left_s), 0) for left_s in sorted(lefts_s)]
    alone = [scene.victims_of_each([job], gpus, chatty)[0] for job in waiting]
    assert scene.victims_of_each(waiting, gpus, chatty) == alone


def better_victims(context: PreemptionContext, job: JobView, key: JobKey) -> Found:
    return find_victims(context, job, key, consolidated_only=True)


def better_victims_the_long_way(context: PreemptionContext, job: JobView, key: JobKey) -> Found:
    """The worst job alone, in a pool in which it has left; then one server."""
    worst = next(context.candidates(key), None)
    if worst is None:
        return None
    with FuturePool(context) as pool:
        pool.add_job(worst)
        candidate = pool.fit(job, consolidated_only=True)
        if candidate is not None:
            victims = indispensable(job.spec, candidate.placement, [worst], pool)
            if context.pays(key, victims):
                return candidate, tuple(victim.id for victim in victims)
    return on_one_server(context, job, key)


SPREAD = st.lists(
    st.tuples(st.integers(1, 2000), st.lists(st.integers(0, 4), min_size=4, max_size=4)), min_size=1, max_size=6
)


@settings(max_examples=300, deadline=None)
@given(SPREAD, st.integers(1, 1000), st.sampled_from([2, 4, 8]))
def test_a_job_that_could_start_elsewhere_finds_what_the_long_search_finds(
    rows: list[tuple[int, list[int]]], left_s: int, gpus: int
) -> None:
    scene = Scene(4, 4, 4, 4, restart_s=20.0)
    for seconds, sizes in rows:
        shares = [(n, min(size, scene.world.free_gpus(ServerIndex(n)))) for n, size in enumerate(sizes)]
        if shares := [share for share in shares if share[1]]:
            scene.runs(float(seconds), *shares)
    if sum(scene.world.free_gpus(ServerIndex(server)) for server in range(4)) < gpus:
        return
    waiting = [(float(left_s), 0)]
    expected = scene.victims_of_each(waiting, gpus, True, better_victims_the_long_way)
    assert scene.victims_of_each(waiting, gpus, True, better_victims) == expected
