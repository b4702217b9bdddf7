"""A plan as stages: the time of a placement is that of the plan on its links, and every GPU is counted."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.catalogue.shapes import SHAPES
from policies.model.cluster import Cluster, Server
from policies.model.graph import StageGraph
from policies.model.parallelism import ParallelismConfig
from policies.model.plan import PipelineSchedule, PlanError, Precision, Recompute, TrainingPlan
from policies.placement.iteration import Link, gang, seconds
from policies.throughput import iteration_times
from policies.training.hardware import GPU_MODELS, Links
from policies.training.iteration import iteration_time
from policies.training.stages import stages_of

H100 = GPU_MODELS["H100"]
LINKS = Links.of(H100)
PLANS = {
    "one server, FSDP": ("llama3-8b", TrainingPlan(
        data=8, zero_stage=3, micro_batch=2, global_batch=64, sequence=4096)),
    "four servers, FSDP": ("llama3-8b", TrainingPlan(
        data=32, zero_stage=3, micro_batch=2, global_batch=256, sequence=4096)),
    "four servers, ZeRO-1": ("llama3-8b", TrainingPlan(
        data=32, zero_stage=1, global_batch=256, sequence=8192, recompute=Recompute.FULL)),
    "hybrid shard": ("llama3-8b", TrainingPlan(
        data=32, zero_stage=3, shard_group=8, micro_batch=2, global_batch=64, sequence=4096)),
    "tensor and pipeline": ("llama3-70b", TrainingPlan(
        data=4, tensor=8, pipeline=4, zero_stage=1, sequence_parallel=True, global_batch=128, sequence=8192)),
    "interleaved and context": ("llama3-70b", TrainingPlan(
        data=2, tensor=4, pipeline=4, context=2, virtual_stages=5, schedule=PipelineSchedule.INTERLEAVED, zero_stage=1,
        sequence_parallel=True, global_batch=128, sequence=8192)),
    "deep pipeline": ("gpt3-175b", TrainingPlan(
        data=4, tensor=8, pipeline=8, zero_stage=1, sequence_parallel=True, global_batch=256, sequence=2048)),
    "experts and pipeline": ("mixtral-8x7b", TrainingPlan(
        data=16, expert=8, pipeline=4, zero_stage=1, global_batch=256, sequence=4096)),
    "experts and tensor": ("mixtral-8x7b", TrainingPlan(
        data=8, tensor=2, expert=8, zero_stage=1, global_batch=256, sequence=4096)),
    "images": ("resnet-50", TrainingPlan(data=16, micro_batch=64, global_batch=1024, precision=Precision.FP16)),
    "small pipeline in a server": ("llama2-7b", TrainingPlan(
        data=2, tensor=2, pipeline=2, global_batch=64, sequence=4096)),
    "zero bubble": ("llama3-8b", TrainingPlan(
        data=2, tensor=2, pipeline=4, schedule=PipelineSchedule.ZERO_BUBBLE, global_batch=64, sequence=8192)),
    "asynchronous": ("llama3-8b", TrainingPlan(
        data=4, tensor=2, pipeline=2, schedule=PipelineSchedule.PIPEDREAM, global_batch=64, sequence=8192)),
    "long context": ("llama3-8b", TrainingPlan(data=2, context=8, zero_stage=1, global_batch=16, sequence=65536)),
}  # fmt: skip


def in_rank_order(graph: StageGraph, config: ParallelismConfig, links: Links) -> float:
    """alpha with the ranks of a stage together, and the stages one after the other."""
    tensor, replicas = config.tensor[0], config.replicas[0]
    owners = [stage for stage in range(len(graph.stages)) for _ in range(replicas)]
    held = links.domain // tensor
    rows = [
        [owners[first : first + held].count(stage) for stage in range(len(graph.stages))]
        for first in range(0, len(owners), held)
    ]
    link = Link(min(links.inside_bytes_s, links.beyond_bytes_s), links.inside_bytes_s, 1.0)
    return seconds(gang(graph, config), [link] * len(rows), rows)


def ratio(name: str, links: Links) -> float:
    """alpha on links other than those that the stages were made for, over the time of the plan on these."""
    model, plan = PLANS[name]
    graph, config = stages_of(SHAPES[model].shape, plan, H100, LINKS)
    return in_rank_order(graph, config, links) / iteration_time(SHAPES[model].shape, plan, H100, links).total_s


@pytest.mark.parametrize("name", PLANS)
def test_on_its_links_a_placement_takes_the_time_of_the_plan(name: str) -> None:
    assert ratio(name, LINKS) == pytest.approx(1.0, abs=0.003)


@pytest.mark.parametrize("name", PLANS)
def test_elsewhere_it_is_close(name: str) -> None:
    _, plan = PLANS[name]
    assert ratio(name, replace(LINKS, domain=plan.gpus)) == pytest.approx(1.0, abs=0.03), "all in one NVLink domain"
    if plan.tensor <= 4:
        assert ratio(name, replace(LINKS, domain=4)) == pytest.approx(1.0, abs=0.03), "on twice as many servers"
    assert ratio(name, replace(LINKS, beyond_bytes_s=LINKS.beyond_bytes_s / 4)) == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("name", PLANS)
def test_the_best_placement_of_a_cluster_is_found_at_that_time(name: str) -> None:
    model, plan = PLANS[name]
    graph, config = stages_of(SHAPES[model].shape, plan, H100, LINKS, 2.0)
    server = Server("s", 8, nic_bytes_s=8 * LINKS.beyond_bytes_s, intra_bytes_s=LINKS.inside_bytes_s, gpu_speed=2.0)
    cluster = Cluster("c", tuple(replace(server, name=f"s{i}") for i in range(plan.gpus // 8 + 1)))
    expected = iteration_time(SHAPES[model].shape, plan, H100, LINKS).total_s
    assert iteration_times(graph, config, cluster, None).min_s == pytest.approx(expected, rel=0.03)


def test_ring_and_compute_of_plain_data_parallelism_by_hand() -> None:
    """16 replicas on two servers: each reduces its 16-bit gradients once, and hides the same share of that anywhere."""
    shape, plan = SHAPES["llama3-8b"].shape, TrainingPlan(data=16, global_batch=64, sequence=4096)
    time = iteration_time(shape, plan, H100, LINKS)
    graph, config = stages_of(shape, plan, H100, LINKS, 3.0)
    [stage] = graph.stages
    # Compute on the reference GPU, of which an H100 has 3 times the speed: of 16 replicas, each with a sixteenth.
    assert stage.forward_s + stage.backward_s == pytest.approx((time.total_s - time.data) * 3 * 16)
    # The ring 2 * 15/16 * V through 8 NICs of 50 GB/s takes the exposed seconds: V = seconds * 400e9 * 16/30.
    assert stage.parameter_bytes == pytest.approx(time.data * 400e9 * 16 / 30, abs=1)
    assert (stage.tensor_bytes, graph.edges, config.replicas, config.tensor) == (0, (), (16,), (1,))


def test_slower_links_are_never_faster() -> None:
    for name in PLANS:
        times = [_alpha(name, factor) for factor in (1.0, 0.5, 0.25, 0.1)]
        assert times == sorted(times), name


def _alpha(name: str, factor: float) -> float:
    model, plan = PLANS[name]
    graph, config = stages_of(SHAPES[model].shape, plan, H100, LINKS)
    return in_rank_order(graph, config, replace(LINKS, beyond_bytes_s=LINKS.beyond_bytes_s * factor))


degrees = st.sampled_from([1, 2, 4, 8])


@given(degrees, degrees, degrees, st.sampled_from([1, 2]), st.sampled_from([1, 2]), st.sampled_from(PipelineSchedule))
@settings(max_examples=80, deadline=None)
def test_every_gpu_of_a_plan_is_in_a_stage(
    data: int, tensor: int, pipeline: int, context: int, expert: int, schedule: PipelineSchedule
) -> None:
    virtual = 2 if schedule is PipelineSchedule.INTERLEAVED else 1
    try:
        plan = TrainingPlan(
            data=data, tensor=tensor, pipeline=pipeline, context=context, expert=expert, schedule=schedule,
            virtual_stages=virtual, global_batch=16, sequence=1024,
        )  # fmt: skip
    except PlanError:
        return
    graph, config = stages_of(SHAPES["mixtral-8x7b"].shape, plan, H100, LINKS)
    assert config.gpus == plan.gpus == gang(graph, config).gpus
    assert len(graph.stages) == pipeline
    assert all(stage.parameter_bytes >= 0 and stage.tensor_bytes >= 0 for stage in graph.stages)
    assert (tensor > 1) == (graph.stages[0].tensor_bytes > 0)
