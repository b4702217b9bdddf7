"""What a consolidated placement needs: searches that are left out would find none."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.catalogue import MODELS, pipeline
from policies.choose import consolidated, find
from policies.consolidation import GANG_GPUS_MAX, may_consolidate, room_needed
from policies.model.cluster import Cluster, Server
from policies.model.graph import Stage, StageGraph
from policies.model.job import JobSpec
from policies.model.parallelism import ParallelismConfig
from policies.model.placement import Slowdown
from policies.placement.pool import FreePool
from policies.throughput import NeverFits, times_of

SERVER = Server("s", 8, "V100", nic_bytes_s=80.0, intra_bytes_s=100.0)
SIX = Cluster("six", (SERVER,) * 6)
RING = StageGraph((Stage("all", 3.0, 6.0, 900),), ())
QUIET = StageGraph((Stage("all", 3.0, 6.0, 0),), ())


def job(spec: JobSpec, cluster: Cluster = SIX, slowdown: Slowdown | None = None) -> Any:
    return SimpleNamespace(spec=spec, iteration_times=times_of(spec, cluster, slowdown))


def replicas(gpus: int, graph: StageGraph = RING) -> JobSpec:
    return JobSpec("job", "ann", gpus, stage_graph=graph, parallelism=ParallelismConfig((gpus,), (1,)))


@pytest.mark.parametrize(
    ("gpus", "room"), [(1, (1, 1)), (4, (1, 4)), (8, (1, 8)), (16, (2, 8)), (9, (0, 8)), (32, (4, 8))]
)
def test_replicas_that_talk_need_servers_of_their_own(gpus: int, room: tuple[int, int]) -> None:
    """Nine are fastest as five and four, so that no server need be empty."""
    assert room_needed(SIX, job(replicas(gpus)), "V100") == room


def test_enough_servers_with_room_may_do() -> None:
    pool, spread = FreePool(SIX, [4, 4, 3, 0, 0, 0]), job(replicas(8))
    assert not may_consolidate(pool, SIX, spread)
    assert not may_consolidate(FreePool(SIX, [7, 5, 3, 0, 0, 0]), SIX, spread)
    assert may_consolidate(FreePool(SIX, [8, 4, 3, 0, 0, 0]), SIX, spread)
    assert not may_consolidate(FreePool(SIX, [8, 4, 3, 0, 0, 0]), SIX, job(replicas(16)))
    assert not may_consolidate(FreePool(SIX, [8, 0, 0, 0, 0, 0]), SIX, job(replicas(16)))


@pytest.mark.parametrize(
    "case",
    [
        job(replicas(8, QUIET)),
        job(JobSpec("no graph", "ann", 8)),
        job(replicas(8), slowdown=Slowdown(1.5, 3.0)),
        job(replicas(GANG_GPUS_MAX + 1), Cluster("many", (SERVER,) * 9)),
    ],
)
def test_where_needs_are_not_known_it_is_tried(case: Any) -> None:
    assert may_consolidate(FreePool(SIX, [1] * 6), SIX, case)


def test_servers_that_differ_are_tried() -> None:
    mixed = Cluster("mixed", (SERVER, Server("t", 4, "V100", nic_bytes_s=80.0, intra_bytes_s=100.0)))
    assert room_needed(mixed, job(replicas(8), mixed), "V100") == (0, 0)


@settings(max_examples=200, deadline=None)
@given(
    model=st.sampled_from(sorted(MODELS)),
    gpus=st.sampled_from([2, 3, 4, 6, 8, 9, 12, 16, 24, 32]),
    free=st.lists(st.integers(0, 8), min_size=5, max_size=8),
    full=st.integers(0, 3),
)
def test_no_consolidated_placement_is_missed(model: str, gpus: int, free: list[int], full: int) -> None:
    free = [8] * full + free
    cluster = Cluster(
        "c", tuple(Server(f"s{index}", 8, nic_bytes_s=12.5e9, intra_bytes_s=1.2e11) for index in range(len(free)))
    )
    graph, config = pipeline(model, gpus)
    spec = JobSpec("job", "ann", gpus, stage_graph=graph, parallelism=config)
    try:
        case = job(spec, cluster)
    except NeverFits:
        return
    pool = FreePool(cluster, free)
    if not may_consolidate(pool, cluster, case):
        found = find(pool, cluster, spec)
        assert found is None or not consolidated(found, case.iteration_times)
