"""Plans from the file of ``accelerate config`` (``default_config.yaml``): DDP, FSDP, DeepSpeed, Megatron-LM, parallelism."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from policies.model.plan import Precision, Recompute
from service.plans.deepspeed import take_deepspeed
from service.plans.files import load_json, named_file
from service.plans.fsdp import take_fsdp, wide_weights
from service.plans.reading import Draft, Given, Model, Reading
from service.plans.values import ReadError, Suggestions, Values

_PRECISIONS = {"no": Precision.FP32, "fp16": Precision.FP16, "bf16": Precision.BF16, "fp8": Precision.FP8}
_KINDS = ("NO", "MULTI_GPU", "FSDP", "DEEPSPEED", "MEGATRON_LM", "TP")
_SECTIONS = (
    "fsdp_config",
    "deepspeed_config",
    "megatron_lm_config",
    "parallelism_config",
    "fp8_config",
    "dynamo_config",
)


def read_accelerate(
    content: Mapping[str, Any], given: Given, model: Model | None = None, folder: Path | None = None
) -> Reading:
    """The plan of a file. ``folder``: where a relative ``deepspeed_config_file`` lies; None: it is not opened.

    Raises :class:`ReadError`.
    """
    draft = Draft(given, model)
    take_accelerate(Values(content), draft, folder)
    return draft.finish()


def take_accelerate(values: Values, draft: Draft, folder: Path | None) -> None:
    """Take what the file says. What it leaves to the program stays as the draft has it."""
    kind = values.choice("distributed_type", {word: word for word in _KINDS} | {"no": "NO"}) or "NO"
    if values.flag("use_cpu"):
        raise ReadError("use_cpu", "must be false: only training on GPUs is predicted (got true)")
    draft.set("precision", Precision.FP32, "default of accelerate")
    draft.set("precision", values.choice("mixed_precision", _PRECISIONS), "mixed_precision")
    draft.set("gpus", values.count("num_processes"), "num_processes")
    _nodes(values, draft)
    wide_weights(draft)
    if kind == "FSDP":
        take_fsdp(values.section("fsdp_config"), draft)
    elif kind == "DEEPSPEED":
        _deepspeed(values.section("deepspeed_config"), draft, folder)
    elif kind == "MEGATRON_LM":
        _megatron(values.section("megatron_lm_config"), draft)
    _parallelism(values.section("parallelism_config"), draft)
    suggestions = Suggestions(_SECTIONS)
    for key in values.unread():
        if key.endswith("_config") and key not in _SECTIONS:
            draft.warn(f"{key} is not understood{suggestions.near(key)}")
    for key, wanted in (
        ("fsdp_config", "FSDP"),
        ("deepspeed_config", "DEEPSPEED"),
        ("megatron_lm_config", "MEGATRON_LM"),
    ):
        if values.section(key).content and kind != wanted:
            draft.warn(f"{key} has no effect with distributed_type {kind}")


def _nodes(values: Values, draft: Draft) -> None:
    nodes, gpus = values.count("num_machines"), draft.get("gpus")
    if nodes is None:
        return
    if gpus is not None and gpus % nodes:
        raise ReadError("num_processes", f"must be a multiple of num_machines {nodes} (got {gpus})")
    if draft.given.gpus is None and draft.given.nodes is None:
        draft.set("nodes", nodes, "num_machines")
    if gpus is not None and draft.given.nodes is None:
        draft.set("gpus_per_node", gpus // nodes, f"num_processes {gpus} / num_machines {nodes}")


def _deepspeed(section: Values, draft: Draft, folder: Path | None) -> None:
    file = section.text("deepspeed_config_file")
    if file is not None:
        for key in ("zero_stage", "gradient_accumulation_steps"):
            if key in section:
                draft.warn(f"{section.label(key)} has no effect beside {section.label('deepspeed_config_file')}")
        take_deepspeed(Values(load_json(named_file(folder, file))), draft)
        return
    stage, steps = "zero_stage", "gradient_accumulation_steps"
    draft.set("zero_stage", section.count(stage, least=0, most=3) if stage in section else 2, section.label(stage))
    if not section.is_auto(steps):
        draft.set("accumulation", section.count(steps), section.label(steps))
    for key in ("offload_optimizer_device", "offload_param_device"):
        device = section.text(key)
        if device not in (None, "none"):
            draft.warn(f"{section.label(key)} {device}: what lies there is counted as GPU memory")


def _megatron(section: Values, draft: Draft) -> None:
    for field, key in (("tensor", "tp_degree"), ("pipeline", "pp_degree"), ("accumulation", "num_micro_batches")):
        key = f"megatron_lm_{key}"
        draft.set(field, section.count(key), section.label(key))
    key = "megatron_lm_recompute_activations"
    if section.flag(key):
        draft.set("recompute", Recompute.SELECTIVE, section.label(key))
    key = "megatron_lm_use_distributed_optimizer"
    if section.flag(key):
        draft.set("zero_stage", 1, section.label(key))
    draft.set("fp32_gradients", draft.get("precision") is not Precision.FP16, f"default with {draft.get('precision')}")
    key = "megatron_lm_sequence_parallelism"
    if section.flag(key) and draft.get("tensor", 1) > 1:
        draft.set("sequence_parallel", True, section.label(key))


def _parallelism(section: Values, draft: Draft) -> None:
    """Degrees of accelerate's ParallelismConfig. Shards lie over the shard and context degrees together."""
    if not section.content:
        return
    prefix = "parallelism_config_"
    sizes = {}
    for name in ("dp_replicate_size", "dp_shard_size", "tp_size", "cp_size", "sp_size"):
        key = name if name in section else prefix + name
        sizes[name] = (section.count(key) or 1, section.label(key))
    suggestions = Suggestions(prefix + name for name in sizes)
    for key in section.unread():
        if key.endswith("_size"):
            draft.warn(f"{section.label(key)} is not understood{suggestions.near(key)}")
    (replicas, _), (shards, shard_key) = sizes["dp_replicate_size"], sizes["dp_shard_size"]
    context = sizes["cp_size"][0] * sizes["sp_size"][0]
    if sizes["cp_size"][0] > 1 and sizes["sp_size"][0] > 1:
        raise ReadError(sizes["cp_size"][1], f"and {sizes['sp_size'][1]} exclude each other")
    if sizes["tp_size"][0] > 1:
        draft.set("tensor", *sizes["tp_size"])
    if context > 1:
        draft.set("context", context, sizes["cp_size" if sizes["cp_size"][0] > 1 else "sp_size"][1])
    if replicas * shards > 1:
        draft.set("data", replicas * shards, f"{sizes['dp_replicate_size'][1]} {replicas} x {shard_key} {shards}")
    if replicas > 1:
        draft.set("shard_group", shards * context, f"{shard_key} {shards} x context {context}")
    if shards * context == 1:
        draft.set("zero_stage", 0, f"{shard_key} 1")
