"""Traces written by hand."""

from collections.abc import Mapping
from typing import Any

from service.graphs.trace import Kind, Operation, Trace


class Writer:
    """Adds operations one by one; each method returns the position of its value."""

    def __init__(self, classes: Mapping[str, str] | None = None) -> None:
        self.operations: list[Operation] = []
        self.classes = dict(classes or {})

    def add(self, kind: Kind, floats: int, *inputs: int, scope: str = "", name: str = "", **more: Any) -> int:
        parts = tuple(scope.split(".")) if scope else ()
        name = name or f"{kind}_{len(self.operations)}"
        self.operations.append(Operation(name, kind, floats, scope=parts, inputs=inputs, **more))
        return len(self.operations) - 1

    def input(self, floats: int) -> int:
        return self.add(Kind.INPUT, floats)

    def parameter(self, name: str, floats: int, *, trainable: bool = True) -> int:
        return self.add(Kind.PARAMETER, floats, name=name, trainable=trainable)

    def linear(self, scope: str, value: int, rows: int, inputs: int, outputs: int, *, trainable: bool = True) -> int:
        """A product with a weight of its own, and no bias."""
        weight = self.parameter(f"{scope}.weight", inputs * outputs, trainable=trainable)
        turned = self.add(Kind.VIEW, inputs * outputs, weight, scope=scope)
        flops = 2 * rows * inputs * outputs
        return self.add(Kind.PRODUCT, rows * outputs, value, turned, scope=scope, flops=flops, factors=(value, turned))

    def other(self, scope: str, floats: int, *inputs: int) -> int:
        return self.add(Kind.OTHER, floats, *inputs, scope=scope)

    def trace(self, precision: str = "fp32") -> Trace:
        return Trace(tuple(self.operations), self.classes, precision)


def transformer(blocks: int, rows: int = 8, width: int = 4) -> Writer:
    """Blocks of four products with residual connections between embedding and head, as a decoder has them."""
    classes = {"": "Model", "blocks": "ModuleList"}
    for i in range(blocks):
        classes |= {f"blocks.{i}": "Block", f"blocks.{i}.attention": "Attention", f"blocks.{i}.mlp": "Mlp"}
    writer = Writer(classes)
    tokens = writer.add(Kind.INPUT, 0, fixed_bytes=8 * rows)
    table = writer.parameter("embed.weight", 100 * width)
    value = writer.add(Kind.LOOKUP, rows * width, table, tokens, scope="embed")
    for i in range(blocks):
        value = _block(writer, f"blocks.{i}", value, rows, width)
    scale = writer.parameter("norm.weight", width)
    value = writer.add(Kind.OTHER, rows * width, value, scale, scope="norm")
    writer.linear("head", value, rows, width, 100)
    return writer


def _block(writer: Writer, name: str, value: int, rows: int, width: int) -> int:
    inner = writer.linear(f"{name}.attention.in", value, rows, width, 3 * width)
    inner = writer.linear(f"{name}.attention.out", inner, rows, 3 * width, width)
    value = writer.other(name, rows * width, value, inner)
    inner = writer.linear(f"{name}.mlp.up", value, rows, width, 4 * width)
    inner = writer.other(f"{name}.mlp", rows * 4 * width, inner)
    inner = writer.linear(f"{name}.mlp.down", inner, rows, 4 * width, width)
    return writer.other(name, rows * width, value, inner)
