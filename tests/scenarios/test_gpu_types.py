"""Jobs that take several GPU types: which they get, for what they wait, and whom they displace."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.lifecycle import JobState
from policies.model.cluster import Cluster, Server
from policies.model.graph import Stage, StageGraph
from policies.model.ids import JobId, ServerIndex
from policies.model.job import JobSpec
from policies.model.parallelism import ParallelismConfig
from policies.model.placement import ServerShare, Slowdown, TypeFactor, place
from policies.model.reasons import Reason
from policies.registry import BUILT_IN
from policies.throughput import stretch_of, times_in_reach, times_of
from service.engine.record import JobRecord
from tests.scenarios.dsl import cluster, policy

BOTH = {"gpu_type": "A100", "gpu_type_fallbacks": ("V100",)}


def test_the_first_type_that_can_hold_the_gang_is_taken() -> None:
    story = cluster("1x4:V100 1x4:A100", policy("fifo_backfill"))
    story.job("a", gpus=4, runs_s=10, **BOTH).job("b", gpus=4, runs_s=10, **BOTH).job("c", gpus=4, runs_s=10, **BOTH)
    story.until(0).starts("a", "b").on("a", 1).on("b", 0).waits("c", Reason.RESOURCES)


def test_a_gang_is_never_spread_over_two_types() -> None:
    story = cluster("1x2:V100 1x2:A100", policy("fifo_backfill"))
    story.job("a", gpus=2, runs_s=10, gpu_type="V100").until(0).starts("a")
    story.job("b", gpus=2, runs_s=10, gpu_type="A100").until(0).starts("b")
    story = cluster("1x2:V100 1x4:A100", policy("fifo_backfill"))
    story.job("half", gpus=3, runs_s=10, gpu_type="A100").until(0).starts("half")
    story.job("b", gpus=3, runs_s=10, **BOTH).until(0).waits("b", Reason.RESOURCES).until(10).finishes("half").starts(
        "b"
    )


def test_free_gpus_of_different_types_do_not_add_up() -> None:
    story = cluster("1x4:V100 1x6:A100", policy("fifo_backfill"))
    story.job("first", gpus=2, runs_s=10, gpu_type="A100").job("any", gpus=6, runs_s=10).until(0).waits(
        "any", Reason.RESOURCES
    )
    told = story.engine.explain(story.ids["any"])
    assert (told.gpus_needed, told.gpus_free, told.servers_with_free_gpus, told.gpu_type) == (6, 4, 1, "V100")


def test_a_type_that_is_not_named_is_not_taken() -> None:
    story = cluster("1x4:T4 1x4:V100", policy("fifo_backfill"))
    story.job("a", gpus=4, runs_s=10, gpu_type="V100", gpu_type_fallbacks=("A100",)).until(0).starts("a").on("a", 1)
    story.job("b", gpus=4, runs_s=10, gpu_type="V100", gpu_type_fallbacks=("A100",)).until(1)
    story.waits("b", Reason.RESOURCES)
    assert story.engine.explain(story.ids["b"]).gpus_free == 0


def test_where_only_a_fallback_is_large_enough_it_is_used() -> None:
    story = cluster("1x2:A100 1x4:V100", policy("fifo_backfill"))
    story.job("a", gpus=4, runs_s=10, **BOTH).until(0).starts("a").on("a", 1)
    story.job("b", gpus=6, runs_s=10, **BOTH).until(0).waits("b", Reason.NO_SUCH_SERVERS)


@pytest.mark.parametrize("taken", ["A100", "V100"])
def test_jobs_of_either_type_are_displaced_for_it(taken: str) -> None:
    story = cluster("1x4:A100 1x4:V100", policy("srsf", guard_share=0))
    other = "V100" if taken == "A100" else "A100"
    story.job("long", gpus=4, runs_s=1000, gpu_type=taken).job("tiny", gpus=4, runs_s=90, gpu_type=other)
    story.until(0).starts("long", "tiny") if taken == "A100" else story.until(0)
    story.job("short", gpus=4, runs_s=100, **BOTH).until(1).preempts("long")
    assert story.record("short").placement is not None
    server = story.record("short").placement.servers[0]  # type: ignore[union-attr]
    assert story.cluster.servers[server].gpu_type == taken


def test_a_job_with_a_layer_graph_waits_a_bounded_time_for_the_faster_type() -> None:
    names = (Server("fast", 1, "A100", gpu_speed=2.0), Server("slow", 1, "V100", gpu_speed=0.5))
    graph = StageGraph((Stage("s", 0.1, 0.2, 10),), ())
    story = cluster("", policy("fifo_backfill", tau=1.5, delay_factor=1.0), names=names)
    story.job("first", runs_s=1000, gpu_type="A100").until(0).starts("first")
    shape = {"stage_graph": graph, "parallelism": ParallelismConfig((1,), (1,))}
    story.job("graph", runs_s=100, **shape, **BOTH).until(1).waits("graph", Reason.CONSOLIDATION_DELAY)
    story.until(90).waits("graph", Reason.CONSOLIDATION_DELAY).until(101).starts("graph").on("graph", 1)


CHATTY = {
    "stage_graph": StageGraph((Stage("s", 0.05, 0.05, 1_000_000_000),), ()),
    "parallelism": ParallelismConfig((4,), (1,)),
    "gpu_type": "V100",
    "gpu_type_fallbacks": ("A100",),
}
"""A gang of four that prefers the slower type."""


def with_fast(*slow: int) -> tuple[Server, ...]:
    """Servers of V100s with so many GPUs each, and one of four A100s, which are faster."""
    return (*(Server(f"v{n}", gpus, "V100") for n, gpus in enumerate(slow)), Server("a", 4, "A100", gpu_speed=2.5))


@pytest.mark.parametrize("name", ["fifo_backfill", "easy", "asrpt", "las"])
def test_a_job_does_not_wait_for_a_faster_type_that_it_would_not_take(name: str) -> None:
    story = cluster("", policy(name), names=with_fast(4))
    story.job("gang", gpus=4, runs_s=36_000, **CHATTY).until(0).starts("gang").on("gang", 0)


def test_it_displaces_a_job_of_the_preferred_type_at_once_although_another_is_faster() -> None:
    story = cluster("", policy("srsf", guard_share=0), names=with_fast(4))
    story.job("long", gpus=4, runs_s=90_000, gpu_type="V100").job("fast", gpus=4, runs_s=50, gpu_type="A100").until(0)
    story.job("gang", gpus=4, runs_s=1000, **CHATTY).until(1).preempts("long").starts("gang").on("gang", 0)


def test_it_moves_to_one_server_of_the_preferred_type_although_another_is_faster() -> None:
    story = cluster("", policy("srsf", guard_share=0, delay_factor=0), names=with_fast(4, 6))
    story.job("fast", gpus=4, runs_s=900_000, gpu_type="A100", priority=1)
    story.job("two", gpus=2, runs_s=900_000, gpu_type="V100", priority=1).until(0).on("two", 0)
    story.job("four", gpus=4, runs_s=1000, priority=1).until(1).on("four", 1)
    story.job("gang", gpus=4, runs_s=50_000, **CHATTY).until(2).starts("gang").on("gang", 0, 1)
    story.until(2000).finishes("four").preempts("gang").starts("gang").on("gang", 1)


def test_it_waits_for_one_server_of_the_preferred_type_no_longer_than_two_would_cost_it() -> None:
    """Alone on V100s it would run for 250 s: 2.5 times the 100 s that it would take on A100s."""
    story = cluster("", policy("fifo_backfill", delay_factor=1000), names=with_fast(4, 6))
    story.job("fast", gpus=4, runs_s=900_000, gpu_type="A100").job("two", gpus=2, runs_s=900_000, gpu_type="V100")
    story.job("four", gpus=4, runs_s=900_000, gpu_type="V100").until(0).on("two", 0).on("four", 1)
    story.job("gang", gpus=4, runs_s=100, **CHATTY).until(1).waits("gang", Reason.CONSOLIDATION_DELAY)
    spec = story.record("gang").spec
    best = times_of(spec, story.cluster)
    split = place([ServerShare(ServerIndex(server), 2, (2,)) for server in (0, 1)])
    single = place([ServerShare(ServerIndex(1), 4, (4,))])
    assert best is not None
    costs_s = 100 * (stretch_of(story.cluster, spec, best, split) - stretch_of(story.cluster, spec, best, single))
    assert costs_s > 100
    story.until(costs_s).waits("gang", Reason.CONSOLIDATION_DELAY).until(1.1 + costs_s).starts("gang")
    story.on("gang", 0, 1)


def test_a_wait_reaches_the_types_before_that_of_the_placement() -> None:
    graph, config = StageGraph((Stage("s", 0.1, 0.2, 10),), ()), ParallelismConfig((1,), (1,))
    shape = Cluster(
        "c", tuple(Server(name, 1, name, gpu_speed=speed) for name, speed in zip("abc", (2, 1, 4), strict=True))
    )
    spec = JobSpec("j", "u", 1, stage_graph=graph, parallelism=config, gpu_type="b", gpu_type_fallbacks=("a", "c"))
    record = JobRecord(JobId(1), spec, 0.0, priority=0, iteration_times=times_of(spec, shape))
    mins = []
    for server in range(3):
        times = times_in_reach(record, shape, place([ServerShare(ServerIndex(server), 1, (1,))]))
        assert times is not None
        mins.append(times.min_s)
    assert mins == pytest.approx([0.15, 0.3, 0.075])
    loose = JobRecord(JobId(2), replace(spec, gpu_type=None, gpu_type_fallbacks=()), 0.0, priority=0)
    assert times_in_reach(loose, shape, place([ServerShare(ServerIndex(0), 1, (1,))])) is None


@pytest.mark.parametrize("name", sorted(set(BUILT_IN) - {"wcs_duration", "wcs_workload"}))
@settings(max_examples=8, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.integers(1, 50), st.permutations(["A100", "V100", "T4"]), st.integers(1, 3)),
        min_size=1,
        max_size=12,
    )
)
def test_everybody_ends_on_a_type_that_it_takes(name: str, jobs: list[tuple[int, int, list[str], int]]) -> None:
    story = cluster("2x2:A100 1x4:V100 2x4:T4", policy(name))
    for number, (gpus, runs_s, types, count) in enumerate(jobs):
        story.job(f"j{number}", gpus=gpus, runs_s=runs_s, gpu_type=types[0], gpu_type_fallbacks=tuple(types[1:count]))
    for at_s in range(0, 1200, 10):
        story.until(at_s)
        for job in story.engine.world.jobs.values():
            if job.placement is not None:
                used = {story.cluster.servers[ServerIndex(server)].gpu_type for server in job.placement.servers}
                assert len(used) == 1
                assert used.issubset(job.spec.gpu_types)
    assert {story.state(f"j{number}") for number in range(len(jobs))} == {JobState.SUCCEEDED}


@pytest.mark.parametrize("asked", ["a100", "A100 80GB", "nvidia_a100-sxm4-80gb", "gpu:a100:4"])
def test_a_type_is_found_by_any_of_its_spellings(asked: str) -> None:
    story = cluster("1x4:V100 1x4:NVIDIA-A100-SXM4-80GB", policy("fifo_backfill"))
    story.job("a", gpus=4, runs_s=10, gpu_type=asked).until(0).starts("a").on("a", 1)


def test_of_the_types_that_one_name_means_the_fastest_that_is_free_is_taken() -> None:
    names = [Server("slow", 4, "A100-40GB", gpu_speed=1.0), Server("fast", 4, "A100-80GB", gpu_speed=2.0)]
    story = cluster("", policy("fifo_backfill"), names=names)
    story.job("a", gpus=4, runs_s=100, gpu_type="A100").job("b", gpus=4, runs_s=100, gpu_type="A100").until(0)
    story.starts("a", "b").on("a", 1).on("b", 0)


def test_a_name_of_the_cluster_means_that_type_alone() -> None:
    story = cluster("1x4:A100-80 1x4:A100", policy("fifo_backfill"))
    story.job("a", gpus=4, runs_s=10, gpu_type="A100").job("b", gpus=4, runs_s=10, gpu_type="A100").until(0)
    story.starts("a").on("a", 1).waits("b", Reason.RESOURCES)


def test_the_measured_time_of_a_graph_is_learnt_over_its_model_and_decides_the_type() -> None:
    """The A100 is stated to be twice as fast, and is three times as slow as stated."""
    graph = StageGraph((Stage("all", 1.0, 2.0, 0.0),), ())
    config = ParallelismConfig((2,), (1,))
    names = [Server("v", 4, "V100"), Server("a", 4, "A100", gpu_speed=2.0)]
    story = cluster("", policy("fifo_backfill"), names=names)
    more = {"stage_graph": graph, "parallelism": config}
    # 3 s of compute on 2 GPUs: 1.5 s an iteration on a V100, 0.75 s on an A100 by the model; 2.25 s measured.
    story.job("first", gpus=2, runs_s=225.0, iterations=100, **more).until(0).starts("first").on("first", 1)
    story.until(1000).finishes("first")
    [label] = story.told.learnt
    assert label.seconds_by_span is not None
    assert label.seconds_by_span.gpu_type == "A100"
    assert label.seconds_by_span.server == pytest.approx(3.0)
    learnt = Slowdown(gpu_types=(TypeFactor("A100", 3.0), TypeFactor("V100", 1.0)))
    story.job("second", gpus=2, runs_s=150.0, iterations=100, at_s=1000, slowdown=learnt, **more).until(1000)
    story.starts("second").on("second", 0)
    assert story.record("second").seconds_per_iteration() == pytest.approx(1.5)
