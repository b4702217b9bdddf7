"""The pool of free GPUs against a model that scans everything."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.model.cluster import Cluster, Server
from policies.model.ids import ServerIndex
from policies.placement.pool import FreePool, Grant


def cluster_of(*servers: tuple[int, str, str]) -> Cluster:
    return Cluster(
        "test", tuple(Server(f"s{i}", gpus, gpu_type=kind, rack=rack) for i, (gpus, kind, rack) in enumerate(servers))
    )


def flat(*free: int) -> FreePool:
    return FreePool(cluster_of(*((8, "V100", "r1") for _ in free)), free)


worlds = st.lists(
    st.tuples(st.integers(1, 9), st.sampled_from("AAB"), st.sampled_from(["r1", "r2", "r3"])), min_size=1, max_size=9
).flatmap(lambda servers: st.tuples(st.just(servers), st.tuples(*(st.integers(0, gpus) for gpus, _, _ in servers))))
settings_fast = settings(max_examples=300, deadline=None)


def usable(free: int, quantum: int) -> int:
    return free - free % quantum


def brute_fewest(
    servers: list[tuple[int, str, str]], free: tuple[int, ...], gpus: int, kind: str | None, quantum: int
) -> tuple[int, int] | None:
    """(servers, 1 if one rack can hold the gang on so few servers) by trying every subset of servers."""
    for count in range(1, len(servers) + 1):
        able = [
            {servers[i][2] for i in subset}
            for subset in itertools.combinations(range(len(servers)), count)
            if len({servers[i][1] for i in subset}) == 1
            and (kind is None or servers[subset[0]][1] == kind)
            and sum(usable(free[i], quantum) for i in subset) >= gpus
        ]
        if able:
            return count, min(len(racks) for racks in able)
    return None


@given(worlds, st.integers(1, 30), st.sampled_from(["A", "B", "C", None]), st.sampled_from([1, 1, 2, 3]))
@settings_fast
def test_fewest_servers_is_the_least_and_in_one_rack_if_one_suffices(world, gangs, kind, quantum) -> None:
    servers, free = world
    gpus = gangs * quantum
    grants = FreePool(cluster_of(*servers), free).fewest_servers(gpus, kind, quantum)
    least = brute_fewest(servers, free, gpus, kind, quantum)
    if least is None:
        assert grants is None
        return
    assert grants is not None
    assert len(grants) == least[0]
    assert sum(count for _, count in grants) == gpus
    assert all(count % quantum == 0 and 0 < count <= free[server] for server, count in grants)
    assert len({server for server, _ in grants}) == len(grants)
    assert len({servers[server][1] for server, _ in grants}) == 1
    if least[1] == 1 and kind is not None:
        assert len({servers[server][2] for server, _ in grants}) == 1


@given(worlds, st.integers(1, 10), st.sampled_from(["A", "B", "C", None]))
@settings_fast
def test_best_fit_is_the_smallest_sufficient_with_the_least_index(world, gpus, kind) -> None:
    servers, free = world
    fitting = [(free[i], i) for i in range(len(free)) if free[i] >= gpus and kind in (None, servers[i][1])]
    assert FreePool(cluster_of(*servers), free).best_fit(gpus, kind) == (min(fitting)[1] if fitting else None)


@given(worlds, st.lists(st.integers(1, 9), min_size=1, max_size=4))
@settings_fast
def test_fit_gives_each_size_its_own_server_whenever_that_is_possible(world, sizes) -> None:
    servers, free = world
    able = [i for i in range(len(free)) if servers[i][1] == "A"]
    possible = any(
        all(free[i] >= size for i, size in zip(chosen, sizes, strict=True))
        for chosen in itertools.permutations(able, len(sizes))
    )
    grants: list[Grant] | None = FreePool(cluster_of(*servers), free).fit(sizes, "A")
    assert (grants is not None) == possible
    if grants is not None:
        assert [count for _, count in grants] == sizes
        assert len({server for server, _ in grants}) == len(sizes)
        assert all(server in able and free[server] >= count for server, count in grants)


@given(worlds, st.lists(st.tuples(st.integers(0, 8), st.integers(0, 9), st.sampled_from(["take", "give", "set"]))))
@settings_fast
def test_any_sequence_of_operations_leaves_the_same_as_a_pool_built_anew(world, operations) -> None:
    servers, free = world
    cluster = cluster_of(*servers)
    pool, naive = FreePool(cluster, free), list(free)
    for index, gpus, operation in operations:
        index %= len(servers)
        after = {"take": naive[index] - gpus, "give": naive[index] + gpus, "set": gpus}[operation]
        allowed = 0 <= after <= servers[index][0]
        try:
            pool.set_free(ServerIndex(index), after)
        except ValueError:
            assert not allowed
        else:
            assert allowed
            naive[index] = after
    fresh = FreePool(cluster, naive)
    assert pool.total == fresh.total == sum(naive)
    assert pool.servers_with_free == fresh.servers_with_free == sum(count > 0 for count in naive)
    assert [pool.free(ServerIndex(i)) for i in range(len(naive))] == naive
    for kind in ("A", "B", None):
        assert pool.free_of_type(kind) == fresh.free_of_type(kind)
        for gpus in range(1, 12):
            assert pool.best_fit(gpus, kind) == fresh.best_fit(gpus, kind)
            assert pool.fewest_servers(gpus, kind) == fresh.fewest_servers(gpus, kind)
        assert list(pool.fullest(kind or "A")) == list(fresh.fullest(kind or "A"))


def test_the_last_server_is_best_fit_to_the_remainder() -> None:
    assert flat(8, 3, 8, 2, 8).fewest_servers(18, "V100") == [(0, 8), (2, 8), (3, 2)]
    assert flat(8, 3, 8, 2, 8).fewest_servers(19, "V100") == [(0, 8), (2, 8), (1, 3)]
    assert flat(8, 3, 8, 2, 8).fewest_servers(3, "V100") == [(1, 3)]


def test_the_rack_with_least_free_is_used_up_first() -> None:
    cluster = cluster_of(*((8, "V100", rack) for rack in ("r1", "r1", "r1", "r2", "r2")))
    assert FreePool(cluster, [8, 8, 8, 8, 8]).fewest_servers(16, None) == [(3, 8), (4, 8)]


def test_where_no_rack_suffices_the_choice_stays_in_racks_already_used() -> None:
    cluster = cluster_of(*((8, "V100", rack) for rack in ("r1", "r2", "r3", "r3", "r1")))
    assert FreePool(cluster, [8, 8, 8, 8, 3]).fewest_servers(20, None) == [(2, 8), (3, 8), (0, 4)]
    assert FreePool(cluster, [8, 7, 7, 7, 7]).fewest_servers(29, None) == [(0, 8), (4, 7), (2, 7), (3, 7)]


def test_an_even_split_stays_in_one_rack_if_one_has_the_servers() -> None:
    cluster = cluster_of(*((8, "V100", rack) for rack in ("r1", "r2", "r2", "r1")))
    assert FreePool(cluster, [5, 5, 6, 1]).fit([5, 4], "V100") == [(1, 5), (2, 4)]
    assert FreePool(cluster, [5, 5, 3, 1]).fit([5, 4], "V100") == [(0, 5), (1, 4)]


def test_a_gang_never_mixes_gpu_types() -> None:
    pool = FreePool(cluster_of((8, "V100", "r1"), (8, "A100", "r1"), (8, "A100", "r1")), [6, 8, 4])
    assert pool.fewest_servers(14, None) is None
    assert pool.fewest_servers(12, None) == [(1, 8), (2, 4)]
    assert pool.free_of_type(None) == 12
    assert pool.free_of_type("T4") == 0
    assert pool.best_fit(5, "A100") == 1
    assert pool.best_fit(5, None) == 0


def test_a_count_out_of_range_changes_nothing() -> None:
    pool = flat(8, 4)
    with pytest.raises(ValueError, match="server 1 has 8 GPUs; -1 cannot be free"):
        pool.set_free(ServerIndex(1), -1)
    with pytest.raises(ValueError, match="server 0 has 8 GPUs; 10 cannot be free"):
        pool.set_free(ServerIndex(0), 10)
    assert (pool.free(ServerIndex(0)), pool.free(ServerIndex(1)), pool.total) == (8, 4, 12)


def test_a_cluster_grows() -> None:
    pool = FreePool(cluster_of((2, "V100", "r1")), [2])
    grown = cluster_of((2, "V100", "r1"), (4, "A100", "r2"))
    with pytest.raises(ValueError, match="server 1 is new"):
        pool.set_free(ServerIndex(1), 4)
    pool.set_free(ServerIndex(1), 3, grown)
    assert (len(pool), pool.total, pool.servers_with_free, pool.gpu_types) == (2, 5, 2, ("V100", "A100"))
    assert pool.best_fit(3, None) == 1
