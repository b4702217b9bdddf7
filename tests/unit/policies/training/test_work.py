"""What an iteration asks of a GPU, against hand-worked numbers."""

from dataclasses import replace
from typing import Any

import pytest

from policies.model.plan import PipelineSchedule, Precision, Recompute, TrainingPlan
from policies.model.shape import CountedShape, TransformerShape
from policies.training.hardware import Links
from policies.training.operations import operations, parameters
from policies.training.standin import HYBRID, stand_in
from policies.training.work import OPTIMIZER_BYTES, work
from tests.unit.policies.training.test_operations import DEEPSEEK_V3, LLAMA3_8B, MIXTRAL_8X7B, QWEN3_30B

LINKS = Links(inside_bytes_s=450e9, beyond_bytes_s=50e9, domain=8)


DEGREES: list[dict[str, Any]] = [
    {},
    {"context": 2},
    {"data": 4, "expert": 4},
    {"tensor": 4, "sequence_parallel": True},
    {"tensor": 2, "expert": 4, "data": 2},
]


@pytest.mark.parametrize(
    ("shape", "degrees"),
    [(shape, degrees) for shape in (LLAMA3_8B, MIXTRAL_8X7B) for degrees in DEGREES]
    + [(DEEPSEEK_V3, degrees) for degrees in DEGREES if "tensor" not in degrees],  # its ranks are not divided
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_the_gpus_together_do_the_operations_of_the_model(shape: TransformerShape, degrees: dict[str, Any]) -> None:
    plan = TrainingPlan(sequence=4096, micro_batch=2, global_batch=8, **degrees)
    done = work(shape, plan, LINKS)
    flops = done.low_flops + done.expert_flops + done.score_flops + done.output_flops
    router = done.half_flops * (1 / plan.tensor if shape.experts else 0)  # the tensor group computes it on every GPU
    total = (flops + router) * done.micro_batches * plan.gpus
    assert total == pytest.approx(operations(shape, 4096).training * plan.tokens, rel=1e-9)


def test_full_recomputation_takes_a_third_more_of_the_layers() -> None:
    plan = TrainingPlan(sequence=4096)
    once, again = work(LLAMA3_8B, plan, LINKS), work(LLAMA3_8B, replace(plan, recompute=Recompute.FULL), LINKS)
    assert again.low_flops == pytest.approx(once.low_flops * 4 / 3)
    assert again.score_flops == pytest.approx(once.score_flops * 4 / 3)
    assert again.output_flops == once.output_flops
    assert (once.recomputed, again.recomputed) == (0, 1 / 4)
    selective = work(LLAMA3_8B, replace(plan, recompute=Recompute.SELECTIVE), LINKS)
    assert (selective.low_flops, selective.score_flops) == (once.low_flops, again.score_flops)


def test_frozen_weights_have_no_gradient_and_no_optimizer_step() -> None:
    plan = TrainingPlan(sequence=4096, data=8, global_batch=8)
    full, adapters = work(LLAMA3_8B, plan, LINKS), work(LLAMA3_8B, replace(plan, adapters=True), LINKS)
    assert adapters.low_flops == pytest.approx(full.low_flops * 2 / 3)
    assert (adapters.data_s, adapters.optimizer_bytes) == (0, 0)
    hybrid = replace(plan, data=16, global_batch=16 * plan.micro_batch, zero_stage=3, shard_group=8)
    assert work(LLAMA3_8B, hybrid, LINKS).data_s > 0
    assert work(LLAMA3_8B, replace(hybrid, adapters=True), LINKS).data_s == 0
    assert full.data_s > 0


def test_bubble_of_the_published_schedules() -> None:
    """(p - 1) / m of Narayanan et al., divided by the virtual stages; a third of it with ZB-H1 (Qi et al.)."""
    plan = TrainingPlan(pipeline=8, global_batch=16)
    assert work(LLAMA3_8B, plan, LINKS).bubble / plan.micro_batches == 7 / 16
    interleaved = replace(plan, virtual_stages=4, schedule=PipelineSchedule.INTERLEAVED)
    assert work(LLAMA3_8B, interleaved, LINKS).bubble == 7 / 4
    zero = replace(plan, schedule=PipelineSchedule.ZERO_BUBBLE)
    assert work(LLAMA3_8B, zero, LINKS).bubble == pytest.approx(7 / 3)
    assert work(LLAMA3_8B, replace(plan, schedule=PipelineSchedule.PIPEDREAM), LINKS).bubble == 0


def test_tensor_parallel_traffic_is_four_all_reduces_a_layer() -> None:
    """Each moves 2 (t - 1) / t times the hidden values of the micro-batch (Shoeybi et al., arXiv 1909.08053)."""
    done = work(LLAMA3_8B, TrainingPlan(tensor=4, sequence=2048), LINKS)
    assert done.tensor_s == pytest.approx(32 * 4 * 2 * 3 / 4 * 2048 * 4096 * 2 / 450e9)


def test_gradients_and_shards_move_the_parameters() -> None:
    count = parameters(LLAMA3_8B).total
    plan = TrainingPlan(data=8, sequence=2048, global_batch=16)
    plain, sharded = work(LLAMA3_8B, plan, LINKS), work(LLAMA3_8B, replace(plan, zero_stage=3), LINKS)
    assert plain.data_s == pytest.approx(2 * count * 2 * 7 / 8 / 450e9)
    assert (plain.shard_s, sharded.data_s) == (0, 0)
    assert sharded.shard_s == pytest.approx(3 * count * 2 * 7 / 8 / 450e9)
    assert plain.optimizer_bytes == pytest.approx(OPTIMIZER_BYTES * count)
    assert sharded.optimizer_bytes == pytest.approx(OPTIMIZER_BYTES * count / 8)


def test_hybrid_sharding_reduces_gradients_between_the_groups() -> None:
    count = parameters(LLAMA3_8B).total
    plan = TrainingPlan(data=16, sequence=2048, global_batch=16, zero_stage=3, shard_group=8)
    done = work(LLAMA3_8B, plan, LINKS)
    assert done.shard_s == pytest.approx(3 * count * 2 * 7 / 8 / 450e9)
    assert done.data_s == pytest.approx(2 * count / 8 * 2 * 1 / 2 / 50e9)


def test_tokens_leave_the_domain_once_for_each_domain_of_their_experts() -> None:
    inside = work(MIXTRAL_8X7B, TrainingPlan(data=8, expert=8, global_batch=8, sequence=1024), LINKS)
    token_bytes = 1024 * 4096 * 2 * 4 * 32
    assert inside.expert_inside_s == pytest.approx(token_bytes * 2 * 7 / 8 / 450e9)
    assert inside.expert_beyond_s == 0
    small = Links(inside_bytes_s=450e9, beyond_bytes_s=50e9, domain=4)
    split = work(MIXTRAL_8X7B, TrainingPlan(data=8, expert=8, global_batch=8, sequence=1024), small)
    assert split.expert_inside_s == pytest.approx(token_bytes * 2 * 3 / 8 / 450e9)
    assert split.expert_beyond_s == pytest.approx(token_bytes * (1 - 1 / 2**2) / 50e9)


def test_narrow_formats_read_less_and_cast() -> None:
    plan = TrainingPlan(sequence=4096)
    wide, narrow = work(LLAMA3_8B, plan, LINKS), work(LLAMA3_8B, replace(plan, precision=Precision.FP8), LINKS)
    assert narrow.low_flops == wide.low_flops
    assert narrow.product_bytes > wide.product_bytes


def test_the_stand_in_of_nemotron_3_nano_has_its_published_size() -> None:
    """52 layers (26 pairs) of 2688; 22.28 GFLOP a token, 30e9 parameters."""
    shape = stand_in(
        CountedShape(name="nano", kind=HYBRID, layers=0, hidden=0, parameters=30_000_000_000, flops=22.28e9)
    )
    assert shape.hidden == pytest.approx(2688, rel=0.06)
    assert shape.layers == pytest.approx(26, abs=2)
    assert parameters(shape).total == pytest.approx(30e9, rel=0.05)
    assert operations(shape, 8192).training == pytest.approx(22.28e9, rel=0.1)


def test_the_fullest_stage_counts_and_the_last_does_without_a_layer_for_its_output() -> None:
    """Llama 3 8B over 5 stages: 7 layers on the fullest, of 32."""
    whole = work(LLAMA3_8B, TrainingPlan(sequence=1024), LINKS)
    uneven = work(LLAMA3_8B, TrainingPlan(sequence=1024, pipeline=5), LINKS)
    assert uneven.low_flops == pytest.approx(whole.low_flops * 7 / 32)
    assert uneven.spared == pytest.approx(1 / 7)
    even = work(LLAMA3_8B, TrainingPlan(sequence=1024, pipeline=4), LINKS)
    assert even.low_flops == pytest.approx(whole.low_flops / 4)
    assert even.spared == 0


def test_the_host_starts_the_kernels_of_each_expert_that_the_gpu_holds() -> None:
    """48 layers of 128 experts, 16 of them on each of eight GPUs."""
    done = work(QWEN3_30B, TrainingPlan(data=8, expert=8, global_batch=8, sequence=1024), LINKS)
    assert (done.dense_launches, done.expert_launches, done.held_launches) == (0, 48, 48 * 16)


@pytest.mark.parametrize("flops", [15e9, 22.28e9, 40e9])
def test_the_stand_in_keeps_what_is_known(flops: float) -> None:
    shape = stand_in(
        CountedShape(name="nano", kind=HYBRID, layers=26, hidden=2688, parameters=30_000_000_000, flops=flops)
    )
    assert (shape.layers, shape.hidden) == (26, 2688)
    assert operations(shape, 1).training == pytest.approx(flops, rel=0.05)


def test_a_convolutional_network_is_its_operations_and_its_activations() -> None:
    shape = CountedShape(
        name="resnet50", kind="cnn", layers=0, hidden=0, parameters=25_557_032, flops=24.6e9, activations=11_000_000
    )
    done = work(shape, TrainingPlan(micro_batch=256, global_batch=256, precision=Precision.FP16), LINKS)
    assert done.low_flops == 256 * 24.6e9
    assert done.memory_bytes == 8 * 256 * 11_000_000 * 2
