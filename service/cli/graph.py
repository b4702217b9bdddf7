"""``sooner graph``: the layer graph of a PyTorch model or of an ONNX file, as a job's ``graph``, without a service."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from policies.model.graph import Layer, LayerGraph
from policies.model.plan import Precision
from service.cli.fail import fail
from service.cli.output import Column, JsonFlag, print_json, print_table, printable

if TYPE_CHECKING:
    from service.graphs.child import Bounds
    from service.graphs.document import Found
    from service.graphs.trace import Trace

_GIB = 2**30

GpuType = Annotated[
    str, typer.Option("--gpu-type", help="GPU type, such as H100 or A100-80; other spellings are understood.")
]
Batch = Annotated[
    int | None,
    typer.Option(
        "--batch", "-b", min=1, max=1_000_000_000, help="Global mini-batch: samples of an iteration over all GPUs."
    ),
]
PrecisionOption = Annotated[
    Precision | None,
    typer.Option("--precision", help="Format of matrix products. Default: that of the model's parameters."),
]
Replicas = Annotated[
    int,
    typer.Option(
        "--replicas", min=1, max=1_000_000, help="Data-parallel replicas that share the mini-batch, for tensor_bytes."
    ),
]
Out = Annotated[
    Path | None, typer.Option("--out", dir_okay=False, help="Write the graph to this file, and show its layers.")
]
Python = Annotated[
    str | None,
    typer.Option("--python", help="Python that has the libraries and the model. Default: the one of Sooner."),
]
MemoryGib = Annotated[
    int, typer.Option("--memory-gib", min=1, max=4096, help="Address space that reading the model may take.")
]
TimeLimit = Annotated[
    int, typer.Option("--time-limit", min=1, max=86_400, help="Seconds that reading the model may take.")
]


def from_torch_command(
    factory: Annotated[
        str,
        typer.Argument(
            metavar="PACKAGE:FACTORY", help="A function that returns a torch.nn.Module, or (module, example_inputs)."
        ),
    ],
    gpu_type: GpuType,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="[NAME=]SHAPE:DTYPE",
            help="An input of one sample, such as 3x224x224:float32 or input_ids=1024:int64. Repeatable.",
        ),
    ] = None,
    batch: Batch = None,
    precision: PrecisionOption = None,
    replicas: Replicas = 1,
    out: Out = None,
    python: Python = None,
    memory_gib: MemoryGib = 16,
    time_limit: TimeLimit = 600,
    as_json: JsonFlag = False,
) -> None:
    """Print the layer graph of a PyTorch model. No weight is allocated and no GPU is used.

    The model is exported on the meta device by a process of its own, in the current folder, without network and secrets.
    """
    from service.graphs.request import trace_torch

    def trace(bounds: "Bounds") -> "Trace":
        return trace_torch(factory, inputs or (), batch, python or sys.executable, bounds)

    _answer(trace, gpu_type, precision, replicas, out, memory_gib, time_limit, as_json)


def from_onnx_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An ONNX file. External data is not read.")],
    gpu_type: GpuType,
    batch: Batch = None,
    dim: Annotated[
        list[str] | None,
        typer.Option("--dim", metavar="NAME=SIZE", help="Size of a dimension that the file leaves open. Repeatable."),
    ] = None,
    precision: PrecisionOption = None,
    replicas: Replicas = 1,
    out: Out = None,
    python: Python = None,
    memory_gib: MemoryGib = 16,
    time_limit: TimeLimit = 600,
    as_json: JsonFlag = False,
) -> None:
    """Print the layer graph of an ONNX file.

    A process of its own reads the file, without network and secrets.
    """
    from service.graphs.request import trace_onnx

    def trace(bounds: "Bounds") -> "Trace":
        return trace_onnx(file, dim or (), batch, python or sys.executable, bounds)

    _answer(trace, gpu_type, precision, replicas, out, memory_gib, time_limit, as_json)


def _answer(
    trace: Callable[["Bounds"], "Trace"],
    gpu_type: str,
    precision: Precision | None,
    replicas: int,
    out: Path | None,
    memory_gib: int,
    time_limit: int,
    as_json: bool,
) -> None:
    from service.config.settings import Settings
    from service.graphs.child import Bounds
    from service.graphs.document import Limits, found_in
    from service.plans.gpu_types import gpu_of
    from service.plans.values import ReadError

    limits = Limits(Settings.model_fields["layers_max"].default, Settings.model_fields["edges_max"].default)
    try:
        gpu = gpu_of(gpu_type)
        found = found_in(trace(Bounds(time_limit, memory_gib * _GIB)), gpu, precision, replicas, limits)
    except ReadError as error:
        fail(printable(str(error)))
    for line in found.warnings:
        typer.echo(printable(f"warning: {line}"), err=True)
    body = graph_body(found.graph)
    if out is not None:
        try:
            out.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            fail(f"{out}: {error.strerror or error}")
    if as_json:
        print_json(_document(found, gpu.name, body))
    elif out is not None:
        _print(found, gpu.name)
    else:
        typer.echo(json.dumps(body, indent=1))
        typer.echo(_summary(found, gpu.name), err=True)


def graph_body(graph: LayerGraph) -> dict[str, Any]:
    """The graph as the API takes it."""
    names = [layer.name for layer in graph.layers]
    return {
        "layers": [
            {
                "name": layer.name,
                "forward_s": layer.forward_s,
                "backward_s": layer.backward_s,
                "parameter_bytes": layer.parameter_bytes,
                "activation_bytes": layer.activation_bytes,
                "tensor_bytes": layer.tensor_bytes,
            }
            for layer in graph.layers
        ],
        "edges": [[names[tail], names[head]] for tail, head in graph.edges],
    }


def _document(found: "Found", gpu_type: str, body: dict[str, Any]) -> dict[str, Any]:
    return {
        "schema": "sooner.graph/1",
        "gpu_type": gpu_type,
        "precision": found.precision.value,
        "parameters": found.parameters,
        "forward_flops": found.flops,
        "forward_s": sum(layer.forward_s for layer in found.graph.layers),
        "backward_s": sum(layer.backward_s for layer in found.graph.layers),
        "warnings": list(found.warnings),
        "graph": body,
    }


def _print(found: "Found", gpu_type: str) -> None:
    typer.echo(_summary(found, gpu_type))
    typer.echo()
    print_table(
        [
            Column[Layer]("LAYER", lambda layer: printable(layer.name), long=True),
            Column[Layer]("FORWARD", lambda layer: _milliseconds(layer.forward_s), right=True),
            Column[Layer]("BACKWARD", lambda layer: _milliseconds(layer.backward_s), right=True),
            Column[Layer]("PARAMETERS", lambda layer: _mib(layer.parameter_bytes), right=True),
            Column[Layer]("ACTIVATIONS", lambda layer: _mib(layer.activation_bytes), right=True),
        ],
        found.graph.layers,
    )


def _summary(found: "Found", gpu_type: str) -> str:
    layers = found.graph.layers
    seconds = sum(layer.forward_s + layer.backward_s for layer in layers)
    return (
        f"{len(layers):,} layers, {len(found.graph.edges):,} edges, {found.parameters:,} parameters, "
        f"{found.flops:.4g} operations forward; {seconds:.4g} s a mini-batch on one {gpu_type} in {found.precision}"
    )


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:,.2f} ms"


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
