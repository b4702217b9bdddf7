"""Plans from the arguments of Megatron-LM and the overrides of Megatron-Bridge.

Names, defaults and sums are those of ``megatron/training/arguments.py``. A launcher before the script (torchrun) says the GPUs.
"""

import ast
import re

from policies.model.plan import Precision
from policies.model.shape import Attention, Experts, LatentAttention, ModelShape, TransformerShape
from service.plans.arguments import Arguments, arguments
from service.plans.launcher import machines
from service.plans.optimizers import name_other
from service.plans.reading import INTERLEAVED, RECOMPUTES, Draft, Given, Model, Reading
from service.plans.values import LAYERS_MAX, ReadError

_DEGREES = {
    "tensor": ("tensor-model-parallel-size",),
    "pipeline": ("pipeline-model-parallel-size",),
    "context": ("context-parallel-size",),
    "expert": ("expert-model-parallel-size",),
    "expert_tensor": ("expert-tensor-parallel-size",),
    "micro_batch": ("micro-batch-size",),
    "global_batch": ("global-batch-size",),
    "sequence": ("seq-length", "encoder-seq-length", "sequence-length"),
}
_BACKENDS = ("flash", "fused", "unfused", "local", "auto")
_SHARDING = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
_RECIPES = {
    "bf16_mixed": Precision.BF16,
    "fp16_mixed": Precision.FP16,
    "bf16_with_fp8_delayed_scaling_mixed": Precision.FP8,
    "bf16_with_fp8_current_scaling_mixed": Precision.FP8,
    "bf16_with_fp8_subchannel_scaling_mixed": Precision.FP8,
    "bf16_with_mxfp8_mixed": Precision.FP8,
    "bf16_with_nvfp4_mixed": Precision.FP4,
}
"""Names of Megatron-Bridge for ``mixed_precision``."""

_NOT_COUNTED = {
    "rampup-batch-size": "the batch grows during training; the plan has the last one",
    "use-precision-aware-optimizer": "gradients and optimizer states are counted in their usual formats",
    "optimizer-cpu-offload": "optimizer states on the CPU are counted as GPU memory",
    "cpu-offloading-num-layers": "activations on the CPU are counted as GPU memory",
    "decoder-first-pipeline-num-layers": "stages are counted with equally many layers",
    "decoder-last-pipeline-num-layers": "stages are counted with equally many layers",
    "recompute-modules": "only core_attn is counted as computed again",
    "mtp-num-layers": "layers of multi-token prediction are not counted",
    "num-layers-at-end-in-bf16": "all layers are counted in FP8",
    "moe-expert-capacity-factor": "no token is counted as dropped",
    "deepspeed-config": "what the file says is not in the plan",
}
"""Flags that change the training but not the plan, with what the plan says instead (nothing: without effect)."""

GPT2_WORDS = 50_257


def read_megatron(text: str, given: Given, model: Model | None = None) -> Reading:
    """The plan of a command line. ``model`` replaces the model of the flags. Raises :class:`ReadError`."""
    flags = arguments(text)
    draft = Draft(given, model)
    machines(flags, draft)
    for field, names in _DEGREES.items():
        for name in names:
            draft.set(field, flags.count(name), flags.label(name))
    if draft.shape is None:
        draft.shape = megatron_shape(flags, draft.get("tensor", 1))
    else:
        _compare(flags, draft, draft.shape)
    _precision(flags, draft)
    _kept(flags, draft)
    _recompute(flags, draft)
    _sharding(flags, draft)
    _stages(flags, draft)
    if not isinstance(draft.shape, TransformerShape) or draft.shape.experts is None:
        draft.drop("expert_tensor")
    elif "expert-tensor-parallel-size" not in flags and draft.get("tensor", 1) > 1:
        draft.set("expert_tensor", draft.get("tensor"), "default: the tensor degree")
    if flags.flag("sequence-parallel") and draft.get("tensor", 1) > 1:
        draft.set("sequence_parallel", True, flags.label("sequence-parallel"))
    if any("full_iteration" in word for word in flags.every("cuda-graph-scope")):
        draft.set("graphed", True, flags.label("cuda-graph-scope"))
    context, sequence = draft.get("context", 1), draft.get("sequence")
    if context > 1 and sequence is not None and sequence % (2 * context):
        raise ReadError(draft.origin("sequence"), f"must be a multiple of 2 x context {context} (got {sequence})")
    _warn(flags, draft)
    return draft.finish()


def _precision(flags: Arguments, draft: Draft) -> None:
    if flags.flag("bf16") and flags.flag("fp16"):
        raise ReadError("--bf16", "and --fp16 exclude each other")
    draft.set("precision", Precision.FP32, "default of Megatron-LM")
    for name, precision in (("fp16", Precision.FP16), ("bf16", Precision.BF16)):
        if flags.flag(name):
            draft.set("precision", precision, flags.label(name))
    draft.set("precision", flags.choice("mixed-precision", _RECIPES), flags.label("mixed-precision"))
    formats = {"fp8-format": ("e4m3", "hybrid"), "fp8": ("e4m3", "hybrid"), "fp4-format": ("e2m1",), "fp4": ("e2m1",)}
    for name, words in formats.items():
        precision = Precision.FP8 if name.startswith("fp8") else Precision.FP4
        draft.set("precision", flags.choice(name, dict.fromkeys(words, precision)), flags.label(name))


def _kept(flags: Arguments, draft: Draft) -> None:
    """What the memory holds beside: the gradients' format, scores of attention, masks of dropout."""
    half, own = "grad-reduce-in-bf16", "accumulate-allreduce-grads-in-fp32"
    if flags.flag(half):
        draft.set("fp32_gradients", False, flags.label(half))
    elif flags.flag(own):
        draft.set("fp32_gradients", True, flags.label(own))
    else:
        fp16 = draft.get("precision") is Precision.FP16
        draft.set("fp32_gradients", not fp16, f"default with {draft.get('precision')}")
    backend = flags.choice("attention-backend", {word: word for word in _BACKENDS}) or "auto"
    plain = backend in ("unfused", "local") or flags.text("transformer-impl") == "local"
    if plain and not flags.flag("use-flash-attn"):
        name = "attention-backend" if backend in ("unfused", "local") else "transformer-impl"
        draft.set("flash_attention", False, f"{flags.label(name)} {flags.raw(name)}")
    names = [name for name in ("hidden-dropout", "attention-dropout") if _number(flags, name) != 0.0]
    if names:
        shown = flags.label(names[0]) if names[0] in flags else f"default of --{names[0]}"
        draft.set("dropout", True, shown)
    else:
        draft.set("dropout", False, flags.label("hidden-dropout"))


def _number(flags: Arguments, name: str) -> float:
    """A share; Megatron-LM drops a tenth where it is not said."""
    try:
        found = float(flags.text(name) or 0.1)
    except ValueError:
        found = -1.0
    if not 0.0 <= found <= 1.0:
        raise flags.fault(name, "must be a number from 0 to 1")
    return found


def _recompute(flags: Arguments, draft: Draft) -> None:
    if flags.flag("recompute-activations"):
        draft.set("recompute", RECOMPUTES["selective"], flags.label("recompute-activations"))
    draft.set("recompute", flags.choice("recompute-granularity", RECOMPUTES), flags.label("recompute-granularity"))
    if flags.text("recompute-method") == "block":
        draft.warn(f"{flags.label('recompute-method')} block: all layers are counted as computed again")


def _sharding(flags: Arguments, draft: Draft) -> None:
    if flags.flag("use-distributed-optimizer"):
        draft.set("zero_stage", 1, flags.label("use-distributed-optimizer"))
    if flags.flag("use-megatron-fsdp") or flags.flag("use-custom-fsdp"):
        name = "data-parallel-sharding-strategy"
        draft.set("zero_stage", flags.choice(name, _SHARDING), flags.label(name))
    if flags.flag("use-torch-fsdp2"):
        again = "torch-fsdp2-no-reshard-after-forward"
        stage = (2, again) if flags.flag(again) else (3, "use-torch-fsdp2")
        draft.set("zero_stage", stage[0], flags.label(stage[1]))
    name = "num-distributed-optimizer-instances"
    draft.set("shard_groups", flags.count(name), flags.label(name))


def _stages(flags: Arguments, draft: Draft) -> None:
    """Virtual stages, from any of the flags that say them."""
    found: list[tuple[str, int]] = []
    for name in ("num-virtual-stages-per-pipeline-rank", "virtual-pipeline-model-parallel-size"):
        if (virtual := flags.count(name)) is not None:
            found.append((name, virtual))
    pipeline = draft.get("pipeline", 1)
    layout = "pipeline-model-parallel-layout"
    if layout in flags:
        stages = _stages_of_layout(flags.text(layout) or "", flags.label(layout))
        if stages % pipeline:
            raise ReadError(flags.label(layout), f"has {stages} stages, not a multiple of pipeline {pipeline}")
        found.append((layout, stages // pipeline))
    name = "num-layers-per-virtual-pipeline-stage"
    if (each := flags.count(name)) is not None:
        if draft.shape is None:
            raise ReadError(flags.label(name), "needs the number of layers; add --num-layers or a model")
        layers = draft.shape.layers
        layers += flags.flag("account-for-embedding-in-pipeline-split") + flags.flag(
            "account-for-loss-in-pipeline-split"
        )
        if layers % (pipeline * each):
            raise ReadError(
                flags.label(name), f"{each} x pipeline {pipeline} = {pipeline * each} must divide the {layers} layers"
            )
        found.append((name, layers // (pipeline * each)))
    if len(found) > 1:
        raise ReadError(flags.label(found[0][0]), f"and {flags.label(found[1][0])} exclude each other")
    if found and found[0][1] > 1:
        draft.set("virtual_stages", found[0][1], flags.label(found[0][0]))
        draft.set("schedule", INTERLEAVED, flags.label(found[0][0]))


_LAYOUT_LENGTH_MAX = 4096
_REPEATED = re.compile(r"\(([^()]*)\)\*(\d{1,4})")


def _stages_of_layout(layout: str, label: str) -> int:
    """Stages of ``E|(t|)*3,m|m||L``: they are separated by bars, and a group is repeated."""
    while found := _REPEATED.search(layout):
        if len(layout) + len(found[1]) * int(found[2]) > _LAYOUT_LENGTH_MAX:
            raise ReadError(label, f"must have at most {_LAYOUT_LENGTH_MAX:,} characters when written out")
        layout = layout[: found.start()] + found[1] * int(found[2]) + layout[found.end() :]
    return layout.count("|") + 1


def _compare(flags: Arguments, draft: Draft, shape: ModelShape) -> None:
    """A model beside the flags replaces theirs; where they differ, that is said."""
    for name, value in (("num-layers", shape.layers), ("hidden-size", shape.hidden)):
        said = flags.count(name)
        if said is not None and said != value:
            draft.warn(f"{flags.label(name)} {said}: the model {shape.name} has {value}, which is used")


def megatron_shape(flags: Arguments, tensor: int = 1) -> TransformerShape | None:
    """The model of the flags; None where they have no layers. The vocabulary is padded as Megatron-LM pads it."""
    for name in ("decoder-num-layers", "hybrid-override-pattern", "hybrid-layer-pattern"):
        if name in flags:
            raise ReadError(
                flags.label(name), "is not a model of equal decoder layers, which the flags can describe; add a model"
            )
    layers = flags.count("num-layers", most=LAYERS_MAX) or flags.count("encoder-num-layers", most=LAYERS_MAX)
    if layers is None:
        return None
    hidden, heads = flags.needed("hidden-size"), flags.needed("num-attention-heads")
    gated = any(flags.flag(name) for name in ("swiglu", "quick-geglu", "gated-linear-unit"))
    # Megatron-LM makes the units fewer for this gate alone.
    usual = hidden * 8 // 3 // 64 * 64 if flags.flag("swiglu") else 4 * hidden
    ffn = flags.count("ffn-hidden-size") or usual
    dim = flags.count("kv-channels")
    if dim is None and hidden % heads:
        raise ReadError(flags.label("hidden-size"), f"must be a multiple of num-attention-heads {heads} (got {hidden})")
    kv_heads = _groups(flags, heads)
    experts, dense = _megatron_experts(flags, layers, ffn)
    window, windowed = _megatron_window(flags, layers)
    bert = any("bert" in word and word.endswith(".py") for word in flags.positional) or "bert-no-binary-head" in flags
    untied = flags.flag("untie-embeddings-and-output-weights")
    if "share-embeddings-and-output-weights" in flags:
        untied = not flags.flag("share-embeddings-and-output-weights")
    return TransformerShape(
        name="the model of the arguments",
        layers=layers,
        hidden=hidden,
        ffn=ffn,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=dim or hidden // heads,
        vocabulary=_vocabulary(flags, tensor),
        gated=gated,
        attention=Attention.FULL if bert else Attention.CAUSAL,
        latent=_megatron_latent(flags),
        window=window,
        windowed_layers=windowed,
        experts=experts,
        dense_layers=dense,
        tied=not untied,
    )


def _groups(flags: Arguments, heads: int) -> int:
    """Heads of keys and values. Megatron-LM heeds their number only with its switch, which Megatron-Bridge does not have."""
    name = "num-query-groups"
    groups = flags.count(name)
    bridge = groups is not None and not flags.label(name).startswith("--")
    if not flags.flag("group-query-attention") and not bridge:
        return heads
    if heads % (groups or 1):
        raise ReadError(flags.label(name), f"must divide num-attention-heads {heads} (got {groups})")
    return groups or 1


def _vocabulary(flags: Arguments, tensor: int) -> int:
    if (padded := flags.count("padded-vocab-size")) is not None:
        return padded
    size = flags.count("vocab-size")
    if size is None and flags.text("tokenizer-type") == "GPT2BPETokenizer":
        size = GPT2_WORDS
    if size is None:
        raise ReadError(
            flags.label("vocab-size"), "is missing, and the tokenizer does not say it; add --vocab-size or a model"
        )
    multiple = (flags.count("make-vocab-size-divisible-by") or 128) * tensor
    return -(-size // multiple) * multiple


def _megatron_latent(flags: Arguments) -> LatentAttention | None:
    if not flags.flag("multi-latent-attention"):
        return None
    return LatentAttention(
        query_rank=flags.count("q-lora-rank") or 0,
        key_value_rank=flags.count("kv-lora-rank") or 32,
        nope_dim=flags.count("qk-head-dim") or 128,
        rope_dim=flags.count("qk-pos-emb-head-dim") or 64,
        value_dim=flags.count("v-head-dim") or 128,
    )


def _megatron_experts(flags: Arguments, layers: int, ffn: int) -> tuple[Experts | None, int]:
    """The experts, and the layers that have none."""
    name = "num-experts" if "num-experts" in flags else "num-moe-experts"
    count = flags.count(name, least=0)
    if not count:
        return None, 0
    top_k = flags.count("moe-router-topk") or 2
    if top_k > count:
        raise ReadError(flags.label("moe-router-topk"), f"must be at most the {count} experts (got {top_k})")
    units = flags.count("moe-ffn-hidden-size") or ffn
    shared = flags.count("moe-shared-expert-intermediate-size", least=0) or 0
    pattern = _pattern(flags, "moe-layer-freq", layers)
    return Experts(count=count, top_k=top_k, ffn=units, shared_ffn=shared), pattern.count(0)


def _megatron_window(flags: Arguments, layers: int) -> tuple[int, int]:
    """Tokens that a layer looks back, and the layers that do."""
    if "window-size" not in flags:
        return 0, 0
    text = "".join(flags.every("window-size"))
    found = re.fullmatch(r"[(\[]?(\d{1,9}),-?\d{1,9}[)\]]?", text)
    if found is None:
        raise flags.fault("window-size", "must be two numbers, such as 4096,0")
    skip = _pattern(flags, "window-attn-skip-freq", layers, full_at_end=True)
    return int(found[1]), sum(skip)


_PATTERN_LENGTH_MAX = 10_000


def _pattern(flags: Arguments, name: str, layers: int, full_at_end: bool = False) -> list[int]:
    """A frequency over the layers as 1 and 0: a number N, or a list such as ``([0]*3+[1]*58)``.

    N is one 1 in N layers (experts), or with ``full_at_end`` all but one in N (attention with a window).
    """
    text = "".join(flags.every(name))
    if not text:
        return [1] * layers
    if text.isascii() and text.isdigit():
        every = flags.count(name) or 1
        if full_at_end:
            return [int((layer + 1) % every != 0) for layer in range(layers)]
        return [int(layer % every == 0) for layer in range(layers)]
    try:
        found = _list_of(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise flags.fault(name, "must be a number, or a list of 0 and 1 such as ([0]*3+[1]*58)") from None
    if len(found) != layers:
        raise ReadError(flags.label(name), f"must have {layers} entries, one a layer (got {len(found)})")
    return found


def _list_of(node: ast.expr) -> list[int]:
    """The list of an expression of lists of 0 and 1, sums and repetitions. Raises ValueError for any other."""
    if isinstance(node, ast.List):
        values = [each.value for each in node.elts if isinstance(each, ast.Constant)]
        found = [value for value in values if isinstance(value, int) and value in (0, 1)]
        if len(found) == len(node.elts):
            return found
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _list_of(node.left), _list_of(node.right)
        if len(left) + len(right) <= _PATTERN_LENGTH_MAX:
            return left + right
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and isinstance(node.right, ast.Constant):
        times, part = node.right.value, _list_of(node.left)
        if isinstance(times, int) and 0 <= times * len(part) <= _PATTERN_LENGTH_MAX:
            return part * times
    raise ValueError


def _warn(flags: Arguments, draft: Draft) -> None:
    """Name the flags that change the training and are not in the plan."""
    for name, effect in _NOT_COUNTED.items():
        if name in flags and flags.raw(name) not in ("0", "false", "False"):
            draft.warn(f"{flags.label(name)}: {effect}")
    name_other(draft, flags.label("optimizer"), flags.raw("optimizer"))
    for text in flags.not_understood(name for names in _DEGREES.values() for name in names):
        draft.warn(text)
