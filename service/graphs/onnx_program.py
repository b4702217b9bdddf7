"""Reads an ONNX file as operations: a program for any Python that has onnx, started by :mod:`service.graphs.child`.

It takes a request in JSON as its argument, and writes the trace (:mod:`service.graphs.trace`) or ``{"error": ...}`` in JSON to
standard output. Weights are dropped once the file is parsed, and external data is never opened. Standard library and onnx only.
"""

import ast
import json
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

FILE_BYTES_MAX = 2 << 30
"""Protocol buffers hold no more; larger models keep their weights as external data."""

KEPT_MAX = 4096
"""Elements of a constant whose values are kept: shapes and indices that other shapes follow from."""

_VIEWS = frozenset(
    (
        "Cast", "CastLike", "Expand", "Flatten", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze",
    )
)  # fmt: skip
_LOOKUPS = frozenset(("Gather", "GatherElements", "GatherND"))
_SHAPES = frozenset(("Constant", "Shape", "Size"))
"""They read no values."""

_SCOPES, _CLASSES = "pkg.torch.onnx.name_scopes", "pkg.torch.onnx.class_hierarchy"
"""Properties that the exporter of PyTorch gives each node."""

_RECURRENT = ("GRU", "LSTM", "RNN")
_CONVOLUTIONS = ("Conv", "ConvInteger", "ConvTranspose", "DeformConv", "QLinearConv")


class Refused(Exception):
    """The file cannot be read; the text says why, and what to do."""


def main() -> None:
    """Answer the request of the first argument."""
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.path.pop(0)  # this file's folder
    try:
        found: Mapping[str, Any] = _trace(json.loads(sys.argv[1]))
    except Refused as error:
        found = {"error": str(error)}
    with answer:
        json.dump(found, answer)


def _trace(request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        import onnx
    except ImportError as error:
        raise Refused(
            f"onnx is not installed in {sys.executable}: install it there (pip install 'sooner[onnx]'), or name a Python that "
            f"has it with --python ({error})"
        ) from error
    model = _loaded(request["file"])
    if model.functions:
        from onnx import inliner

        model = inliner.inline_local_functions(model)
    graph = model.graph
    if not graph.node:
        raise Refused(f"{request['file']} has no node: it is no ONNX model")
    weights = _weights(graph)
    _fix_dimensions(graph, set(weights), request["sizes"], request["batch"])
    try:
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except Exception as error:
        raise Refused(f"the shapes cannot be inferred: {_short(error)}") from error
    return _Reader(model.graph, weights).read()


def _loaded(file: str) -> Any:
    import onnx

    try:
        size = Path(file).stat().st_size
        if size > FILE_BYTES_MAX:
            raise Refused(
                f"{file} is larger than {FILE_BYTES_MAX:,} bytes (got {size:,}): save weights as external data"
            )
        return onnx.load(file, load_external_data=False)
    except OSError as error:
        raise Refused(f"{file}: {error.strerror or error}") from error
    except Refused:
        raise
    except Exception as error:
        raise Refused(f"{file} is no ONNX file: {_short(error)}") from error


def _short(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else text[:300] + " ..."


def _weights(graph: Any) -> dict[str, tuple[int, list[int]]]:
    """Type and shape of each initializer. Large ones become inputs of the graph, so that their data is dropped."""
    import onnx

    found: dict[str, tuple[int, list[int]]] = {}
    kept, named = [], {value.name for value in graph.input}
    for tensor in [*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer)]:
        shape = [int(size) for size in tensor.dims]
        if any(size < 0 for size in shape):
            raise Refused(f"the initializer {tensor.name!r:.80} has a negative size")
        found[tensor.name] = (tensor.data_type, shape)
        if math.prod(shape) <= KEPT_MAX and tensor.data_location != onnx.TensorProto.EXTERNAL:
            kept.append(tensor)
        elif tensor.name not in named:
            graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, shape))
    del graph.initializer[:], graph.sparse_initializer[:], graph.value_info[:]
    graph.initializer.extend(kept)
    for value in graph.output:
        value.type.tensor_type.ClearField("shape")
    return found


def _fix_dimensions(graph: Any, weights: set[str], sizes: Mapping[str, int], batch: int | None) -> None:
    """Give every dimension of the inputs a size: the first one is the batch, others have the sizes of their names."""
    unused = set(sizes)
    for value in graph.input:
        if value.name in weights:
            continue
        for axis, dimension in enumerate(value.type.tensor_type.shape.dim):
            name = dimension.dim_param or f"{value.name}.{axis}"
            if dimension.HasField("dim_value"):
                size = dimension.dim_value
                if axis == 0 and batch is not None and size != batch:
                    raise Refused(
                        f"batch: the file fixes the first dimension of {value.name} at {size} (got {batch}): leave it out"
                    )
                if size < 1:
                    raise Refused(f"dimension {axis} of {value.name} must be at least 1 (got {size})")
                continue
            unused.discard(name)
            if name in sizes:
                dimension.dim_value = sizes[name]
            elif axis == 0 and batch is not None:
                dimension.dim_value = batch
            elif axis == 0:
                raise Refused(f"batch: is needed: the file leaves the first dimension of {value.name} open (--batch)")
            else:
                raise Refused(f"dim: the file leaves dimension {axis} of {value.name} open: give --dim {name}=SIZE")
    if unused:
        raise Refused(f"dim: no input has the dimension {', '.join(sorted(unused))}")


class _Reader:
    """The nodes of a graph as operations."""

    def __init__(self, graph: Any, weights: Mapping[str, tuple[int, list[int]]]) -> None:
        self._graph = graph
        self._weights = weights
        self._types: dict[str, tuple[int, list[int] | None]] = dict(weights)
        self._places: dict[str, int] = {}
        self._operations: list[dict[str, Any]] = []
        self._classes: dict[str, str] = {}
        self._notes: dict[str, None] = {}
        for value in [*graph.input, *graph.value_info, *graph.output]:
            self._types.setdefault(value.name, _type(value))

    def read(self) -> dict[str, Any]:
        buffers = {
            name for node in self._graph.node if node.op_type == "BatchNormalization" for name in node.input[3:5]
        }
        for name, (_, shape) in self._weights.items():
            floats = self._size(name)[0]
            # One number is a constant of the program, not something that is trained.
            kind = "parameter" if floats and math.prod(shape) > 1 and name not in buffers else "buffer"
            self._places[name] = self._add(name, kind, self._size(name), trainable=kind == "parameter")
        for value in self._graph.input:
            if value.name not in self._weights:
                self._places[value.name] = self._add(value.name, "input", self._size(value.name))
        for number, node in enumerate(self._graph.node):
            self._node(node, node.name or f"{node.op_type}_{number}")
        return {
            "operations": self._operations,
            "modules": self._classes,
            "precision": self._precision(),
            "warnings": list(self._notes),
        }

    def _node(self, node: Any, name: str) -> None:
        if any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute):
            self._notes[f"{node.op_type} {name!r:.80}: what is in its branches is not counted"] = None
        inputs = [] if node.op_type in _SHAPES else self._inputs(node, name)
        kind, flops, factors = self._work(node, name)
        outputs = [output for output in node.output if output]
        sizes = [self._size(output, inputs) for output in outputs]
        place = self._add(
            name, kind, (sum(floats for floats, _ in sizes), sum(fixed for _, fixed in sizes)), scope=self._scope(node),
            flops=flops, inputs=inputs, factors=[self._places[factor] for factor in factors],
        )  # fmt: skip
        for output, size in zip(outputs, sizes, strict=True):
            self._places[output] = place if len(outputs) == 1 else self._add(output, "view", size, inputs=[place])

    def _inputs(self, node: Any, name: str) -> list[int]:
        found: dict[int, None] = {}
        for each in node.input:
            if each and each not in self._places:
                raise Refused(f"{node.op_type} {name!r:.80} reads {each!r:.80}, which no node before it makes")
            if each:
                found[self._places[each]] = None
        return list(found)

    def _add(self, name: str, kind: str, size: tuple[int, int], **more: Any) -> int:
        self._operations.append({"name": name, "kind": kind, "floats": size[0], "fixed_bytes": size[1], **more})
        return len(self._operations) - 1

    def _size(self, name: str, inputs: Sequence[int] = ()) -> tuple[int, int]:
        """Floating-point elements, and bytes of others; of a value without a shape those of the largest input."""
        kind, shape = self._types.get(name, (0, None))
        if shape is None:
            largest = max(inputs, key=lambda place: int(self._operations[place]["floats"]), default=None)
            found = self._operations[largest] if largest is not None else {"floats": 0, "fixed_bytes": 0}
            return found["floats"], found["fixed_bytes"]
        floating, width = _element(kind)
        return (math.prod(shape), 0) if floating else (0, math.prod(shape) * width)

    def _shape(self, node: Any, name: str, value: str) -> list[int]:
        shape = self._types.get(value, (0, None))[1]
        if shape is None:
            raise Refused(
                f"the shape of {value!r:.80} at {node.op_type} {name!r:.80} is unknown: give open sizes with --dim, or export "
                "the model with fixed shapes"
            )
        return shape

    def _work(self, node: Any, name: str) -> tuple[str, int, list[str]]:
        """Kind, operations of the forward pass, and the inputs that are multiplied with one another."""
        kind = node.op_type
        if kind in (
            "MatMul",
            "Gemm",
            "FusedMatMul",
            "MatMulInteger",
            "Einsum",
            *_CONVOLUTIONS,
            *_RECURRENT,
            "Attention",
        ):
            values = [value for value in node.input if value]
            shapes = [self._shape(node, name, value) for value in values]
            output = self._shape(node, name, node.output[0])
            try:
                return _counted(node, values, shapes, output)
            except (IndexError, KeyError, ValueError) as error:
                raise Refused(f"{kind} {name!r:.80} has inputs that do not fit it ({_short(error)})") from error
        if kind in _LOOKUPS:
            return "lookup", 0, []
        return ("view" if kind in _VIEWS else "other"), 0, []

    def _scope(self, node: Any) -> str:
        """The path of the module that the node comes from, where its exporter says so."""
        properties = {entry.key: entry.value for entry in node.metadata_props}
        if _SCOPES in properties:
            scopes, classes = _list(properties[_SCOPES]), _list(properties.get(_CLASSES, "[]"))
            for path, sort in zip(scopes, classes, strict=False):
                self._classes.setdefault(path, sort.rpartition(".")[2])
            return scopes[-2] if len(scopes) > 1 else ""
        parts: list[str] = []
        for part in filter(None, node.name.split("/")[:-1]):
            # A member of a list repeats the name of the list: /layers/layers.0/mlp.
            if parts and part.startswith(f"{parts[-1]}."):
                parts.pop()
            parts.append(part)
        return ".".join(parts)

    def _precision(self) -> str:
        import onnx

        types = onnx.TensorProto
        names = {types.FLOAT: "fp32", types.FLOAT16: "fp16", types.BFLOAT16: "bf16"}
        sizes: dict[str, int] = {}
        for kind, shape in self._weights.values():
            if kind in names:
                sizes[names[kind]] = sizes.get(names[kind], 0) + math.prod(shape)
        return max(sizes, key=lambda name: sizes[name]) if sizes else ""


def _counted(
    node: Any, values: Sequence[str], shapes: Sequence[Sequence[int]], output: Sequence[int]
) -> tuple[str, int, list[str]]:
    """Kind, operations and factors of a node with arithmetic, from the shapes of its inputs and of its first output."""
    attributes = {attribute.name: attribute for attribute in node.attribute}
    match node.op_type:
        case "Gemm":
            inner = shapes[0][0 if "transA" in attributes and attributes["transA"].i else 1]
            return "product", 2 * math.prod(output) * inner, list(values[:2])
        case "Einsum":
            letters = _letters(attributes["equation"].s.decode(), shapes)
            return "product", 2 * math.prod(letters.values()), list(values[:2])
        case "ConvTranspose":
            return "convolution", 2 * math.prod(shapes[0]) * math.prod(shapes[1][1:]), list(values[:2])
        case "QLinearConv":
            return "convolution", 2 * math.prod(output) * math.prod(shapes[3][1:]), [values[0], values[3]]
        case "Conv" | "ConvInteger" | "DeformConv":
            return "convolution", 2 * math.prod(output) * math.prod(shapes[1][1:]), list(values[:2])
        case "Attention":
            query, key = shapes[0], shapes[1]
            width = sum(math.prod(shape) // (shape[0] * shape[-2]) for shape in (query, output))
            flops = 2 * query[0] * query[-2] * key[-2] * width
            causal = "is_causal" in attributes and attributes["is_causal"].i
            return "attention", flops // 2 if causal else flops, list(values[:3])
        case kind if kind in _RECURRENT:
            steps = shapes[0][0] * shapes[0][1]
            return "product", 2 * steps * (math.prod(shapes[1]) + math.prod(shapes[2])), list(values[:3])
        case _:
            return "product", 2 * math.prod(output) * shapes[0][-1], list(values[:2])


def _letters(equation: str, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
    """The size of each index of an Einsum without an ellipsis."""
    found: dict[str, int] = {}
    terms = equation.replace(" ", "").partition("->")[0].split(",")
    if "." in equation:
        raise ValueError(f"the equation {equation!r:.80} has an ellipsis")
    for term, shape in zip(terms, shapes, strict=True):
        found |= dict(zip(term, shape, strict=True))
    return found


def _list(text: str) -> list[str]:
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return []
    return [str(entry) for entry in found] if isinstance(found, list) else []


def _type(value: Any) -> tuple[int, list[int] | None]:
    """Element type and shape of a value; None for a shape that is not wholly known."""
    tensor = value.type.tensor_type
    sizes: Iterable[Any] = tensor.shape.dim if tensor.HasField("shape") else ()
    known = tensor.HasField("shape") and all(size.HasField("dim_value") and size.dim_value >= 0 for size in sizes)
    return tensor.elem_type, [int(size.dim_value) for size in sizes] if known else None


def _element(kind: int) -> tuple[bool, int]:
    """Whether a type is of floating-point numbers, and the bytes of an element."""
    import onnx

    types = onnx.TensorProto
    if kind in (types.STRING, types.UNDEFINED):
        return False, 1
    name = types.DataType.Name(kind)
    return name.startswith(("FLOAT", "BFLOAT", "DOUBLE")), onnx.helper.tensor_dtype_to_np_dtype(kind).itemsize


if __name__ == "__main__":
    main()
