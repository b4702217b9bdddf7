"""Plans from the configuration of DeepSpeed (``ds_config.json``), alone or below Hugging Face Trainer and accelerate."""

import re
from collections.abc import Mapping
from typing import Any

from policies.model.plan import Precision, Recompute
from service.plans.optimizers import name_other
from service.plans.reading import Draft, Given, Model, Reading
from service.plans.values import AUTO, ReadError, Suggestions, Values

BATCH = {
    "global_batch": "train_batch_size",
    "micro_batch": "train_micro_batch_size_per_gpu",
    "accumulation": "gradient_accumulation_steps",
}
_PLANNED = re.compile(r"batch|parallel|accumulation|zero|16|checkpoint|pipeline|offload|shard|partition")
_KNOWN = {*BATCH.values(), "zero_optimization", "bf16", "fp16", "activation_checkpointing", "tensor_parallel"}
_HARMLESS = {
    "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "checkpoint", "load_universal_checkpoint",
    "use_node_local_storage", "bfloat16", "bf16", "data_types", "wall_clock_breakdown", "dataloader_drop_last",
    "checkpoint_tag_validation", "gradient_predivide_factor", "prescale_gradients",
}  # fmt: skip
_QUANTIZED = ("zero_quantized_weights", "zero_quantized_gradients", "zero_quantized_nontrainable_weights")


def read_deepspeed(content: Mapping[str, Any], given: Given, model: Model | None = None) -> Reading:
    """The plan of a configuration by itself. Raises :class:`ReadError`."""
    draft = Draft(given, model)
    take_deepspeed(Values(content), draft)
    return draft.finish()


def take_deepspeed(values: Values, draft: Draft, *, trainer: bool = False) -> None:
    """Take what the configuration says. An ``auto`` keeps what the draft already has from the program around DeepSpeed.

    ``trainer``: that is Hugging Face Trainer, whose models do not call DeepSpeed's functions for recomputation.
    """
    _batch(values, draft)
    _precision(values, draft)
    _zero(values.section("zero_optimization"), draft)
    tensor = values.section("tensor_parallel")
    for key in ("autotp_size", "tp_size"):
        draft.set("tensor", tensor.count(key, least=0) or None, tensor.label(key))
    draft.set("context", values.count("sequence_parallel_size"), values.label("sequence_parallel_size"))
    pipeline = values.section("pipeline")
    if not pipeline.is_auto("stages"):
        draft.set("pipeline", pipeline.count("stages"), pipeline.label("stages"))
    types = values.section("data_types")
    accumulated = types.choice("grad_accum_dtype", {"fp32": True, "fp16": False, "bf16": False})
    if accumulated is not None:
        draft.set("fp32_gradients", accumulated, types.label("grad_accum_dtype"))
    else:
        wide = draft.get("zero_stage", 0) == 0 and draft.get("precision") is not Precision.FP16
        draft.set("fp32_gradients", wide, f"default of DeepSpeed with stage {draft.get('zero_stage', 0)}")
    recompute = values.section("activation_checkpointing")
    if recompute.content and trainer:
        name = values.label("activation_checkpointing")
        draft.warn(f"{name} has no effect on models of transformers; --gradient_checkpointing has")
    elif recompute.content:
        draft.set("recompute", Recompute.FULL, values.label("activation_checkpointing"))
        if recompute.flag("cpu_checkpointing"):
            draft.warn(f"{recompute.label('cpu_checkpointing')}: activations on the CPU are counted as GPU memory")
    optimizer = values.section("optimizer")
    name_other(draft, optimizer.label("type"), optimizer.raw("type"))
    for key in ("sparse_attention", "compression_training", "curriculum_learning", "progressive_layer_drop"):
        if key in values:
            values.raw(key)
            draft.warn(f"{values.label(key)}: the time it saves is not counted")
    suggestions = Suggestions(_KNOWN)
    for key in values.unread():
        if _PLANNED.search(key) and key not in _HARMLESS:
            draft.warn(f"{values.label(key)} is not understood{suggestions.near(key)}")


def _batch(values: Values, draft: Draft) -> None:
    """Sizes of batches. With the global batch alone DeepSpeed takes all of a GPU's samples at once."""
    unsaid = {field for field, key in BATCH.items() if values.is_auto(key)}
    for field, key in BATCH.items():
        if field not in unsaid:
            draft.set(field, values.count(key), values.label(key))
    given = draft.given
    micro = given.micro_batch or draft.get("micro_batch")
    batch = given.global_batch or draft.get("global_batch")
    if micro is None and batch is None and unsaid:
        key = BATCH["micro_batch" if "micro_batch" in unsaid else "global_batch"]
        raise ReadError(
            values.label(key), f'is "{AUTO}", which the program fills in; say it with --micro-batch or --global-batch'
        )
    if micro is None and draft.get("accumulation") is None and given.global_batch is None and not unsaid:
        draft.set("accumulation", 1, f"default of {BATCH['accumulation']}")


def _precision(values: Values, draft: Draft) -> None:
    on = []
    for names, precision in ((("bf16", "bfloat16"), Precision.BF16), (("fp16",), Precision.FP16)):
        for name in names:
            section = values.section(name)
            if section.is_auto("enabled"):
                if draft.get("precision") is None and draft.given.precision is None:
                    raise ReadError(
                        section.label("enabled"), f'is "{AUTO}", which the program fills in; say it with --precision'
                    )
            elif section.flag("enabled"):
                on.append(section.label("enabled"))
                draft.set("precision", precision, on[-1])
    if len(on) > 1:
        raise ReadError(on[0], f"and {on[1]} exclude each other")
    if draft.get("precision") is None:
        draft.set("precision", Precision.FP32, "default of DeepSpeed")


def _zero(zero: Values, draft: Draft) -> None:
    draft.set("zero_stage", zero.count("stage", least=0, most=3), zero.label("stage"))
    for key in ("mics_shard_size", "zero_hpz_partition_size"):
        size = zero.count(key, least=-1)
        if size is not None and size > 1:
            draft.set("shard_group", size, zero.label(key))
            if key == "zero_hpz_partition_size":
                draft.warn(
                    f"{zero.label(key)} {size}: optimizer states are counted as sharded over {size} GPUs, while hpZ shards"
                    " them over all; the memory that is counted is too high"
                )
    for key in ("offload_optimizer", "offload_param"):
        device = zero.section(key).text("device")
        if device not in (None, "none"):
            draft.warn(f"{zero.label(key)}.device {device}: what lies there is counted as GPU memory")
    if zero.flag("cpu_offload"):
        draft.warn(f"{zero.label('cpu_offload')}: optimizer states on the CPU are counted as GPU memory")
    for key in _QUANTIZED:
        if zero.flag(key):
            draft.warn(f"{zero.label(key)}: traffic is counted without this compression")
