"""The plans that are tried for a model: degrees that its shape allows, and nothing twice."""

import pytest

from policies.catalogue.shapes import SHAPES
from policies.model.plan import PipelineSchedule, TrainingPlan
from policies.training.plans import (
    context_degrees,
    divisions,
    expert_degrees,
    micro_batches,
    pipeline_degrees,
    schedules,
    shardings,
    tensor_degrees,
)


@pytest.mark.parametrize(
    ("model", "domain", "found"),
    [
        ("llama3-8b", 8, [1, 2, 4, 8]),
        ("llama3-8b", 4, [1, 2, 4]),
        ("llama3-8b", 72, [1, 2, 4, 8, 16]),  # beyond 8, each of the 8 keys is on several GPUs
        ("qwen2.5-7b", 8, [1, 2, 4]),  # 28 heads
        ("gpt2-xl", 8, [1]),  # 25 heads
        ("resnet-50", 8, [1]),
    ],
)
def test_tensor_groups_stay_in_the_domain_and_divide_the_heads(model: str, domain: int, found: list[int]) -> None:
    assert tensor_degrees(SHAPES[model].shape, domain) == found


def test_stages_of_a_pipeline_are_about_equal() -> None:
    # 61 layers: 2 stages of 31 and 30, 31 of 2 (one has 1); 8 stages would have up to 8 of a mean of 7.6; 12 up to 6 of 5.1.
    found = pipeline_degrees(SHAPES["deepseek-v3"].shape)
    assert {1, 2, 4, 8, 31, 61} <= set(found)
    assert 12 not in found
    assert pipeline_degrees(SHAPES["resnet-50"].shape) == [1]


def test_context_groups_leave_each_gpu_2048_tokens() -> None:
    shape = SHAPES["llama3-8b"].shape
    assert context_degrees(shape, 8192) == [1, 2, 4]
    assert context_degrees(shape, 512) == [1]
    assert context_degrees(SHAPES["t5-3b"].shape, 1) == [1]


def test_experts_are_spread_over_powers_of_two_that_divide_them() -> None:
    assert expert_degrees(SHAPES["mixtral-8x7b"].shape, 64) == [8, 4, 2, 1]
    assert expert_degrees(SHAPES["deepseek-v3"].shape, 64) == [64, 32, 16, 8]
    assert expert_degrees(SHAPES["mixtral-8x7b"].shape, 6) == [2, 1]
    assert expert_degrees(SHAPES["llama3-8b"].shape, 64) == [1]


def test_micro_batches_divide_what_a_replica_takes() -> None:
    assert micro_batches(TrainingPlan(data=4, global_batch=48, sequence=4096)) == [1, 2, 4]
    assert micro_batches(TrainingPlan(data=1, global_batch=64, sequence=32768)) == [1, 2]


def test_an_interleaved_schedule_has_the_most_virtual_stages_that_are_even() -> None:
    shape = SHAPES["llama3-70b"].shape
    plain, interleaved = schedules(shape, TrainingPlan(pipeline=4, global_batch=64))
    assert plain.schedule is PipelineSchedule.ONE_F_ONE_B
    assert interleaved.virtual_stages == 5  # 80 layers / (4 x 5)
    deepseek = schedules(SHAPES["deepseek-v3"].shape, TrainingPlan(pipeline=8, global_batch=64))
    assert deepseek[1].virtual_stages == 4  # 61 is prime: 32 chunks of at most 2 layers
    assert schedules(shape, TrainingPlan()) == [TrainingPlan()]


def test_states_are_sharded_whole_only_without_a_pipeline() -> None:
    assert [plan.zero_stage for plan in shardings(TrainingPlan(), 8)] == [0]
    assert [plan.zero_stage for plan in shardings(TrainingPlan(data=2, pipeline=2, global_batch=2), 8)] == [1]
    found = shardings(TrainingPlan(data=16, tensor=2, global_batch=16), 8)
    assert [(plan.zero_stage, plan.shard_group) for plan in found] == [(1, 0), (3, 0), (3, 4)]


def test_divisions_use_all_gpus_once_each() -> None:
    like = TrainingPlan(global_batch=256, sequence=8192, dropout=True, tensor=3)
    found = list(divisions(SHAPES["mixtral-8x7b"].shape, like, 64, 8))
    assert {plan.gpus for plan in found} == {64}
    assert len(set(found)) == len(found)
    assert found[0].data == 64
    assert {(plan.global_batch, plan.sequence, plan.dropout) for plan in found} == {(256, 8192, True)}
    assert {plan.tensor for plan in found} == {1, 2, 4, 8}
    assert {plan.pipeline for plan in found} == {1, 2, 4, 8, 16, 32}
