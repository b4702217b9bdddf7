"""``servers``: a gang on exactly so many servers, with as many GPUs on each."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.choose import find, fits_empty
from policies.model.cluster import Cluster, Server
from policies.model.job import JobSpec, Level, Topology
from policies.model.reasons import Reason
from policies.placement.pool import FreePool
from policies.registry import BUILT_IN
from tests.scenarios.dsl import cluster, policy


def test_a_job_is_spread_although_one_server_has_room_and_waits_while_it_cannot_be() -> None:
    story = cluster("2x4", policy("fifo_backfill", guard_share=0))
    story.job("spread", gpus=4, runs_s=10, servers=2).until(0).starts("spread").on("spread", 0, 1)
    story.until(10).finishes("spread")
    story.job("first", gpus=4, runs_s=50).until(11).starts("first")
    story.job("again", gpus=4, runs_s=10, servers=2).until(12).waits("again", Reason.FRAGMENTED)
    story.job("one", gpus=4, runs_s=10, servers=1).until(12).starts("one")
    story.until(22).finishes("one").until(61).finishes("first").starts("again").on("again", 0, 1)


def test_the_shares_are_in_one_rack_where_one_has_room() -> None:
    servers = (Server("a", 4, rack="r1"), Server("b", 8, rack="r2"), Server("c", 8, rack="r2"))
    made = Cluster("c", servers)
    found = find(FreePool(made, [4, 8, 8]), made, JobSpec("j", "u", 8, servers=2))
    assert found is not None and [tuple(share) for share in found.placement.shares] == [(1, 4, ()), (2, 4, ())]
    assert not fits_empty(made, JobSpec("j", "u", 8, servers=2, topology=Topology(Level.SERVER)))
    assert fits_empty(made, JobSpec("j", "u", 16, servers=2, topology=Topology(Level.RACK)))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from(["V100", "A100"])), min_size=1, max_size=5),
    st.integers(1, 4),
    st.integers(1, 3),
    st.data(),
)
def test_equal_shares_are_found_exactly_where_there_are_some(
    sizes: list[tuple[int, str]], servers: int, each: int, data: st.DataObject
) -> None:
    made = Cluster("c", tuple(Server(f"s{index}", gpus, gpu_type=kind) for index, (gpus, kind) in enumerate(sizes)))
    free = [data.draw(st.integers(0, server.gpus)) for server in made.servers]
    spec = JobSpec("j", "u", servers * each, servers=servers)
    found = find(FreePool(made, free), made, spec)

    def possible(room: list[int]) -> bool:
        return any(
            sum(gpus >= each for gpus, server in zip(room, made.servers, strict=True) if server.gpu_type == kind)
            >= servers
            for kind in ("V100", "A100")
        )

    assert (found is not None) == possible(free)
    if found is not None:
        assert [share.gpus for share in found.placement.shares] == [each] * servers
    assert fits_empty(made, spec) == possible([server.gpus for server in made.servers])


WANTED = [(4, 2), (3, 1), (4, None), (3, 3), (4, 2)]
"""GPUs and servers of jobs that do not all fit at once."""


@pytest.mark.parametrize("name", sorted(set(BUILT_IN) - {"wcs_duration", "wcs_workload"}))
def test_every_policy_keeps_to_the_number_of_servers(name: str) -> None:
    story = cluster("3x4", policy(name))
    for number, (gpus, servers) in enumerate(WANTED):
        story.job(f"j{number}", gpus=gpus, runs_s=20 + number, servers=servers)
    ran = set()
    for at_s in range(0, 400, 5):
        story.until(at_s)
        for job in story.engine.world.jobs.values():
            if job.placement is not None and job.spec.servers is not None:
                assert [share.gpus for share in job.placement.shares] == [
                    job.spec.gpus // job.spec.servers
                ] * job.spec.servers
                ran.add(job.id)
    story.to_the_end()
    assert len(ran) == 4
