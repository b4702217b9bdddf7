"""The choice of a placement: what is asked of it in words, on clusters small enough to see."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.choose import Candidate, consolidated, find, fits_empty, servers_wanted
from policies.model.cluster import Cluster, Gangs, Server
from policies.model.graph import Stage, StageGraph
from policies.model.ids import ServerIndex
from policies.model.job import IterationTimes, JobSpec
from policies.model.parallelism import ParallelismConfig
from policies.model.placement import Slowdown, Span, TypeFactor, span_of
from policies.placement.pool import FreePool
from policies.placement.splits import balanced, levelled
from policies.throughput import NeverFits, alpha, iteration_time_s, iteration_times, times_of

SERVER = Server("s", 8, nic_bytes_s=80.0, intra_bytes_s=100.0)
FOUR = Cluster("four", (SERVER,) * 4)


def plain(gpus: int, gpu_type: str | None = None) -> JobSpec:
    return JobSpec("job", "ann", gpus, gpu_type=gpu_type)


def modelled(graph: StageGraph, config: ParallelismConfig, gpu_type: str | None = None) -> JobSpec:
    return JobSpec("job", "ann", config.gpus, stage_graph=graph, parallelism=config, gpu_type=gpu_type)


def ring(replicas: int, tensor: int = 1, across: bool = False, gpu_type: str | None = None) -> JobSpec:
    graph = StageGraph((Stage("all", 3.0, 6.0, 900, tensor_bytes=90),), ())
    return modelled(graph, ParallelismConfig((replicas,), (tensor,), tensor_across_servers=across), gpu_type)


def held(candidate: Candidate | None) -> list[tuple[int, int]]:
    assert candidate is not None
    return [(share.server, share.gpus) for share in candidate.placement.shares]


def test_a_job_without_a_graph_takes_the_best_fitting_server() -> None:
    found = find(FreePool(FOUR, [8, 5, 4, 3]), FOUR, plain(4))
    assert held(found) == [(2, 4)]
    assert found is not None
    assert found.iteration_s is None
    assert found.placement.shares[0].replicas == ()


def test_a_job_without_a_graph_takes_the_fewest_servers_otherwise() -> None:
    assert held(find(FreePool(FOUR, [3, 6, 1, 4]), FOUR, plain(7))) == [(1, 6), (2, 1)]
    assert find(FreePool(FOUR, [3, 6, 1, 4]), FOUR, plain(15)) is None


def test_nine_replicas_split_five_and_four_instead_of_eight_and_one() -> None:
    found = find(FreePool(FOUR, [8, 8, 1, 0]), FOUR, ring(9))
    assert held(found) == [(0, 5), (1, 4)]
    assert found is not None
    # 1 + 1600 / 40; the fewest servers hold 8 + 1, which takes 1 + 1600 / 10
    assert found.iteration_s == pytest.approx(41.0)
    times = iteration_times(ring(9).stage_graph, ring(9).parallelism, FOUR, None)  # type: ignore[arg-type]
    assert consolidated(found, times)


def test_without_a_free_even_split_the_most_even_one_is_used() -> None:
    assert held(find(FreePool(FOUR, [7, 3, 0, 0]), FOUR, ring(9))) == [(0, 6), (1, 3)]


def test_a_scattered_placement_is_not_consolidated() -> None:
    found = find(FreePool(FOUR, [8, 1, 0, 0]), FOUR, ring(9))
    assert held(found) == [(0, 8), (1, 1)]
    assert found is not None
    times = iteration_times(ring(9).stage_graph, ring(9).parallelism, FOUR, None)  # type: ignore[arg-type]
    assert not consolidated(found, times)


def test_one_server_is_taken_before_any_faster_looking_split() -> None:
    assert held(find(FreePool(FOUR, [8, 8, 6, 8]), FOUR, ring(6))) == [(2, 6)]


def test_a_tensor_group_stays_on_one_server() -> None:
    found = find(FreePool(FOUR, [3, 3, 2, 0]), FOUR, ring(2, tensor=2))
    assert held(found) == [(0, 2), (2, 2)]
    assert find(FreePool(FOUR, [3, 1, 1, 1]), FOUR, ring(2, tensor=2)) is None


def test_a_tensor_group_is_broken_only_if_allowed_and_only_if_nothing_else_fits() -> None:
    broken = find(FreePool(FOUR, [3, 1, 0, 0]), FOUR, ring(2, tensor=2, across=True))
    assert held(broken) == [(0, 3), (1, 1)]
    assert broken is not None
    assert [share.replicas for share in broken.placement.shares] == [(2,), (0,)]
    whole = find(FreePool(FOUR, [3, 2, 1, 1]), FOUR, ring(2, tensor=2, across=True))
    assert held(whole) == [(0, 2), (1, 2)]


def test_tensor_degrees_that_differ_are_packed_largest_first() -> None:
    graph = StageGraph((Stage("a", 1, 1, 9), Stage("b", 1, 1, 9)), ((0, 1, 1),))
    spec = modelled(graph, ParallelismConfig((3, 1), (2, 4)))
    found = find(FreePool(FOUR, [6, 4, 0, 0]), FOUR, spec)
    assert found is not None
    assert sorted(share.gpus for share in found.placement.shares) == [4, 6]
    for share in found.placement.shares:
        assert share.gpus == 2 * share.replicas[0] + 4 * share.replicas[1]
    assert find(FreePool(FOUR, [3, 3, 3, 3]), FOUR, spec) is None
    # 7 + 5 is what the fewest servers grant, yet only 4 + 2 on each packs
    spec = modelled(graph, ParallelismConfig((2, 2), (2, 4)))
    assert held(find(FreePool(FOUR, [7, 7, 0, 0]), FOUR, spec)) == [(0, 6), (1, 6)]


def test_without_a_type_the_job_takes_the_type_on_which_it_is_fastest() -> None:
    slow = Server("slow", 8, "K80", nic_bytes_s=80.0, intra_bytes_s=100.0, gpu_speed=0.25)
    mixed = Cluster("mixed", (slow, slow, SERVER, SERVER))
    assert held(find(FreePool(mixed, [8] * 4), mixed, ring(4))) == [(2, 4)]
    assert held(find(FreePool(mixed, [8] * 4), mixed, ring(4, gpu_type="K80"))) == [(0, 4)]
    turned = Cluster("turned", (SERVER, SERVER, slow, slow))
    assert held(find(FreePool(turned, [8] * 4), turned, ring(4))) == [(0, 4)]
    assert held(find(FreePool(mixed, [8, 8, 3, 0]), mixed, ring(4))) == [(0, 4)]
    assert find(FreePool(mixed, [2, 1, 2, 1]), mixed, ring(4)) is None


def test_whether_a_gang_can_ever_run() -> None:
    assert fits_empty(FOUR, plain(32))
    assert not fits_empty(FOUR, plain(33))
    assert not fits_empty(FOUR, plain(1, "A100"))
    assert fits_empty(FOUR, ring(4, tensor=8))
    assert not fits_empty(FOUR, ring(1, tensor=9))
    assert fits_empty(FOUR, ring(1, tensor=9, across=True))
    odd = Cluster("odd", (replace(SERVER, gpus=7),) * 4)
    assert not fits_empty(odd, ring(14, tensor=2))
    assert fits_empty(odd, ring(12, tensor=2))


def test_servers_wanted_counts_servers_of_the_empty_cluster() -> None:
    assert [servers_wanted(FOUR, plain(gpus)) for gpus in (1, 8, 9, 32, 33)] == [1, 1, 2, 4, 0]
    assert [servers_wanted(FOUR, ring(replicas)) for replicas in (1, 8, 9, 32, 33)] == [1, 1, 2, 4, 0]
    assert servers_wanted(FOUR, ring(1, tensor=9, across=True)) == 2


@given(st.lists(st.integers(0, 6), min_size=1, max_size=4), st.integers(1, 12), st.integers(1, 2))
@settings(max_examples=300, deadline=None)
def test_the_levelled_split_is_the_most_even_that_the_rooms_allow(rooms, parts, quantum) -> None:
    gpus = parts * quantum
    choices = itertools.product(*(range(0, room + 1, quantum) for room in rooms))
    best = max((sorted(sizes) for sizes in choices if sum(sizes) == gpus), default=None)
    found = levelled(gpus, rooms, quantum)
    assert (found is None) == (best is None)
    if found is not None:
        assert sorted(found) == best
        assert all(size <= room for size, room in zip(found, rooms, strict=True))
    if parts >= len(rooms):
        assert balanced(gpus, len(rooms), quantum) == sorted(
            levelled(gpus, [gpus] * len(rooms), quantum) or (), reverse=True
        )
    else:
        assert balanced(gpus, len(rooms), quantum) is None


def test_gpus_that_are_no_multiple_of_the_quantum_are_not_split() -> None:
    assert balanced(5, 2, 2) is None
    assert levelled(5, [8, 8], 2) is None


machines = st.builds(
    Server,
    st.just("s"),
    st.integers(1, 8),
    gpu_type=st.sampled_from(["V100", "A100"]),
    rack=st.sampled_from(["r1", "r2"]),
    nic_bytes_s=st.sampled_from([4.0, 80.0]),
    intra_bytes_s=st.sampled_from([50.0, 100.0]),
)


@st.composite
def specs(draw: st.DrawFn) -> JobSpec:
    gpu_type = draw(st.sampled_from(["V100", "A100", None]))
    stages = draw(st.integers(0, 3))
    if not stages:
        return plain(draw(st.integers(1, 24)), gpu_type)
    rows = tuple(Stage(f"s{s}", 1.0, 2.0, draw(st.sampled_from([1, 100, 5000])), 7) for s in range(stages))
    edges = tuple((s, s + 1, draw(st.sampled_from([1, 100, 5000]))) for s in range(stages - 1))
    config = ParallelismConfig(
        tuple(draw(st.integers(1, 6)) for _ in rows),
        tuple(draw(st.sampled_from([1, 1, 2, 4])) for _ in rows),
        tensor_across_servers=draw(st.booleans()),
    )
    return modelled(StageGraph(rows, edges), config, gpu_type)


@given(st.lists(machines, min_size=1, max_size=6), specs(), st.data())
@settings(max_examples=400, deadline=None)
def test_a_choice_holds_the_gang_on_free_gpus_of_one_type_and_is_always_the_same(servers, spec, data) -> None:
    cluster = Cluster("c", tuple(servers))
    free = [data.draw(st.integers(0, server.gpus)) for server in servers]
    pool = FreePool(cluster, free)
    found = find(pool, cluster, spec)
    assert found == find(FreePool(cluster, free), cluster, spec)
    assert [pool.free(ServerIndex(m)) for m in range(len(free))] == free
    whole = spec.parallelism is None or spec.parallelism.tensor_across_servers or max(spec.parallelism.tensor) == 1
    if found is None:
        room = max(
            sum(free[m] for m, server in enumerate(servers) if server.gpu_type == kind)
            for kind in ("V100", "A100")
            if spec.gpu_type in (None, kind)
        )
        assert room < spec.gpus or not whole
        return
    for share in found.placement.shares:
        pool.set_free(share.server, pool.free(share.server) - share.gpus)  # raises on oversubscription
    assert found.placement.gpus == spec.gpus
    assert len({servers[m].gpu_type for m in found.placement.servers} | ({spec.gpu_type} - {None})) == 1
    if spec.stage_graph is None or spec.parallelism is None:
        return
    shares = found.placement.shares
    assert tuple(map(sum, zip(*(share.replicas for share in shares), strict=True))) == spec.parallelism.replicas
    if not spec.parallelism.tensor_across_servers:
        for share in shares:
            assert share.gpus == sum(n * t for n, t in zip(share.replicas, spec.parallelism.tensor, strict=True))
    exact = iteration_time_s(spec.stage_graph, spec.parallelism, cluster, found.placement)
    assert found.iteration_s == pytest.approx(exact)
    times = iteration_times(spec.stage_graph, spec.parallelism, cluster, spec.gpu_type)
    assert times.floor_s <= found.iteration_s * (1 + 1e-9)
    assert found.iteration_s <= times.ceil_s * (1 + 1e-9)


@given(st.integers(1, 6), st.integers(1, 4), specs())
@settings(max_examples=200, deadline=None)
def test_on_the_empty_cluster_of_equal_servers_the_choice_is_alpha_min(servers, gpus, spec) -> None:
    cluster = Cluster("c", (replace(SERVER, gpus=2 * gpus),) * servers)
    spec = replace(spec, gpu_type=None)
    found = find(FreePool(cluster, [2 * gpus] * servers), cluster, spec)
    assert (found is not None) == fits_empty(cluster, spec)
    if spec.stage_graph is None or spec.parallelism is None:
        return
    if found is None:
        with pytest.raises(NeverFits):
            iteration_times(spec.stage_graph, spec.parallelism, cluster, None)
        return
    times = iteration_times(spec.stage_graph, spec.parallelism, cluster, None)
    assert found.iteration_s == pytest.approx(times.min_s)
    assert consolidated(found, times)
    assert len(found.placement.shares) >= servers_wanted(cluster, spec) > 0


@given(
    st.lists(st.integers(0, 8), min_size=1, max_size=5), st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=6)
)
@settings(max_examples=300, deadline=None)
def test_tensor_groups_of_powers_of_two_are_packed_whenever_possible(free, degrees) -> None:
    cluster = Cluster("c", (SERVER,) * len(free))
    graph = StageGraph(tuple(Stage(f"s{s}", 1.0, 1.0, 1) for s in range(len(degrees))), ())
    spec = modelled(graph, ParallelismConfig((1,) * len(degrees), tuple(degrees)))
    possible = any(
        all(sum(t for t, home in zip(degrees, homes, strict=True) if home == m) <= room for m, room in enumerate(free))
        for homes in itertools.product(range(len(free)), repeat=len(degrees))
    )
    assert (find(FreePool(cluster, free), cluster, spec) is not None) == possible


RACKS = Cluster("racks", tuple(replace(SERVER, rack=f"r{index // 2}") for index in range(6)))


def test_a_slowed_gang_prefers_one_rack_to_fewer_servers() -> None:
    """Today's fewest servers lie in two racks; the same number of GPUs is free on three servers of one."""
    racks = Cluster("racks", tuple(replace(SERVER, rack=name) for name in "abbb"))
    free = [7, 3, 4, 4]
    assert held(find(FreePool(racks, free), racks, plain(11))) == [(0, 7), (2, 4)]
    found = find(FreePool(racks, free), racks, plain(11), slowdown=Slowdown(1.2, 1.5))
    assert (held(found), found and found.iteration_s) == ([(1, 3), (2, 4), (3, 4)], 1.2)
    equal = find(FreePool(racks, free), racks, plain(11), slowdown=Slowdown(1.5, 1.5))
    assert held(equal) == [(0, 7), (2, 4)]


@given(
    st.lists(st.integers(0, 8), min_size=6, max_size=6),
    st.integers(1, 48),
    st.floats(1.0, 4.0),
    st.floats(1.0, 4.0),
    st.floats(1.0, 4.0),
    st.sampled_from(Gangs),
)
def test_more_slowdown_never_makes_the_chosen_span_wider(free, gpus, rack, more_rack, more_cluster, gangs) -> None:
    cluster = replace(RACKS, gangs=gangs)
    pool = FreePool(cluster, free)
    mild = Slowdown(rack, max(rack, more_rack))
    # Each further step costs at least as much as before.
    steep = Slowdown(rack * more_rack, rack * more_rack + (mild.cluster - rack) * more_cluster)
    spans = []
    for slowdown in (None, mild, steep):
        found = find(pool, cluster, plain(gpus), slowdown=slowdown)
        if found is None:
            assert not spans
            return
        assert found.placement.gpus == gpus
        spans.append(list(Span).index(span_of(cluster, found.placement)))
        assert found.iteration_s == (None if slowdown is None else slowdown.factor(list(Span)[spans[-1]]))
    assert spans == sorted(spans, reverse=True)


@pytest.mark.parametrize(
    ("gpus", "least"), [(1, None), (8, 1.0), (9, 1.5), (16, 1.5), (17, None)], ids=lambda each: str(each)
)
def test_the_times_of_a_slowed_gang_follow_from_the_narrowest_span_that_holds_it(gpus, least) -> None:
    times = times_of(plain(gpus), RACKS, Slowdown(1.5, 3.0))
    assert times == (None if least is None else IterationTimes(least, 3.0, least, Slowdown(1.5, 3.0)))


def test_a_gang_that_never_fits_has_no_times() -> None:
    with pytest.raises(NeverFits):
        times_of(plain(49), RACKS, Slowdown(1.5, 3.0))


TYPES = Cluster("types", (SERVER, replace(SERVER, gpu_type="A100", gpu_speed=2.0)))
V100_FASTER = Slowdown(gpu_types=(TypeFactor("A100", 3.0), TypeFactor("V100", 1.0)))


def test_a_measured_correction_decides_between_gpu_types() -> None:
    """The stated speed makes the A100 twice as fast; measured, it takes three times as long as stated."""
    pool, spec = FreePool(TYPES, [8, 8]), ring(4)
    stated, measured = find(pool, TYPES, spec), find(pool, TYPES, spec, slowdown=V100_FASTER)
    assert stated is not None and measured is not None and stated.iteration_s is not None
    assert (held(stated), held(measured)) == ([(1, 4)], [(0, 4)])
    # The answers are cached by the correction.
    assert find(pool, TYPES, spec) == stated
    only = find(pool, TYPES, replace(spec, gpu_type="A100"), slowdown=V100_FASTER)
    assert only is not None and only.iteration_s == pytest.approx(3.0 * stated.iteration_s)


def test_times_are_corrected_by_type_and_span() -> None:
    spec, slowdown = ring(12), Slowdown(1.5, 2.0, server=1.2, gpu_types=(TypeFactor("V100", 1.1),))
    plain_times, times = times_of(spec, FOUR), times_of(spec, FOUR, slowdown)
    assert plain_times is not None and times is not None
    assert times.min_s == pytest.approx(plain_times.min_s * 1.5 * 1.1)  # it takes two servers
    assert times.floor_s <= times.min_s <= times.ceil_s
    found = find(FreePool(FOUR, [8] * 4), FOUR, spec, slowdown=slowdown)
    assert found is not None and consolidated(found, times)
    assert alpha(spec, times, FOUR, found.placement) == pytest.approx(found.iteration_s)
    small = times_of(ring(4), FOUR, slowdown)
    assert small is not None
    assert small.min_s == pytest.approx(1.2 * 1.1 * (times_of(ring(4), FOUR) or small).min_s)


def test_no_correction_changes_nothing() -> None:
    for spec in (ring(4), ring(8)):
        bare, neutral = times_of(spec, TYPES), times_of(spec, TYPES, Slowdown())
        assert bare is not None and neutral is not None
        assert (bare.min_s, bare.ceil_s) == pytest.approx((neutral.min_s, neutral.ceil_s))
