"""The published shape of a model: what its operations, parameters and activations are counted from."""

from dataclasses import dataclass
from enum import StrEnum


class Attention(StrEnum):
    """``causal``: each token attends to those before it, so that half of the products are needed; ``full``: to all."""

    CAUSAL = "causal"
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): ranks and head dimensions."""

    query_rank: int
    key_value_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """A token uses ``top_k`` of ``count`` experts with ``ffn`` units each, and the shared ``shared_ffn`` units."""

    count: int
    top_k: int
    ffn: int
    shared_ffn: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerShape:
    """A transformer of ``layers`` blocks. The first ``dense_layers`` have no experts (all of them without ``experts``).

    ``window``: tokens that a layer of sliding-window attention looks back (0 = none), in ``windowed_layers`` of the layers.
    ``gated``: the feed-forward part has three matrices (SwiGLU) instead of two. ``tied``: input and output embedding are one.
    """

    name: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    gated: bool = True
    attention: Attention = Attention.CAUSAL
    latent: LatentAttention | None = None
    window: int = 0
    windowed_layers: int = 0
    experts: Experts | None = None
    dense_layers: int = 0
    tied: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedShape:
    """A model of other layers (convolutions, state spaces), known by its counts.

    ``flops`` of training one token (one image where a sample is one), forward and backward; ``parameters`` in all, and
    ``activations``: elements kept for the backward pass a token. ``kind`` is the class of its kernels.
    """

    name: str
    kind: str
    layers: int
    hidden: int
    parameters: int
    flops: float
    activations: int = 0


ModelShape = TransformerShape | CountedShape
