"""Matrix products, parameters and floating-point operations of a transformer, counted from its published shape.

Counted: weights of matrix products, embeddings and norms. Left out: biases, learned positions and norms inside an attention
head, together below 0.3% of every model in use. A multiply-accumulate is two operations; element-wise work is none.
"""

from dataclasses import dataclass
from enum import StrEnum

from policies.model.shape import Attention, CountedShape, ModelShape, TransformerShape

BACKWARD = 2
"""Operations of the backward pass over those of the forward pass: gradients of inputs and of weights."""


class Split(StrEnum):
    """How a tensor-parallel group divides a weight matrix: by its outputs, by its inputs, or not at all."""

    OUTPUTS = "outputs"
    INPUTS = "inputs"
    WHOLE = "whole"


class Part(StrEnum):
    """What a matrix product belongs to."""

    ATTENTION = "attention"
    FEED_FORWARD = "feed_forward"
    ROUTER = "router"
    SHARED = "shared_expert"
    EXPERTS = "experts"
    OUTPUT = "output"


@dataclass(frozen=True, slots=True)
class Product:
    """The product of a token's ``inputs`` values with a weight matrix. ``held`` such matrices; a token takes ``used`` of them."""

    part: Part
    inputs: int
    outputs: int
    split: Split
    held: int = 1
    used: int = 1

    @property
    def parameters(self) -> int:
        return self.inputs * self.outputs * self.held

    @property
    def flops(self) -> int:
        """Operations of one token's forward pass."""
        return 2 * self.inputs * self.outputs * self.used


@dataclass(frozen=True, slots=True)
class Block:
    """``layers`` equal layers: their matrix products, and the parameters of their norms."""

    layers: int
    products: tuple[Product, ...]
    norms: int


@dataclass(frozen=True, slots=True)
class LayerParameters:
    """One layer. A tensor group divides ``divided``; each of its GPUs holds all of ``whole`` (norms, router, latent ranks).

    ``experts`` is divided over expert-parallel GPUs, each expert over the expert-tensor group.
    """

    divided: int
    whole: int
    experts: int = 0

    @property
    def total(self) -> int:
        return self.divided + self.whole + self.experts


@dataclass(frozen=True, slots=True)
class Parameters:
    """Of a model, in the order of its layers: embedding, dense layers, layers with experts, output (with the last norm).

    ``output`` is the last norm alone where the output matrix is the embedding (``tied``); a pipeline of several stages then
    holds the matrix twice. ``used`` counts what one token takes: ``top_k`` of the experts.
    """

    embedding: int
    dense_layers: int
    dense: LayerParameters
    expert_layers: int
    expert: LayerParameters
    output: int
    used: int

    @property
    def total(self) -> int:
        layers = self.dense_layers * self.dense.total + self.expert_layers * self.expert.total
        return self.embedding + layers + self.output


@dataclass(frozen=True, slots=True)
class Operations:
    """Floating-point operations of one token's forward pass, by part. ``scores``: the products of attention without weights."""

    attention: float
    scores: float
    feed_forward: float
    experts: float
    output: float

    @property
    def forward(self) -> float:
        return self.attention + self.scores + self.feed_forward + self.experts + self.output

    @property
    def training(self) -> float:
        """Forward and backward, nothing computed again."""
        return (1 + BACKWARD) * self.forward


def blocks(shape: TransformerShape) -> tuple[Block, ...]:
    """The layers of a transformer, dense ones first; a model has one or both kinds."""
    attention = _latent(shape) if shape.latent is not None else _grouped(shape)
    norms = 2 * shape.hidden
    if shape.latent is not None:
        norms += shape.latent.query_rank + shape.latent.key_value_rank
    dense_layers = shape.layers if shape.experts is None else shape.dense_layers
    found = []
    if dense_layers:
        feed_forward = _feed_forward(shape, Part.FEED_FORWARD, shape.ffn)
        found.append(Block(dense_layers, attention + feed_forward, norms))
    if shape.layers > dense_layers:
        found.append(Block(shape.layers - dense_layers, attention + _experts(shape), norms))
    return tuple(found)


def output_product(shape: TransformerShape) -> Product:
    """The product that gives the logits of the vocabulary."""
    return Product(Part.OUTPUT, shape.hidden, shape.vocabulary, Split.OUTPUTS)


def parameters(shape: ModelShape) -> Parameters:
    """Parameters by part. Those of a :class:`CountedShape` lie in equal layers, with the remainder in ``output``."""
    if isinstance(shape, CountedShape):
        layers = max(shape.layers, 1)
        layer = LayerParameters(shape.parameters // layers, 0)
        used = shape.parameters
        return Parameters(0, layers, layer, 0, LayerParameters(0, 0), shape.parameters % layers, used)
    embedding = shape.vocabulary * shape.hidden
    output = shape.hidden + (0 if shape.tied else embedding)
    dense, expert = (0, LayerParameters(0, 0)), (0, LayerParameters(0, 0))
    used = embedding + output
    for block in blocks(shape):
        experts = sum(product.parameters for product in block.products if product.part is Part.EXPERTS)
        whole = sum(product.parameters for product in block.products if product.split is Split.WHOLE) + block.norms
        every = sum(product.parameters for product in block.products) + block.norms
        layer = LayerParameters(every - whole - experts, whole, experts)
        used += block.layers * (block.norms + sum(product.flops // 2 for product in block.products))
        if experts:
            expert = (block.layers, layer)
        else:
            dense = (block.layers, layer)
    return Parameters(embedding, *dense, *expert, output, used)


def attended(shape: TransformerShape, sequence: int) -> float:
    """Tokens that one token attends to, on average over the sequence and over the layers."""
    every = sequence if shape.attention is Attention.FULL else (sequence + 1) / 2
    if not shape.window or not shape.windowed_layers:
        return every
    window = min(shape.window, sequence)
    full = shape.attention is Attention.FULL
    near = float(window) if full else window * (sequence - (window - 1) / 2) / sequence
    share = shape.windowed_layers / shape.layers
    return share * near + (1 - share) * every


def score_flops(shape: TransformerShape, sequence: int) -> float:
    """Operations of a layer's attention without weights (queries x keys, weights x values), of one token's forward pass."""
    latent = shape.latent
    widths = 2 * shape.head_dim if latent is None else latent.nope_dim + latent.rope_dim + latent.value_dim
    return 2 * shape.heads * widths * attended(shape, sequence)


def operations(shape: TransformerShape, sequence: int) -> Operations:
    """Operations of one token in a sequence of this many tokens, over all layers."""
    by_part = dict.fromkeys(Part, 0.0)
    for block in blocks(shape):
        for product in block.products:
            by_part[product.part] += block.layers * product.flops
    return Operations(
        attention=by_part[Part.ATTENTION],
        scores=shape.layers * score_flops(shape, sequence),
        feed_forward=by_part[Part.FEED_FORWARD] + by_part[Part.SHARED] + by_part[Part.ROUTER],
        experts=by_part[Part.EXPERTS],
        output=float(output_product(shape).flops),
    )


def _grouped(shape: TransformerShape) -> tuple[Product, ...]:
    """Attention whose queries share ``kv_heads`` keys and values (multi-head attention where these are as many)."""
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return (
        Product(Part.ATTENTION, shape.hidden, queries + 2 * keys, Split.OUTPUTS),
        Product(Part.ATTENTION, queries, shape.hidden, Split.INPUTS),
    )


def _latent(shape: TransformerShape) -> tuple[Product, ...]:
    """Multi-head latent attention: down to the ranks on every GPU, up to the heads divided over the tensor group."""
    latent = shape.latent
    assert latent is not None
    down = [
        Product(Part.ATTENTION, shape.hidden, latent.key_value_rank + latent.rope_dim, Split.WHOLE),
        Product(
            Part.ATTENTION, latent.key_value_rank, shape.heads * (latent.nope_dim + latent.value_dim), Split.OUTPUTS
        ),
        Product(Part.ATTENTION, shape.heads * latent.value_dim, shape.hidden, Split.INPUTS),
    ]
    queries = shape.heads * (latent.nope_dim + latent.rope_dim)
    if latent.query_rank:
        down.append(Product(Part.ATTENTION, shape.hidden, latent.query_rank, Split.WHOLE))
        down.append(Product(Part.ATTENTION, latent.query_rank, queries, Split.OUTPUTS))
    else:
        down.append(Product(Part.ATTENTION, shape.hidden, queries, Split.OUTPUTS))
    return tuple(down)


def _feed_forward(shape: TransformerShape, part: Part, units: int, held: int = 1, used: int = 1) -> tuple[Product, ...]:
    matrices = 2 if shape.gated else 1
    return (
        Product(part, shape.hidden, matrices * units, Split.OUTPUTS, held, used),
        Product(part, units, shape.hidden, Split.INPUTS, held, used),
    )


def _experts(shape: TransformerShape) -> tuple[Product, ...]:
    experts = shape.experts
    assert experts is not None
    products: tuple[Product, ...] = (Product(Part.ROUTER, shape.hidden, experts.count, Split.WHOLE),)
    products += _feed_forward(shape, Part.EXPERTS, experts.ffn, experts.count, experts.top_k)
    if experts.shared_ffn:
        products += _feed_forward(shape, Part.SHARED, experts.shared_ffn)
    return products
