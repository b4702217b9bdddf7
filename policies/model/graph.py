"""A DNN as a directed acyclic graph of layers, and the graph of pipeline stages that it is cut into.

Layer values are for one global mini-batch on one reference GPU (papers: A-SRPT's job model, section 2 of the explanation
``docs/explanation/a-srpt.md``). User input is checked before these values are built.
"""

from dataclasses import dataclass

from policies.model.value import value


@value
class Layer:
    """One layer.

    ``activation_bytes`` is sent to each successor per mini-batch; the gradients sent back are as large.
    ``tensor_bytes`` is what one replica all-reduces inside its tensor group per iteration if the layer is split
    (0 if unknown: then tensor parallelism counts as free of traffic).
    """

    name: str
    forward_s: float
    backward_s: float
    parameter_bytes: int
    activation_bytes: int
    tensor_bytes: int = 0


@dataclass(frozen=True, slots=True)
class LayerGraph:
    """Layers in a topological order, and edges as pairs of positions in ``layers`` (tail < head)."""

    layers: tuple[Layer, ...]
    edges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Stage:
    """A pipeline stage: the sums over its layers, for one global mini-batch on one reference GPU."""

    name: str
    forward_s: float
    backward_s: float
    parameter_bytes: int
    tensor_bytes: int = 0


@dataclass(frozen=True, slots=True)
class StageGraph:
    """Stages in pipeline order and the traffic between them.

    ``edges`` holds ``(s, q, bytes)`` with s < q: activation bytes from s to q per mini-batch (gradients sent back are as large).
    """

    stages: tuple[Stage, ...]
    edges: tuple[tuple[int, int, int], ...]
