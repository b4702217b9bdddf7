"""Networks as units with their costs, counted from the shapes of their layers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Cost:
    """Parameters, and multiply-accumulates of one sample's forward pass (element-wise work is left out: it is small)."""

    parameters: int = 0
    macs: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.parameters + other.parameters, self.macs + other.macs)


def convolution(
    inputs: int, outputs: int, kernel: tuple[int, int], size: int, *, bias: bool = False, norm: bool = True
) -> Cost:
    """A convolution with an output of ``size`` x ``size``, by default with batch normalisation instead of a bias."""
    weights = inputs * outputs * kernel[0] * kernel[1]
    return Cost(weights + (2 * outputs if norm else 0) + (outputs if bias else 0), weights * size * size)


def dense(inputs: int, outputs: int, *, positions: int = 1, bias: bool = True) -> Cost:
    """A fully connected layer applied at this many positions of a sample."""
    return Cost(inputs * outputs + (outputs if bias else 0), inputs * outputs * positions)


@dataclass(frozen=True, slots=True)
class Unit:
    """A block of layers that is never split over pipeline stages: one layer of a job's layer graph.

    ``outputs``: elements per sample that it sends to each successor. ``reduced``: elements per sample that a tensor-parallel
    replica all-reduces for it in an iteration.
    """

    name: str
    cost: Cost
    outputs: int
    reduced: int = 0


@dataclass(frozen=True)
class CatalogueModel:
    """A published network. ``samples_per_gpu`` is a usual batch; ``sample`` describes one sample."""

    name: str
    title: str
    source: str
    sample: str
    samples_per_gpu: int
    units: tuple[Unit, ...]
    edges: tuple[tuple[str, str], ...]

    @cached_property
    def parameters(self) -> int:
        """Trainable parameters, counted from the architecture."""
        return sum(unit.cost.parameters for unit in self.units)

    @cached_property
    def macs(self) -> int:
        """Multiply-accumulates of one sample's forward pass."""
        return sum(unit.cost.macs for unit in self.units)


Units = tuple[tuple[Unit, ...], tuple[tuple[str, str], ...]]
"""Units in topological order, and the edges between them by name."""

Architecture = Callable[[], Units]


def in_a_row(units: Sequence[Unit]) -> Units:
    """Units that form a chain."""
    return tuple(units), tuple((a.name, b.name) for a, b in pairwise(units))
