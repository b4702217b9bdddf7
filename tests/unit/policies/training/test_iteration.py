"""Properties of the iteration time over drawn plans, and its size against a published number."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.model.plan import PipelineSchedule, Precision, Recompute, TrainingPlan
from policies.model.shape import CountedShape, ModelShape, TransformerShape
from policies.training.constants import Constants
from policies.training.hardware import GPU_MODELS, GpuModel, Links
from policies.training.iteration import iteration_time, rates
from tests.unit.policies.training.test_operations import DEEPSEEK_V3, LLAMA3_8B, LLAMA3_70B, MIXTRAL_8X7B, QWEN3_30B

HYBRID = CountedShape(name="hybrid", kind="hybrid", layers=0, hidden=0, parameters=30_000_000_000, flops=22e9)
CNN = CountedShape(name="cnn", kind="cnn", layers=50, hidden=0, parameters=25_000_000, flops=24.6e9)
SHAPES: list[ModelShape] = [LLAMA3_8B, LLAMA3_70B, MIXTRAL_8X7B, QWEN3_30B, DEEPSEEK_V3, HYBRID, CNN]
POWERS = st.sampled_from((1, 2, 4, 8))


@st.composite
def plans(draw: st.DrawFn) -> TrainingPlan:
    data, tensor, pipeline, context, micro = (draw(POWERS) for _ in range(5))
    virtual = draw(st.sampled_from((1, 2))) if pipeline > 1 else 1
    schedules = [PipelineSchedule.INTERLEAVED]
    if virtual == 1:
        schedules = [schedule for schedule in PipelineSchedule if schedule is not PipelineSchedule.INTERLEAVED]
    return TrainingPlan(
        data=data, tensor=tensor, pipeline=pipeline, context=context, virtual_stages=virtual,
        expert=draw(st.sampled_from([degree for degree in (1, 2, 4, 8) if data * context * tensor % degree == 0])),
        sequence_parallel=draw(st.booleans()), zero_stage=draw(st.integers(0, 3)), micro_batch=micro,
        global_batch=micro * data * draw(POWERS), sequence=draw(st.sampled_from((1024, 4096, 32768))),
        precision=draw(st.sampled_from(Precision)), recompute=draw(st.sampled_from(Recompute)),
        schedule=draw(st.sampled_from(schedules)), flash_attention=draw(st.booleans()), adapters=draw(st.booleans()),
        graphed=draw(st.booleans()),
    )  # fmt: skip


shapes = st.sampled_from(SHAPES)
gpus = st.sampled_from(list(GPU_MODELS.values()))


@given(shapes, plans(), gpus)
@settings(max_examples=60, deadline=None)
def test_parts_are_non_negative_and_add_up(shape: ModelShape, plan: TrainingPlan, gpu: GpuModel) -> None:
    time = iteration_time(shape, plan, gpu)
    assert all(seconds >= 0 for seconds in time.parts.values()), time
    assert time.total_s == pytest.approx(sum(time.parts.values()))
    assert time.total_s > 0
    assert time.parts[time.bottleneck] == max(time.parts.values())


@given(
    shapes, plans(), gpus, st.sampled_from(("inside_bytes_s", "beyond_bytes_s", "hbm_bytes_s")), st.floats(0.05, 0.99)
)
@settings(max_examples=100, deadline=None)
def test_time_never_falls_when_a_bandwidth_falls(
    shape: ModelShape, plan: TrainingPlan, gpu: GpuModel, what: str, share: float
) -> None:
    links = Links.of(gpu)
    if what == "hbm_bytes_s":
        slower = iteration_time(shape, plan, replace(gpu, hbm_bytes_s=gpu.hbm_bytes_s * share), links)
    else:
        slower = iteration_time(shape, plan, gpu, replace(links, **{what: getattr(links, what) * share}))
    assert slower.total_s >= iteration_time(shape, plan, gpu, links).total_s * (1 - 1e-12)


@given(shapes, plans(), gpus, st.floats(0.05, 0.99))
@settings(max_examples=60, deadline=None)
def test_time_never_falls_when_a_peak_falls(shape: ModelShape, plan: TrainingPlan, gpu: GpuModel, share: float) -> None:
    slower = replace(
        gpu, half_flops=gpu.half_flops * share, fp8_flops=gpu.fp8_flops * share, fp4_flops=gpu.fp4_flops * share,
        tf32_flops=gpu.tf32_flops * share, fp32_flops=gpu.fp32_flops * share,
    )  # fmt: skip
    assert iteration_time(shape, plan, slower).total_s >= iteration_time(shape, plan, gpu).total_s * (1 - 1e-12)


@given(shapes, plans(), gpus, st.sampled_from(("hidden", "ffn", "heads", "vocabulary")))
@settings(max_examples=100, deadline=None)
def test_time_never_falls_when_operations_grow(shape: ModelShape, plan: TrainingPlan, gpu: GpuModel, what: str) -> None:
    if isinstance(shape, TransformerShape):
        larger: ModelShape = replace(shape, **{what: 2 * getattr(shape, what)})  # type: ignore[arg-type]
    else:
        # Twice: the layers of a hybrid's stand-in are whole, and a launch-bound stage rounds them up once more.
        larger = replace(shape, flops=shape.flops * 2, parameters=shape.parameters * 2)
    assert iteration_time(larger, plan, gpu).total_s >= iteration_time(shape, plan, gpu).total_s * (1 - 1e-12)


def test_links_beyond_the_domain_matter_only_to_plans_that_use_them() -> None:
    slow = Links(450e9, 1e9, 8)
    inside = TrainingPlan(tensor=8, sequence=4096, global_batch=4)
    assert iteration_time(LLAMA3_8B, inside, GPU_MODELS["H100"], slow) == iteration_time(
        LLAMA3_8B, inside, GPU_MODELS["H100"]
    )
    across = replace(inside, data=2)
    assert (
        iteration_time(LLAMA3_8B, across, GPU_MODELS["H100"], slow).data
        > iteration_time(LLAMA3_8B, across, GPU_MODELS["H100"]).data
    )


def test_with_perfect_hardware_the_time_is_the_published_operations_over_the_peak() -> None:
    """6ND: nothing but products at the peak is left where all else is free."""
    perfect = Constants(
        product_hopper=1.0, attention=1.0, dense_launch_s=0.0, memory=1.0, tensor_exposed=0.0, data_exposed=0.0
    )
    gpu = replace(GPU_MODELS["H100"], hbm_bytes_s=1e30)
    time = iteration_time(LLAMA3_8B, TrainingPlan(sequence=8192), gpu, constants=perfect)
    assert time.total_s == pytest.approx(51.47e9 * 8192 / 989.4e12, rel=0.01)


def test_llama_3_8b_on_eight_h100_is_within_a_fifth_of_the_published_speed() -> None:
    """NeMo 24.07 publishes 12,273 tokens/s a GPU: fp8, context parallel over 2, 128 sequences of 8,192."""
    plan = TrainingPlan(
        data=4, context=2, zero_stage=1, global_batch=128, sequence=8192, precision=Precision.FP8
    )  # fmt: skip
    time = iteration_time(LLAMA3_8B, plan, GPU_MODELS["H100"])
    assert plan.tokens / plan.gpus / time.total_s == pytest.approx(12273, rel=0.2)
    assert time.bottleneck == "products"


def test_a_graphed_iteration_waits_for_no_launches() -> None:
    plan = TrainingPlan(data=8, expert=8, sequence=4096, global_batch=8, precision=Precision.FP8)
    eager = iteration_time(QWEN3_30B, plan, GPU_MODELS["B200"])
    graphed = iteration_time(QWEN3_30B, replace(plan, graphed=True), GPU_MODELS["B200"])
    assert eager.launch > 0
    assert graphed.launch == 0
    assert graphed.total_s < eager.total_s


@given(shapes, plans(), gpus)
@settings(max_examples=60, deadline=None)
def test_a_format_that_the_gpu_lacks_is_timed_as_the_next_wider_one(
    shape: ModelShape, plan: TrainingPlan, gpu: GpuModel
) -> None:
    wider = replace(plan, precision=gpu.format_of(plan.precision))
    assert rates(shape, plan, gpu, Constants()) == rates(shape, wider, gpu, Constants())
