"""The memory bill, worked by hand from ZeRO and Korthikanti et al., against published plans, and its properties."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from policies.catalogue.shapes import SHAPES
from policies.model.plan import PipelineSchedule, Precision, Recompute, TrainingPlan
from policies.model.shape import CountedShape, ModelShape, TransformerShape
from policies.training.activations import layer_bytes
from policies.training.hardware import GPU_MODELS
from policies.training.memory import PARTS, MemoryBill, memory_bill, stage_layers
from policies.training.operations import parameters

GB, GIB = 1e9, 2**30
GPT3 = SHAPES["gpt3-175b"].shape
ZERO_7B = CountedShape(name="zero-7.5b", kind="transformer", layers=1, hidden=4096, parameters=7_500_000_000, flops=1.0)


def _states(bill: MemoryBill) -> float:
    return bill.worst.parameters + bill.worst.gradients + bill.worst.optimizer


@pytest.mark.parametrize(("stage", "gigabytes"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_model_states_are_those_of_the_zero_paper(stage: int, gigabytes: float) -> None:
    # Figure 1 of arXiv 1910.02054: 7.5 billion parameters, 64 GPUs, K = 12.
    plan = TrainingPlan(data=64, global_batch=64, zero_stage=stage, precision=Precision.FP16, fp32_gradients=False)
    assert _states(memory_bill(ZERO_7B, plan)) / GB == pytest.approx(gigabytes, abs=0.05)


@pytest.mark.parametrize(
    ("precision", "fp32_gradients", "stage", "per_parameter"),
    [
        # Megatron's table of the distributed optimizer: 18, and 6 + 12/d with bf16; 16, and 8 + 8/d with fp32.
        (Precision.BF16, True, 0, 18),
        (Precision.BF16, True, 1, 6 + 12 / 8),
        (Precision.FP32, True, 0, 16),
        (Precision.FP32, False, 1, 8 + 8 / 8),
    ],
)
def test_bytes_a_parameter_are_those_of_megatron(
    precision: Precision, fp32_gradients: bool, stage: int, per_parameter: float
) -> None:
    plan = TrainingPlan(data=8, global_batch=8, zero_stage=stage, precision=precision, fp32_gradients=fp32_gradients)
    assert _states(memory_bill(ZERO_7B, plan)) == pytest.approx(7.5e9 * per_parameter)


def test_a_hybrid_shard_divides_over_its_group_alone() -> None:
    plan = TrainingPlan(data=64, global_batch=64, zero_stage=3, shard_group=8)
    assert _states(memory_bill(ZERO_7B, plan)) == pytest.approx(7.5e9 * 18 / 8)


def test_adapters_need_no_gradients_of_the_frozen_weights() -> None:
    bill = memory_bill(ZERO_7B, TrainingPlan(adapters=True)).worst
    assert bill.parameters == 2 * 7.5e9
    assert bill.gradients + bill.optimizer < 0.02 * 16 * 7.5e9


def test_experts_are_sharded_over_the_few_replicas_that_they_have() -> None:
    # Mixtral on 16 GPUs, experts over 8: two replicas of each. 32 layers x 8 experts x 3 x 4096 x 14336 weights.
    shape = SHAPES["mixtral-8x7b"].shape
    plan = TrainingPlan(data=16, expert=8, global_batch=16, sequence=4096, zero_stage=1)
    experts = 32 * 8 * 3 * 4096 * 14336
    others = parameters(shape).total - experts
    assert memory_bill(shape, plan).worst.optimizer == pytest.approx(12 * (others / 16 + experts / 8 / 2))
    assert memory_bill(shape, plan).worst.parameters == pytest.approx(2 * (others + experts / 8))


def test_the_first_stage_of_an_interleaved_pipeline_keeps_the_share_of_the_paper() -> None:
    # Korthikanti et al., section 4.2.3: L (1 + (p - 1)/(pv)) layers: 96 x (1 + 7/24) = 124 with 8 stages of 3 virtual ones.
    plan = TrainingPlan(
        tensor=8, pipeline=8, virtual_stages=3, schedule=PipelineSchedule.INTERLEAVED, sequence_parallel=True,
        global_batch=64, sequence=2048, precision=Precision.FP16, dropout=True, flash_attention=False,
        recompute=Recompute.SELECTIVE,
    )  # fmt: skip
    first = memory_bill(GPT3, plan).stages[0]
    values = 2048 * 12288
    # A layer keeps 34/8 bytes a value; the mask behind the embedding 1/8, of (2 x 7 + 2 x 8 + 1)/3 micro-batches.
    assert first.activations == pytest.approx(values * (124 * 34 / 8 + 31 / 3 / 8))


def test_the_last_stage_holds_output_and_logits_of_one_micro_batch() -> None:
    # GPT-3 175B over 8 x 8 GPUs: last norm and output product keep 4/8 bytes a value, logits 4/8 bytes a word.
    plan = TrainingPlan(tensor=8, pipeline=8, sequence_parallel=True, global_batch=64, sequence=2048)
    last = memory_bill(GPT3, plan).stages[-1]
    assert last.logits == 2048 * 50257 * 4 / 8
    layers = 12 * layer_bytes(GPT3, plan, routed=False)
    assert last.activations == pytest.approx(layers + 2048 * 12288 * 4 / 8)
    # Its embedding is the output matrix, which both end stages of a pipeline hold.
    assert last.parameters == pytest.approx(memory_bill(GPT3, plan).stages[0].parameters, rel=1e-4)


def test_the_layer_that_is_computed_again_is_in_the_workspace() -> None:
    # Llama 3 8B: gradients of 3 x 14336 units, 2 bytes each; with full recomputation one layer without its input of 4096.
    shape, plan = SHAPES["llama3-8b"].shape, TrainingPlan(sequence=8192)
    gradients = 8192 * 2 * 3 * 14336
    assert memory_bill(shape, plan).worst.workspace == gradients
    layer = 8192 * 2 * (5 * 4096 + 4096 + 2 * 1024 + 3 * 14336)
    again = memory_bill(shape, replace(plan, recompute=Recompute.FULL)).worst
    assert again.workspace == gradients + layer - 8192 * 2 * 4096
    assert again.activations == 8192 * 2 * (32 * 4096 + 2 * 4096)


def test_gpipe_keeps_the_logits_of_all_micro_batches_and_pipedream_the_weights_of_each_under_way() -> None:
    flushed = TrainingPlan(pipeline=4, global_batch=16, sequence=1024)
    shape = SHAPES["llama3-8b"].shape
    usual = memory_bill(shape, flushed).stages
    everything = memory_bill(shape, replace(flushed, schedule=PipelineSchedule.GPIPE)).stages
    assert everything[3].logits == 16 * usual[3].logits == 16 * 1024 * 128256 * 4
    assert everything[3].activations == pytest.approx(16 * usual[3].activations)
    stashed = memory_bill(shape, replace(flushed, schedule=PipelineSchedule.PIPEDREAM)).stages
    assert [stage.parameters / use.parameters for stage, use in zip(stashed, usual, strict=True)] == [4, 3, 2, 1]


@pytest.mark.parametrize(
    ("model", "pipeline", "virtual_stages", "held"),
    [
        ("llama3-70b", 4, 1, [20, 20, 20, 20]),
        ("deepseek-v3", 4, 1, [15, 16, 15, 15]),
        ("llama3-405b", 16, 8, [7, *[8] * 14, 7]),  # embedding and output have virtual stages of their own
        ("llama3-405b", 4, 2, [31, 32, 32, 31]),
    ],
)
def test_ends_hold_fewer_layers_where_they_do_not_divide(
    model: str, pipeline: int, virtual_stages: int, held: list[int]
) -> None:
    schedule = PipelineSchedule.INTERLEAVED if virtual_stages > 1 else PipelineSchedule.ONE_F_ONE_B
    plan = TrainingPlan(pipeline=pipeline, virtual_stages=virtual_stages, schedule=schedule, global_batch=64)
    assert [sum(stage) for stage in stage_layers(parameters(SHAPES[model].shape), plan)] == held


def test_dense_layers_are_on_the_first_stages() -> None:
    plan = TrainingPlan(pipeline=16, global_batch=64)
    held = stage_layers(parameters(SHAPES["deepseek-v3"].shape), plan)
    assert held[0] == (3, 0)
    assert sum(routed for _, routed in held) == 58


def _published(**degrees: Any) -> TrainingPlan:
    """In fp8 with Megatron's defaults: distributed optimizer, sequence parallelism with tensor parallelism."""
    virtual = degrees.get("virtual_stages", 1) > 1
    schedule = PipelineSchedule.INTERLEAVED if virtual else PipelineSchedule.ONE_F_ONE_B
    return TrainingPlan(
        precision=Precision.FP8,
        zero_stage=1,
        sequence_parallel=degrees.get("tensor", 1) > 1,
        schedule=schedule,
        **degrees,
    )


@pytest.mark.parametrize(
    ("model", "gpu", "plan"),
    [
        # Performance pages of Megatron-Bridge, 25.09 to 26.06. A recipe fills its GPUs well, and does not overflow them.
        (
            "llama3-405b", "H100",
            _published(data=8, tensor=8, pipeline=8, context=2, virtual_stages=8, global_batch=1536, sequence=8192),
        ),
        (
            "llama3-405b", "GB200",
            _published(data=4, tensor=4, pipeline=16, virtual_stages=8, global_batch=1536, sequence=8192),
        ),
        (
            "deepseek-v3", "GB200",
            _published(data=32, pipeline=8, virtual_stages=4, expert=32, global_batch=4096, sequence=4096),
        ),
        (
            "deepseek-v3", "H100",
            _published(data=64, tensor=2, pipeline=8, virtual_stages=4, expert=64, global_batch=8192, sequence=4096),
        ),
    ],
)  # fmt: skip
def test_published_recipes_fit_the_gpus_that_they_ran_on(model: str, gpu: str, plan: TrainingPlan) -> None:
    assert 0.85 < memory_bill(SHAPES[model].shape, plan).peak / GPU_MODELS[gpu].memory_bytes < 1


MODELS = ("llama3-8b", "gpt2-medium", "qwen3-30b-a3b", "deepseek-v3", "t5-large")


@st.composite
def _cases(draw: st.DrawFn) -> tuple[ModelShape, TrainingPlan]:
    shape = SHAPES[draw(st.sampled_from(MODELS))].shape
    powers = st.sampled_from([1, 2, 4, 8])
    data, tensor, context, pipeline = draw(powers), draw(powers), draw(powers), draw(powers)
    experts = (1, 2, 4, 8, 16) if isinstance(shape, TransformerShape) and shape.experts is not None else (1,)
    expert = draw(st.sampled_from([e for e in experts if data * tensor * context % e == 0]))
    schedule = draw(
        st.sampled_from([s for s in PipelineSchedule if pipeline > 1 or s is not PipelineSchedule.INTERLEAVED])
    )
    micro_batch = draw(powers)
    plan = TrainingPlan(
        data=data, tensor=tensor, pipeline=pipeline, context=context, expert=expert, schedule=schedule,
        virtual_stages=draw(st.sampled_from([2, 3])) if schedule is PipelineSchedule.INTERLEAVED else 1,
        sequence_parallel=draw(st.booleans()), zero_stage=draw(st.integers(0, 3)),
        shard_group=draw(st.sampled_from([0, 1, data * context])), micro_batch=micro_batch,
        global_batch=data * micro_batch * draw(st.sampled_from([1, 2, 12])), sequence=draw(st.sampled_from([128, 4096])),
        precision=draw(st.sampled_from(Precision)), recompute=draw(st.sampled_from(Recompute)),
        fp32_gradients=draw(st.booleans()), flash_attention=draw(st.booleans()), dropout=draw(st.booleans()),
        adapters=draw(st.booleans()),
    )  # fmt: skip
    return shape, plan


@given(case=_cases())
@settings(max_examples=150, deadline=None)
def test_parts_are_not_negative_and_add_up(case: tuple[ModelShape, TrainingPlan]) -> None:
    shape, plan = case
    bill = memory_bill(shape, plan)
    assert len(bill.stages) == plan.pipeline
    assert sum(stage.layers for stage in bill.stages) == shape.layers
    for stage in bill.stages:
        parts = stage.parts()
        assert tuple(parts) == PARTS
        assert min(parts.values()) >= 0
        assert stage.total == pytest.approx(sum(parts.values()))
        assert stage.total <= bill.peak


@given(case=_cases())
@settings(max_examples=150, deadline=None)
def test_memory_never_falls_when_the_micro_batch_grows(case: tuple[ModelShape, TrainingPlan]) -> None:
    shape, plan = case
    assume(plan.micro_batches % 2 == 0)
    before, after = memory_bill(shape, plan), memory_bill(shape, replace(plan, micro_batch=2 * plan.micro_batch))
    assert all(a.total >= b.total * (1 - 1e-12) for a, b in zip(after.stages, before.stages, strict=True))


@given(case=_cases())
@settings(max_examples=150, deadline=None)
def test_memory_never_grows_with_a_higher_zero_stage(case: tuple[ModelShape, TrainingPlan]) -> None:
    shape, plan = case
    peaks = [memory_bill(shape, replace(plan, zero_stage=stage)).peak for stage in range(4)]
    assert all(after <= before * (1 + 1e-12) for before, after in pairwise(peaks))


@given(case=_cases())
@settings(max_examples=150, deadline=None)
def test_memory_never_grows_when_more_is_computed_again(case: tuple[ModelShape, TrainingPlan]) -> None:
    shape, plan = case
    kept = [memory_bill(shape, replace(plan, recompute=again)).worst.activations for again in Recompute]
    assert all(after <= before * (1 + 1e-12) for before, after in pairwise(kept))
