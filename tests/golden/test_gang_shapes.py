"""Placements that an engine can start, against brute force: one is found if there is any, and none other is ever found."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.choose import find, fits_empty, servers_wanted
from policies.model.cluster import Cluster, Gangs, Server
from policies.model.graph import Stage, StageGraph
from policies.model.job import JobSpec, Level, Topology
from policies.model.parallelism import ParallelismConfig
from policies.model.plan import PipelineSchedule
from policies.placement.exact import mappings
from policies.placement.iteration import gang
from policies.placement.pool import FreePool
from policies.placement.shapes import allowed

LIMITED = [Gangs.EQUAL_SHARES, Gangs.ONE_SERVER]
many = settings(max_examples=300, deadline=None)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Cluster, list[int]]:
    servers = tuple(
        Server(
            f"s{index}",
            draw(st.integers(1, 4)),
            draw(st.sampled_from(["a", "a", "b"])),
            draw(st.sampled_from(["r1", "r2"])),
        )
        for index in range(draw(st.integers(1, 6)))
    )
    free = [draw(st.integers(0, server.gpus)) for server in servers]
    return Cluster("c", servers, gangs=draw(st.sampled_from(LIMITED))), free


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, object]:
    """A stage graph with small tensor groups, or none."""
    if draw(st.booleans()):
        return {"gpus": draw(st.integers(1, 12))}
    stages = draw(st.integers(1, 3))
    config = ParallelismConfig(
        tuple(draw(st.integers(1, 3)) for _ in range(stages)),
        tuple(draw(st.sampled_from([1, 1, 2, 3])) for _ in range(stages)),
        PipelineSchedule.PIPEDREAM,
        4,
        False,
    )
    rows = tuple(Stage(f"s{s}", 1.0, 2.0, 100, 10) for s in range(stages))
    graph = StageGraph(rows, tuple((s, s + 1, 10) for s in range(stages - 1)))
    gpus = sum(k * t for k, t in zip(config.replicas, config.tensor, strict=True))
    return {"gpus": gpus, "stage_graph": graph, "parallelism": config}


def spec_of(shape: dict[str, object], **more: object) -> JobSpec:
    return JobSpec("x", "u", command=("true",), **shape, **more)  # type: ignore[arg-type]


def exists(cluster: Cluster, free: list[int], spec: JobSpec) -> bool:
    """Brute force over sets of servers."""
    for count in range(1, len(free) + 1) if cluster.gangs is Gangs.EQUAL_SHARES else (1,):
        share, rest = divmod(spec.gpus, count)
        if rest:
            continue
        for chosen in combinations(range(len(free)), count):
            servers = [cluster.servers[index] for index in chosen]
            if len({server.gpu_type for server in servers}) > 1 or any(free[index] < share for index in chosen):
                continue
            if spec.topology is not None and len({server.rack for server in servers}) > 1:
                continue
            if spec.stage_graph is None or spec.parallelism is None:
                return True
            members = gang(spec.stage_graph, spec.parallelism)
            if next(mappings(members, (share,) * count), None) is not None:
                return True
    return False


def check(cluster: Cluster, free: list[int], spec: JobSpec, salt: int | None = None) -> None:
    found = find(FreePool(cluster, free), cluster, spec, salt)
    assert (found is not None) == exists(cluster, free, spec)
    if found is not None:
        assert allowed(cluster.gangs, found.placement)
        assert found.placement.gpus == spec.gpus
        assert all(share.gpus <= free[share.server] for share in found.placement.shares)
    empty = [server.gpus for server in cluster.servers]
    assert fits_empty(cluster, spec) == exists(cluster, empty, spec)


@many
@given(clusters(), graphs())
def test_an_allowed_placement_is_found_if_there_is_one(
    made: tuple[Cluster, list[int]], shape: dict[str, object]
) -> None:
    check(*made, spec_of(shape))


@many
@given(clusters(), graphs())
def test_so_is_one_within_a_rack(made: tuple[Cluster, list[int]], shape: dict[str, object]) -> None:
    check(*made, spec_of(shape, topology=Topology(Level.RACK, required=True)))


@many
@given(clusters(), graphs(), st.integers(0, 99))
def test_a_random_placement_is_allowed_as_well(
    made: tuple[Cluster, list[int]], shape: dict[str, object], salt: int
) -> None:
    check(*made, spec_of(shape), salt)


@many
@given(clusters(), st.integers(1, 12))
def test_the_fewest_servers_are_counted_among_allowed_placements(made: tuple[Cluster, list[int]], gpus: int) -> None:
    cluster, _ = made
    spec = spec_of({"gpus": gpus})
    found = find(FreePool(cluster, [server.gpus for server in cluster.servers]), cluster, spec)
    assert servers_wanted(cluster, spec) == (0 if found is None else len(found.placement.shares))


def test_the_fewest_servers_with_equal_shares_are_taken_in_one_rack_where_it_has_them() -> None:
    servers = tuple(Server(f"s{index}", 4, rack=f"r{index % 2}") for index in range(6))
    cluster = Cluster("c", servers, gangs=Gangs.EQUAL_SHARES)
    found = find(FreePool(cluster, [3, 4, 3, 4, 3, 2]), cluster, spec_of({"gpus": 6}))
    assert found is not None
    assert [(share.server, share.gpus) for share in found.placement.shares] == [(0, 3), (2, 3)]
    found = find(FreePool(cluster, [3, 1, 1, 1, 1, 2]), cluster, spec_of({"gpus": 6}))
    assert found is not None
    assert [share.gpus for share in found.placement.shares] == [1] * 6


@pytest.mark.parametrize("gangs", LIMITED)
def test_ten_thousand_servers_cost_no_scan(gangs: Gangs) -> None:
    """The search asks the indexed pool alone: it works on servers that a scan would have to look at one by one."""
    cluster = Cluster("c", tuple(Server(f"s{index}", 8) for index in range(10_000)), gangs=gangs)
    pool = FreePool(cluster, [1] * 10_000)
    reads = 0

    class Counting(list[int]):
        def __getitem__(self, key):  # type: ignore[no-untyped-def]
            nonlocal reads
            reads += 1
            return super().__getitem__(key)

    pool._free = Counting(pool._free)
    found = find(pool, cluster, spec_of({"gpus": 64}))
    assert (found is not None) == (gangs is Gangs.EQUAL_SHARES)
    assert reads == 0
    assert servers_wanted(cluster, spec_of({"gpus": 64})) == (8 if gangs is Gangs.EQUAL_SHARES else 0)
