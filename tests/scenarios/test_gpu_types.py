"""Jobs that take several GPU types: which they get, for what they wait, and whom they displace."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.lifecycle import JobState
from policies.model.cluster import Server
from policies.model.graph import Stage, StageGraph
from policies.model.ids import ServerIndex
from policies.model.parallelism import ParallelismConfig
from policies.model.placement import Slowdown, TypeFactor
from policies.model.reasons import Reason
from policies.registry import BUILT_IN
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
