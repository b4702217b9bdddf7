"""Operations grouped into layers: a transformer block or a bottleneck of a ResNet is one layer.

Our construction. The tree of modules is cut where modules repeat: a module with siblings of its class is a layer, and containers
above it are opened. What is outside every layer goes with what it reads. Groups without arithmetic and with few parameters
(norms, dropout, pooling) are merged into the group before them.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from policies.model.graph import Layer
from policies.stages import layer_graph
from service.graphs.trace import PRODUCTS, SOURCES, Kind, Operation, Trace

LAYER_SHARE_MAX = 1 / 8
"""Share of the arithmetic above which a module with repeated parts is opened, though it is itself one of several equal ones."""

LONE_SHARE_MAX = 1 / 2
"""Share of the arithmetic above which a module without siblings is opened."""

LIGHT_SHARE = 0.01
"""Share of the parameters below which a group without arithmetic is merged into another."""

_CONTAINERS = frozenset(("ModuleList", "Sequential", "ModuleDict"))
_NUMBER = re.compile(r"\d+")


class Values:
    """What the operations of a trace read, with views looked through, and which of them belong to layers."""

    def __init__(self, trace: Trace) -> None:
        self.operations = trace.operations
        self.base = _bases(trace.operations)
        """Position of the value that each operation is, or is a view of."""
        self.weighted = _reached(trace.operations, {Kind.PARAMETER})
        """Whether a value depends on a parameter. Masks and position codes do not: each stage computes its own."""

    @cached_property
    def counted(self) -> list[int]:
        """Positions of the operations that belong to layers."""
        found = enumerate(self.operations)
        return [i for i, one in found if self.weighted[i] and one.kind not in SOURCES and one.kind is not Kind.VIEW]

    def read(self, position: int) -> dict[int, tuple[int, int]]:
        """Floating-point elements and other bytes that an operation reads of each value, by the value's position."""
        found: dict[int, tuple[int, int]] = {}
        for seen in self.operations[position].inputs:
            base, one = self.base[seen], self.operations[seen]
            known = found.get(base, (0, 0))
            whole = self.operations[base]
            floats, fixed = min(one.floats, whole.floats), min(one.fixed_bytes, whole.fixed_bytes)
            found[base] = max(known[0], floats), max(known[1], fixed)
        return found


def _bases(operations: Sequence[Operation]) -> list[int]:
    base: list[int] = []
    for position, one in enumerate(operations):
        base.append(base[one.inputs[0]] if one.kind is Kind.VIEW and one.inputs else position)
    return base


def _reached(operations: Sequence[Operation], kinds: set[Kind]) -> list[bool]:
    """Which operations are of these kinds, or read one that is reached."""
    found: list[bool] = []
    for one in operations:
        found.append(one.kind in kinds or any(found[seen] for seen in one.inputs))
    return found


@dataclass(slots=True)
class _Module:
    """A module in the tree of paths; ``cost`` counts the arithmetic in it and below."""

    name: str
    sort: str = ""
    cost: float = 0.0
    children: dict[str, "_Module"] = field(default_factory=dict)

    def repeats(self) -> bool:
        """Whether two modules with parts of their own, of one class, stand side by side somewhere below."""
        sorts = Counter(child.sort for child in self.children.values() if child.children)
        return any(count > 1 for count in sorts.values()) or any(child.repeats() for child in self.children.values())


def groups(trace: Trace, values: Values) -> tuple[list[int], list[str]]:
    """The group of each operation (-1: of none), and the names of the groups. Groups form no cycle."""
    scopes = _scopes(trace, values)
    cuts = _cuts(trace, values, scopes)
    keys = {i: _key(scopes[i], cuts, trace.operations[i]) for i in values.counted}
    _adopt(values, keys)
    numbers: dict[str, int] = {}
    group_of = [-1] * len(trace.operations)
    for i in values.counted:
        group_of[i] = numbers.setdefault(keys[i] or "model", len(numbers))
    return _merged(values, group_of, list(numbers))


def _scopes(trace: Trace, values: Values) -> list[tuple[str, ...]]:
    """The scope of each operation; that of its parameter where this is deeper (code that calls no module)."""
    found = []
    for one in trace.operations:
        scope = one.scope
        for seen in one.inputs:
            source = trace.operations[values.base[seen]]
            owner = tuple(source.name.split(".")[:-1]) if source.kind is Kind.PARAMETER else ()
            if len(owner) > len(scope) and owner[: len(scope)] == tuple(part.partition("@")[0] for part in scope):
                scope = scope + owner[len(scope) :]
        found.append(scope)
    return found


def _cuts(trace: Trace, values: Values, scopes: Sequence[tuple[str, ...]]) -> set[tuple[str, ...]]:
    """Paths of the modules that are layers."""
    root = _Module("")
    for i in values.counted:
        one = trace.operations[i]
        cost = one.flops or one.floats * 1e-6
        module, path = root, ""
        root.cost += cost
        for part in scopes[i]:
            part = part.partition("@")[0]
            path = f"{path}.{part}" if path else part
            if part not in module.children:
                module.children[part] = _Module(part, trace.classes.get(path) or _NUMBER.sub("#", part))
            module = module.children[part]
            module.cost += cost
    found: set[tuple[str, ...]] = set()
    _cut(root, (), root.cost, found)
    return found


def _cut(module: _Module, path: tuple[str, ...], total: float, found: set[tuple[str, ...]]) -> None:
    """Open the module, and decide for each of its children whether it is a layer."""
    sorts = Counter(child.sort for child in module.children.values() if child.children)
    for name, child in module.children.items():
        below = (*path, name)
        if _is_layer(child, repeated=sorts[child.sort] > 1, share=child.cost / total if total else 0.0):
            found.add(below)
        else:
            _cut(child, below, total, found)


def _is_layer(module: _Module, *, repeated: bool, share: float) -> bool:
    if not module.children:
        return True
    if module.sort in _CONTAINERS and any(child.children for child in module.children.values()):
        return False
    if repeated:
        return share <= LAYER_SHARE_MAX or not module.repeats()
    return not module.repeats() and module.sort not in _CONTAINERS and share <= LONE_SHARE_MAX


def _key(scope: tuple[str, ...], cuts: set[tuple[str, ...]], one: Operation) -> str:
    """The name of the layer that an operation is in; "" outside of all."""
    plain = tuple(part.partition("@")[0] for part in scope)
    for depth in range(1, len(plain) + 1):
        if plain[:depth] in cuts:
            return ".".join(scope[:depth])
    return one.name if not scope and one.kind in PRODUCTS else ""


def _adopt(values: Values, keys: dict[int, str]) -> None:
    """Give operations outside all layers to the layer of the last value that they read, else of their first reader."""
    for i in values.counted:
        if not keys[i]:
            before = [base for base in values.read(i) if keys.get(base)]
            keys[i] = keys[max(before)] if before else ""
    for i in reversed(values.counted):
        if keys[i]:
            for base in values.read(i):
                if keys.get(base) == "":
                    keys[base] = keys[i]


def _merged(values: Values, group_of: list[int], names: list[str]) -> tuple[list[int], list[str]]:
    """Groups on a cycle as one, and light groups merged into the one before (without one, after) them."""
    group_of, names = _numbered(group_of, names, _components(len(names), group_edges(values, group_of)))
    while True:
        target = _targets(values, group_of, len(names))
        if target == list(range(len(names))):
            return group_of, names
        group_of, names = _numbered(group_of, names, target)


def _targets(values: Values, group_of: Sequence[int], count: int) -> list[int]:
    """Where each group is merged into: light ones into the latest before them, or the earliest after them.

    No third group lies between the two, so no cycle arises.
    """
    edges = group_edges(values, group_of)
    light = _light(values, group_of, count)
    before: list[list[int]] = [[] for _ in range(count)]
    after: list[list[int]] = [[] for _ in range(count)]
    for tail, head in edges:
        before[head].append(tail)
        after[tail].append(head)
    order = _order(count, edges)
    rank = {group: place for place, group in enumerate(order)}
    target = list(range(count))
    for group in order:
        if not light[group]:
            continue
        if before[group]:
            target[group] = max((target[tail] for tail in before[group]), key=lambda tail: rank[tail])
        elif after[group]:
            target[group] = min(after[group], key=lambda head: rank[head])
            break  # the order of the merged groups is another
    return target


def _light(values: Values, group_of: Sequence[int], count: int) -> list[bool]:
    flops, parameters = [0] * count, [0] * count
    for position, group in parameter_groups(values, group_of).items():
        parameters[group] += values.operations[position].floats
    for i in values.counted:
        flops[group_of[i]] += values.operations[i].flops
    most = LIGHT_SHARE * sum(parameters)
    return [not flops[group] and parameters[group] <= most for group in range(count)]


def parameter_groups(values: Values, group_of: Sequence[int]) -> dict[int, int]:
    """The group of each parameter that is used: that of its first reader. Tied weights count once."""
    found: dict[int, int] = {}
    for i in values.counted:
        for base in values.read(i):
            if values.operations[base].kind is Kind.PARAMETER:
                found.setdefault(base, group_of[i])
    return found


def group_edges(values: Values, group_of: Sequence[int]) -> dict[tuple[int, int], dict[int, tuple[int, int]]]:
    """For each pair of groups what the second reads of the first: elements and other bytes by the value's position."""
    found: dict[tuple[int, int], dict[int, tuple[int, int]]] = {}
    for i in values.counted:
        for base, (floats, fixed) in values.read(i).items():
            if group_of[base] not in (-1, group_of[i]):
                sent = found.setdefault((group_of[base], group_of[i]), {})
                known = sent.get(base, (0, 0))
                sent[base] = max(known[0], floats), max(known[1], fixed)
    return found


def _numbered(group_of: Sequence[int], names: Sequence[str], target: Sequence[int]) -> tuple[list[int], list[str]]:
    """Groups with the number of their target, counted anew; a group has the name of its target."""
    left = sorted(set(target))
    number = {group: place for place, group in enumerate(left)}
    return [group if group < 0 else number[target[group]] for group in group_of], [names[group] for group in left]


def _order(count: int, edges: Mapping[tuple[int, int], object]) -> list[int]:
    """The groups in a topological order."""
    layers = [Layer(str(group), 0.0, 0.0, 0, 0) for group in range(count)]
    graph = layer_graph(layers, [(str(tail), str(head)) for tail, head in edges])
    return [int(layer.name) for layer in graph.layers]


def _components(count: int, edges: Mapping[tuple[int, int], object]) -> list[int]:
    """For each group the first one that is on a cycle with it; a group on none has itself."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    tails, heads = [tail for tail, _ in edges], [head for _, head in edges]
    links = coo_array(([1] * len(edges), (tails, heads)), shape=(count, count))
    _, component = connected_components(links, directed=True, connection="strong")
    first: dict[int, int] = {}
    return [first.setdefault(int(number), group) for group, number in enumerate(component)]
