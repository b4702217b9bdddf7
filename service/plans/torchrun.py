"""Plans from a command of torchrun, deepspeed or accelerate with the arguments of Hugging Face Trainer."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from policies.model.plan import Precision, Recompute
from service.plans.accelerate import take_accelerate
from service.plans.arguments import Arguments, arguments
from service.plans.deepspeed import take_deepspeed
from service.plans.files import load_json, load_yaml, named_file, parse_json
from service.plans.fsdp import STRATEGIES, strategy, take_fsdp, wide_weights
from service.plans.launcher import machines
from service.plans.optimizers import name_other
from service.plans.reading import Draft, Given, Model, Reading
from service.plans.values import ReadError, Values

_SEQUENCES = (
    "max-seq-length",
    "max-length",
    "block-size",
    "cutoff-len",
    "model-max-length",
    "max-seq-len",
    "seq-length",
)
"""Tokens of a sample, as the training programs in use call them."""

_ADAPTERS = ("use-peft", "use-lora", "finetuning-type", "train-type")
"""Flags that decide whether adapters (LoRA) are trained beside frozen weights."""

_RANKS = ("lora-r", "lora-rank")
"""Ranks of adapters. They say that adapters are trained where no flag decides it."""

_WITHOUT_ADAPTERS = ("full", "none", "no", "false", "0")

_NOT_COUNTED = {
    "load-in-4bit": "weights are counted in the precision of the plan",
    "load-in-8bit": "weights are counted in the precision of the plan",
    "quantization-bit": "weights are counted in the precision of the plan",
    "use-liger-kernel": "logits are counted, which its loss does not keep",
    "activation-offloading": "activations on the CPU are counted as GPU memory",
}
"""Flags that change the training but not the plan, with what the plan says instead."""

_LAUNCHED = {
    "": ("num-processes", "num-machines", "mixed-precision"),
    "fsdp_config": (
        "fsdp-sharding-strategy",
        "fsdp-version",
        "fsdp-reshard-after-forward",
        "fsdp-activation-checkpointing",
        "fsdp-offload-params",
    ),
    "deepspeed_config": ("zero-stage", "deepspeed-config-file", "offload-optimizer-device", "offload-param-device"),
}
"""Flags of ``accelerate launch`` by the section of its file that they replace keys of."""

_FSDP_WORDS = {name.lower(): found for name, found in STRATEGIES.items()}
_MICRO, _STEPS = "per-device-train-batch-size", "gradient-accumulation-steps"
DEFAULT_BATCH = 8
"""``per_device_train_batch_size`` of TrainingArguments."""


def read_torchrun(text: str, given: Given, model: Model | None = None, folder: Path | None = None) -> Reading:
    """The plan of a command. ``folder``: where the files that it names lie; None: none is opened. Raises :class:`ReadError`."""
    flags, draft = arguments(text), Draft(given, model)
    machines(flags, draft)
    default = f"default of {flags.label(_MICRO)}"
    if "deepspeed-config" not in flags:
        draft.set("micro_batch", DEFAULT_BATCH, default)
    for field, name in (("micro_batch", _MICRO), ("accumulation", _STEPS)):
        draft.set(field, flags.count(name), flags.label(name))
    for name in _SEQUENCES:
        draft.set("sequence", flags.count(name), flags.label(name))
    launched = _accelerate(flags, folder)
    if launched is not None:
        take_accelerate(Values(launched), draft, folder)
    _precision(flags, draft)
    if draft.get("fp32_gradients") is None:
        wide_weights(draft)
    # Transformers 5 has the first name, and heeds the older one only where that is not said.
    recompute = "activation-checkpointing" if "activation-checkpointing" in flags else "gradient-checkpointing"
    if flags.flag(recompute):
        draft.set("recompute", Recompute.FULL, flags.label(recompute))
    if flags.text("attn-implementation") == "eager":
        draft.set("flash_attention", False, f"{flags.label('attn-implementation')} eager")
    deepspeed = next((name for name in ("deepspeed", "deepspeed-config") if name in flags), None)
    if "fsdp" in flags and deepspeed is not None:
        raise ReadError(flags.label("fsdp"), f"and {flags.label(deepspeed)} exclude each other")
    if "fsdp" in flags:
        _fsdp(flags, draft, folder)
    elif deepspeed is not None:
        _deepspeed(flags, draft, folder)
    if draft.origin("micro_batch") == default and given.micro_batch is None:
        draft.warn(
            f"{flags.label(_MICRO)} is not said: {DEFAULT_BATCH}, the default of Hugging Face Trainer, is assumed"
        )
    deciding = [name for name in _ADAPTERS if name in flags] or [name for name in _RANKS if name in flags]
    for name in deciding:
        if (flags.text(name) or "").lower() not in _WITHOUT_ADAPTERS:
            draft.set("adapters", True, flags.label(name))
    name_other(draft, flags.label("optim"), flags.raw("optim"))
    # DeepSpeed keeps weights of its own in fp32, whatever the program loads.
    by_deepspeed = deepspeed is not None or (launched or {}).get("distributed_type") == "DEEPSPEED"
    if not by_deepspeed and flags.text("torch-dtype") not in (None, "float32"):
        label = f"{flags.label('torch-dtype')} {flags.text('torch-dtype')}"
        draft.warn(f"{label}: weights, gradients and moments are counted as with weights in fp32")
    for name, effect in _NOT_COUNTED.items():
        if name in flags and (flags.text(name) or "").lower() not in ("false", "no", "none", "0"):
            draft.warn(f"{flags.label(name)}: {effect}")
    for line in flags.not_understood((_MICRO, _STEPS, "fsdp", *_SEQUENCES)):
        draft.warn(line)
    return draft.finish()


def _precision(flags: Arguments, draft: Draft) -> None:
    on = [name for name in ("bf16", "fp16") if flags.flag(name)]
    if len(on) > 1:
        raise ReadError(flags.label("bf16"), f"and {flags.label('fp16')} exclude each other")
    if draft.get("precision") is None:
        draft.set("precision", Precision.FP32, "default of PyTorch")
    for name in (*(("tf32",) if flags.flag("tf32") else ()), *on):
        draft.set("precision", Precision(name), flags.label(name))


def _accelerate(flags: Arguments, folder: Path | None) -> dict[str, Any] | None:
    """The configuration of ``accelerate launch``: its file, and over that its flags. None for another launcher."""
    if "launch" not in flags.positional or not any(word.endswith("accelerate") for word in flags.positional):
        return None
    file = flags.text("config-file")
    content = load_yaml(named_file(folder, file)) if file else {}
    for name, kind in (("use-fsdp", "FSDP"), ("use-deepspeed", "DEEPSPEED"), ("multi-gpu", "MULTI_GPU")):
        if flags.flag(name):
            content["distributed_type"] = kind
    for section, names in _LAUNCHED.items():
        said = {name.replace("-", "_"): flags.raw(name) for name in names if name in flags}
        if section and said:
            before = content.get(section)
            content[section] = {**(before if isinstance(before, dict) else {}), **said}
        else:
            content.update(said)
    return content


def _deepspeed(flags: Arguments, draft: Draft, folder: Path | None) -> None:
    """``--deepspeed FILE`` of Trainer, or ``--deepspeed_config FILE`` of programs that call DeepSpeed themselves.

    The latter have a switch ``--deepspeed``; some of them make the configuration from ``--zero_stage`` and other flags.
    """
    trainer = "deepspeed-config" not in flags
    content = _content(flags, "deepspeed" if trainer else "deepspeed-config", folder)
    stage = "zero-stage"
    if content is not None:
        said = {field: (draft.get(field), draft.origin(field)) for field in ("micro_batch", "accumulation")}
        take_deepspeed(Values(content), draft, trainer=trainer)
        if trainer:
            _contradictions(said, draft)
    elif stage in flags:
        draft.set("zero_stage", flags.count(stage, least=0, most=3), flags.label(stage))
    elif draft.get("zero_stage") is None:
        draft.warn(f"{flags.label('deepspeed')} names no configuration: ZeRO stage 0 is assumed")


def _contradictions(said: Mapping[str, tuple[int | None, str]], draft: Draft) -> None:
    """Name sizes in the configuration of DeepSpeed that differ from those that the flags have ``said`` before."""
    for field, (before, label) in said.items():
        used = draft.get(field)
        if before is not None and used != before and getattr(draft.given, field, None) is None:
            draft.warn(
                f"{draft.origin(field)} {used} is used, but contradicts {before}, {label}: Hugging Face Trainer would not start"
            )


def _fsdp(flags: Arguments, draft: Draft, folder: Path | None) -> None:
    """``--fsdp "full_shard auto_wrap"``, or ``--fsdp true`` as transformers 5 has it, with ``--fsdp_config``."""
    label = flags.label("fsdp")
    words = " ".join(flags.every("fsdp")[:1]).replace(",", " ").lower().split()
    if words and words[0] in ("false", "no", "0"):
        return
    content = _content(flags, "fsdp-config", folder) if "fsdp-config" in flags else None
    said = take_fsdp(Values(content or {}, f"{flags.label('fsdp-config')} "), draft)
    strategies = [word for word in words if word in _FSDP_WORDS]
    if len(strategies) > 1:
        raise ReadError(label, f"has two strategies: {' and '.join(strategies)}")
    for word in words:
        if word in _FSDP_WORDS and not said:
            strategy(draft, _FSDP_WORDS[word], f"{label} {word}")
        elif word == "offload":
            draft.warn(f"{label} offload: what lies on the CPU is counted as GPU memory")
        elif word not in (*_FSDP_WORDS, "auto_wrap", "true", "yes", "1"):
            known = ", ".join((*_FSDP_WORDS, "auto_wrap", "offload", "true"))
            raise ReadError(label, f"must be words of {known} (got {word!r:.40})")


def _content(flags: Arguments, name: str, folder: Path | None) -> dict[str, object] | None:
    """The mapping in a flag's value, which is a file or JSON; None for a flag without one."""
    text = flags.text(name) or ""
    if not text:
        return None
    try:
        return parse_json(text) if text.lstrip().startswith("{") else load_json(named_file(folder, text))
    except ReadError as error:
        raise ReadError(flags.label(name), str(error)) from None
