"""The refusal of a plan that does not fit: its text, and the nearest plans that do."""

from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.catalogue.shapes import SHAPES
from policies.model.plan import PipelineSchedule, Precision, Recompute, TrainingPlan
from policies.model.shape import ModelShape
from policies.training.hardware import GPU_MODELS, Links
from policies.training.iteration import iteration_time
from policies.training.memory import memory_bill
from policies.training.nearest import TOLERANCE, PlanDoesNotFit, nearest_plans, require_fit
from policies.training.plans import micro_batches

LLAMA = SHAPES["llama3-8b"].shape
TOO_MUCH = TrainingPlan(data=8, global_batch=64, sequence=8192, micro_batch=2)


def _refusal(shape: ModelShape, plan: TrainingPlan, gpu: str) -> PlanDoesNotFit:
    with pytest.raises(PlanDoesNotFit) as refused:
        require_fit(shape, plan, GPU_MODELS[gpu])
    return refused.value


def test_a_search_ends() -> None:
    """After so many stages it gives what it has found: a request may name any shape."""
    plan, gpu = TrainingPlan(data=8, global_batch=64, sequence=4096), GPU_MODELS["H100"]
    shape = SHAPES["llama3-70b"].shape
    assert nearest_plans(shape, plan, gpu)
    assert nearest_plans(shape, plan, gpu, stages_max=20) == []


def test_a_refusal_says_what_takes_how_much_and_what_fits() -> None:
    refusal = _refusal(LLAMA, TOO_MUCH, "H100")
    # 8.03 billion parameters of 2, 4 and 12 bytes; logits 2 x 8192 x 128256 x 4 bytes.
    assert str(refusal).startswith(
        "memory: the plan needs 215.3 GiB on each GPU and H100 has 80 GiB (parameters 15.0, "
    )
    assert "gradients 29.9, optimizer 89.7, activations 68.2, logits 7.8, workspace 1.3, allowance 3.3 GiB)" in str(
        refusal
    )
    assert "Nearest plans that fit: data 8 -> 2, tensor 1 -> 4, sequence_parallel false -> true (54.6 GiB, " in str(
        refusal
    )


def test_a_refusal_names_the_fullest_stage_of_a_pipeline() -> None:
    plan = TrainingPlan(pipeline=4, global_batch=8, sequence=8192)
    assert "GiB on each GPU of pipeline stage 0 (0 to 3) and A10 has 24 GiB" in str(_refusal(LLAMA, plan, "A10"))


def test_a_plan_that_fits_is_not_refused() -> None:
    plan = replace(TOO_MUCH, zero_stage=3, micro_batch=1)
    assert require_fit(LLAMA, plan, GPU_MODELS["H100"]) == memory_bill(LLAMA, plan)


def test_a_recipe_that_ran_is_not_refused_for_the_error_of_the_bill() -> None:
    # Megatron-Bridge 26.06: Llama 3.1 405B on 256 GB200, nothing recomputed. The bill says 103% of their memory.
    plan = TrainingPlan(
        data=4, tensor=4, pipeline=16, virtual_stages=4, schedule=PipelineSchedule.INTERLEAVED, sequence_parallel=True,
        zero_stage=1, global_batch=1536, sequence=8192, precision=Precision.FP8,
    )  # fmt: skip
    bill = require_fit(SHAPES["llama3-405b"].shape, plan, GPU_MODELS["GB200"])
    assert 1 < bill.peak / GPU_MODELS["GB200"].memory_bytes < TOLERANCE


@pytest.mark.parametrize(
    ("model", "gpu", "plan"),
    [
        ("llama3-8b", "H100", TOO_MUCH),
        ("llama3-8b", "A10", TrainingPlan(global_batch=64, sequence=8192, micro_batch=2)),
        ("llama3-70b", "H100", TrainingPlan(data=8, tensor=8, global_batch=64, sequence=8192, micro_batch=2)),
        ("deepseek-v3", "H100", TrainingPlan(data=16, pipeline=8, expert=8, global_batch=512, sequence=4096)),
        ("resnet-50", "V100-16", TrainingPlan(data=4, micro_batch=1024, global_batch=4096, precision=Precision.FP16)),
        ("t5-11b", "A100-40", TrainingPlan(data=16, micro_batch=4, global_batch=128)),
    ],
)
def test_nearest_plans_fit_and_name_their_peaks(model: str, gpu: str, plan: TrainingPlan) -> None:
    shape = SHAPES[model].shape
    near = _refusal(shape, plan, gpu).nearest
    assert near
    for each in near:
        assert each.peak == memory_bill(shape, each.plan).peak <= GPU_MODELS[gpu].memory_bytes
        assert (each.plan.global_batch, each.plan.sequence, each.plan.precision) == (
            plan.global_batch,
            plan.sequence,
            plan.precision,
        )
        differing = [f.name for f in fields(plan) if getattr(plan, f.name) != getattr(each.plan, f.name)]
        assert all(name in each.changes for name in differing)
        assert each.changes.startswith("gpus") == (each.plan.gpus != plan.gpus)


def test_the_fastest_of_the_nearest_plans_is_first() -> None:
    for plan in (TOO_MUCH, replace(TOO_MUCH, dropout=True, micro_batch=4)):
        near = nearest_plans(LLAMA, plan, GPU_MODELS["H100"])
        times = [iteration_time(LLAMA, each.plan, GPU_MODELS["H100"]).total_s for each in near]
        assert len(near) > 1
        assert [each.iteration_s for each in near] == times == sorted(times)


def test_the_links_give_the_times_and_the_largest_tensor_group() -> None:
    gpu, slow = GPU_MODELS["A100-40"], Links(50e9, 1.25e9 / 2, 2)
    plan = TrainingPlan(data=8, micro_batch=8, global_batch=256, sequence=4096)
    usual = nearest_plans(LLAMA, plan, gpu)
    assert max(each.plan.tensor for each in usual) > 2
    near = nearest_plans(LLAMA, plan, gpu, slow)
    assert near
    for each in near:
        assert each.plan.tensor <= 2
        assert each.iteration_s == iteration_time(LLAMA, each.plan, gpu, slow).total_s
    with pytest.raises(PlanDoesNotFit) as caught:
        require_fit(LLAMA, plan, gpu, slow)
    assert caught.value.nearest == tuple(near)


def test_one_change_is_preferred_to_two() -> None:
    # Either a smaller micro-batch or recomputation alone makes ResNet-50 fit.
    plan = TrainingPlan(data=4, micro_batch=1024, global_batch=4096, precision=Precision.FP16)
    shape, gpu = SHAPES["resnet-50"].shape, GPU_MODELS["V100-16"]
    smaller = {
        replace(plan, micro_batch=m)
        for m in micro_batches(plan)
        if m < 1024 and memory_bill(shape, replace(plan, micro_batch=m)).fits(gpu)
    }
    again = replace(plan, recompute=Recompute.FULL)
    assert memory_bill(shape, again).fits(gpu)
    assert {near.plan for near in nearest_plans(shape, plan, gpu)} <= {*smaller, again}


def test_more_gpus_are_proposed_only_where_the_given_ones_do_not_suffice() -> None:
    # 18 bytes of 8.03 billion parameters are 33.6 GiB a GPU over 4, and an A10 has 24.
    near = nearest_plans(LLAMA, TrainingPlan(global_batch=64, sequence=8192), GPU_MODELS["A10"])
    assert {each.plan.gpus for each in near} == {8}
    assert all(each.changes.startswith("gpus 1 -> 8, ") for each in near)


def test_a_model_too_large_for_any_pipeline_of_the_gpu_has_no_nearest_plan() -> None:
    refusal = _refusal(SHAPES["llama3-405b"].shape, TrainingPlan(sequence=8192), "T4")
    assert refusal.nearest == ()
    assert str(refusal).endswith("No plan that fits was found.")


def test_old_attention_is_replaced_and_degrees_divide_the_heads() -> None:
    # GPT-2 XL has 25 heads: no tensor degree but 1, so the scores of 16 samples go by flash attention or recomputation.
    plan = TrainingPlan(flash_attention=False, micro_batch=16, global_batch=64, sequence=1024, data=2)
    near = nearest_plans(SHAPES["gpt2-xl"].shape, plan, GPU_MODELS["A100-80"])
    assert any(each.plan.flash_attention for each in near)
    assert all(each.plan.tensor == 1 for each in near)


@given(
    model=st.sampled_from(["llama3-8b", "mixtral-8x7b", "gpt2-xl", "deepseek-v3"]),
    data=st.sampled_from([1, 2, 6, 16]),
    micro_batch=st.sampled_from([1, 3, 8]),
    zero_stage=st.integers(0, 3),
    gpu=st.sampled_from(["T4", "A100-80", "GB200"]),
    recompute=st.sampled_from(Recompute),
)
@settings(max_examples=60, deadline=None)
def test_whatever_is_asked_the_nearest_plans_fit(
    model: str, data: int, micro_batch: int, zero_stage: int, gpu: str, recompute: Recompute
) -> None:
    plan = TrainingPlan(
        data=data, micro_batch=micro_batch, global_batch=data * micro_batch * 4, sequence=4096, zero_stage=zero_stage,
        recompute=recompute, flash_attention=zero_stage > 1,
    )  # fmt: skip
    shape = SHAPES[model].shape
    for near in nearest_plans(shape, plan, GPU_MODELS[gpu]):
        assert memory_bill(shape, near.plan).fits(GPU_MODELS[gpu])
        assert near.plan.global_batch == plan.global_batch
        assert near.plan.gpus % plan.gpus == 0
        assert near.plan.pipeline == 1 or near.plan.zero_stage <= max(1, plan.zero_stage)
