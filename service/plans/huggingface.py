"""The shape of a model from the ``config.json`` of Hugging Face transformers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from policies.model.shape import Attention, Experts, LatentAttention, TransformerShape
from policies.suggestion import did_you_mean
from service.plans.reading import Model
from service.plans.values import LAYERS_MAX, ReadError, Values

_NAME_LENGTH_MAX = 80
_DROPOUTS = (
    "attention_dropout",
    "hidden_dropout",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "resid_pdrop",
    "attn_pdrop",
)


@dataclass(frozen=True, slots=True)
class _Found:
    """A shape, the tokens of a sample where the model fixes them (images), and what the shape leaves out."""

    shape: TransformerShape
    sequence: int | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Family:
    """What the config.json of a model type leaves unsaid: the defaults of its class in transformers."""

    gated: bool = True
    tied: bool = False
    head_dim: int | None = None
    windowed: Callable[[Values, int], int] | None = None
    experts: Callable[[Values], Experts] | None = None
    dense: Callable[[Values, int], int] | None = None


def huggingface_model(content: Mapping[str, Any], name: str = "") -> Model:
    """Raises :class:`ReadError` for a type that is not known, and for a value that is missing or impossible.

    ``name`` names the shape where the file does not.
    """
    values = Values(content)
    kind = values.text("model_type")
    if kind is None:
        raise ReadError("model_type", f"is missing; the known ones are {', '.join(sorted(MODEL_TYPES))}")
    if kind not in MODEL_TYPES:
        known = ", ".join(sorted(MODEL_TYPES))
        raise ReadError(
            "model_type", f"{kind!r:.100} is not known{did_you_mean(kind, MODEL_TYPES)}; the known ones are {known}"
        )
    said = values.text("_name_or_path") or ""
    shown = said.rstrip("/").rpartition("/")[2] or name or kind
    if not shown.isprintable() or len(shown) > _NAME_LENGTH_MAX:
        shown = kind
    read = MODEL_TYPES[kind](values)
    _check(read.shape, values)
    dropped = [values.raw(key) for key in _DROPOUTS]
    dropout = any(isinstance(share, int | float) and share > 0 for share in dropped)
    return Model(replace(read.shape, name=shown), read.sequence, dropout, read.warnings)


def _check(shape: TransformerShape, values: Values) -> None:
    limits = [
        ("num_hidden_layers", shape.layers <= LAYERS_MAX, f"must be at most {LAYERS_MAX:,} (got {shape.layers:,})"),
        (
            "num_key_value_heads",
            shape.heads % shape.kv_heads == 0,
            f"must divide num_attention_heads {shape.heads} (got {shape.kv_heads})",
        ),
    ]
    if shape.experts is not None:
        count, top_k = shape.experts.count, shape.experts.top_k
        limits.append(("num_experts_per_tok", top_k <= count, f"must be at most the {count} experts (got {top_k})"))
    for key, allowed, limit in limits:
        if not allowed:
            raise ReadError(values.label(key), limit)


def _decoder(family: _Family) -> Callable[[Values], _Found]:
    """A reader of llama's keys, which nearly all decoders have."""

    def read(values: Values) -> _Found:
        layers, heads = values.needed("num_hidden_layers"), values.needed("num_attention_heads")
        hidden = values.needed("hidden_size")
        windowed = family.windowed(values, layers) if family.windowed is not None else 0
        experts = family.experts(values) if family.experts is not None else None
        dense = family.dense(values, layers) if family.dense is not None else 0
        latent = _latent(values) if "kv_lora_rank" in values else None
        shape = TransformerShape(
            name="",
            layers=layers,
            hidden=hidden,
            ffn=values.needed("intermediate_size"),
            heads=heads,
            kv_heads=values.count("num_key_value_heads") or heads,
            head_dim=latent.value_dim if latent is not None else _head_dim(values, family, hidden, heads),
            vocabulary=values.needed("vocab_size"),
            gated=family.gated,
            latent=latent,
            window=(values.count("sliding_window") or 0) if windowed else 0,
            windowed_layers=windowed,
            experts=experts,
            dense_layers=dense,
            tied=values.flag("tie_word_embeddings") if "tie_word_embeddings" in values else family.tied,
        )
        return _Found(shape, warnings=_left_out(values))

    return read


def _head_dim(values: Values, family: _Family, hidden: int, heads: int) -> int:
    found = values.count("head_dim") or family.head_dim
    if found is None and hidden % heads:
        raise ReadError(
            "hidden_size", f"must be a multiple of num_attention_heads {heads} without head_dim (got {hidden})"
        )
    return found or hidden // heads


def _left_out(values: Values) -> tuple[str, ...]:
    extra = values.count("num_nextn_predict_layers", least=0) or 0
    if not extra:
        return ()
    return (f"{values.label('num_nextn_predict_layers')} {extra}: layers of multi-token prediction are not counted",)


def _latent(values: Values) -> LatentAttention:
    return LatentAttention(
        query_rank=values.count("q_lora_rank") or 0,
        key_value_rank=values.needed("kv_lora_rank"),
        nope_dim=values.needed("qk_nope_head_dim"),
        rope_dim=values.needed("qk_rope_head_dim"),
        value_dim=values.needed("v_head_dim"),
    )


def _listed(values: Values, layers: int) -> int | None:
    """Layers of sliding-window attention in ``layer_types``; None without that list."""
    types = values.words("layer_types")
    if not types:
        return None
    if len(types) != layers:
        raise ReadError(values.label("layer_types"), f"must have num_hidden_layers {layers} entries (got {len(types)})")
    unknown = [each for each in types if each not in ("full_attention", "sliding_attention")]
    if unknown:
        raise values.fault("layer_types", "entries must be full_attention or sliding_attention")
    return types.count("sliding_attention")


def _all_windowed(values: Values, layers: int) -> int:
    listed = _listed(values, layers)
    return (layers if "sliding_window" in values else 0) if listed is None else listed


def _upper_windowed(values: Values, layers: int) -> int:
    """Of qwen: where the switch is on, the layers from ``max_window_layers`` on."""
    if not values.flag("use_sliding_window"):
        return 0
    listed = _listed(values, layers)
    return max(layers - (values.count("max_window_layers", least=0) or 0), 0) if listed is None else listed


def _alternating(every: int) -> Callable[[Values, int], int]:
    """All but each ``every``-th layer."""

    def windowed(values: Values, layers: int) -> int:
        listed = _listed(values, layers)
        if listed is not None:
            return listed
        period = values.count("sliding_window_pattern") or every
        return layers - layers // period if "sliding_window" in values else 0

    return windowed


def _experts(
    count: str, ffn: str, shared: str = "", shared_of: str = "", newer_count: str = ""
) -> Callable[[Values], Experts]:
    """Experts by their keys. ``shared``: units of the shared expert; ``shared_of``: how many shared experts of ``ffn`` units.

    ``newer_count``: what newer releases of transformers write for ``count``.
    """

    def experts(values: Values) -> Experts:
        units = values.needed(ffn)
        common = values.count(shared, least=0) if shared else None
        if shared_of:
            common = units * (values.count(shared_of, least=0) or 0)
        top_k = values.needed("num_experts_per_tok")
        held = values.needed(newer_count if newer_count in values else count)
        return Experts(count=held, top_k=top_k, ffn=units, shared_ffn=common or 0)

    return experts


def _sparse_step(values: Values, layers: int) -> int:
    """Of qwen: dense layers are those listed, and those that the step leaves out."""
    step = values.count("decoder_sparse_step") or 1
    listed = {each for each in values.words("mlp_only_layers") if isinstance(each, int)}
    return sum(1 for layer in range(min(layers, LAYERS_MAX)) if layer in listed or (layer + 1) % step)


def _first_dense(values: Values, layers: int) -> int:
    """Of DeepSeek: the first ones, and those that the frequency leaves out."""
    first = values.count("first_k_dense_replace", least=0) or 0
    period = values.count("moe_layer_freq") or 1
    return sum(1 for layer in range(min(layers, LAYERS_MAX)) if layer < first or layer % period)


def _gpt2(values: Values) -> _Found:
    hidden, heads = values.needed("n_embd"), values.needed("n_head")
    if hidden % heads:
        raise ReadError("n_embd", f"must be a multiple of n_head {heads} (got {hidden})")
    shape = TransformerShape(
        name="",
        layers=values.needed("n_layer"),
        hidden=hidden,
        ffn=values.count("n_inner") or 4 * hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        vocabulary=values.needed("vocab_size"),
        gated=False,
        tied=values.flag("tie_word_embeddings") if "tie_word_embeddings" in values else True,
    )
    return _Found(shape)


def _bert(values: Values) -> _Found:
    """An encoder: each token attends to all, and the head shares the embedding's matrix."""
    read = _decoder(_Family(gated=False, tied=True))(values)
    return replace(read, shape=replace(read.shape, attention=Attention.FULL))


def _vit(values: Values) -> _Found:
    """An encoder of patches. The product that embeds a patch stands where a language model has its vocabulary."""
    image, patch = values.needed("image_size"), values.needed("patch_size")
    channels = values.count("num_channels") or 3
    if image % patch:
        raise ReadError("image_size", f"must be a multiple of patch_size {patch} (got {image})")
    hidden, heads = values.needed("hidden_size"), values.needed("num_attention_heads")
    if hidden % heads:
        raise ReadError("hidden_size", f"must be a multiple of num_attention_heads {heads} (got {hidden})")
    shape = TransformerShape(
        name="",
        layers=values.needed("num_hidden_layers"),
        hidden=hidden,
        ffn=values.needed("intermediate_size"),
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        vocabulary=channels * patch * patch,
        gated=False,
        attention=Attention.FULL,
        tied=True,
    )
    return _Found(shape, sequence=(image // patch) ** 2 + 1)


_GEMMA3_TEXT = {
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "sliding_window": 4096,
}
"""Defaults of Gemma3TextConfig, which the file of a model with images leaves out."""


def _gemma3(values: Values) -> _Found:
    """The text model of a model of text and images."""
    text = values.section("text_config").content
    read = _GEMMA3_READER(Values({**_GEMMA3_TEXT, **text}, "text_config."))
    return replace(read, warnings=(*read.warnings, "vision_config: the encoder of images is not counted"))


_GEMMA3_READER = _decoder(_Family(tied=True, head_dim=256, windowed=_alternating(6)))
_DEEPSEEK = _decoder(
    _Family(
        experts=_experts("n_routed_experts", "moe_intermediate_size", shared_of="n_shared_experts"), dense=_first_dense
    )
)
_QWEN_SHARED = _experts("num_experts", "moe_intermediate_size", shared="shared_expert_intermediate_size")

MODEL_TYPES: Mapping[str, Callable[[Values], _Found]] = {
    "bert": _bert,
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "gemma": _decoder(_Family(tied=True, head_dim=256)),
    "gemma2": _decoder(_Family(tied=True, head_dim=256, windowed=_alternating(2))),
    "gemma3": _gemma3,
    "gemma3_text": _GEMMA3_READER,
    "gpt2": _gpt2,
    "gpt_oss": _decoder(
        _Family(head_dim=64, windowed=_alternating(2), experts=_experts("num_local_experts", "intermediate_size"))
    ),
    "kimi_k2": _DEEPSEEK,
    "llama": _decoder(_Family()),
    "mistral": _decoder(_Family(windowed=_all_windowed)),
    "mixtral": _decoder(_Family(windowed=_all_windowed, experts=_experts("num_local_experts", "intermediate_size"))),
    "nemotron": _decoder(_Family(gated=False)),
    "phi3": _decoder(_Family(windowed=_all_windowed)),
    "qwen2": _decoder(_Family(windowed=_upper_windowed)),
    "qwen2_moe": _decoder(_Family(windowed=_upper_windowed, experts=_QWEN_SHARED, dense=_sparse_step)),
    "qwen3": _decoder(_Family(head_dim=128, windowed=_upper_windowed)),
    "qwen3_moe": _decoder(
        _Family(
            windowed=_upper_windowed,
            experts=_experts("num_experts", "moe_intermediate_size", newer_count="num_local_experts"),
            dense=_sparse_step,
        )
    ),
    "roberta": _bert,
    "vit": _vit,
}
"""The reader of each ``model_type``."""
