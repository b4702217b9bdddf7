"""Files of ``accelerate config`` as plans: FSDP of both versions, DeepSpeed, Megatron-LM, and the degrees of a parallelism."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from policies.model.plan import Precision, Recompute, TrainingPlan
from service.plans.accelerate import read_accelerate
from service.plans.model import catalogue_model
from service.plans.reading import Given, Reading
from service.plans.values import ReadError

FSDP = """
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: FSDP
downcast_bf16: 'no'
enable_cpu_affinity: false
fsdp_config:
  fsdp_activation_checkpointing: true
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_backward_prefetch: BACKWARD_PRE
  fsdp_cpu_ram_efficient_loading: true
  fsdp_forward_prefetch: false
  fsdp_offload_params: false
  fsdp_sharding_strategy: FULL_SHARD
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_sync_module_states: true
  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer
  fsdp_use_orig_params: true
machine_rank: 0
main_process_ip: 10.0.0.1
main_training_function: main
mixed_precision: bf16
num_machines: 4
num_processes: 32
rdzv_backend: c10d
same_network: true
tpu_env: []
use_cpu: false
"""
MODEL = catalogue_model("llama3-8b")


def read(text: str, folder: Path | None = None, **given: Any) -> Reading:
    return read_accelerate(yaml.safe_load(text), Given(**({"micro_batch": 1} | given)), MODEL, folder)


def refused(text: str, folder: Path | None = None, **given: Any) -> str:
    with pytest.raises(ReadError) as caught:
        read(text, folder, **given)
    return str(caught.value)


def test_full_shards() -> None:
    reading = read(FSDP, micro_batch=2, global_batch=128)
    assert reading.plan == TrainingPlan(
        data=32,
        zero_stage=3,
        micro_batch=2,
        global_batch=128,
        sequence=8192,
        recompute=Recompute.FULL,
        fp32_gradients=False,
    )
    assert reading.gpus_per_node == 8
    assert {source.field: source.origin for source in reading.sources} == {
        "gpus": "num_processes",
        "data": "32 GPUs",
        "zero_stage": "fsdp_config.fsdp_sharding_strategy",
        "micro_batch": "--micro-batch",
        "global_batch": "--global-batch",
        "sequence": "sample of llama3-8b",
        "precision": "mixed_precision",
        "recompute": "fsdp_config.fsdp_activation_checkpointing",
        "fp32_gradients": "2 + 2 + 12 bytes a parameter stand for 4 + 4 + 8",
    }
    assert reading.warnings == ()


@pytest.mark.parametrize(
    ("strategy", "stage", "group"),
    [
        ("fsdp_sharding_strategy: SHARD_GRAD_OP", 2, 0),
        ("fsdp_sharding_strategy: NO_SHARD", 0, 0),
        ("fsdp_sharding_strategy: HYBRID_SHARD", 3, 8),
        ("fsdp_sharding_strategy: HYBRID_SHARD_ZERO2", 2, 8),
        ("fsdp_sharding_strategy: 1", 3, 0),
        ("fsdp_sharding_strategy: 4", 3, 8),
        ("fsdp_reshard_after_forward: SHARD_GRAD_OP", 2, 0),
        ("fsdp_version: 2", 3, 0),
        ("{fsdp_version: 2, fsdp_reshard_after_forward: true}", 3, 0),
        ("{fsdp_version: 2, fsdp_reshard_after_forward: false}", 2, 0),
        ("{}", 3, 0),
    ],
)
def test_sharding_strategies(strategy: str, stage: int, group: int) -> None:
    content = yaml.safe_load(FSDP) | {"fsdp_config": yaml.safe_load(strategy)}
    plan = read_accelerate(content, Given(micro_batch=1), MODEL).plan
    assert (plan.zero_stage, plan.shard_group) == (stage, group)


def test_a_shard_group_that_is_the_server_needs_its_gpus() -> None:
    text = "{distributed_type: FSDP, num_processes: 32, fsdp_config: {fsdp_sharding_strategy: HYBRID_SHARD}}"
    assert refused(text) == ("gpus_per_node: is needed for fsdp_config.fsdp_sharding_strategy; add --gpus-per-node")
    assert read(text, gpus_per_node=4).plan.shard_group == 4
    assert read(text, gpus_per_node=32).plan.shard_group == 0


def test_deepspeed_in_the_file() -> None:
    text = """
distributed_type: DEEPSPEED
deepspeed_config: {deepspeed_multinode_launcher: standard, gradient_accumulation_steps: 4, offload_optimizer_device: cpu,
  offload_param_device: none, zero3_init_flag: true, zero_stage: 3}
mixed_precision: fp16
num_machines: 1
num_processes: 8
"""
    reading = read(text)
    assert (reading.plan.zero_stage, reading.plan.global_batch, reading.plan.precision) == (3, 32, Precision.FP16)
    assert reading.warnings == (
        "deepspeed_config.offload_optimizer_device cpu: what lies there is counted as GPU memory",
    )


def test_deepspeed_in_a_file_beside(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(
        json.dumps(
            {"zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"}, "train_micro_batch_size_per_gpu": 4}
        )
    )
    text = """
distributed_type: DEEPSPEED
deepspeed_config: {deepspeed_config_file: ds.json, zero3_init_flag: false}
mixed_precision: bf16
num_processes: 2
"""
    plan = read(text, tmp_path, micro_batch=None).plan
    assert (plan.data, plan.zero_stage, plan.micro_batch, plan.precision) == (2, 2, 4, Precision.BF16)
    assert refused(text, tmp_path / "absent").endswith("ds.json: No such file or directory")


def test_megatron_in_the_file() -> None:
    text = """
distributed_type: MEGATRON_LM
megatron_lm_config:
  megatron_lm_gradient_clipping: 1.0
  megatron_lm_num_micro_batches: 2
  megatron_lm_pp_degree: 2
  megatron_lm_recompute_activations: true
  megatron_lm_sequence_parallelism: true
  megatron_lm_tp_degree: 2
  megatron_lm_use_distributed_optimizer: true
mixed_precision: bf16
num_machines: 1
num_processes: 8
"""
    assert read(text).plan == TrainingPlan(
        data=2,
        tensor=2,
        pipeline=2,
        sequence_parallel=True,
        zero_stage=1,
        global_batch=4,
        sequence=8192,
        recompute=Recompute.SELECTIVE,
    )


PARALLEL = """
distributed_type: FSDP
fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: true, fsdp_activation_checkpointing: false}
mixed_precision: bf16
num_machines: 2
num_processes: 16
parallelism_config:
  parallelism_config_cp_comm_strategy: allgather
  parallelism_config_cp_size: 2
  parallelism_config_dp_replicate_size: 2
  parallelism_config_dp_shard_size: 2
  parallelism_config_tp_size: 2
"""


def test_the_degrees_of_a_parallelism() -> None:
    reading = read(PARALLEL)
    plan = reading.plan
    assert (plan.data, plan.tensor, plan.context, plan.zero_stage, plan.shard_group) == (4, 2, 2, 3, 4)
    assert reading.warnings == ()
    assert refused(PARALLEL.replace("num_processes: 16", "num_processes: 32")) == (
        "gpus: must be data 4 x tensor 2 x context 2 = 16 (got 32, num_processes)"
    )
    assert refused(PARALLEL.replace("cp_size: 2", "cp_size: 2\n  parallelism_config_sp_size: 2")) == (
        "parallelism_config.parallelism_config_cp_size: and parallelism_config.parallelism_config_sp_size exclude each other"
    )


def test_one_gpu_and_data_parallelism() -> None:
    plan = read("{distributed_type: MULTI_GPU, num_processes: 8, num_machines: 1, mixed_precision: 'no'}").plan
    assert (plan.data, plan.zero_stage, plan.precision) == (8, 0, Precision.FP32)
    # YAML reads an unquoted "no" as false.
    assert read("{distributed_type: no, num_processes: 1, mixed_precision: no}").plan.precision is Precision.FP32


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{num_processes: 8, use_cpu: true}", "use_cpu: must be false: only training on GPUs is predicted (got true)"),
        ("{num_processes: 10, num_machines: 4}", "num_processes: must be a multiple of num_machines 4 (got 10)"),
        ("{num_processes: 0}", "num_processes: must be 1 to 1,000,000,000 (got 0)"),
        ("{distributed_type: TPU}", "distributed_type: must be one of NO, MULTI_GPU, FSDP, DEEPSPEED, MEGATRON_LM, TP"),
        ("{mixed_precision: bf8}", "mixed_precision: must be one of no, fp16, bf16, fp8 (got 'bf8')"),
        (
            "{distributed_type: FSDP, num_processes: 8, fsdp_config: {fsdp_sharding_strategy: FULL}}",
            "fsdp_config.fsdp_sharding_strategy: must be one of FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD",
        ),
        (
            "{distributed_type: FSDP, num_processes: 8, fsdp_config: [1]}",
            "fsdp_config: must be a mapping of keys to values",
        ),
    ],
)
def test_a_fault_names_key_value_and_limit(text: str, message: str) -> None:
    assert refused(text).startswith(message)


def test_a_mistyped_key_is_named() -> None:
    assert read(FSDP.replace("fsdp_sharding_strategy", "fsdp_sharding_strategie")).warnings == (
        "fsdp_config.fsdp_sharding_strategie is not understood; did you mean 'sharding_strategy'?",
    )


def test_sections_that_have_no_effect_are_named() -> None:
    assert read("{distributed_type: MULTI_GPU, num_processes: 8, fsdp_config: {fsdp_version: 2}}").warnings == (
        "fsdp_config has no effect with distributed_type MULTI_GPU",
    )
