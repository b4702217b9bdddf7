"""The pool as jobs see it that need CPUs or memory, against a model that looks at every server."""

import dataclasses
import tracemalloc
from fractions import Fraction
from math import ceil, floor

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.choose import find, fits_empty, free_for, servers_wanted
from policies.model.cluster import Cluster, Server
from policies.model.ids import ServerIndex
from policies.model.job import JobSpec
from policies.model.resources import Amounts, amounts_of, demand_of
from policies.placement import pool as pools
from policies.placement.pool import FreePool

SERVER = st.builds(
    Server,
    st.just("s"),
    st.integers(1, 8),
    st.sampled_from(["V100", "A100"]),
    st.sampled_from(["r1", "r2"]),
    cpus=st.none() | st.integers(1, 64),
    memory_gib=st.none() | st.sampled_from([0.5, 3.0, 64.0]),
    gpu_memory_gib=st.none() | st.sampled_from([16.0, 80.0]),
)
CLUSTER = st.lists(SERVER, min_size=1, max_size=6).map(lambda servers: Cluster("c", tuple(servers)))
SPEC = st.builds(
    JobSpec,
    st.just("j"),
    st.just("u"),
    st.integers(1, 20),
    gpu_type=st.none() | st.sampled_from(["V100", "A100"]),
    cpus=st.none() | st.integers(1, 80),
    memory_gib=st.none() | st.floats(0.1, 100.0),
    gpu_memory_gib=st.none() | st.sampled_from([16.0, 40.0]),
)
CHANGE = st.tuples(st.integers(0, 5), st.integers(0, 8), st.integers(-2, 64), st.integers(-2, 70_000))


def usable(server: Server, free: int, amounts: Amounts | None, spec: JobSpec) -> int:
    """GPUs of the server that the job can use, from the definition."""
    if spec.gpu_memory_gib is not None and (server.gpu_memory_gib or 1e9) < spec.gpu_memory_gib:
        return 0
    for gpus in range(free, 0, -1):
        part = Fraction(gpus, spec.gpus)
        cpus, mib = ceil((spec.cpus or 0) * part), ceil(ceil((spec.memory_gib or 0) * 1024) * part)
        have = amounts or Amounts(None, None)
        if (have.cpus is None or not cpus or cpus <= have.cpus) and (
            have.memory_mib is None or not mib or mib <= have.memory_mib
        ):
            return gpus
    return 0


@settings(max_examples=200, deadline=None)
@given(CLUSTER, st.lists(SPEC, min_size=1, max_size=3), st.lists(CHANGE, max_size=30))
def test_the_pool_of_a_demand_follows_every_change(
    cluster: Cluster, specs: list[JobSpec], changes: list[tuple[int, int, int, int]]
) -> None:
    pool = FreePool(cluster, [server.gpus for server in cluster.servers])
    free = [server.gpus for server in cluster.servers]
    amounts = [amounts_of(server) for server in cluster.servers]
    for number, gpus, cpus, mib in [(0, cluster.servers[0].gpus, 64, 70_000), *changes]:
        server = number % len(free)
        free[server] = min(gpus, cluster.servers[server].gpus)
        pool.set_free(ServerIndex(server), free[server])
        if (before := amounts[server]) is not None:
            after = Amounts(None if before.cpus is None else cpus, None if before.memory_mib is None else mib)
            amounts[server] = after
            pool.set_spare(ServerIndex(server), after)
        for spec in specs:
            seen = pool.usable_by(demand_of(spec))
            wanted = [usable(*each, spec) for each in zip(cluster.servers, free, amounts, strict=True)]
            assert [seen.free(ServerIndex(index)) for index in range(len(free))] == wanted
            types = {spec.gpu_type} if spec.gpu_type else {server.gpu_type for server in cluster.servers}
            most = max(
                sum(gpus for gpus, server in zip(wanted, cluster.servers, strict=True) if server.gpu_type == name)
                for name in types
            )
            assert free_for(pool, spec) == most
            found = find(pool, cluster, spec)
            assert (found is not None) == (most >= spec.gpus), "a job that fits is found, and no other"
            if found is not None:
                assert found.placement.gpus == spec.gpus
                assert all(share.gpus <= wanted[share.server] for share in found.placement.shares)


@settings(max_examples=100, deadline=None)
@given(CLUSTER, SPEC)
def test_what_fits_the_empty_cluster(cluster: Cluster, spec: JobSpec) -> None:
    per_type: dict[str, int] = {}
    for server in cluster.servers:
        gpus = usable(server, server.gpus, amounts_of(server), spec)
        per_type[server.gpu_type] = per_type.get(server.gpu_type, 0) + gpus
    most = (
        max(gpus for name, gpus in per_type.items() if spec.gpu_type in (None, name))
        if (spec.gpu_type is None or spec.gpu_type in per_type)
        else 0
    )
    assert fits_empty(cluster, spec) == (most >= spec.gpus) == (servers_wanted(cluster, spec) > 0)


def test_more_demands_than_views_and_a_server_that_is_added() -> None:
    cluster = Cluster("c", (Server("a", 8, cpus=64),))
    pool = FreePool(cluster, [8])
    for cpus in range(1, 2 * pools.VIEWS_MAX):
        spec = JobSpec("j", "u", 1, cpus=cpus)
        assert pool.usable_by(demand_of(spec)).free(ServerIndex(0)) == min(8, floor(64 / cpus))
    grown = dataclasses.replace(cluster, servers=(*cluster.servers, Server("b", 8, cpus=128)))
    pool.set_free(ServerIndex(1), 8, grown)
    spec = JobSpec("j", "u", 3, cpus=100)
    assert find(pool, grown, spec).placement.servers == (1,)  # type: ignore[union-attr]
    assert pool.usable_by(None) is pool


def test_changes_that_no_view_will_follow_are_not_kept() -> None:
    """One job once needed CPUs, and no later one does."""
    pool = FreePool(Cluster("c", (Server("a", 8, cpus=64),)), [8])
    view = demand_of(JobSpec("j", "u", 1, cpus=8))
    pool.usable_by(view)
    tracemalloc.start()
    for number in range(20_000):
        pool.set_free(ServerIndex(0), number % 8)
        pool.set_spare(ServerIndex(0), Amounts(number % 64, None))
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 50_000, f"{grown} bytes"
    assert pool.usable_by(view).free(ServerIndex(0)) == min(19_999 % 8, 19_999 % 64 // 8)


def test_equal_needs_of_each_gpu_are_one_demand() -> None:
    one, eight = JobSpec("j", "u", 1, cpus=4, memory_gib=2.0), JobSpec("j", "u", 8, cpus=32, memory_gib=16.0)
    assert demand_of(one) == demand_of(eight)
    assert demand_of(JobSpec("j", "u", 8)) is None
    assert demand_of(JobSpec("j", "u", 3, cpus=4)).of(1) == Amounts(2, 0)  # type: ignore[union-attr]
