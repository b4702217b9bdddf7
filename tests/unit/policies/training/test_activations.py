"""Activations of a layer, worked by hand from Korthikanti et al. (arXiv 2205.05198) and from the shapes of current models."""

from dataclasses import replace

import pytest

from policies.catalogue.shapes import SHAPES
from policies.model.plan import PipelineSchedule, Precision, Recompute, TrainingPlan
from policies.training.activations import kept, layer_bytes, logit_bytes

GPT3 = SHAPES["gpt3-175b"].shape
S, H = 2048, 12288
OLD = TrainingPlan(sequence=S, precision=Precision.FP16, flash_attention=False, dropout=True)
"""As the paper trains: dropout, attention without a fused kernel. 5as/h = 5 x 96 x 2048 / 12288 = 80."""


@pytest.mark.parametrize(
    ("plan", "per_value"),
    [
        (OLD, 34 + 80),
        (replace(OLD, tensor=8), 10 + 24 / 8 + 80 / 8),
        (replace(OLD, tensor=8, sequence_parallel=True), 34 / 8 + 80 / 8),
        (replace(OLD, tensor=8, recompute=Recompute.SELECTIVE), 10 + 24 / 8),
        (replace(OLD, tensor=8, sequence_parallel=True, recompute=Recompute.SELECTIVE), 34 / 8),
        (replace(OLD, tensor=8, recompute=Recompute.FULL), 2),
        (replace(OLD, flash_attention=True), 34),
        (replace(OLD, flash_attention=True, dropout=False), 32),
    ],
)
def test_a_layer_keeps_what_table_2_of_the_paper_says(plan: TrainingPlan, per_value: float) -> None:
    assert layer_bytes(GPT3, plan, routed=False) == pytest.approx(S * H * per_value)


def test_selective_recomputation_frees_70_percent_of_gpt3() -> None:
    # Section 5: 70% of the 175-billion model's activations, with sequence parallelism over 8 GPUs.
    whole = layer_bytes(GPT3, replace(OLD, tensor=8, sequence_parallel=True), routed=False)
    selective = replace(OLD, tensor=8, sequence_parallel=True, recompute=Recompute.SELECTIVE)
    assert 1 - layer_bytes(GPT3, selective, routed=False) / whole == pytest.approx(0.70, abs=0.005)


def test_a_layer_of_llama_keeps_grouped_keys_and_gated_units() -> None:
    # Llama 3 8B, bf16: two norms' and two products' inputs 4 x 4096, queries and output 2 x 4096, keys and values 2 x 1024,
    # units 3 x 14336; 2 bytes each.
    plan = TrainingPlan(sequence=8192)
    values = 6 * 4096 + 2 * 1024 + 3 * 14336
    assert layer_bytes(SHAPES["llama3-8b"].shape, plan, routed=False) == 8192 * 2 * values
    # Context parallelism divides the tokens.
    assert layer_bytes(SHAPES["llama3-8b"].shape, replace(plan, context=4), routed=False) == 2048 * 2 * values


def test_fp8_keeps_inputs_of_products_in_one_byte() -> None:
    # Norms' inputs 2 x 4096 in 2 bytes, products' inputs 2 x 4096 in 1; queries 4096 and keys and values 2048 in 2; the output
    # 4096 in 2 for attention and in 1 for its product; units 2 x 14336 in 2 and 14336 in 1.
    plan = TrainingPlan(sequence=8192, precision=Precision.FP8)
    per_token = 2 * 4096 * (2 + 1) + (4096 + 2048) * 2 + 4096 * 3 + 14336 * 5
    assert layer_bytes(SHAPES["llama3-8b"].shape, plan, routed=False) == 8192 * per_token


def test_a_layer_with_experts_keeps_a_copy_for_each_expert_of_a_token() -> None:
    # Mixtral: attention 4 x 4096 + 2 x 1024; feed-forward 2 x 4096, twice 4096 sent to experts, 2 x 3 x 14336 units; router's
    # scores and probabilities 2 x 8 in fp32.
    values = 4 * 4096 + 2 * 1024 + 2 * 4096 + 2 * 4096 + 6 * 14336
    plan = TrainingPlan(sequence=4096)
    mixtral = SHAPES["mixtral-8x7b"].shape
    assert layer_bytes(mixtral, plan, routed=True) == 4096 * (2 * values + 2 * 8 * 4)
    # Experts over 8 GPUs: each takes as many tokens from the others as it sends.
    assert layer_bytes(mixtral, replace(plan, data=8, expert=8, global_batch=8), routed=True) == layer_bytes(
        mixtral, plan, routed=True
    )


def test_latent_attention_keeps_all_heads_unless_they_are_computed_again() -> None:
    # DeepSeek-V3, a dense layer: queries and keys 2 x 128 x 192, values and output 2 x 128 x 128; ranks before and after their
    # norms 2 x (1536 + 512), rotary key 64; norms' and products' inputs 4 x 7168; units 3 x 18432.
    plan = TrainingPlan(sequence=4096)
    deepseek = SHAPES["deepseek-v3"].shape
    rest = 128 * 128 + 2 * (1536 + 512) + 64 + 4 * 7168 + 3 * 18432
    expanded = 2 * 128 * 192 + 128 * 128
    assert layer_bytes(deepseek, plan, routed=False) == 4096 * 2 * (rest + expanded)
    again = replace(plan, recompute=Recompute.SELECTIVE)
    assert layer_bytes(deepseek, again, routed=False) == 4096 * 2 * rest


def test_a_shared_expert_adds_its_units() -> None:
    # DeepSeek-V3, a layer with experts: attention as above; norms' and attention's inputs 3 x 7168, the experts' shared input
    # 7168, 8 copies of it, units of 8 routed experts and a shared one 3 x 9 x 2048; scores and probabilities of 256 in fp32.
    attention = 2 * 128 * 192 + 2 * 128 * 128 + 2 * (1536 + 512) + 64
    values = attention + 4 * 7168 + 8 * 7168 + 3 * 9 * 2048
    plan = TrainingPlan(sequence=4096)
    assert layer_bytes(SHAPES["deepseek-v3"].shape, plan, routed=True) == 4096 * (2 * values + 2 * 256 * 4)


def test_logits_are_in_fp32_and_divided_over_the_tensor_group() -> None:
    plan = TrainingPlan(sequence=8192, tensor=4, micro_batch=2, global_batch=2)
    assert logit_bytes(SHAPES["llama3-8b"].shape, plan) == 2 * 8192 * 128256 * 4 / 4


@pytest.mark.parametrize(
    ("schedule", "virtual_stages", "per_stage"),
    [
        (PipelineSchedule.ONE_F_ONE_B, 1, [4, 3, 2, 1]),
        (PipelineSchedule.GPIPE, 1, [16, 16, 16, 16]),
        (PipelineSchedule.ZERO_BUBBLE, 1, [4, 4, 4, 4]),
        (PipelineSchedule.PIPEDREAM, 1, [4, 3, 2, 1]),
        # Megatron's warm-up of 2 (p - 1 - stage) + (v - 1) p chunks and one more, each half of a stage.
        (PipelineSchedule.INTERLEAVED, 2, [5.5, 4.5, 3.5, 2.5]),
    ],
)
def test_micro_batches_that_a_schedule_keeps(
    schedule: PipelineSchedule, virtual_stages: int, per_stage: list[float]
) -> None:
    plan = TrainingPlan(pipeline=4, global_batch=16, schedule=schedule, virtual_stages=virtual_stages)
    assert [kept(plan, stage) for stage in range(4)] == per_stage


def test_no_schedule_that_flushes_keeps_more_micro_batches_than_there_are() -> None:
    for schedule, virtual_stages in ((PipelineSchedule.ONE_F_ONE_B, 1), (PipelineSchedule.INTERLEAVED, 2)):
        plan = TrainingPlan(pipeline=8, global_batch=2, schedule=schedule, virtual_stages=virtual_stages)
        assert kept(plan, 0) == 2
