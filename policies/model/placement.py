"""Where a gang runs: GPUs on each server and, for jobs with a stage graph, the replicas of each stage there."""

from dataclasses import replace
from enum import StrEnum
from typing import NamedTuple

from policies.model.cluster import Cluster
from policies.model.ids import ServerIndex
from policies.model.value import value


class Span(StrEnum):
    """How far apart a gang's GPUs are: on one server, on several servers of one rack, or on servers of several racks."""

    SERVER = "server"
    RACK = "rack"
    CLUSTER = "cluster"


class TypeFactor(NamedTuple):
    """Iterations on GPUs of this type take ``factor`` times as long as without the correction."""

    gpu_type: str
    factor: float


@value
class Slowdown:
    """How many times as long an iteration takes as with all GPUs on one server, by the span of the placement.

    1 <= ``rack`` <= ``cluster``. A job without a stage graph then has alpha(x) = :meth:`factor` of the span of x, in units of
    its iteration on one server. ``measured``: runs of the job's own program were compared; else the factors are those of other
    programs. The policy then takes a good placement where that is cheap, but neither moves jobs nor waits long for it.
    That of a job with a stage graph corrects its model: measured over modelled seconds, by span and by GPU type; ``server`` may
    differ from 1 then, and a wider span need not be slower.
    """

    rack: float = 1.0
    cluster: float = 1.0
    measured: bool = True
    server: float = 1.0
    gpu_types: tuple[TypeFactor, ...] = ()

    def factor(self, span: Span) -> float:
        """alpha(x) of a placement of this span, before :attr:`gpu_types`."""
        if span is Span.SERVER:
            return self.server
        return self.rack if span is Span.RACK else self.cluster

    def at(self, gpu_type: str, span: Span) -> float:
        """The factor of a placement of this span on GPUs of this type."""
        found = (each.factor for each in self.gpu_types if each.gpu_type == gpu_type)
        return self.factor(span) * next(found, 1.0)


@value
class SpanSeconds:
    """Newest measured seconds per iteration of one job on GPUs of one type, by the span of its placement; None: not measured.

    Those of a job with a stage graph are divided by alpha(x), the seconds that its model gives.
    """

    gpu_type: str
    server: float | None = None
    rack: float | None = None
    cluster: float | None = None

    def at(self, span: Span) -> float | None:
        """The seconds at this span."""
        if span is Span.SERVER:
            return self.server
        return self.rack if span is Span.RACK else self.cluster

    def measured(self, gpu_type: str, span: Span, seconds: float) -> "SpanSeconds":
        """With a new measurement. Those of another GPU type are dropped: they compare types, not spans."""
        kept = self if gpu_type == self.gpu_type else SpanSeconds(gpu_type)
        if span is Span.SERVER:
            return replace(kept, server=seconds)
        return replace(kept, rack=seconds) if span is Span.RACK else replace(kept, cluster=seconds)


class ServerShare(NamedTuple):
    """What a job holds on one server. ``replicas[s]`` = x_s^m; empty for a job without a stage graph."""

    server: ServerIndex
    gpus: int
    replicas: tuple[int, ...] = ()


@value
class Placement:
    """A gang's shares, ordered by server. Build with :func:`place` so that equal placements compare equal."""

    shares: tuple[ServerShare, ...]

    @property
    def gpus(self) -> int:
        """GPUs of the whole gang."""
        return sum([share.gpus for share in self.shares])

    @property
    def servers(self) -> tuple[ServerIndex, ...]:
        """The servers used, in ascending order."""
        return tuple([share.server for share in self.shares])


def place(shares: "list[ServerShare] | tuple[ServerShare, ...]") -> Placement:
    """A placement with its shares in canonical (server) order and empty shares dropped."""
    return Placement(tuple(sorted(share for share in shares if share.gpus > 0)))


def span_of(cluster: Cluster, placement: Placement) -> Span:
    """How far apart the placement's GPUs are. O(shares)."""
    shares = placement.shares
    if len(shares) <= 1:
        return Span.SERVER
    first = cluster.servers[shares[0].server].rack
    together = all(cluster.servers[share.server].rack == first for share in shares)
    return Span.RACK if together else Span.CLUSTER


def type_of(cluster: Cluster, placement: Placement) -> str:
    """The GPU type of a placement: a gang never mixes types."""
    return cluster.servers[placement.shares[0].server].gpu_type
