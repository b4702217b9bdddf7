"""Random placement: any free GPUs with equal chance, the same ones for the same attempt of a job."""

from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from policies.choose import find
from policies.model.cluster import Cluster, Server
from policies.model.graph import Stage, StageGraph
from policies.model.ids import ServerIndex
from policies.model.job import JobSpec
from policies.model.parallelism import ParallelismConfig
from policies.placement.iteration import gang
from policies.placement.pool import FreePool
from policies.placement.scatter import salt_of
from policies.throughput import iteration_time_s

SERVER = Server("s", 8, nic_bytes_s=80.0, intra_bytes_s=100.0)
FOUR = Cluster("four", (SERVER,) * 4)


def plain(gpus: int, gpu_type: str | None = None) -> JobSpec:
    return JobSpec("job", "user", gpus, gpu_type=gpu_type)


def pipeline(replicas: tuple[int, ...], tensor: tuple[int, ...], gpu_type: str | None = None) -> JobSpec:
    stages = tuple(Stage(f"s{s}", 1.0, 2.0, 900) for s in range(len(replicas)))
    graph = StageGraph(stages, tuple((s, s + 1, 50) for s in range(len(stages) - 1)))
    config = ParallelismConfig(replicas, tensor)
    return JobSpec("job", "user", config.gpus, stage_graph=graph, parallelism=config, gpu_type=gpu_type)


@pytest.mark.parametrize("spec", [plain(1), pipeline((1,), (1,))])
def test_every_free_gpu_has_the_same_chance(spec: JobSpec) -> None:
    pool = FreePool(FOUR, [4, 2, 1, 0])
    drawn = Counter(find(pool, FOUR, spec, salt_of(job, 0)).placement.servers[0] for job in range(7_000))
    # 1,000 for each free GPU, and a standard deviation of 45 at the most
    assert drawn.keys() == {0, 1, 2}
    for server, expected in ((0, 4_000), (1, 2_000), (2, 1_000)):
        assert abs(drawn[ServerIndex(server)] - expected) < 200


def test_every_set_of_free_gpus_has_the_same_chance() -> None:
    pool = FreePool(FOUR, [2, 1, 1, 0])
    drawn = Counter(find(pool, FOUR, plain(2), salt_of(job, 0)).placement.servers for job in range(6_000))
    # of the six pairs of four GPUs one lies on the first server, two on the first and the second
    for servers, expected in {(0,): 1_000, (0, 1): 2_000, (0, 2): 2_000, (1, 2): 1_000}.items():
        assert abs(drawn.pop(servers) - expected) < 200
    assert not drawn


def test_random_placement_is_fixed_for_an_attempt_and_changes_with_the_next() -> None:
    pool = FreePool(FOUR, [8] * 4)
    placements = [find(pool, FOUR, pipeline((4, 4), (1, 1)), salt_of(7, attempts)) for attempts in range(8)]
    again = [
        find(FreePool(FOUR, [8] * 4), FOUR, pipeline((4, 4), (1, 1)), salt_of(7, attempts)) for attempts in range(8)
    ]
    assert placements == again
    assert len({each.placement for each in placements if each}) > 6
    assert len({salt_of(job, attempts) for job in range(100) for attempts in range(10)}) == 1_000


def test_a_gang_keeps_to_one_type_and_takes_either() -> None:
    mixed = Cluster("mixed", (SERVER, SERVER, Server("a", 8, "A100"), Server("a", 8, "A100")))
    for spec in (plain(3), pipeline((3,), (1,))):
        kinds = set()
        for job in range(40):
            found = find(FreePool(mixed, [2, 2, 2, 2]), mixed, spec, salt_of(job, 0))
            kinds.add(frozenset(mixed.servers[server].gpu_type for server in found.placement.servers))
        assert kinds == {frozenset({"V100"}), frozenset({"A100"})}
    assert find(FreePool(mixed, [2, 2, 2, 2]), mixed, plain(5), salt_of(1, 0)) is None
    assert find(FreePool(mixed, [2, 2, 0, 1]), mixed, plain(2, "A100"), salt_of(1, 0)) is None


@given(
    st.lists(st.integers(0, 8), min_size=4, max_size=4),
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from([1, 2, 3, 4])), min_size=0, max_size=3),
    st.integers(0, 2**40),
)
@example(free=[0, 2, 3, 8], stages=[(3, 2), (1, 3), (1, 4)], job=0)  # first fit misses the only packing
@settings(max_examples=300, deadline=None)
def test_random_placement_finds_room_whenever_the_best_one_does(free, stages, job) -> None:
    spec = pipeline(*map(tuple, zip(*stages, strict=True))) if stages else plain(5)
    pool = FreePool(FOUR, free)
    found, best = find(pool, FOUR, spec, salt_of(job, 0)), find(pool, FOUR, spec)
    assert (found is None) == (best is None)
    assert [pool.free(ServerIndex(m)) for m in range(4)] == free
    if found is None:
        return
    for share in found.placement.shares:
        pool.set_free(share.server, pool.free(share.server) - share.gpus)  # raises on oversubscription
    assert found.placement.gpus == spec.gpus
    if spec.stage_graph is None or spec.parallelism is None:
        return
    shares = found.placement.shares
    assert tuple(map(sum, zip(*(share.replicas for share in shares), strict=True))) == spec.parallelism.replicas
    for share in shares:
        assert share.gpus == gang(spec.stage_graph, spec.parallelism).gpus_for(share.replicas)
    exact = iteration_time_s(spec.stage_graph, spec.parallelism, FOUR, found.placement)
    assert found.iteration_s == pytest.approx(exact)
