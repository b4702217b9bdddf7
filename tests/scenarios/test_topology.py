"""Gangs that keep to one server or one rack: where they go, for what they wait, and that they are not starved."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.choose import find, fits_empty
from policies.lifecycle import JobState
from policies.model.cluster import Cluster, Server
from policies.model.ids import ServerIndex
from policies.model.job import JobSpec, Level, Topology
from policies.model.reasons import Reason
from policies.placement.pool import FreePool
from policies.registry import BUILT_IN
from tests.scenarios.dsl import Story, cluster, policy

RACK, SERVER = Topology(Level.RACK), Topology(Level.SERVER)
RACK_IF_FREE = Topology(Level.RACK, required=False)


def racks(*sizes: tuple[int, ...]) -> tuple[Server, ...]:
    """For each rack the GPUs of its servers."""
    return tuple(Server(f"r{r}s{s}", gpus, rack=f"r{r}") for r, rack in enumerate(sizes) for s, gpus in enumerate(rack))


def story(*sizes: tuple[int, ...], name: str = "fifo_backfill", **options: object) -> Story:
    return cluster("", policy(name, **options), names=racks(*sizes))


def test_a_gang_that_must_keep_to_a_rack_waits_for_one() -> None:
    made = story((2, 2), (4,))
    made.job("a", gpus=3, runs_s=100).until(0).starts("a").on("a", 2)
    made.job("any", gpus=5, runs_s=10).job("rack", gpus=4, runs_s=10, at_s=11, topology=RACK)
    made.until(0).starts("any").until(10).finishes("any").until(11).starts("rack").on("rack", 0, 1)
    made.job("next", gpus=4, runs_s=10, topology=RACK).until(12).waits("next", Reason.RESOURCES)


def test_fewer_servers_elsewhere_do_not_count_if_they_are_in_two_racks() -> None:
    made = story((4, 1, 1, 1, 1), (4,))
    made.job("rack", gpus=8, runs_s=10, topology=RACK).until(0).starts("rack").on("rack", 0, 1, 2, 3, 4)


def test_free_gpus_in_two_racks_are_said_to_be_fragmented() -> None:
    made = story((4,), (4,))
    made.job("a", gpus=2, runs_s=50).job("b", gpus=3, runs_s=100).until(0).starts("a", "b").on("a", 0).on("b", 1)
    made.job("rack", gpus=3, runs_s=10, topology=RACK).until(1).waits("rack", Reason.FRAGMENTED)
    made.until(50).finishes("a").starts("rack").on("rack", 0)


def test_one_server_is_required_or_preferred() -> None:
    made = story((2, 2))
    made.job("one", gpus=1, runs_s=100).until(0).starts("one")
    made.job("must", gpus=2, runs_s=10, topology=SERVER).until(1).starts("must").on("must", 1)
    made.job("again", gpus=2, runs_s=10, topology=SERVER).until(2).waits("again", Reason.RESOURCES)
    made.until(11).finishes("must").starts("again")
    made.job("one2", gpus=1, runs_s=100, at_s=21).until(21).finishes("again").starts("one2")
    made.job("wish", gpus=3, runs_s=10, topology=RACK_IF_FREE).until(22).waits("wish", Reason.RESOURCES)


def test_a_preferred_level_is_taken_where_it_is_free_and_left_else() -> None:
    made = story((4, 1, 1, 1, 1), (4,))
    made.job("wish", gpus=8, runs_s=10, topology=RACK_IF_FREE).until(0).starts("wish").on("wish", 0, 1, 2, 3, 4)
    made.job("scattered", gpus=4, runs_s=10, topology=RACK_IF_FREE).until(1).starts("scattered").on("scattered", 5)
    made.until(20)
    made.job("busy", gpus=3, runs_s=100, topology=SERVER).job("busy2", gpus=3, runs_s=100, topology=SERVER)
    made.until(21).starts("busy", "busy2")
    made.job("left", gpus=6, runs_s=10, topology=RACK_IF_FREE).until(22).starts("left")


def test_it_displaces_the_jobs_of_one_rack() -> None:
    made = story((2, 2), (2, 2), name="srsf", guard_share=0)
    for number in range(4):
        made.job(f"long{number}", gpus=2, runs_s=1000 + number)
    made.until(0).starts("long0", "long1", "long2", "long3")
    made.job("rack", gpus=4, runs_s=10, topology=RACK).until(1)
    placement = made.record("rack").placement
    assert placement is not None
    assert len({made.cluster.servers[server].rack for server in placement.servers}) == 1
    assert sum(made.record(f"long{number}").preemptions for number in range(4)) == 2


def test_it_is_not_starved_by_narrow_jobs_that_keep_both_racks_busy() -> None:
    made = story((2, 2), (2, 2), guard_wait_s=300)
    for number in range(400):
        made.job(f"n{number}", runs_s=40 + number % 7, at_s=number * 5)
    made.job("rack", gpus=4, runs_s=10, at_s=20, topology=RACK).until(600)
    assert made.state("rack") is JobState.SUCCEEDED


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3), min_size=1, max_size=3),
    st.integers(1, 12),
    st.sampled_from(list(Level)),
    st.data(),
)
def test_a_placement_within_the_level_is_found_exactly_where_there_is_one(
    sizes: list[list[int]], gpus: int, level: Level, data: st.DataObject
) -> None:
    made = Cluster("c", racks(*(tuple(rack) for rack in sizes)))
    free = [data.draw(st.integers(0, server.gpus)) for server in made.servers]
    spec = JobSpec("j", "u", gpus, topology=Topology(level))
    found = find(FreePool(made, free), made, spec)
    groups = [[index] for index in range(len(free))]
    if level is Level.RACK:
        names = sorted({server.rack for server in made.servers})
        groups = [[i for i, server in enumerate(made.servers) if server.rack == name] for name in names]
    assert (found is not None) == any(sum(free[i] for i in group) >= gpus for group in groups)
    if found is not None:
        servers = {int(server) for server in found.placement.servers}
        assert any(servers.issubset(group) for group in groups)
        if level is Level.RACK:
            fewest = min(
                count
                for group in groups
                for count in range(1, len(group) + 1)
                if any(sum(free[i] for i in some) >= gpus for some in combinations(group, count))
            )
            assert len(servers) == fewest
    assert fits_empty(made, spec) == any(sum(made.servers[i].gpus for i in group) >= gpus for group in groups)


@pytest.mark.parametrize("name", sorted(set(BUILT_IN) - {"wcs_duration", "wcs_workload"}))
@settings(max_examples=8, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.integers(1, 50), st.sampled_from([None, RACK, SERVER, RACK_IF_FREE])),
        min_size=1,
        max_size=12,
    )
)
def test_everybody_ends_where_it_wants_to_be(name: str, jobs: list[tuple[int, int, Topology | None]]) -> None:
    made = story((2, 2), (4,), (1, 3), name=name)
    for number, (gpus, runs_s, topology) in enumerate(jobs):
        made.job(f"j{number}", gpus=gpus, runs_s=runs_s, topology=topology)
    for at_s in range(0, 1000, 10):
        made.until(at_s)
        for job in made.engine.world.jobs.values():
            wish = job.spec.topology
            if job.placement is not None and wish is not None and wish.required:
                used = job.placement.servers
                assert (
                    len(
                        used
                        if wish.level is Level.SERVER
                        else {made.cluster.servers[ServerIndex(s)].rack for s in used}
                    )
                    == 1
                )
    assert {made.state(f"j{number}") for number in range(len(jobs))} == {JobState.SUCCEEDED}
