"""What an iteration of a plan asks of one GPU: operations, bytes of memory and bytes on links, before any efficiency.

All numbers are of a GPU of the stage with most layers; those of parameters are of the average GPU. The published counts are those
of :mod:`policies.training.operations`; how often a kernel reads and writes its operands is our construction
(docs/explanation/iteration-time.md).
"""

from dataclasses import dataclass

from policies.model.plan import Precision, Recompute, TrainingPlan
from policies.model.shape import Attention, CountedShape, Experts, ModelShape, TransformerShape
from policies.training.hardware import Links, element_bytes
from policies.training.operations import (
    Block,
    LayerParameters,
    Part,
    Product,
    Split,
    blocks,
    output_product,
    parameters,
    score_flops,
)
from policies.training.standin import HYBRID, stand_in

PREDICTED_SHARE = 0.15
"""Tokens that a bidirectional model predicts (BERT, arXiv 1810.04805); a causal one predicts all."""

NORM_PASSES = 20
"""Times that a layer reads or writes its hidden values outside matrix products, forward and backward: norms, residuals."""

UNFUSED_PASSES = 14
"""Times that attention without a fused kernel reads or writes its scores, forward and backward."""

LOSS_BYTES = 24
"""Bytes that the loss reads and writes a logit, in fp32."""

CONVOLUTIONAL = "cnn"
"""``kind`` of convolutional networks."""

ELEMENTS_PER_FLOP = 9.2e-4
"""Activations kept for the backward pass over operations of training, where they are not published: those of ResNet-50."""

ELEMENT_PASSES = 8
"""Times that a model known by its counts reads or writes a kept activation, forward and backward."""

OPTIMIZER_BYTES = 30
"""Bytes that a step of Adam reads and writes a parameter: fp32 weight, two moments, gradient, 16-bit weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Of one GPU. Seconds at full bandwidth where a name ends with ``_s``.

    Per micro-batch, over all layers that the GPU holds: ``low_flops`` in the plan's precision, ``half_flops`` in 16 bits,
    ``expert_flops`` of routed experts, ``score_flops`` of attention, ``product_bytes`` of operands, other ``memory_bytes``,
    ``*_launches`` (layers whose kernels the host starts, and experts held in them), traffic, and ``shard_s`` of gathering
    shards. ``recomputed`` is the share of the compute that the backward pass does again. ``output_*`` are of the last of
    ``pipeline`` stages alone, which does without the share ``spared`` of its layers.
    Per iteration: ``micro_batches``, ``bubble`` (micro-batches' time that the GPU waits), ``data_s`` of gradients, optimizer.
    """

    recomputed: float
    low_flops: float
    half_flops: float
    expert_flops: float
    score_flops: float
    product_bytes: float
    memory_bytes: float
    output_flops: float
    output_bytes: float
    spared: float
    dense_launches: float
    expert_launches: float
    held_launches: float
    tensor_s: float
    context_s: float
    expert_inside_s: float
    expert_beyond_s: float
    stage_s: float
    micro_batches: float
    bubble: float
    pipeline: float
    shard_s: float
    data_s: float
    optimizer_bytes: float


def work(shape: ModelShape, plan: TrainingPlan, links: Links) -> Work:
    """What one GPU has to do in an iteration of this plan."""
    if isinstance(shape, TransformerShape):
        return _Transformer(shape, plan, links).work()
    if shape.kind == HYBRID:
        return _Transformer(stand_in(shape), plan, links).work()
    return _counted(shape, plan, links)


def width_of(shape: ModelShape) -> int:
    """Hidden size of the layers with experts."""
    if isinstance(shape, CountedShape):
        return stand_in(shape).hidden if shape.kind == HYBRID else max(shape.hidden, 1)
    return shape.hidden


class _Transformer:
    """The counting for one transformer under one plan."""

    def __init__(self, shape: TransformerShape, plan: TrainingPlan, links: Links) -> None:
        self.shape, self.plan, self.links = shape, plan, links
        self.tokens = plan.micro_batch * plan.sequence / plan.context
        self.width = element_bytes(plan)
        self.again = 1 if plan.recompute is Recompute.FULL else 0
        self.passes = (2 if plan.adapters else 3) + self.again
        stages = plan.pipeline * plan.virtual_stages
        self.layers = float(-(-shape.layers // stages) * plan.virtual_stages)
        self.blocks = tuple((block, block.layers * self.layers / shape.layers) for block in blocks(shape))

    def work(self) -> Work:
        plan = self.plan
        output = output_product(self.shape)
        predicted = self.tokens * (PREDICTED_SHARE if self.shape.attention is Attention.FULL else 1)
        output_flops = (self.passes - self.again) * output.flops * predicted / plan.tensor
        output_bytes = self._product_bytes(output, predicted, low=False) / 3 * (self.passes - self.again)
        output_bytes += LOSS_BYTES * predicted * output.outputs / plan.tensor
        dense = sum(layers for block, layers in self.blocks if not _routed(block))
        inside_s, beyond_s = self._expert_traffic()
        shard_s, data_s, optimizer = _gradients(self.shape, plan, self.links)
        return Work(
            recomputed=self.again / self.passes,
            low_flops=self._flops(Part.ATTENTION, Part.FEED_FORWARD, Part.SHARED),
            half_flops=self._flops(Part.ROUTER),
            expert_flops=self._flops(Part.EXPERTS),
            score_flops=self._scores(),
            product_bytes=self._products(),
            memory_bytes=self._element_wise() + self._unfused(),
            output_flops=output_flops,
            spared=self._spared(),
            output_bytes=output_bytes,
            dense_launches=dense * (self.passes / 3),
            expert_launches=(self.layers - dense) * (self.passes / 3),
            held_launches=(self.layers - dense) * (self.passes / 3) * self._held(),
            tensor_s=self._tensor_traffic(),
            context_s=self._context_traffic(),
            expert_inside_s=inside_s,
            expert_beyond_s=beyond_s,
            stage_s=_stage_traffic(self.shape.hidden, self.tokens, plan, self.links),
            micro_batches=plan.micro_batches,
            bubble=plan.schedule.bubble(plan.pipeline, plan.virtual_stages),
            pipeline=plan.pipeline,
            shard_s=shard_s,
            data_s=data_s,
            optimizer_bytes=optimizer,
        )

    def _spared(self) -> float:
        """Share of its layers that the last stage does without: one layer where they do not divide into equal stages."""
        uneven = self.shape.layers % (self.plan.pipeline * self.plan.virtual_stages)
        return min(1.0, 1 / self.layers) if uneven else 0.0

    def _held(self) -> float:
        """Experts of a layer that the GPU holds."""
        return self.shape.experts.count / self.plan.expert if self.shape.experts is not None else 0.0

    def _rows(self, product: Product) -> tuple[float, float]:
        """Rows of each of the GPU's matrices of a product, and how many such matrices it holds."""
        plan = self.plan
        if product.part is not Part.EXPERTS:
            return self.tokens, product.held
        held = max(product.held / plan.expert, 1e-9)
        return self.tokens * plan.expert_tensor / plan.tensor * product.used / held, held

    def _split(self, product: Product) -> tuple[float, float]:
        """Inputs and outputs of the share of a matrix that the GPU holds."""
        ways = self.plan.expert_tensor if product.part is Part.EXPERTS else self.plan.tensor
        inputs = product.inputs / (ways if product.split is Split.INPUTS else 1)
        outputs = product.outputs / (ways if product.split is Split.OUTPUTS else 1)
        return inputs, outputs

    def _flops(self, *parts: Part) -> float:
        """Operations of a micro-batch in these parts of the layers."""
        total = 0.0
        for block, layers in self.blocks:
            for product in block.products:
                if product.part in parts:
                    rows, held = self._rows(product)
                    inputs, outputs = self._split(product)
                    total += layers * self.passes * 2 * rows * held * inputs * outputs
        return total

    def _products(self) -> float:
        """Bytes that the layers' matrix products read and write."""
        total = 0.0
        for block, layers in self.blocks:
            for product in block.products:
                rows, held = self._rows(product)
                total += layers * held * self._product_bytes(product, rows, low=product.part is not Part.ROUTER)
        return total

    def _product_bytes(self, product: Product, rows: float, *, low: bool) -> float:
        """Bytes of one matrix, forward and backward; narrow formats add the casts of inputs and of gradients."""
        inputs, outputs = self._split(product)
        values = rows * (inputs + outputs)
        narrow = low and self.plan.precision in (Precision.FP8, Precision.FP4)
        width = 1 if narrow else self.width
        traffic = self.passes * (values * (width + self.width) / 2 + inputs * outputs * width)
        return traffic + (4 * values if narrow else 0)

    def _scores(self) -> float:
        """Operations of attention's core. Kernels that are not fused compute the masked half too."""
        plan = self.plan
        again = 1 if plan.recompute is not Recompute.NONE else 0
        halves = 2 if not plan.flash_attention and self.shape.attention is Attention.CAUSAL else 1
        return (3 + again) * self.layers * halves * self.tokens * score_flops(self.shape, plan.sequence) / plan.tensor

    def _unfused(self) -> float:
        plan = self.plan
        if plan.flash_attention:
            return 0.0
        again = 0.5 if plan.recompute is not Recompute.NONE else 0
        scores = self.shape.heads / plan.tensor * self.tokens * plan.sequence
        return self.layers * (1 + again) * UNFUSED_PASSES * scores * self.width

    def _element_wise(self) -> float:
        """Bytes of norms, residuals, activations, rotary embeddings, and of moving tokens to experts and back."""
        shape, plan = self.shape, self.plan
        share = 1 / plan.tensor if plan.sequence_parallel else 1
        units_passes = 8 if shape.gated else 5
        total = 0.0
        for block, layers in self.blocks:
            values = NORM_PASSES * shape.hidden * share
            for product in block.products:
                ways = plan.expert_tensor if product.part is Part.EXPERTS else plan.tensor
                if product.part is Part.ATTENTION and product.split is Split.OUTPUTS:
                    values += 4 * product.outputs / plan.tensor
                if product.split is Split.INPUTS and product.part is not Part.ATTENTION:
                    spread = plan.expert_tensor / plan.tensor if product.part is Part.EXPERTS else 1
                    values += units_passes * product.inputs * product.used / ways * spread
                if product.part is Part.EXPERTS and product.split is Split.INPUTS:
                    values += 8 * product.outputs * product.used / plan.tensor
            total += layers * values
        return total * self.tokens * self.width * self.passes / 3

    def _tensor_traffic(self) -> float:
        """Seconds of the collectives around tensor-parallel products: two a layer forward, two backward."""
        plan = self.plan
        if plan.tensor == 1:
            return 0.0
        reduced = 2 * (plan.tensor - 1) / plan.tensor * self.tokens * self.shape.hidden * self.width
        calls = sum(layers * (1 if _routed(block) and not _shared(block) else 2) for block, layers in self.blocks)
        return calls * (2 + self.again) * reduced / self.links.collective_bytes_s(1, plan.tensor)

    def _context_traffic(self) -> float:
        """Seconds of passing keys and values around the context group, and their gradients back."""
        plan, shape = self.plan, self.shape
        if plan.context == 1:
            return 0.0
        values = 2 * shape.kv_heads * shape.head_dim / plan.tensor * self.tokens * self.width * (plan.context - 1)
        return (3 + self.again) * self.layers * values / self.links.collective_bytes_s(plan.tensor, plan.context)

    def _expert_traffic(self) -> tuple[float, float]:
        """Seconds of sending tokens to their experts and back, inside the domain and beyond it.

        A token leaves once for each other domain that holds one of its experts.
        """
        plan, experts = self.plan, self.shape.experts
        if experts is None or plan.expert == 1:
            return 0.0, 0.0
        layers = sum(layers for block, layers in self.blocks if _routed(block))
        token = self.tokens / plan.tensor * self.shape.hidden * self.width * (4 + 2 * self.again) * layers
        inside, beyond = _copies(experts, plan, self.links)
        return token * inside / self.links.inside_bytes_s, token * beyond / self.links.beyond_bytes_s


def _copies(experts: Experts, plan: TrainingPlan, links: Links) -> tuple[float, float]:
    """Copies of a token that its GPU sends inside its domain, and beyond it; routing taken as uniform."""
    span = plan.expert * plan.expert_tensor
    domains = max(1.0, span / links.domain)
    local = plan.expert / domains
    inside = experts.top_k * (local - 1) / plan.expert
    others = (domains - 1) * (1 - (1 - 1 / domains) ** experts.top_k)
    return max(inside, 0.0), others


def _stage_traffic(hidden: int, tokens: float, plan: TrainingPlan, links: Links) -> float:
    """Seconds of sending a micro-batch's activations to the next stage and its gradients back."""
    if plan.pipeline == 1:
        return 0.0
    inner = plan.tensor * plan.context * plan.data
    link = links.inside_bytes_s if inner * plan.pipeline <= links.domain else links.beyond_bytes_s
    split = plan.tensor if plan.sequence_parallel else 1
    return 2 * plan.virtual_stages * tokens * hidden * element_bytes(plan) / split / link


def _gradients(shape: ModelShape, plan: TrainingPlan, links: Links) -> tuple[float, float, float]:
    """Seconds of gathering shards (per micro-batch) and of reducing gradients (per iteration); bytes of the optimizer."""
    counted, pipeline, width = parameters(shape), plan.pipeline, element_bytes(plan)

    def held(layer: LayerParameters) -> float:
        return layer.divided / plan.tensor + layer.whole

    dense = (counted.dense_layers * held(counted.dense) + counted.expert_layers * held(counted.expert)) / pipeline
    dense += (counted.embedding + counted.output) / plan.tensor / pipeline
    routed = counted.expert_layers * counted.expert.experts / (plan.expert * plan.expert_tensor) / pipeline
    replicas = plan.data * plan.context
    expert_replicas = replicas * plan.tensor // (plan.expert * plan.expert_tensor)
    shard_s = data_s = optimizer = 0.0
    for held_parameters, group, inner in (
        (dense, replicas, plan.tensor),
        (routed, expert_replicas, plan.expert * plan.expert_tensor),
    ):
        shards = min(group, plan.shard_group or group)
        gathered = held_parameters * width * (shards - 1) / shards / links.collective_bytes_s(inner, shards)
        if plan.zero_stage == 3 and held_parameters is dense:
            shard_s += (2 if plan.adapters else 3) * gathered
            copies = group // shards
            if copies > 1 and not plan.adapters:
                ring = links.collective_bytes_s(inner * shards, copies)
                data_s += 2 * held_parameters / shards * width * (copies - 1) / copies / ring
        elif not plan.adapters:
            data_s += 2 * held_parameters * width * (group - 1) / group / links.collective_bytes_s(inner, group)
        optimizer += OPTIMIZER_BYTES * held_parameters / (shards if plan.zero_stage else 1)
    return shard_s, data_s, 0.0 if plan.adapters else optimizer


def _counted(shape: CountedShape, plan: TrainingPlan, links: Links) -> Work:
    """Of a model that is known by its counts: its operations, and its activations through memory."""
    ways = plan.tensor * plan.pipeline
    samples = plan.micro_batch * plan.sequence / plan.context / ways
    passes, again = 2 if plan.adapters else 3, 1 if plan.recompute is Recompute.FULL else 0
    elements = shape.activations or shape.flops * ELEMENTS_PER_FLOP
    shard_s, data_s, optimizer = _gradients(shape, plan, links)
    memory = ELEMENT_PASSES * elements * samples * element_bytes(plan) * (passes + again) / 3
    return Work(
        recomputed=again / (passes + again), low_flops=shape.flops * samples * (passes + again) / 3, half_flops=0.0,
        expert_flops=0.0, score_flops=0.0, product_bytes=0.0, memory_bytes=memory, output_flops=0.0, output_bytes=0.0,
        spared=0.0, dense_launches=shape.layers / plan.pipeline, expert_launches=0.0, held_launches=0.0, tensor_s=0.0,
        context_s=0.0, expert_inside_s=0.0, expert_beyond_s=0.0, stage_s=_stage_traffic(shape.hidden, samples, plan, links),
        micro_batches=plan.micro_batches, bubble=plan.schedule.bubble(plan.pipeline, plan.virtual_stages),
        pipeline=plan.pipeline, shard_s=shard_s, data_s=data_s, optimizer_bytes=optimizer,
    )  # fmt: skip


def _routed(block: Block) -> bool:
    return any(product.part is Part.EXPERTS for product in block.products)


def _shared(block: Block) -> bool:
    return any(product.part is Part.SHARED for product in block.products)
