"""Plans ranked by predicted speed: only those that fit, the fastest first, with what limits each."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.catalogue.shapes import SHAPES
from policies.model.plan import PipelineSchedule, Precision, Recompute, TrainingPlan
from policies.training.hardware import GPU_MODELS, Links
from policies.training.iteration import iteration_time
from policies.training.memory import memory_bill
from policies.training.ranking import PLANS_MAX, RankedPlan, rank_plans

LLAMA = TrainingPlan(global_batch=128, sequence=8192)


def _rank(model: str, like: TrainingPlan, gpus: int, gpu: str) -> list[RankedPlan]:
    found = GPU_MODELS[gpu]
    return rank_plans(SHAPES[model].shape, like, gpus, found, Links.of(found))


@given(
    model=st.sampled_from(["llama3-8b", "mixtral-8x7b", "deepseek-v3", "bert-large", "t5-3b", "resnet-50"]),
    gpus=st.sampled_from([1, 6, 8, 48, 64, 256]),
    gpu=st.sampled_from(["A10", "H100", "GB200"]),
    global_batch=st.sampled_from([1, 96, 1024]),
    precision=st.sampled_from([Precision.BF16, Precision.FP8]),
)
@settings(max_examples=40, deadline=None)
def test_ranked_plans_fit_use_all_gpus_and_keep_what_is_given(
    model: str, gpus: int, gpu: str, global_batch: int, precision: Precision
) -> None:
    like = TrainingPlan(global_batch=global_batch, sequence=SHAPES[model].sequence, precision=precision, dropout=True)
    ranked = _rank(model, like, gpus, gpu)
    assert len(ranked) <= PLANS_MAX
    assert len({each.plan for each in ranked}) == len(ranked)
    for each in ranked:
        plan = each.plan
        assert plan.gpus == gpus
        kept = (plan.global_batch, plan.sequence, plan.precision, plan.dropout)
        assert kept == (like.global_batch, like.sequence, like.precision, like.dropout)
        assert each.bill.peak <= GPU_MODELS[gpu].memory_bytes
        assert each.limit in each.time.parts
    speeds = [each.tokens_per_s for each in ranked]
    assert speeds == sorted(speeds, reverse=True)


def test_speed_and_gpu_hours_are_those_of_the_predicted_iteration() -> None:
    best = _rank("llama3-70b", LLAMA, 64, "H100")[0]
    gpu, shape = GPU_MODELS["H100"], SHAPES["llama3-70b"].shape
    time = iteration_time(shape, best.plan, gpu, Links.of(gpu))
    assert best.bill == memory_bill(shape, best.plan)
    assert best.tokens_per_s == pytest.approx(128 * 8192 / time.total_s)
    # A million iterations of 128 x 8192 tokens, each of total_s on 64 GPUs.
    assert best.gpu_hours(1e6 * 128 * 8192) == pytest.approx(64 * 1e6 * time.total_s / 3600)


def test_a_published_recipe_is_not_far_below_the_best_plan() -> None:
    # NeMo's recipe: Llama 3 70B in bf16 on 64 H100 with tensor 4, pipeline 4, context 2, 5 virtual stages.
    ranked = _rank("llama3-70b", LLAMA, 64, "H100")
    recipe = TrainingPlan(
        data=2, tensor=4, pipeline=4, context=2, virtual_stages=5, schedule=PipelineSchedule.INTERLEAVED,
        sequence_parallel=True, zero_stage=1, global_batch=128, sequence=8192,
    )  # fmt: skip
    speeds = {each.plan: each.tokens_per_s for each in ranked}
    assert speeds[recipe] > 0.9 * ranked[0].tokens_per_s


def test_nothing_is_computed_again_where_memory_suffices() -> None:
    again = {each.plan.recompute for each in _rank("llama3-8b", LLAMA, 64, "H200")}
    assert again == {Recompute.NONE}
    # 24 GiB hold no layer-by-layer activations of 8,192 tokens unless they are divided or computed again.
    assert Recompute.FULL in {each.plan.recompute for each in _rank("llama3-8b", LLAMA, 16, "A10")}


def test_interleaved_plans_have_whole_rounds_of_micro_batches() -> None:
    interleaved = [
        each.plan
        for each in _rank("llama3-70b", replace(LLAMA, global_batch=36), 64, "H100")
        if each.plan.schedule is PipelineSchedule.INTERLEAVED
    ]
    assert interleaved
    assert all(plan.micro_batches % plan.pipeline == 0 for plan in interleaved)


def test_no_plan_is_ranked_where_none_fits() -> None:
    # 18 bytes of 406 billion parameters are 850 GiB a GPU over 8.
    assert _rank("llama3-405b", replace(LLAMA, global_batch=8), 8, "A10") == []
