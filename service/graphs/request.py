"""What a program that reads a model is asked, from the options of the command line."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from service.graphs.child import Bounds, traced
from service.graphs.trace import Trace
from service.plans.values import COUNT_MAX, ReadError

DTYPES = ("float32", "float16", "bfloat16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool")
_INPUT = re.compile(r"(?:(?P<name>[^=:]*)=)?(?P<shape>[0-9x,]*):(?P<dtype>\w+)")
_FACTORY = re.compile(r"\w+(\.\w+)*:\w+(\.\w+)*")
_DIMENSION = re.compile(r"(?P<name>[^=]+)=(?P<size>\d{1,10})")


def trace_torch(factory: str, inputs: Sequence[str], batch: int | None, python: str, bounds: Bounds) -> Trace:
    """The trace of the model that ``package.module:factory`` makes. Raises :class:`ReadError`."""
    if _FACTORY.fullmatch(factory) is None:
        raise ReadError("factory", f"must be package.module:function (got {factory!r:.60})")
    given = [input_of(text) for text in inputs]
    if given and batch is None:
        raise ReadError("batch", "is needed with --input, whose shapes are those of one sample")
    return traced("torch_program.py", {"factory": factory, "inputs": given, "batch": batch}, python, bounds)


def trace_onnx(file: Path, dimensions: Sequence[str], batch: int | None, python: str, bounds: Bounds) -> Trace:
    """The trace of an ONNX file. Raises :class:`ReadError`."""
    sizes: dict[str, int] = {}
    for text in dimensions:
        found = _DIMENSION.fullmatch(text)
        if found is None or not 1 <= int(found["size"]) <= COUNT_MAX:
            raise ReadError("dim", f"must be NAME=SIZE with a size from 1 to {COUNT_MAX:,} (got {text!r:.60})")
        sizes[found["name"]] = int(found["size"])
    return traced("onnx_program.py", {"file": str(file), "sizes": sizes, "batch": batch}, python, bounds)


def input_of(text: str) -> dict[str, Any]:
    """``3x224x224:float32``, ``1024:int64`` or ``input_ids=1024:int64``: the shape of one sample, without the batch."""
    found = _INPUT.fullmatch(text)
    if found is None:
        raise ReadError("input", f"must be [NAME=]SHAPE:DTYPE, such as 3x224x224:float32 (got {text!r:.60})")
    if found["dtype"] not in DTYPES:
        raise ReadError("input", f"the type must be one of {', '.join(DTYPES)} (got {found['dtype']!r:.60})")
    name = found["name"]
    if name is not None and not name.isidentifier():
        raise ReadError("input", f"the name must be that of an argument of forward (got {name!r:.60})")
    sizes = [int(size) for size in re.split("[x,]", found["shape"]) if size] if found["shape"] else []
    if re.search(r"^[x,]|[x,]$|[x,]{2}", found["shape"]) or any(not 1 <= size <= COUNT_MAX for size in sizes):
        raise ReadError("input", f"sizes must be 1 to {COUNT_MAX:,}, with x between them (got {found['shape']!r:.60})")
    return {"name": name, "shape": sizes, "dtype": found["dtype"]}
