"""The transformer that stands for a hybrid model of which only the operations and parameters are published."""

from policies.model.shape import CountedShape, Experts, TransformerShape
from policies.training.operations import BACKWARD

HYBRID = "hybrid"
"""``kind`` of models whose layers alternate between state spaces or attention, and experts."""

LAYER_SQUARES = 16.4
"""Parameters that a token uses in a pair of layers (state space or attention, then experts), over hidden^2."""

HIDDEN_PER_LAYER = 100
"""Hidden size over pairs of layers. Both ratios are those of Nemotron 3 Nano (52 layers, hidden 2688, 3.5e9 used parameters)."""

_HEAD, _TOP_K, _SHARED, _EXPERT_SHARE, _COUNT, _CHUNK = 128, 6, 2, 0.69, 128, 256


def stand_in(shape: CountedShape) -> TransformerShape:
    """Hidden size and layers from the operations of a token, experts from the parameters (128 where these are not known).

    Where hidden size and layers are known, the width of the experts follows from the operations. The scan of a state space
    counts as attention over its chunk of 256 tokens.
    """
    used = shape.flops / (2 * (1 + BACKWARD))
    hidden = shape.hidden or max(_HEAD, round((used * HIDDEN_PER_LAYER / LAYER_SQUARES) ** (1 / 3)))
    layers = shape.layers or max(1, round(hidden / HIDDEN_PER_LAYER))
    ffn = max(1, round(_EXPERT_SHARE * hidden))
    if shape.hidden and shape.layers:
        rest = used / layers - (LAYER_SQUARES - _EXPERT_SHARE * 2 * (_TOP_K + _SHARED)) * hidden**2
        ffn = max(1, round(rest / (2 * (_TOP_K + _SHARED) * hidden)))
    count = _COUNT
    if shape.parameters > used:
        count = max(_TOP_K, round(_TOP_K + (shape.parameters - used) / (layers * 2 * hidden * ffn)))
    return TransformerShape(
        name=shape.name, layers=layers, hidden=hidden, ffn=ffn, heads=max(1, round(2.5 * hidden / _HEAD)), kv_heads=2,
        head_dim=_HEAD, vocabulary=1, gated=False, window=_CHUNK, windowed_layers=layers,
        experts=Experts(count=count, top_k=_TOP_K, ffn=ffn, shared_ffn=_SHARED * ffn),
    )  # fmt: skip
