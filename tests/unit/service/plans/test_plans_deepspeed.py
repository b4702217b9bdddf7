"""Configurations of DeepSpeed as plans: the sum of the batches, ZeRO stages and shard groups, and values left to the program."""

from typing import Any

import pytest

from policies.model.plan import Precision, Recompute, TrainingPlan
from service.plans.deepspeed import read_deepspeed
from service.plans.model import catalogue_model
from service.plans.reading import Given, Reading
from service.plans.values import ReadError

ZERO3: dict[str, Any] = {
    "train_batch_size": 256,
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 4,
    "steps_per_print": 100,
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95]}},
    "gradient_clipping": 1.0,
    "bf16": {"enabled": True},
    "zero_optimization": {
        "stage": 3,
        "overlap_comm": True,
        "contiguous_gradients": True,
        "reduce_bucket_size": 5e8,
        "stage3_prefetch_bucket_size": 5e7,
        "stage3_param_persistence_threshold": 1e5,
        "offload_optimizer": {"device": "none"},
    },
    "wall_clock_breakdown": False,
}
MODEL = catalogue_model("llama3-8b")


def read(content: dict[str, Any], **given: Any) -> Reading:
    return read_deepspeed(content, Given(**given), MODEL)


def refused(content: dict[str, Any], **given: Any) -> str:
    with pytest.raises(ReadError) as caught:
        read(content, **given)
    return str(caught.value)


def test_zero_of_stage_3() -> None:
    reading = read(ZERO3, gpus=32)
    assert reading.plan == TrainingPlan(
        data=32,
        zero_stage=3,
        micro_batch=2,
        global_batch=256,
        sequence=8192,
        precision=Precision.BF16,
        fp32_gradients=False,
    )
    assert reading.plan.micro_batches == 4
    assert {source.field: source.origin for source in reading.sources} == {
        "gpus": "--gpus",
        "data": "32 GPUs",
        "zero_stage": "zero_optimization.stage",
        "micro_batch": "train_micro_batch_size_per_gpu",
        "global_batch": "train_batch_size",
        "sequence": "sample of llama3-8b",
        "precision": "bf16.enabled",
        "fp32_gradients": "default of DeepSpeed with stage 3",
    }
    assert reading.warnings == ()


@pytest.mark.parametrize(
    ("missing", "micro", "batch"),
    [
        ((), 2, 256),
        (("train_batch_size",), 2, 256),
        (("train_micro_batch_size_per_gpu",), 2, 256),
        (("gradient_accumulation_steps",), 2, 256),
        (("train_batch_size", "gradient_accumulation_steps"), 2, 64),
        (("train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), 8, 256),
    ],
)
def test_two_of_the_three_sizes_give_the_third(missing: tuple[str, ...], micro: int, batch: int) -> None:
    plan = read({key: value for key, value in ZERO3.items() if key not in missing}, gpus=32).plan
    assert (plan.micro_batch, plan.global_batch) == (micro, batch)


def test_sizes_that_contradict_each_other_are_refused_with_the_sum() -> None:
    assert refused(ZERO3, gpus=16) == (
        "train_batch_size: must be train_micro_batch_size_per_gpu 2 x gradient_accumulation_steps 4 x data 16 = 128 (got 256)"
    )
    assert refused({key: value for key, value in ZERO3.items() if "micro" not in key}, gpus=48) == (
        "train_batch_size: must be a multiple of accumulation 4 x data 48 = 192 (got 256)"
    )


def test_options_replace_the_sizes() -> None:
    plan = read(ZERO3, gpus=16, global_batch=512).plan
    assert (plan.micro_batch, plan.global_batch, plan.micro_batches) == (2, 512, 16)
    plan = read(ZERO3, gpus=32, micro_batch=1).plan
    assert (plan.micro_batch, plan.global_batch, plan.micro_batches) == (1, 256, 8)


def test_degrees_beside_the_data() -> None:
    content = ZERO3 | {
        "tensor_parallel": {"autotp_size": 4},
        "sequence_parallel_size": 2,
        "zero_optimization": {"stage": 2},
    }
    plan = read(content, gpus=256).plan
    assert (plan.data, plan.tensor, plan.context, plan.zero_stage) == (32, 4, 2, 2)


@pytest.mark.parametrize("key", ["mics_shard_size", "zero_hpz_partition_size"])
def test_shard_groups(key: str) -> None:
    reading = read(ZERO3 | {"zero_optimization": {"stage": 3, key: 8}}, gpus=32)
    assert reading.plan.shard_group == 8
    assert [warning for warning in reading.warnings if "hpZ" in warning] == list(reading.warnings)
    assert bool(reading.warnings) == (key == "zero_hpz_partition_size")
    assert read(ZERO3 | {"zero_optimization": {"stage": 3, key: -1}}, gpus=32).plan.shard_group == 0
    assert refused(ZERO3 | {"zero_optimization": {"stage": 3, key: 5}}, gpus=32) == (
        f"shard_group: must divide data 32 x context 1 = 32 (got 5), from zero_optimization.{key}"
    )


def test_precision_and_the_format_of_gradients() -> None:
    plain = {key: value for key, value in ZERO3.items() if key != "bf16"}
    assert read(plain, gpus=32).plan.precision is Precision.FP32
    half = read(plain | {"fp16": {"enabled": True, "loss_scale": 0}, "zero_optimization": {"stage": 0}}, gpus=32).plan
    assert (half.precision, half.fp32_gradients) == (Precision.FP16, False)
    assert read(ZERO3 | {"zero_optimization": {"stage": 0}}, gpus=32).plan.fp32_gradients
    assert read(ZERO3 | {"data_types": {"grad_accum_dtype": "fp32"}}, gpus=32).plan.fp32_gradients
    assert refused(ZERO3 | {"fp16": {"enabled": True}}, gpus=32) == "bf16.enabled: and fp16.enabled exclude each other"


def test_checkpoints_of_activations() -> None:
    content = ZERO3 | {"activation_checkpointing": {"partition_activations": True, "cpu_checkpointing": True}}
    reading = read(content, gpus=32)
    assert reading.plan.recompute is Recompute.FULL
    assert reading.warnings == (
        "activation_checkpointing.cpu_checkpointing: activations on the CPU are counted as GPU memory",
    )


AUTO = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "bf16": {"enabled": "auto"},
    "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"},
}


def test_values_left_to_the_program_are_asked_for() -> None:
    assert refused(AUTO, gpus=8) == (
        'train_micro_batch_size_per_gpu: is "auto", which the program fills in; say it with --micro-batch or --global-batch'
    )
    assert refused(AUTO, gpus=8, micro_batch=4) == (
        'bf16.enabled: is "auto", which the program fills in; say it with --precision'
    )
    plan = read(AUTO, gpus=8, micro_batch=4, global_batch=64, precision=Precision.BF16).plan
    assert (plan.micro_batch, plan.global_batch, plan.precision) == (4, 64, Precision.BF16)
    assert read(AUTO, gpus=8, micro_batch=4, precision=Precision.BF16).plan.global_batch == 32


@pytest.mark.parametrize(
    ("change", "warning"),
    [
        ({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}, "zero_optimization.offload_optimizer.device"),
        ({"zero_optimization": {"stage": 3, "zero_quantized_weights": True}}, "zero_optimization.zero_quantized_weights"),
        ({"optimizer": {"type": "Lion"}}, "optimizer.type Lion: its states are counted as those of Adam"),
        ({"sparse_attention": {"mode": "fixed"}}, "sparse_attention: the time it saves is not counted"),
        ({"zero_optimisation": {"stage": 3}}, "zero_optimisation is not understood; did you mean 'zero_optimization'?"),
        ({"train_micro_batch_size": 4}, "train_micro_batch_size is not understood"),
    ],
)  # fmt: skip
def test_what_is_not_in_the_plan_is_named(change: dict[str, Any], warning: str) -> None:
    (found,) = read(ZERO3 | change, gpus=32).warnings
    assert found.startswith(warning)


def test_the_states_of_adam_are_counted() -> None:
    assert read(ZERO3 | {"optimizer": {"type": "OneBitAdam"}}, gpus=32).warnings == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"zero_optimization": {"stage": 4}}, "zero_optimization.stage: must be 0 to 3 (got 4)"),
        ({"zero_optimization": True}, "zero_optimization: must be a mapping of keys to values (got True)"),
        ({"train_batch_size": 256.5}, "train_batch_size: must be a whole number from 1 to 1,000,000,000 (got 256.5)"),
        (
            {"train_batch_size": float("inf")},
            "train_batch_size: must be a whole number from 1 to 1,000,000,000 (got inf)",
        ),
        ({"train_batch_size": True}, "train_batch_size: must be a whole number from 1 to 1,000,000,000 (got True)"),
        ({"train_batch_size": [256]}, "train_batch_size: must be a whole number from 1 to 1,000,000,000 (got [256])"),
        ({"train_batch_size": 10**12}, "train_batch_size: must be 1 to 1,000,000,000 (got 1000000000000)"),
        ({"train_batch_size": "--5"}, "train_batch_size: must be a whole number from 1 to 1,000,000,000 (got '--5')"),
        ({f"batch{n}": 1 for n in range(2000)}, "configuration: must have at most 1,000 keys (got 2,009)"),
        (
            {"zero_optimization": {f"stage{n}": 1 for n in range(2000)}},
            "zero_optimization: must have at most 1,000 keys (got 2,000)",
        ),
        ({"bf16": {"enabled": "perhaps"}}, "bf16.enabled: must be true or false (got 'perhaps')"),
    ],
)
def test_a_fault_names_key_value_and_limit(change: dict[str, Any], message: str) -> None:
    assert refused(ZERO3 | change, gpus=32) == message


def test_whole_numbers_may_be_written_with_a_point() -> None:
    assert read(ZERO3 | {"train_batch_size": 256.0}, gpus=32).plan.global_batch == 256


def test_warnings_are_limited_in_number_and_length() -> None:
    found = read(ZERO3 | {f"batch{n}" + "x" * 1000: 1 for n in range(300)}, gpus=32).warnings
    assert len(found) == 101
    assert found[-1] == "200 more warnings are left out"
    assert max(map(len, found)) < 600


def test_few_unknown_keys_are_compared_with_known_ones() -> None:
    """A comparison takes up to a millisecond, and a request may have thousands of keys."""
    found = read(ZERO3 | {f"train_batch_siz{n:02}": 1 for n in range(40)}, gpus=32).warnings
    assert [line.endswith("did you mean 'train_batch_size'?") for line in found] == [True] * 10 + [False] * 30
