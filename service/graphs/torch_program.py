"""Reads a PyTorch model as operations: a program for any Python that has torch, started by :mod:`service.graphs.child`.

It takes a request in JSON as its argument, and writes the trace (:mod:`service.graphs.trace`) or ``{"error": ...}`` in JSON to
standard output. The model is built on the meta device and exported, so no weight takes memory. Standard library and torch only:
Sooner need not be installed where the model is.
"""

import importlib
import json
import linecache
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ERROR_MAX = 1500
"""Characters of an error: torch.export adds pages of advice for its developers."""

_VIEWS = frozenset(
    (
        "_reshape_alias", "_to_copy", "_unsafe_view", "alias", "as_strided", "chunk", "clone", "contiguous", "detach", "diagonal",
        "expand", "getitem", "lift_fresh_copy", "permute", "select", "slice", "split", "split_with_sizes", "squeeze", "t",
        "transpose", "unbind", "unsqueeze", "view", "view_as_complex", "view_as_real",
    )
)  # fmt: skip
"""Operations that copy nothing, or whose copy a compiler merges into the next kernel."""

_LOOKUPS = frozenset(["embedding", "index", "index_select", "gather", "_embedding_bag", "take_along_dim"])
"""They read the rows that are asked for."""

_NOTHING = frozenset(["_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_size", "sym_constrain_range"])


REASON_MAX = 120
"""Characters of the error of a path that depends on data."""


MASK_MAX = 1 << 30
"""Elements of a mask that is computed."""

UNKNOWN_MASK = "the values of an attention mask are not known, so its attention counts as full"


class Refused(Exception):
    """The model cannot be read; the text says why, and what to do."""


def main() -> None:
    """Answer the request of the first argument."""
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the model's code prints is no answer
    # Python put this file's folder first; the model's modules come from the folder that the command runs in.
    sys.path[0] = os.getcwd()  # noqa: PTH109 (runs without Sooner)
    try:
        found: Mapping[str, Any] = _trace(json.loads(sys.argv[1]))
    except Refused as error:
        found = {"error": str(error)}
    with answer:
        json.dump(found, answer)


def _trace(request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        import torch  # noqa: F401
    except ImportError as error:
        if getattr(error, "name", "") != "torch":
            raise Refused(f"torch cannot be imported: {error}") from error
        raise Refused(
            f"PyTorch is not installed in {sys.executable}: install it there (pip install 'sooner[torch]'), or name the Python "
            "that has it and your model with --python"
        ) from error
    notes: list[str] = []
    module, examples = _built(_factory(request["factory"]), request["factory"], notes)
    args, kwargs = _inputs(examples, request["inputs"], request["batch"])
    program = _exported(module, args, kwargs)
    reader = _Reader(program, module, notes)
    return {
        "operations": reader.read(),
        "modules": {name: type(part).__qualname__ for name, part in module.named_modules()},
        "precision": _precision(module),
        "warnings": notes,
    }


def _factory(name: str) -> Callable[[], Any]:
    """What ``package.module:name`` names."""
    package, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(package)
    except ModuleNotFoundError as error:
        missing = error.name or package
        if package == missing or package.startswith(f"{missing}."):
            raise Refused(
                f"there is no module {missing!r} in {sys.executable} or in the folder {sys.path[0]}"
            ) from error
        raise Refused(
            f"the module {package!r} needs {missing!r}, which is not installed in {sys.executable}"
        ) from error
    except BaseException as error:
        raise Refused(f"the module {package!r} cannot be imported: {_said(error)}{_place(error)}") from error
    for part in path.split("."):
        if not hasattr(found, part):
            raise Refused(f"the module {package!r} has no {path!r}")
        found = getattr(found, part)
    if not callable(found):
        raise Refused(
            f"{name} must be a function without arguments that returns a torch.nn.Module (got {_type(found)})"
        )
    factory: Callable[[], Any] = found
    return factory


def _built(factory: Callable[[], Any], name: str, notes: list[str]) -> tuple[Any, Any]:
    """The module on the meta device and its example inputs (None without any)."""
    import torch

    try:
        with torch.device("meta"):
            made = factory()
    except BaseException as error:
        if not _needs_values(error):
            raise Refused(f"{name} raised {_said(error)}{_place(error)}") from error
        notes.append("the factory reads values of tensors, so the weights were made in memory and then dropped")
        try:
            made = factory()
        except BaseException as second:
            raise Refused(f"{name} raised {_said(second)}{_place(second)}") from second
    module, examples = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(module, torch.nn.Module):
        raise Refused(
            f"{name} must return a torch.nn.Module, or a pair of one and its example inputs (got {_type(made)})"
        )
    return module.to("meta"), examples


def _needs_values(error: BaseException) -> bool:
    """Whether it was raised because a tensor on the meta device has no values."""
    return isinstance(error, (NotImplementedError, RuntimeError)) and "meta" in str(error).lower()


def _inputs(
    examples: Any, given: Sequence[Mapping[str, Any]], batch: int | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and named inputs on the meta device."""
    import torch

    if given:
        made = [(spec["name"], _tensor([batch, *spec["shape"]], spec["dtype"])) for spec in given]
        return tuple(tensor for name, tensor in made if not name), {name: tensor for name, tensor in made if name}
    if examples is None:
        raise Refused("input: give --input SHAPE:DTYPE, or let the factory return (module, example_inputs)")
    if isinstance(examples, torch.Tensor):
        examples = (examples,)
    if not isinstance(examples, (tuple, list, dict)):
        raise Refused(
            f"the example inputs must be a tensor, a tuple of arguments or a dict of them (got {_type(examples)})"
        )
    tensors = [leaf for leaf in torch.utils._pytree.tree_leaves(examples) if isinstance(leaf, torch.Tensor)]
    if batch is not None:
        sizes = sorted({leaf.shape[0] if leaf.dim() else 0 for leaf in tensors})
        if len(sizes) != 1 or not sizes[0]:
            shown = ", ".join(str(size) for size in sizes)
            raise Refused(
                f"batch: needs example inputs with one first dimension (got {shown}); leave --batch out, or give --input"
            )

    def moved(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return torch.empty(leaf.shape if batch is None else (batch, *leaf.shape[1:]), dtype=leaf.dtype, device="meta")

    found = torch.utils._pytree.tree_map(moved, examples)
    return ((), found) if isinstance(found, dict) else (tuple(found), {})


def _tensor(shape: Sequence[int | None], dtype: str) -> Any:
    import torch

    return torch.empty(shape, dtype=getattr(torch, dtype), device="meta")


def _exported(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    import torch

    try:
        with torch.device("meta"):  # for code that makes tensors without naming a device
            program = torch.export.export(module, args, kwargs, strict=False)
        table = torch.export.default_decompositions()
        # Attention stays whole: decomposed, it would count as what a fused kernel avoids.
        table.pop(torch.ops.aten.scaled_dot_product_attention.default, None)
        return program.run_decompositions(table)
    except Exception as error:
        said, place = _said(error), _place(error)
        kind = type(error).__name__
        if "DataDependent" in kind or "data-dependent" in str(error).lower() or _needs_values(error):
            advice = "; the path must not depend on values of tensors: use torch.where or torch.cond there"
            advice += ", or return the module in eval() mode" if module.training else ""
            raise Refused(
                f"control flow depends on data, so the model cannot be exported{place}{advice} ({said})"
            ) from error
        raise Refused(f"torch.export failed{place}: {said}") from error


def _said(error: BaseException) -> str:
    text = " ".join(str(error).split())
    text = text if len(text) <= ERROR_MAX else text[:ERROR_MAX] + " ..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _place(error: BaseException) -> str:
    """The last line of code outside libraries in the error's traceback: `` at model.py, line 3: `if x.sum() > 0:```."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) != Path(__file__)]
    own = [frame for frame in frames if not _installed(frame.filename)]
    if not own:
        own = [frame for frame in frames if f"{os.sep}torch{os.sep}" not in frame.filename]
        own = [frame for frame in own if Path(frame.filename).exists()]
    if not own:
        return ""
    frame = own[-1]
    line = linecache.getline(frame.filename, frame.lineno or 0).strip()
    return f" at {frame.filename}, line {frame.lineno}: `{line}`"


def _installed(filename: str) -> bool:
    return "site-packages" in filename or filename.startswith(("<", os.path.dirname(os.__file__)))  # noqa: PTH120


def _type(found: Any) -> str:
    return type(found).__qualname__


def _precision(module: Any) -> str:
    """The format of most parameters."""
    import torch

    names = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
    sizes: dict[str, int] = {}
    for parameter in module.parameters():
        name = names.get(parameter.dtype, "")
        sizes[name] = sizes.get(name, 0) + parameter.numel()
    return max(sizes, key=lambda name: sizes[name]) if sizes else ""


class _Reader:
    """The exported graph as a list of operations; a nested graph (autocast, checkpointing) stands where it is called."""

    def __init__(self, program: Any, module: Any, notes: list[str]) -> None:
        self._program = program
        self._parameters = dict(module.named_parameters(remove_duplicate=False))
        self._notes = notes
        self._masks = _Masks(notes)
        self._operations: list[dict[str, Any]] = []

    def read(self) -> list[dict[str, Any]]:
        signature = self._program.graph_signature
        parameters = signature.inputs_to_parameters
        buffers = {**signature.inputs_to_buffers, **signature.inputs_to_lifted_tensor_constants}
        places: dict[Any, Any] = {}
        tied: dict[int, int] = {}
        for node in self._program.graph.nodes:
            if node.op != "placeholder":
                continue
            value = node.meta.get("val")
            if node.name in parameters:
                name = parameters[node.name]
                parameter = self._parameters[name]
                if id(parameter) not in tied:
                    tied[id(parameter)] = self._add(name, "parameter", value, trainable=parameter.requires_grad)
                places[node] = tied[id(parameter)]
            else:
                places[node] = self._add(node.name, "buffer" if node.name in buffers else "input", value)
        self._walk(self._program.graph_module, places, ())
        return self._operations

    def _walk(self, graph_module: Any, places: dict[Any, Any], outer: tuple[str, ...]) -> Any:
        """Add the graph's operations; ``places`` has the position of each known node. Returns the positions of its outputs."""
        for node in graph_module.graph.nodes:
            if node.op == "output":
                return self._mapped(node.args[0], places)
            if node.op == "call_function":
                nested = [self._graph(graph_module, argument) for argument in node.args]
                if any(graph is not None for graph in nested):
                    places[node] = self._call(node, nested, places)
                else:
                    places[node] = self._operation(node, places)
        return None

    def _graph(self, graph_module: Any, argument: Any) -> Any:
        import torch

        if not isinstance(argument, torch.fx.Node) or argument.op != "get_attr":
            return None
        found = getattr(graph_module, str(argument.target), None)
        return found if isinstance(found, torch.fx.GraphModule) else None

    def _call(self, node: Any, nested: Sequence[Any], places: dict[Any, Any]) -> Any:
        """The first of a node's nested graphs with the node's last arguments."""
        graph = next(graph for graph in nested if graph is not None)
        if sum(found is not None for found in nested) > 1:
            self._notes.append(f"{node.target}: only its first branch is counted, once")
        placeholders = [inner for inner in graph.graph.nodes if inner.op == "placeholder"]
        operands: list[Any] = []
        for argument, found in zip(node.args, nested, strict=True):
            if found is None:
                operands += argument if isinstance(argument, (tuple, list)) else [argument]
        operands = operands[len(operands) - len(placeholders) :]
        inner = {place: places.get(operand) for place, operand in zip(placeholders, operands, strict=True)}
        return self._walk(graph, inner, ())

    def _mapped(self, arguments: Any, places: Mapping[Any, Any]) -> Any:
        if isinstance(arguments, (tuple, list)):
            return [self._mapped(argument, places) for argument in arguments]
        return places.get(arguments) if hasattr(arguments, "op") else None

    def _operation(self, node: Any, places: Mapping[Any, Any]) -> Any:
        name = _name(node)
        if name == "getitem" and isinstance(places.get(node.args[0]), list):
            return places[node.args[0]][node.args[1]]
        if name in _NOTHING:
            return None
        inputs = _positions(places, (*node.args, *node.kwargs.values()))
        kind, flops, factors = _work(node, name, self._masks)
        return self._add(
            str(node.name), kind, node.meta.get("val"),
            scope=_scope(node), flops=flops, inputs=inputs, factors=_positions(places, factors),
        )  # fmt: skip

    def _add(self, name: str, kind: str, value: Any, **more: Any) -> int:
        floats, fixed = _size(value)
        self._operations.append({"name": name, "kind": kind, "floats": floats, "fixed_bytes": fixed, **more})
        return len(self._operations) - 1


def _scope(node: Any) -> str:
    """The path of the module that the node is in. ``layers.0@1.attention@1``: in the second call of ``layers.0``."""
    stack = node.meta.get("nn_module_stack") or {}
    calls = {path: key.rpartition("@")[2] for key, (path, _) in stack.items() if "@" in key}
    deepest = max((path for path, _ in stack.values()), key=len, default="")
    parts = deepest.split(".")
    for depth in range(len(parts)):
        path = ".".join(deepest.split(".")[: depth + 1])
        if path in calls:
            parts[depth] += f"@{calls[path]}"
    return ".".join(parts)


def _positions(places: Mapping[Any, Any], arguments: Any) -> list[int]:
    """Positions of the operations among the arguments, however deeply they are nested."""
    found: dict[int, None] = {}
    for argument in _flat(arguments):
        for place in _flat(places.get(argument)) if hasattr(argument, "op") else ():
            if isinstance(place, int):
                found[place] = None
    return list(found)


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)):
        for entry in value:
            yield from _flat(entry)
    elif value is not None:
        yield value


def _name(node: Any) -> str:
    packet = getattr(node.target, "overloadpacket", None)
    return str(getattr(packet or node.target, "__name__", node.target))


def _work(node: Any, name: str, masks: "_Masks") -> tuple[str, int, tuple[Any, ...]]:
    """Kind, operations of the forward pass, and the arguments that are multiplied with one another."""
    import torch
    from torch.utils import flop_counter

    def value(argument: Any) -> Any:
        return argument.meta.get("val") if isinstance(argument, torch.fx.Node) else argument

    if "attention" in name:
        query, key, weights = (value(argument) for argument in node.args[:3])
        # Grouped queries share keys: the products are those of all queries' heads, here in one dimension.
        heads = (query.shape[:-2].numel(), 1)
        flops = flop_counter.sdpa_flop_count(*((*heads, *each.shape[-2:]) for each in (query, key, weights)))
        causal = node.kwargs.get("is_causal") or (len(node.args) > 5 and node.args[5])
        share = (
            0.5
            if causal
            else masks.share(node.kwargs.get("attn_mask") or (node.args[3] if len(node.args) > 3 else None))
        )
        return "attention", round(flops * share), node.args[:3]
    if "grouped_mm" in name:
        rows, weights = value(node.args[0]), value(node.args[1])
        return "experts", 2 * rows.numel() * weights.shape[-1], node.args[:2]
    packet = getattr(node.target, "overloadpacket", node.target)
    if packet in flop_counter.flop_registry:
        args, kwargs = torch.utils._pytree.tree_map(value, (node.args, node.kwargs))
        flops = int(flop_counter.flop_registry[packet](*args, **kwargs, out_val=node.meta["val"]))
        added = name in ("addmm", "baddbmm", "_scaled_mm")
        kind = "convolution" if "conv" in name else "product"
        return kind, flops, node.args[1:3] if added and name != "_scaled_mm" else node.args[:2]
    if name in _LOOKUPS:
        return "lookup", 0, ()
    return ("view" if name in _VIEWS else "other"), 0, ()


class _Masks:
    """The share of its scores that attention computes: fused kernels leave out what a mask hides."""

    def __init__(self, notes: list[str]) -> None:
        self._notes = notes
        self._known: dict[Any, float] = {}

    def share(self, mask: Any) -> float:
        """Of a node that makes a mask; 1 without a mask, and for one whose values are not known."""
        if mask is None:
            return 1.0
        while _name(mask) in _VIEWS and mask.meta["val"].dtype == mask.args[0].meta["val"].dtype:
            mask = mask.args[0]
        if mask not in self._known:
            found = self._evaluated(mask)
            if found is None and UNKNOWN_MASK not in self._notes:
                self._notes.append(UNKNOWN_MASK)
            self._known[mask] = 1.0 if found is None else found
        return self._known[mask]

    def _evaluated(self, mask: Any) -> float | None:
        """Compute the mask on the CPU, if it follows from constants alone and is not too large."""
        import torch

        needed, waiting = set(), [mask]
        while waiting:
            node = waiting.pop()
            if node.op != "call_function" or sum(_size(node.meta.get("val"))) > MASK_MAX:
                return None
            needed.add(node)
            waiting.extend(found for found in node.all_input_nodes if found not in needed)
        values: dict[Any, Any] = {}
        left = {node: sum(user in needed for user in node.users) for node in needed}
        try:
            for node in (node for node in mask.graph.nodes if node in needed):
                arguments = torch.fx.map_arg((node.args, node.kwargs), lambda found: values[found])
                args, kwargs = arguments[0], dict(arguments[1])
                if "device" in kwargs:
                    kwargs["device"] = "cpu"
                values[node] = node.target(*args, **kwargs)
                for found in node.all_input_nodes:
                    left[found] -= 1
                    if not left[found]:
                        del values[found]
            made = values[mask]
            seen = made if made.dtype is torch.bool else made > torch.finfo(made.dtype).min / 2
            return float(torch.count_nonzero(seen).item() / max(1, seen.numel()))
        except (RuntimeError, TypeError, MemoryError, KeyError):
            return None


def _size(value: Any) -> tuple[int, int]:
    """Floating-point elements, and bytes of everything else, of a value that may be a tuple of tensors."""
    import torch

    floats = fixed = 0
    for tensor in torch.utils._pytree.tree_leaves(value):
        if isinstance(tensor, torch.Tensor):
            if tensor.is_floating_point() or tensor.is_complex():
                floats += int(tensor.numel())
            else:
                fixed += int(tensor.numel()) * tensor.element_size()
    return floats, fixed


if __name__ == "__main__":
    main()
