"""A user's layers as a pipeline: the layer graph in topological order, and its cut into stages.

Both functions raise :class:`GraphError`, which points to the fault, for anything else.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from policies.model.graph import Layer, LayerGraph, Stage, StageGraph


class GraphError(ValueError):
    """A graph or a list of stages that makes no pipeline.

    ``pointer_suffix`` is a JSON pointer to the fault, in positions of the input. From :func:`layer_graph` it counts from the
    job's ``graph``: ``/layers/2/name``, ``/edges/3``, ``/edges/3/1`` (its head). From :func:`cut` it counts from the list of
    stages: ``/1``, ``/1/0``, and "" for the stages as a whole.
    """

    def __init__(self, pointer_suffix: str, message: str) -> None:
        super().__init__(message)
        self.pointer_suffix = pointer_suffix
        self.message = message


def layer_graph(layers: Sequence[Layer], edges: Sequence[tuple[str, str]]) -> LayerGraph:
    """The layers in topological order (the order given, wherever the edges allow it). O((layers + edges) log layers).

    Raises :class:`GraphError` for no layers, a duplicate name, and an edge that names an unknown layer, is a duplicate, leads
    from a layer to itself or is part of a cycle.
    """
    if not layers:
        raise GraphError("/layers", "a graph needs at least one layer")
    position: dict[str, int] = {}
    for i, layer in enumerate(layers):
        if layer.name in position:
            raise GraphError(f"/layers/{i}/name", f"layer {layer.name!r} is already layer {position[layer.name]}")
        position[layer.name] = i
    pairs = _positions(edges, position)
    if all(tail < head for tail, head in pairs):
        return LayerGraph(tuple(layers), tuple(sorted(pairs)))
    order = _topological(len(layers), pairs)
    if len(order) < len(layers):
        path, closing = _cycle(pairs, set(range(len(layers))) - set(order))
        names = " -> ".join(layers[i].name for i in path)
        raise GraphError(f"/edges/{closing}", f"the edges form a cycle: {names}")
    rank = {i: r for r, i in enumerate(order)}
    return LayerGraph(tuple(layers[i] for i in order), tuple(sorted((rank[tail], rank[head]) for tail, head in pairs)))


def _positions(edges: Sequence[tuple[str, str]], position: Mapping[str, int]) -> list[tuple[int, int]]:
    """The edges as pairs of positions."""
    pairs: dict[tuple[int, int], int] = {}
    for number, edge in enumerate(edges):
        for end, name in enumerate(edge):
            if name not in position:
                raise GraphError(f"/edges/{number}/{end}", f"there is no layer {name!r}")
        pair = (position[edge[0]], position[edge[1]])
        if pair[0] == pair[1]:
            raise GraphError(f"/edges/{number}", f"layer {edge[0]!r} cannot feed itself")
        if pair in pairs:
            raise GraphError(f"/edges/{number}", f"the edge {edge[0]} -> {edge[1]} is already edge {pairs[pair]}")
        pairs[pair] = number
    return list(pairs)


def _topological(count: int, pairs: Sequence[tuple[int, int]]) -> list[int]:
    """Kahn's order, least position first; layers on a cycle or behind one are missing."""
    heads: list[list[int]] = [[] for _ in range(count)]
    waiting_for = [0 for _ in range(count)]
    for tail, head in pairs:
        heads[tail].append(head)
        waiting_for[head] += 1
    ready = [i for i in range(count) if not waiting_for[i]]
    order: list[int] = []
    while ready:
        layer = heapq.heappop(ready)
        order.append(layer)
        for head in heads[layer]:
            waiting_for[head] -= 1
            if not waiting_for[head]:
                heapq.heappush(ready, head)
    return order


def _cycle(pairs: Sequence[tuple[int, int]], rest: set[int]) -> tuple[list[int], int]:
    """A cycle among ``rest`` as a closed path from its first layer, and the largest position in the list of its edges."""
    # Every layer of ``rest`` has a predecessor in ``rest``, so a walk backwards closes a cycle.
    before = {head: (tail, number) for number, (tail, head) in enumerate(pairs) if tail in rest and head in rest}
    seen: dict[int, int] = {}
    path: list[int] = []
    layer = min(rest)
    while layer not in seen:
        seen[layer] = len(path)
        path.append(layer)
        layer = before[layer][0]
    loop = path[seen[layer] :][::-1]
    first = loop.index(min(loop))
    return [*loop[first:], *loop[: first + 1]], max(before[layer][1] for layer in loop)


def cut(graph: LayerGraph, stages: int | Sequence[Sequence[str]]) -> StageGraph:
    """The pipeline: cut automatically into this many stages, or by the given lists of layer names.

    Automatically: contiguous in topological order with the least bottleneck time (forward + backward of the slowest stage);
    of equal cuts, the one whose last stages start latest. Memoised by the graph. O(layers x stages).

    Raises :class:`GraphError` for fewer than one stage or more stages than layers; a layer that is unknown, a duplicate or in
    no stage; a stage that is empty, whose layers are not connected, that is not connected with the others, or that feeds an
    earlier one.
    """
    if isinstance(stages, int):
        if not 1 <= stages <= len(graph.layers):
            raise GraphError("", f"{len(graph.layers)} layers cannot make {stages} stages")
        return _cut_automatically(graph, stages)
    groups = _named(graph, stages)
    for s, group in enumerate(groups):
        if len(_reached(group, graph.edges)) < len(group):
            raise GraphError(f"/{s}", f"the layers of stage {s} are not connected with one another")
    result = _stage_graph(graph, groups)
    apart = _apart(result)
    if apart is not None:
        raise GraphError(f"/{apart}", f"stage {apart} is not connected with the stages before it")
    return result


@lru_cache(maxsize=1024)
def _cut_automatically(graph: LayerGraph, stages: int) -> StageGraph:
    starts = _least_bottleneck([layer.forward_s + layer.backward_s for layer in graph.layers], stages)
    ends = [*starts[1:], len(graph.layers)]
    result = _stage_graph(graph, [list(range(start, end)) for start, end in zip(starts, ends, strict=True)])
    apart = _apart(result)
    if apart is not None:
        names = f"{result.stages[apart].name!r} and {result.stages[0].name!r}"
        raise GraphError("", f"no edge connects the stages {names}: the graph is not connected")
    return result


def _least_bottleneck(times_s: Sequence[float], stages: int) -> list[int]:
    """First layers of the stages of the contiguous cut with the least maximal sum.

    best[s][i] = min over j of max(best[s-1][j], sum of j..i): the first term grows with j and the second falls, and the
    crossing only moves right as i does, so one pass serves all i.
    """
    layers = len(times_s)
    prefix = [0.0]
    for time_s in times_s:
        prefix.append(prefix[-1] + time_s)
    best = prefix[:]
    came_from: list[list[int]] = []
    for s in range(2, stages + 1):
        row = [float("inf")] * (layers + 1)
        source = [0] * (layers + 1)
        j = s - 1
        for i in range(s, layers + 1):
            while j + 1 < i and max(best[j + 1], prefix[i] - prefix[j + 1]) <= max(best[j], prefix[i] - prefix[j]):
                j += 1
            row[i], source[i] = max(best[j], prefix[i] - prefix[j]), j
        best = row
        came_from.append(source)
    starts = [layers]
    for source in reversed(came_from):
        starts.append(source[starts[-1]])
    return [0, *reversed(starts[1:])]


def _named(graph: LayerGraph, stages: Sequence[Sequence[str]]) -> list[list[int]]:
    """The lists of names as positions, each layer exactly once."""
    if not stages:
        raise GraphError("", "a pipeline needs at least one stage")
    position = {layer.name: i for i, layer in enumerate(graph.layers)}
    stage_of: dict[str, int] = {}
    for s, names in enumerate(stages):
        if not names:
            raise GraphError(f"/{s}", f"stage {s} has no layer")
        for i, name in enumerate(names):
            if name not in position:
                raise GraphError(f"/{s}/{i}", f"there is no layer {name!r}")
            if name in stage_of:
                raise GraphError(f"/{s}/{i}", f"layer {name!r} is already in stage {stage_of[name]}")
            stage_of[name] = s
    missing = [layer.name for layer in graph.layers if layer.name not in stage_of]
    if missing:
        raise GraphError("", f"no stage holds layer {missing[0]!r}" + _and_more(len(missing) - 1))
    return [sorted(position[name] for name in names) for names in stages]


def _and_more(count: int) -> str:
    return f" (nor {count} more)" if count else ""


def _reached(members: Sequence[int], edges: Iterable[tuple[int, int]]) -> set[int]:
    """The members that are connected with the first of ``members`` by edges among them, in any direction."""
    near: dict[int, list[int]] = {i: [] for i in members}
    for tail, head in edges:
        if tail in near and head in near:
            near[tail].append(head)
            near[head].append(tail)
    reached, frontier = {members[0]}, [members[0]]
    while frontier:
        for other in near[frontier.pop()]:
            if other not in reached:
                reached.add(other)
                frontier.append(other)
    return reached


def _stage_graph(graph: LayerGraph, groups: Sequence[Sequence[int]]) -> StageGraph:
    """Sums over the layers; a layer's activations travel once to each other stage that reads them."""
    stage_of = {layer: s for s, group in enumerate(groups) for layer in group}
    sent = sorted({(stage_of[tail], stage_of[head], tail) for tail, head in graph.edges})
    traffic: dict[tuple[int, int], int] = {}
    for s, q, tail in sent:
        if s > q:
            raise GraphError(f"/{q}", f"stage {s} feeds stage {q}: list the stages in pipeline order")
        if s < q:
            traffic[s, q] = traffic.get((s, q), 0) + graph.layers[tail].activation_bytes
    stages = tuple(_stage([graph.layers[i] for i in group]) for group in groups)
    return StageGraph(stages, tuple((s, q, amount) for (s, q), amount in sorted(traffic.items())))


def _stage(layers: Sequence[Layer]) -> Stage:
    name = layers[0].name if len(layers) == 1 else f"{layers[0].name}..{layers[-1].name}"
    return Stage(
        name=name,
        forward_s=sum(layer.forward_s for layer in layers),
        backward_s=sum(layer.backward_s for layer in layers),
        parameter_bytes=sum(layer.parameter_bytes for layer in layers),
        tensor_bytes=sum(layer.tensor_bytes for layer in layers),
    )


def _apart(graph: StageGraph) -> int | None:
    """The first stage that is not connected with stage 0 through any others."""
    stages = range(len(graph.stages))
    reached = _reached(stages, ((s, q) for s, q, _ in graph.edges))
    return next((s for s in stages if s not in reached), None)
