"""Commands of torchrun with the arguments of Hugging Face Trainer as plans."""

import json
from pathlib import Path
from typing import Any

import pytest

from policies.model.plan import Precision, Recompute, TrainingPlan
from service.plans.model import catalogue_model
from service.plans.reading import Given, Reading
from service.plans.torchrun import read_torchrun
from service.plans.values import ReadError

COMMAND = """torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=host:29500 run_clm.py \\
    --model_name_or_path meta-llama/Llama-3.1-8B --dataset_name wikitext --block_size 4096 \\
    --per_device_train_batch_size 2 --per_device_eval_batch_size 4 --gradient_accumulation_steps 8 \\
    --bf16 True --gradient_checkpointing --learning_rate 2e-5 --output_dir out --do_train"""
MODEL = catalogue_model("llama3-8b")


def read(text: str, folder: Path | None = None, **given: Any) -> Reading:
    return read_torchrun(text, Given(**given), MODEL, folder)


def refused(text: str, folder: Path | None = None, **given: Any) -> str:
    with pytest.raises(ReadError) as caught:
        read(text, folder, **given)
    return str(caught.value)


def test_full_shards() -> None:
    reading = read(f'{COMMAND} --fsdp "full_shard auto_wrap"')
    assert reading.plan == TrainingPlan(
        data=16,
        zero_stage=3,
        micro_batch=2,
        global_batch=256,
        sequence=4096,
        recompute=Recompute.FULL,
        fp32_gradients=False,
    )
    assert reading.gpus_per_node == 8
    assert {source.field: source.origin for source in reading.sources} == {
        "gpus": "2 nodes x 8 GPUs",
        "data": "16 GPUs",
        "zero_stage": "--fsdp full_shard",
        "micro_batch": "--per_device_train_batch_size",
        "global_batch": "micro_batch 2 x accumulation 8 x data 16",
        "sequence": "--block_size",
        "precision": "--bf16",
        "recompute": "--gradient_checkpointing",
        "fp32_gradients": "2 + 2 + 12 bytes a parameter stand for 4 + 4 + 8",
    }
    assert reading.warnings == ()


@pytest.mark.parametrize(
    ("flags", "stage", "group"),
    [
        ("", 0, 0),
        ("--fsdp shard_grad_op", 2, 0),
        ("--fsdp no_shard", 0, 0),
        ("--fsdp 'hybrid_shard auto_wrap'", 3, 8),
        ("--fsdp hybrid_shard_zero2", 2, 8),
        ("--fsdp full_shard,auto_wrap", 3, 0),
        ("--fsdp true", 3, 0),
        ("--fsdp", 3, 0),
        ("--fsdp false", 0, 0),
        ("""--fsdp true --fsdp_config '{"version": 2, "reshard_after_forward": false}'""", 2, 0),
        ("""--fsdp --fsdp_config '{"reshard_after_forward": "false"}'""", 2, 0),
        ("""--fsdp --fsdp_config '{"version": 1, "reshard_after_forward": "hybrid_shard"}'""", 3, 8),
        ("""--fsdp full_shard --fsdp_config '{"fsdp_version": 2, "fsdp_reshard_after_forward": false}'""", 2, 0),
    ],
)
def test_sharding_strategies(flags: str, stage: int, group: int) -> None:
    plan = read(f"{COMMAND} {flags}").plan
    assert (plan.zero_stage, plan.shard_group) == (stage, group)


def test_a_file_of_fsdp(tmp_path: Path) -> None:
    (tmp_path / "fsdp.json").write_text(json.dumps({"activation_checkpointing": True, "min_num_params": 2000}))
    command = COMMAND.replace("--gradient_checkpointing", "--fsdp full_shard --fsdp_config fsdp.json")
    assert read(command, tmp_path).plan.recompute is Recompute.FULL
    assert refused(command, tmp_path / "absent").startswith("--fsdp_config: ")


def test_transformers_5_calls_recomputation_by_another_name() -> None:
    command = COMMAND.replace("--gradient_checkpointing", "{}")
    assert read(command.format("--activation_checkpointing")).plan.recompute is Recompute.FULL
    assert read(command.format("--activation_checkpointing false --gradient_checkpointing")).plan.recompute is (
        Recompute.NONE
    )


def test_deepspeed_takes_what_it_leaves_open_from_the_arguments(tmp_path: Path) -> None:
    auto = "auto"
    (tmp_path / "ds.json").write_text(
        json.dumps(
            {
                "train_batch_size": auto,
                "train_micro_batch_size_per_gpu": auto,
                "gradient_accumulation_steps": auto,
                "bf16": {"enabled": auto},
                "fp16": {"enabled": auto},
                "zero_optimization": {"stage": 3},
            }
        )
    )
    plan = read(f"{COMMAND} --deepspeed ds.json", tmp_path).plan
    assert (plan.zero_stage, plan.micro_batch, plan.global_batch) == (3, 2, 256)
    assert (plan.precision, plan.fp32_gradients) == (Precision.BF16, False)
    assert refused(f"{COMMAND} --deepspeed ds.json --fsdp full_shard", tmp_path) == (
        "--fsdp: and --deepspeed exclude each other"
    )


def test_adapters() -> None:
    assert not read(COMMAND).plan.adapters
    assert not read(f"{COMMAND} --finetuning_type full").plan.adapters
    assert not read(f"{COMMAND} --use_lora False --lora_r 64").plan.adapters
    assert not read(f"{COMMAND} --finetuning_type full --lora_rank 8").plan.adapters
    assert read(f"{COMMAND} --lora_rank 8").plan.adapters
    reading = read(f"{COMMAND} --use_peft --lora_r 16 --load_in_4bit")
    assert reading.plan.adapters
    assert reading.warnings == ("--load_in_4bit: weights are counted in the precision of the plan",)


def test_a_file_of_deepspeed_that_contradicts_the_trainer(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(json.dumps({"train_micro_batch_size_per_gpu": 4}))
    command, said = (
        "deepspeed --num_gpus 8 t.py --deepspeed ds.json --max_seq_length 64",
        "Hugging Face Trainer would not",
    )
    for more, instead in (
        ("", "8, default of --per-device-train-batch-size"),
        ("--per_device_train_batch_size 2", "2, --per_device_train_batch_size"),
    ):
        found = read(f"{command} {more}", tmp_path)
        assert found.plan.micro_batch == 4
        assert found.warnings == (f"train_micro_batch_size_per_gpu 4 is used, but contradicts {instead}: {said} start",)
    assert read(f"{command} --per_device_train_batch_size 4", tmp_path).warnings == ()
    assert read(command, tmp_path, micro_batch=4).warnings == ()


def test_accelerate_launch_with_its_file_and_flags(tmp_path: Path) -> None:
    (tmp_path / "fsdp.yaml").write_text(
        "{distributed_type: FSDP, mixed_precision: bf16, num_machines: 2, num_processes: 16,"
        " fsdp_config: {fsdp_sharding_strategy: HYBRID_SHARD, fsdp_activation_checkpointing: true}}"
    )
    command = (
        "accelerate launch --config_file fsdp.yaml {} train.py --max_length 2048 --per_device_train_batch_size 4"
        " --gradient_accumulation_steps 2"
    )
    plan = read(command.format(""), tmp_path).plan
    assert (plan.data, plan.zero_stage, plan.shard_group, plan.global_batch) == (16, 3, 8, 128)
    assert (plan.precision, plan.recompute, plan.sequence) == (Precision.BF16, Recompute.FULL, 2048)
    flags = "--num_processes 32 --num_machines 4 --fsdp_sharding_strategy SHARD_GRAD_OP --mixed_precision fp16"
    plan = read(command.format(flags), tmp_path).plan
    assert (plan.data, plan.zero_stage, plan.shard_group, plan.precision) == (32, 2, 0, Precision.FP16)
    alone = (
        "python -m accelerate launch --use_deepspeed --zero_stage 3 --num_processes 8 train.py --bf16 --block_size 512"
    )
    assert read(alone.replace("python -m ", ""), tmp_path).plan.zero_stage == 3
    assert refused(command.format("").replace("fsdp.yaml", "no.yaml"), tmp_path).endswith(
        "no.yaml: No such file or directory"
    )


def test_the_launcher_of_deepspeed(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}))
    command = "deepspeed --num_nodes 2 --num_gpus 4 train.py --deepspeed ds.json --per_device_train_batch_size 1"
    plan = read(command, tmp_path).plan
    assert (plan.data, plan.zero_stage, plan.precision, plan.fp32_gradients) == (8, 2, Precision.BF16, False)


def test_a_program_that_calls_deepspeed_itself(tmp_path: Path) -> None:
    content = {"train_batch_size": 64, "zero_optimization": {"stage": 1}, "bf16": {"enabled": True}}
    (tmp_path / "ds.json").write_text(json.dumps(content))
    command = "deepspeed --num_gpus 8 train.py --deepspeed --deepspeed_config ds.json"
    reading = read(command, tmp_path)
    assert (reading.plan.zero_stage, reading.plan.micro_batch, reading.plan.global_batch) == (1, 8, 64)
    assert (reading.plan.precision, reading.warnings) == (Precision.BF16, ())
    assert refused(f"{command.replace('--deepspeed ', '')} --fsdp full_shard", tmp_path) == (
        "--fsdp: and --deepspeed_config exclude each other"
    )
    assert refused(command).startswith("--deepspeed_config: ds.json: is a file, which is not opened here")


def test_models_of_trainer_do_not_recompute_what_deepspeed_is_told_to(tmp_path: Path) -> None:
    content = {
        "train_micro_batch_size_per_gpu": 2,
        "activation_checkpointing": {"partition_activations": False, "cpu_checkpointing": False},
    }
    (tmp_path / "ds.json").write_text(json.dumps(content))
    command = "deepspeed --num_gpus 8 train.py --per_device_train_batch_size 2"
    reading = read(f"{command} --deepspeed ds.json", tmp_path)
    assert reading.plan.recompute is Recompute.NONE
    assert reading.warnings == (
        "activation_checkpointing has no effect on models of transformers; --gradient_checkpointing has",
    )
    assert read(f"{command} --deepspeed ds.json --gradient_checkpointing", tmp_path).plan.recompute is Recompute.FULL
    assert read(f"{command} --deepspeed_config ds.json", tmp_path).plan.recompute is Recompute.FULL


def test_a_switch_for_deepspeed_without_a_configuration() -> None:
    command = "deepspeed --num_gpus 8 train.py --deepspeed --per_device_train_batch_size 1"
    assert read(command).warnings == ("--deepspeed names no configuration: ZeRO stage 0 is assumed",)
    reading = read(f"{command} --zero_stage 3")
    assert (reading.plan.zero_stage, reading.warnings) == (3, ())


def test_what_deepspeed_takes_from_its_servers_is_not_guessed() -> None:
    arguments = "train.py --per_device_train_batch_size 1"
    assert read(f"deepspeed --num_gpus 4 {arguments}").plan.gpus == 4
    for launcher in ("deepspeed --num_nodes 2", "deepspeed --hostfile hosts --num_gpus 4", "python --num_nodes 2"):
        assert refused(f"{launcher} {arguments}").startswith("gpus: is in neither the configuration nor the options")
    assert read(f"deepspeed --num_nodes 2 {arguments}", gpus_per_node=8).plan.gpus == 16


def test_all_gpus_of_one_server() -> None:
    command = "torchrun --nproc-per-node gpu train.py --per_device_train_batch_size 1"
    assert read(command, gpus_per_node=8).plan.gpus == 8


def test_defaults_are_those_of_torchrun_and_trainer() -> None:
    reading = read("torchrun --nproc_per_node 4 train.py --max_seq_length 2048")
    assert (reading.plan.gpus, reading.plan.micro_batch, reading.plan.precision) == (4, 8, Precision.FP32)
    assert reading.warnings == (
        "--per-device-train-batch-size is not said: 8, the default of Hugging Face Trainer, is assumed",
    )
    assert read("torchrun --standalone --nproc_per_node 4 train.py", micro_batch=1).warnings == ()


def test_options_replace_the_arguments() -> None:
    plan = read(COMMAND, gpus=32, sequence=1024, precision=Precision.FP8).plan
    assert (plan.data, plan.sequence, plan.precision) == (32, 1024, Precision.FP8)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--fsdp 'full_shard no_shard'", "--fsdp: has two strategies: full_shard and no_shard"),
        ("--fsdp half_shard", "--fsdp: must be words of full_shard, shard_grad_op, no_shard, hybrid_shard"),
        ("--fp16", "--bf16: and --fp16 exclude each other"),
        ("--nnodes 0", "--nnodes: must be 1 to 1,000,000,000 (got '0')"),
        ("--block_size many", "--block_size: must be a whole number from 1 to 1,000,000,000 (got 'many')"),
        ("--fsdp true --fsdp_config '{\"version\": 2, '", "--fsdp_config: JSON: cannot be read"),
    ],
)
def test_a_fault_names_key_value_and_limit(flags: str, message: str) -> None:
    assert refused(f"{COMMAND} {flags}").startswith(message)


def test_flags_of_a_plan_that_are_not_understood_are_named() -> None:
    assert read(f"{COMMAND} --tensor_parallel_size 4 --per_device_train_batchsize 4").warnings == (
        "--tensor_parallel_size is not understood",
        "--per_device_train_batchsize is not understood; did you mean 'per-device-train-batch-size'?",
    )


def test_states_that_are_not_those_of_adam_with_fp32_weights_are_named(tmp_path: Path) -> None:
    assert read(f"{COMMAND} --optim adamw_torch_fused --torch_dtype float32").warnings == ()
    assert read(f"{COMMAND} --optim adamw_bnb_8bit --torch_dtype bfloat16").warnings == (
        "--optim adamw_bnb_8bit: its states are counted as those of Adam",
        "--torch_dtype bfloat16: weights, gradients and moments are counted as with weights in fp32",
    )
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}}))
    assert read(f"{COMMAND} --deepspeed ds.json --torch_dtype bfloat16", tmp_path).warnings == ()
    launcher = "accelerate launch --num_processes 8 --use_deepspeed train.py --per_device_train_batch_size 1"
    assert read(f"{launcher} --torch_dtype bfloat16").warnings == ()


def test_what_changes_the_training_but_not_the_plan_is_named() -> None:
    assert read(f"{COMMAND} --use_liger_kernel --activation_offloading True --quantization_bit 4").warnings == (
        "--quantization_bit: weights are counted in the precision of the plan",
        "--use_liger_kernel: logits are counted, which its loss does not keep",
        "--activation_offloading: activations on the CPU are counted as GPU memory",
    )
    assert read(f"{COMMAND} --load_in_4bit False --use_liger_kernel false").warnings == ()
