"""The layer graph of a trace, as the API takes it in a job's ``graph``: times on one GPU, bytes, edges."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from policies.model.graph import Layer, LayerGraph
from policies.model.plan import Precision, TrainingPlan
from policies.model.shape import CountedShape
from policies.stages import layer_graph
from policies.training.constants import SHIPPED
from policies.training.hardware import GpuModel, element_bytes
from policies.training.iteration import Rates, rates
from policies.training.operations import BACKWARD
from policies.training.work import CONVOLUTIONAL
from service.graphs.grouping import Values, group_edges, groups, parameter_groups
from service.graphs.trace import PRODUCTS, Kind, Operation, Trace
from service.plans.values import ReadError

NAME_MAX = 200
"""Characters of a layer's name that the API takes."""


@dataclass(frozen=True, slots=True)
class Found:
    """The graph, and what the reader should see beside it. ``flops``: of the forward pass of the mini-batch."""

    graph: LayerGraph
    precision: Precision
    parameters: int
    flops: int
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Limits:
    """What the service takes: its settings ``layers_max`` and ``edges_max``."""

    layers: int
    edges: int


def found_in(trace: Trace, gpu: GpuModel, precision: Precision | None, replicas: int, limits: Limits) -> Found:
    """The layer graph of a mini-batch that ``replicas`` data-parallel replicas share.

    ``precision`` defaults to the format of the parameters. Raises :class:`ReadError` for a model without arithmetic.
    """
    precision = precision or (Precision(trace.precision) if trace.precision else Precision.FP32)
    values = Values(trace)
    if not any(values.operations[i].kind in PRODUCTS for i in values.counted):
        raise ReadError("model", "has no product with a parameter, so its layers take no time")
    group_of, names = groups(trace, values)
    count = _Counter(values, group_of, gpu, precision)
    layers = [
        Layer(
            name=name,
            forward_s=count.forward_s[group],
            backward_s=count.backward_s[group],
            parameter_bytes=count.parameter_bytes[group],
            activation_bytes=count.activation_bytes[group],
            tensor_bytes=count.tensor_bytes[group] // replicas,
        )
        for group, name in enumerate(_distinct(names))
    ]
    edges = [(layers[tail].name, layers[head].name) for tail, head in count.edges]
    warnings = (*trace.warnings, *_unused(trace, values, group_of))
    return Found(
        graph=coarse(layer_graph(layers, edges), limits),
        precision=precision,
        parameters=sum(values.operations[position].floats for position in parameter_groups(values, group_of)),
        flops=sum(values.operations[i].flops for i in values.counted),
        warnings=warnings,
    )


def _unused(trace: Trace, values: Values, group_of: Sequence[int]) -> list[str]:
    used = parameter_groups(values, group_of)
    unused = [one for i, one in enumerate(trace.operations) if one.kind is Kind.PARAMETER and i not in used]
    if not unused:
        return []
    size = sum(one.floats for one in unused)
    return [
        f"{len(unused)} parameter tensors with {size:,} elements take no part, so they are left out: {unused[0].name}"
    ]


def _distinct(names: Sequence[str]) -> list[str]:
    """Names that the API takes: printable, at most 200 characters, each once."""
    found: dict[str, None] = {}
    for name in names:
        plain = "".join(sign if sign.isprintable() else "?" for sign in name)
        plain = plain if len(plain) <= NAME_MAX else "..." + plain[-(NAME_MAX - 20) :]
        serial, shown = 1, plain
        while shown in found:
            serial += 1
            shown = f"{plain} ({serial})"
        found[shown] = None
    return list(found)


class _Counter:
    """Seconds and bytes of each group. The bytes that kernels move follow the rules of docs/explanation/iteration-time.md."""

    def __init__(self, values: Values, group_of: Sequence[int], gpu: GpuModel, precision: Precision) -> None:
        self._values, self._group_of = values, group_of
        self._gpu, self._plan = gpu, TrainingPlan(precision=precision)
        self._width = element_bytes(self._plan)
        self._rates = self._rates_of("", 0)
        self._convolution = self._rates_of(CONVOLUTIONAL, 0).low_flops
        self._gradient = self._gradients()
        self._wave = self._waves()
        groups = max(group_of) + 1
        self.forward_s, self.backward_s = [0.0] * groups, [0.0] * groups
        self.parameter_bytes, self.activation_bytes, self.tensor_bytes = [0] * groups, [0] * groups, [0] * groups
        for i in values.counted:
            self._count(i)
        self._count_moved()
        for position, group in parameter_groups(values, group_of).items():
            one = values.operations[position]
            self.parameter_bytes[group] += self._bytes(one.floats, 0) if one.trainable else 0
        self.edges = group_edges(values, group_of)
        for (tail, _), sent in self.edges.items():
            size = sum(self._bytes(floats, fixed) for floats, fixed in sent.values())
            self.activation_bytes[tail] = max(self.activation_bytes[tail], size)
        self._count_reduced()

    def _rates_of(self, kind: str, width: int) -> Rates:
        shape = CountedShape(name="", kind=kind, layers=1, hidden=width, parameters=0, flops=0.0)
        return rates(shape, self._plan, self._gpu, SHIPPED)

    def _bytes(self, floats: int, fixed: int) -> int:
        return floats * self._width + fixed

    def _gradients(self) -> list[bool]:
        """Whether the backward pass computes a gradient of the value."""
        found: list[bool] = []
        for one in self._values.operations:
            found.append(one.floats > 0 and (one.trainable or any(found[seen] for seen in one.inputs)))
        return found

    def _waves(self) -> list[int]:
        """Products before each operation, on the longest way to it. Other work between two products runs as one kernel."""
        found: list[int] = []
        for one in self._values.operations:
            found.append(max((found[seen] for seen in one.inputs), default=0) + (one.kind in PRODUCTS))
        return found

    def _factor(self, position: int) -> int:
        """Products of the backward pass over those of the forward pass: one for each factor with a gradient."""
        one = self._values.operations[position]
        count = sum(self._gradient[factor] for factor in one.factors)
        return BACKWARD if one.kind is Kind.ATTENTION and count else min(BACKWARD, count)

    def _rate(self, one: Operation) -> float:
        match one.kind:
            case Kind.CONVOLUTION:
                return self._convolution
            case Kind.ATTENTION:
                return self._rates.score_flops
            case Kind.EXPERTS:
                return self._rates_of("", one.flops // (2 * max(one.floats, 1))).expert_flops
            case _:
                return self._rates.low_flops

    def _count(self, position: int) -> None:
        """A product: its arithmetic, and reading the factors and writing the result."""
        one = self._values.operations[position]
        if one.kind not in PRODUCTS:
            return
        read = self._values.read(position)
        moved = self._bytes(one.floats, one.fixed_bytes)
        moved += sum(self._bytes(*read[base]) for base in {self._values.base[factor] for factor in one.factors})
        seconds = one.flops / self._rate(one) + moved / self._rates.memory_bytes_s
        self.forward_s[self._group_of[position]] += seconds
        self.backward_s[self._group_of[position]] += self._factor(position) * seconds

    def _count_moved(self) -> None:
        """All other work: a wave of it in a group reads each value from outside once, and writes what is read outside."""
        reads: dict[tuple[int, int, int], int] = {}
        written: set[int] = set()
        read_by_any = {base for i in self._values.counted for base in self._values.read(i)}
        for i in self._values.counted:
            one, place = self._values.operations[i], self._place(i)
            for base, size in self._values.read(i).items():
                inside = self._place(base) == place
                if not inside:
                    written.add(base)
                if one.kind in PRODUCTS or inside:
                    continue
                moved = one.floats * self._width if one.kind is Kind.LOOKUP else self._bytes(*size)
                key = (*place, base)
                reads[key] = max(reads.get(key, 0), moved)
            if i not in read_by_any:
                written.add(i)
        for (group, _, base), moved in reads.items():
            self._move(group, moved, backward=self._gradient[base])
        for i in written:
            one = self._values.operations[i]
            if self._group_of[i] >= 0 and one.kind not in PRODUCTS:
                self._move(self._group_of[i], self._bytes(one.floats, one.fixed_bytes), backward=self._gradient[i])

    def _place(self, position: int) -> tuple[int, int]:
        """Group and wave; a product is in a place of its own."""
        product = self._values.operations[position].kind in PRODUCTS
        return self._group_of[position], -1 - position if product else self._wave[position]

    def _move(self, group: int, size: int, *, backward: bool) -> None:
        seconds = size / self._rates.memory_bytes_s
        self.forward_s[group] += seconds
        self.backward_s[group] += BACKWARD * seconds if backward else 0.0

    def _count_reduced(self) -> None:
        """Bytes of the all-reduces of a tensor group: after every second product with weights, forward and backward.

        Megatron-LM splits the first of two products by columns and the second by rows (arXiv 1909.08053).
        """
        values = self._values
        depth: dict[int, int] = {}
        for i in values.counted:
            one = values.operations[i]
            read = [base for base, (floats, _) in values.read(i).items() if floats]
            before = max((depth.get(base, 0) for base in read if self._group_of[base] == self._group_of[i]), default=0)
            factors = (values.operations[values.base[factor]] for factor in one.factors)
            split = one.kind in (Kind.PRODUCT, Kind.EXPERTS) and any(
                factor.kind is Kind.PARAMETER for factor in factors
            )
            depth[i] = before + split
            if split and depth[i] % 2 == 0:
                self.tensor_bytes[self._group_of[i]] += 2 * self._bytes(one.floats, 0)


def coarse(graph: LayerGraph, limits: Limits) -> LayerGraph:
    """The graph with so many neighbours merged that the service takes it: parts of about equal time."""
    parts = min(limits.layers, len(graph.layers))
    while len(graph.layers) > limits.layers or len(graph.edges) > limits.edges:
        graph = _merged(graph, parts)
        parts = max(1, parts * 3 // 4)
    return graph


def _merged(graph: LayerGraph, parts: int) -> LayerGraph:
    """At most ``parts`` runs of layers in topological order, each as one layer."""
    total = sum(layer.forward_s + layer.backward_s for layer in graph.layers)
    part_of, spent = [], 0.0
    for layer in graph.layers:
        part_of.append(min(parts - 1, int(parts * spent / total)))
        spent += layer.forward_s + layer.backward_s
    numbers = {part: place for place, (part, _) in enumerate(groupby(part_of))}
    part_of = [numbers[part] for part in part_of]
    merged: list[Layer] = []
    for layer, part in zip(graph.layers, part_of, strict=True):
        if part == len(merged):
            merged.append(layer)
            continue
        known = merged[part]
        merged[part] = replace(
            known,
            forward_s=known.forward_s + layer.forward_s,
            backward_s=known.backward_s + layer.backward_s,
            parameter_bytes=known.parameter_bytes + layer.parameter_bytes,
            tensor_bytes=known.tensor_bytes + layer.tensor_bytes,
            activation_bytes=0,
        )
    sent = {(part_of[tail], part_of[head], tail) for tail, head in graph.edges if part_of[tail] != part_of[head]}
    sizes: dict[tuple[int, int], int] = {}
    for tail, head, sender in sent:
        sizes[tail, head] = sizes.get((tail, head), 0) + graph.layers[sender].activation_bytes
    for (tail, _), size in sizes.items():
        merged[tail] = replace(merged[tail], activation_bytes=max(merged[tail].activation_bytes, size))
    return layer_graph(merged, [(merged[tail].name, merged[head].name) for tail, head in sizes])
