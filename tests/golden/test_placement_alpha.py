"""Iteration times worked out by hand from the formulas of the communication model."""

from dataclasses import replace

import pytest

from policies.model.cluster import Cluster, Server
from policies.model.graph import Stage, StageGraph
from policies.model.ids import ServerIndex
from policies.model.parallelism import ParallelismConfig
from policies.model.placement import Placement, ServerShare, place
from policies.model.plan import PipelineSchedule
from policies.placement.heavy_edge import heavy_edge
from policies.placement.iteration import gang
from policies.throughput import NeverFits, iteration_time_s, iteration_times

# share = min(100, 80 / 8) = 10 bytes/s a GPU towards other servers, 100 inside.
SERVER = Server("s", 8, nic_bytes_s=80.0, intra_bytes_s=100.0)
TWO = Cluster("two", (SERVER, SERVER))


def on(*rows: tuple[int, tuple[int, ...]]) -> Placement:
    return place([ServerShare(ServerIndex(m), gpus, counts) for m, (gpus, counts) in enumerate(rows)])


def data_parallel(replicas: int) -> tuple[StageGraph, ParallelismConfig]:
    return StageGraph((Stage("all", 3.0, 6.0, 900),), ()), ParallelismConfig((replicas,), (1,))


def test_data_parallel_on_one_server_rings_inside_it() -> None:
    graph, config = data_parallel(3)
    # compute (3 + 6) / 3 = 3; V = 2 * 2/3 * 900 = 1200 over 100 bytes/s = 12
    assert iteration_time_s(graph, config, TWO, on((3, (3,)))) == pytest.approx(15.0)


def test_a_ring_over_servers_is_as_slow_as_its_smallest_part() -> None:
    graph, config = data_parallel(9)
    # compute 1; V = 2 * 8/9 * 900 = 1600: 8 + 1 leaves through 10 bytes/s, 5 + 4 through 40
    assert iteration_time_s(graph, config, TWO, on((8, (8,)), (1, (1,)))) == pytest.approx(161.0)
    assert iteration_time_s(graph, config, TWO, on((5, (5,)), (4, (4,)))) == pytest.approx(41.0)


def test_a_ring_over_servers_is_never_faster_than_the_inside_of_one() -> None:
    fast = Server("s", 8, nic_bytes_s=800.0, intra_bytes_s=100.0)
    graph, config = data_parallel(6)
    # V = 2 * 5/6 * 900 = 1500; 3 GPUs * 100 bytes/s would be 300, but the inside has only 100
    placement = on((3, (3,)), (3, (3,)))
    assert iteration_time_s(graph, config, Cluster("c", (fast, fast)), placement) == pytest.approx(1.5 + 15.0)


PIPELINE = StageGraph((Stage("front", 2.0, 2.0, 500), Stage("back", 1.0, 1.0, 1000)), ((0, 1, 300),))


def test_pipeline_neighbours_pay_by_where_the_others_are() -> None:
    config = ParallelismConfig((2, 3), (1, 1))
    placement = on((4, (2, 2)), (1, (0, 1)))
    # front: 4/2 + 2*300/2 * [2/3/100 + 1/3/10] = 2 + 300 * 0.04 = 14, ring 2 * 1/2 * 500 / 100 = 5 (one server): 19
    # back on the first: 2/3 + 2*300/3 * [1/100] = 2.667, ring 2 * 2/3 * 1000 / min(100, 2*10, 1*10) = 133.33
    # back on the second: 2/3 + 200 * 1/10 = 20.667, the same ring: 154.0
    assert iteration_time_s(PIPELINE, config, TWO, placement) == pytest.approx(154.0)


def test_a_synchronous_pipeline_fills_drains_and_then_rings() -> None:
    config = ParallelismConfig((2, 3), (1, 1), PipelineSchedule.ONE_F_ONE_B, micro_batches=4)
    placement = on((4, (2, 2)), (1, (0, 1)))
    # (4 + 2 - 1)/4 * max(14, 2.667, 20.667) + max(5, 133.33)
    assert iteration_time_s(PIPELINE, config, TWO, placement) == pytest.approx(1.25 * (62 / 3) + 400 / 3)


@pytest.mark.parametrize(
    ("schedule", "bubble"),
    [
        (PipelineSchedule.GPIPE, 1.0),
        (PipelineSchedule.ZERO_BUBBLE, 1 / 3),
    ],
)
def test_a_flushed_pipeline_waits_for_its_bubble(schedule: PipelineSchedule, bubble: float) -> None:
    config = ParallelismConfig((2, 3), (1, 1), schedule, micro_batches=4)
    placement = on((4, (2, 2)), (1, (0, 1)))
    assert iteration_time_s(PIPELINE, config, TWO, placement) == pytest.approx((4 + bubble) / 4 * (62 / 3) + 400 / 3)


def test_virtual_stages_divide_the_bubble_and_multiply_activations() -> None:
    config = ParallelismConfig((2, 3), (1, 1), PipelineSchedule.INTERLEAVED, micro_batches=4, virtual_stages=2)
    placement = on((4, (2, 2)), (1, (0, 1)))
    # (4 + 1/2)/4 * (2/3 + 2 * 200 * 1/10) + 133.33
    assert iteration_time_s(PIPELINE, config, TWO, placement) == pytest.approx(1.125 * (2 / 3 + 40) + 400 / 3)


def test_a_tensor_group_splits_compute_and_parameters_and_pays_its_own_all_reduce() -> None:
    graph = StageGraph((Stage("all", 4.0, 8.0, 900, tensor_bytes=200),), ())
    config = ParallelismConfig((2,), (2,))
    # compute 12/(2*2) = 3; V = 2 * 1/2 * 900/2 = 450 over 2 servers with x = 1: 45 s; group 2 * 1/2 * 200/100 = 2
    assert iteration_time_s(graph, config, TWO, on((2, (1,)), (2, (1,)))) == pytest.approx(3.0 + 45.0 + 2.0)


def test_a_broken_tensor_group_talks_through_the_network() -> None:
    graph = StageGraph((Stage("all", 4.0, 8.0, 900, tensor_bytes=200),), ())
    config = ParallelismConfig((1,), (4,), tensor_across_servers=True)
    # compute 12/4 = 3; group 2 * 3/4 * 200 = 300 bytes at 10 bytes/s
    assert iteration_time_s(graph, config, TWO, on((3, (1,)), (1, (0,)))) == pytest.approx(3.0 + 30.0)
    assert iteration_time_s(graph, config, TWO, on((4, (1,)))) == pytest.approx(3.0 + 3.0)


def test_the_slower_server_sets_the_pace() -> None:
    slow = Server("slow", 8, nic_bytes_s=80.0, intra_bytes_s=100.0, gpu_speed=0.5)
    graph, config = data_parallel(2)
    # compute 9/2 / 0.5 = 9; V = 900 through 10 bytes/s
    assert iteration_time_s(graph, config, Cluster("c", (SERVER, slow)), on((1, (1,)), (1, (1,)))) == pytest.approx(99)


def test_contention_enters_as_a_smaller_share() -> None:
    graph, config = data_parallel(2)
    placement = on((1, (1,)), (1, (1,)))
    halved = iteration_time_s(graph, config, TWO, placement, share_of=lambda server: 10.0 / (1 + server))
    assert iteration_time_s(graph, config, TWO, placement) == pytest.approx(4.5 + 90.0)
    assert halved == pytest.approx(4.5 + 180.0)


def test_the_four_constants_of_a_ring_of_nine() -> None:
    graph, config = data_parallel(9)
    times = iteration_times(graph, config, TWO, None)
    # floor: 1 + 1600/100; ceil: 1 + 1600/10; best of 8 + 1 (161) and 5 + 4 (41): the most consolidated is not the fastest
    assert (times.floor_s, times.ceil_s, times.min_s) == pytest.approx((17.0, 161.0, 41.0))


def test_an_even_split_over_the_fewest_servers_is_tried() -> None:
    three = Cluster("three", (SERVER, SERVER, SERVER))
    # V = 2 * 16/17 * 900 = 28800/17; 8 + 8 + 1 leaves through 10 bytes/s, 6 + 6 + 5 through 50
    assert iteration_times(*data_parallel(17), three, None).min_s == pytest.approx(9 / 17 + 28800 / 17 / 50)


def test_an_even_split_keeps_tensor_groups_whole() -> None:
    graph = StageGraph((Stage("all", 0.0, 0.0, 1200),), ())
    # V = 2 * 5/6 * 1200/2 = 1000; 8 + 4 holds 4 and 2 groups, 6 + 6 three each: through 30
    times = iteration_times(graph, ParallelismConfig((6,), (2,)), TWO, None)
    assert times.min_s == pytest.approx(1000 / 30)


def test_one_server_more_may_keep_every_ring_whole() -> None:
    # 8 stages of 5: three servers of 14 must break rings, four hold two whole stages each; five do not hold a stage a server
    large = replace(SERVER, gpus=14, nic_bytes_s=140.0)
    stages = tuple(Stage(f"s{s}", 0.0, 0.0, 1000) for s in range(8))
    graph = StageGraph(stages, tuple((s, s + 1, 500 if s % 2 == 0 else 25) for s in range(7)))
    times = iteration_times(graph, ParallelismConfig((5,) * 8, (1,) * 8), Cluster("five", (large,) * 5), None)
    # ring 2 * 4/5 * 1000 / 100 = 16; the partner inside 2*500/5 / 100 = 2; the next pair outside 2*25/5 / 10 = 1
    assert times.min_s == pytest.approx(19.0)


def test_a_stage_a_server_may_keep_every_ring_whole() -> None:
    # 7, 6, 5 and 5 replicas: no even split over three or four servers of 8 leaves all rings whole
    stages = tuple(Stage(f"s{s}", 0.0, 0.0, 700) for s in range(4))
    graph = StageGraph(stages, tuple((s, s + 1, 1) for s in range(3)))
    four = Cluster("four", (SERVER,) * 4)
    # the ring of seven: 2 * 6/7 * 700 / 100 = 12, its one neighbour 2 * 1/7 / 10
    assert iteration_times(graph, ParallelismConfig((7, 6, 5, 5), (1,) * 4), four, None).min_s == pytest.approx(
        12.0 + 2 / 70
    )


def test_servers_that_differ_in_one_respect_are_told_apart() -> None:
    narrow, slow = replace(SERVER, nic_bytes_s=8.0), replace(SERVER, gpu_speed=0.5)
    # floor and ceil of two replicas: 4.5 of compute, 900 bytes of ring
    graph, config = data_parallel(2)
    assert iteration_times(graph, config, Cluster("c", (SERVER, narrow)), None).ceil_s == pytest.approx(4.5 + 900)
    assert iteration_times(graph, config, Cluster("c", (SERVER, slow)), None).ceil_s == pytest.approx(9 + 90)
    assert iteration_times(graph, config, Cluster("c", (slow, SERVER)), None).floor_s == pytest.approx(4.5 + 9)


@pytest.mark.parametrize("order", [1, -1])
def test_without_a_type_the_best_time_is_that_of_the_best_type(order) -> None:
    other = replace(SERVER, gpu_type="K80", gpu_speed=0.5)
    cluster = Cluster("c", (SERVER, other)[::order])
    graph, config = data_parallel(2)
    assert iteration_times(graph, config, cluster, None).min_s == pytest.approx(4.5 + 9)
    assert iteration_times(graph, config, cluster, "K80").min_s == pytest.approx(9 + 9)


def test_a_broken_group_rings_through_every_server_that_it_touches() -> None:
    narrow = Server("narrow", 8, nic_bytes_s=8.0, intra_bytes_s=100.0)
    graph = StageGraph((Stage("all", 0.0, 0.0, 900),), ())
    config = ParallelismConfig((2,), (2,), tensor_across_servers=True)
    # V = 2 * 1/2 * 900/2 = 450; the second group ends on the narrow server: 1 byte/s
    placement = on((3, (2,)), (1, (0,)))
    assert iteration_time_s(graph, config, Cluster("c", (SERVER, narrow)), placement) == pytest.approx(450.0)


def test_heavy_edge_by_hand() -> None:
    graph = StageGraph(tuple(Stage(name, 1.0, 1.0, 0) for name in "abc"), ((0, 1, 10), (1, 2, 1)))
    members = gang(graph, ParallelismConfig((1, 1, 1), (1, 1, 1)))
    # one GPU each: the vertex of least weight first (c: 2, a: 20, b: 22)
    assert heavy_edge(members, (1, 1, 1)) == ((0, 0, 1), (1, 0, 0), (0, 1, 0))
    # two and one: the heaviest edge a-b goes together, whichever server is listed first
    assert heavy_edge(members, (2, 1)) == ((1, 1, 0), (0, 0, 1))
    assert heavy_edge(members, (1, 2)) == ((0, 0, 1), (1, 1, 0))


def test_heavy_edge_follows_the_strongest_tie_and_closes_rings() -> None:
    graph = StageGraph((Stage("a", 1.0, 1.0, 90), Stage("b", 1.0, 1.0, 30)), ((0, 1, 180),))
    members = gang(graph, ParallelismConfig((3, 3), (1, 1)))
    # ring edges 120 and 40, pipeline edges 2 * 180 / 9 = 40. Seed a-a (120). Then a closes its ring: 240 against b: 80.
    # Of four GPUs the last is b, tied by three edges of 40.
    assert heavy_edge(members, (4, 2)) == ((3, 1), (0, 2))


def test_a_gang_that_no_servers_can_hold() -> None:
    graph, config = data_parallel(17)
    with pytest.raises(NeverFits, match="gang of 17 GPUs"):
        iteration_times(graph, config, TWO, None)
    with pytest.raises(NeverFits, match="of type A100"):
        iteration_times(*data_parallel(1), TWO, "A100")


def test_equal_shapes_share_one_gang() -> None:
    assert gang(*data_parallel(4)) is gang(*data_parallel(4))
