"""Iteration time of a gang under a placement: our communication model (docs/explanation/a-srpt.md, "Model"), not the paper's.

All bandwidths are those of the ``reserved`` network, in which every GPU owns its share of its server's NIC. A model of
contention passes its own shares instead (``Link.share_bytes_s``); nothing else here would change.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf
from typing import NamedTuple

from policies.model.cluster import Cluster, Server
from policies.model.graph import StageGraph
from policies.model.ids import ServerIndex
from policies.model.job import JobSpec
from policies.model.parallelism import ParallelismConfig
from policies.model.placement import Placement
from policies.model.plan import PipelineSchedule

Counts = tuple[int, ...]
"""x_s^m: replicas of each stage on one server."""

ShareOf = Callable[[ServerIndex], float]
"""Bytes/s that one GPU of the job has towards other servers, by server."""


class Link(NamedTuple):
    """The properties of a server that affect an iteration. Servers with equal links are interchangeable."""

    share_bytes_s: float
    intra_bytes_s: float
    speed: float


def link_of(server: Server) -> Link:
    """The server's link in the ``reserved`` network."""
    return Link(server.share_bytes_s, server.intra_bytes_s, server.gpu_speed)


@dataclass(frozen=True, slots=True, eq=False)
class Gang:
    """A stage graph under a parallelism configuration, per replica. Build with :func:`gang`.

    For stage s: ``compute_s`` seconds of forward and backward on one rank of the reference GPU, ``ring_bytes`` V_s,
    ``tensor_bytes`` all-reduced by a rank inside its group, ``neighbours`` pairs (q, activation bytes to and from q).
    """

    replicas: Counts
    tensor: Counts
    compute_s: tuple[float, ...]
    ring_bytes: tuple[float, ...]
    tensor_bytes: tuple[float, ...]
    neighbours: tuple[tuple[tuple[int, float], ...], ...]
    synchronous: bool
    fill_ratio: float
    """(Q + bubble) / Q of a synchronous pipeline of Q micro-batches: it fills and drains once a mini-batch. Else 1."""
    tensor_across_servers: bool
    gpus: int

    def gpus_for(self, counts: Sequence[int]) -> int:
        """GPUs that this many replicas of each stage need."""
        tensor, gpus = self.tensor, 0
        for s, count in enumerate(counts):
            gpus += count * tensor[s]
        return gpus


@lru_cache(maxsize=4096)
def gang(graph: StageGraph, config: ParallelismConfig) -> Gang:
    """The gang's constants, memoised: equal arguments give the same object, so that it may key other memos."""
    stages = len(graph.stages)
    neighbours: list[list[tuple[int, float]]] = [[] for _ in range(stages)]
    for s, q, sent in graph.edges:
        both = 2.0 * config.virtual_stages * sent
        neighbours[s].append((q, both / config.replicas[s]))
        neighbours[q].append((s, both / config.replicas[q]))
    rows = list(zip(graph.stages, config.replicas, config.tensor, strict=True))
    synchronous = config.schedule is not PipelineSchedule.PIPEDREAM
    waits = config.schedule.bubble(stages, config.virtual_stages)
    return Gang(
        replicas=config.replicas,
        tensor=config.tensor,
        compute_s=tuple((stage.forward_s + stage.backward_s) / (k * t) for stage, k, t in rows),
        ring_bytes=tuple(2.0 * (k - 1) / k * stage.parameter_bytes / t for stage, k, t in rows),
        tensor_bytes=tuple(2.0 * (t - 1) / t * stage.tensor_bytes for stage, _, t in rows),
        neighbours=tuple(tuple(row) for row in neighbours),
        synchronous=synchronous,
        fill_ratio=(config.micro_batches + waits) / config.micro_batches,
        tensor_across_servers=config.tensor_across_servers,
        gpus=sum(k * t for _, k, t in rows),
    )


_GANGS_MAX = 4096

_gangs: dict[tuple[int, int], tuple[StageGraph, ParallelismConfig, Gang]] = {}
"""The gangs of these very objects, by their ids: a cycle asks for them again and again, and :func:`gang` hashes whole graphs.
An entry holds its objects, so their ids are those of no others. Several threads use it, each step by one call."""


def known_gang(graph: StageGraph, config: ParallelismConfig) -> Gang:
    """The same as :func:`gang`, in O(1) for objects that were asked for before."""
    known = _gangs.get((id(graph), id(config)))
    if known is not None:
        return known[2]
    found = gang(graph, config)
    if len(_gangs) >= _GANGS_MAX:
        _gangs.clear()
    _gangs[id(graph), id(config)] = graph, config, found
    return found


def gang_of(spec: JobSpec) -> Gang | None:
    """The job's gang; None for a job without a stage graph."""
    graph, config = spec.stage_graph, spec.parallelism
    return None if graph is None or config is None else known_gang(graph, config)


def straddles(gang: Gang, gpus: Iterable[int], counts: Iterable[Sequence[int]]) -> bool:
    """Whether a tensor group lies on several servers: some server's GPUs are not those of whole replicas."""
    return any(gang.gpus_for(row) != held for held, row in zip(gpus, counts, strict=True))


def seconds(gang: Gang, links: Sequence[Link], counts: Sequence[Sequence[int]], straddling: bool = False) -> float:
    """alpha(x) for ``counts[m][s]`` replicas of stage s on the server behind ``links[m]``. O(servers x stages x degree). Servers
    that hold nothing count only in a straddling placement.

    In a ``straddling`` placement a replica counts where its first rank is. The counts do not show where its other ranks are,
    so the slowest GPU and the narrowest share are used for every stage: the result is an upper bound.
    """
    rings = [_ring_s(gang, s, links, counts, straddling) for s in range(len(gang.replicas))]
    narrowest = min([link.share_bytes_s for link in links]) if straddling else 0.0
    slowest = min([link.speed for link in links]) if straddling else 0.0
    synchronous, worst = gang.synchronous, 0.0
    for link, row in zip(links, counts, strict=True):
        if straddling:
            busy = _row_busy_s(gang, row, link, slowest, min(link.intra_bytes_s, narrowest))
        else:
            busy = _kept_row_busy_s(gang, tuple(row), link)
        for s, own in busy:
            if not synchronous:
                own += rings[s]
            if own > worst:
                worst = own
    return gang.fill_ratio * worst + max(rings) if synchronous else worst


class MappingSeconds:
    """:func:`seconds` of mappings that differ from one in what two servers hold; what all of them share is computed once."""

    __slots__ = ("_busiest_s", "_busy", "_gang", "_links", "_rings", "_rows")

    def __init__(self, gang: Gang, links: tuple[Link, ...], rows: tuple[Counts, ...]) -> None:
        """For mappings that differ from ``rows``. O(servers x stages x degree)."""
        self._gang = gang
        self._links = links
        self._rows = rows
        self._rings = [_ring_s(gang, s, links, rows, False) for s in range(len(gang.replicas))]
        self._busy = [_kept_row_busy_s(gang, row, link) for link, row in zip(links, rows, strict=True)]
        self._busiest_s = [_busiest_s(busy) for busy in self._busy]

    def with_rows(self, a: int, row_a: Counts, b: int, row_b: Counts, limit_s: float) -> float:
        """alpha(x) if these two servers held these rows, which are as many replicas in all as they hold; infinite if it is above
        ``limit_s``.

        O(servers x stages that differ), and O(servers x stages) if rings overlap with the rest of an iteration.
        """
        gang, links, before = self._gang, self._links, self._rows[a]
        rows, rings = list(self._rows), list(self._rings)
        rows[a], rows[b] = row_a, row_b
        for s in range(len(rings)):
            if row_a[s] != before[s]:
                rings[s] = _ring_s(gang, s, links, rows, False)
            if rings[s] > limit_s:
                return inf
        busy_a, busy_b = _kept_row_busy_s(gang, row_a, links[a]), _kept_row_busy_s(gang, row_b, links[b])
        worst = max(_busiest_s(busy_a), _busiest_s(busy_b)) if gang.synchronous else 0.0
        for m in range(len(rows)):
            if gang.synchronous:
                if m not in (a, b) and self._busiest_s[m] > worst:
                    worst = self._busiest_s[m]
                continue
            for s, own in busy_a if m == a else busy_b if m == b else self._busy[m]:
                if own + rings[s] > worst:
                    worst = own + rings[s]
        alpha = gang.fill_ratio * worst + max(rings) if gang.synchronous else worst
        return alpha if alpha <= limit_s else inf


def _busiest_s(busy: tuple[tuple[int, float], ...]) -> float:
    worst = 0.0
    for _, own in busy:
        if own > worst:
            worst = own
    return worst


def _row_busy_s(
    gang: Gang, row: Sequence[int], link: Link, speed: float, group_bytes_s: float
) -> tuple[tuple[int, float], ...]:
    """(stage, seconds) of each stage that the server holds replicas of."""
    return tuple([(s, _busy_s(gang, s, row, link, speed, group_bytes_s)) for s, held in enumerate(row) if held])


@lru_cache(maxsize=16_384)
def _kept_row_busy_s(gang: Gang, row: Counts, link: Link) -> tuple[tuple[int, float], ...]:
    """Memoised: the mappings that a search compares differ in two servers."""
    return _row_busy_s(gang, row, link, link.speed, link.intra_bytes_s)


def _busy_s(gang: Gang, s: int, row: Sequence[int], link: Link, speed: float, group_bytes_s: float) -> float:
    """What a replica of stage s on one server does in an iteration beside its ring: compute, its tensor group, activations."""
    busy = gang.compute_s[s] / speed + gang.tensor_bytes[s] / group_bytes_s
    share_bytes_s, intra_bytes_s, _ = link
    replicas = gang.replicas
    for q, sent in gang.neighbours[s]:
        near = row[q] / replicas[q]
        busy += sent * (near / intra_bytes_s + (1.0 - near) / share_bytes_s)
    return busy


class StageSeconds(NamedTuple):
    """What a replica of ``stage`` on the server behind ``link`` does in an iteration. ``activations_s``: by neighbour."""

    link: int
    stage: int
    compute_s: float
    tensor_s: float
    activations_s: tuple[tuple[int, float], ...]

    @property
    def busy_s(self) -> float:
        """All of it, up to rounding."""
        return self.compute_s + self.tensor_s + sum(seconds for _, seconds in self.activations_s)


class IterationParts(NamedTuple):
    """alpha(x), and what it is made of: the replicas of ``stages`` on each server, and the rings of each stage.

    ``slowest`` is the replica that the others wait for; its parts with ``all_reduce_s`` (the ring of ``ring_stage``) and
    ``bubble_s`` (the pipeline fills and drains) add up to ``total_s``.
    """

    total_s: float
    stages: tuple[StageSeconds, ...]
    rings_s: tuple[float, ...]
    slowest: StageSeconds
    ring_stage: int
    all_reduce_s: float
    bubble_s: float


def parts(
    gang: Gang, links: Sequence[Link], counts: Sequence[Sequence[int]], straddling: bool = False
) -> IterationParts:
    """The parts of :func:`seconds`: each is what the same formula gives for a gang that does nothing else."""
    none = (0.0,) * len(gang.replicas)
    alone: tuple[tuple[tuple[int, float], ...], ...] = ((),) * len(gang.replicas)
    computing = replace(gang, tensor_bytes=none, neighbours=alone)
    reducing = replace(gang, compute_s=none, neighbours=alone)
    silent = replace(gang, compute_s=none, tensor_bytes=none)
    narrowest = min(link.share_bytes_s for link in links)
    slowest_speed = min(link.speed for link in links)
    rings_s = tuple(_ring_s(gang, s, links, counts, straddling) for s in range(len(gang.replicas)))
    stages = []
    for position, (link, row) in enumerate(zip(links, counts, strict=True)):
        speed = slowest_speed if straddling else link.speed
        group_bytes_s = min(link.intra_bytes_s, narrowest) if straddling else link.intra_bytes_s
        for s, held in enumerate(row):
            if held:
                compute_s, tensor_s = (
                    _busy_s(part, s, row, link, speed, group_bytes_s) for part in (computing, reducing)
                )
                pairs = [
                    (q, _busy_s(_with_neighbour(silent, s, q, sent), s, row, link, speed, group_bytes_s))
                    for q, sent in gang.neighbours[s]
                ]
                stages.append(StageSeconds(position, s, compute_s, tensor_s, tuple(pairs)))
    total_s = seconds(gang, links, counts, straddling)
    slowest = max(stages, key=lambda each: each.busy_s + (0.0 if gang.synchronous else rings_s[each.stage]))
    ring_stage = rings_s.index(max(rings_s)) if gang.synchronous else slowest.stage
    bubble_s = (gang.fill_ratio - 1.0) * slowest.busy_s if gang.synchronous else 0.0
    return IterationParts(total_s, tuple(stages), rings_s, slowest, ring_stage, rings_s[ring_stage], bubble_s)


def _with_neighbour(gang: Gang, s: int, q: int, sent: float) -> Gang:
    """The gang whose stage s has this neighbour alone."""
    return replace(gang, neighbours=tuple(((q, sent),) if at == s else () for at in range(len(gang.replicas))))


def _ring_s(gang: Gang, s: int, links: Sequence[Link], counts: Sequence[Sequence[int]], straddling: bool) -> float:
    """T_ar: the ring all-reduce of stage s is as fast as the server through which it leaves with the least bandwidth."""
    if gang.replicas[s] == 1:
        return 0.0
    hosts, intra, least = 0, inf, inf
    for (share_bytes_s, intra_bytes_s, _), row in zip(links, counts, strict=True):
        held = row[s]
        if held or straddling:
            hosts += 1
            intra = intra_bytes_s
            leaving = held * share_bytes_s if held else share_bytes_s
            if leaving > intra_bytes_s:
                leaving = intra_bytes_s
            if leaving < least:
                least = leaving
    return gang.ring_bytes[s] / (intra if hosts == 1 else least)


def floor_s(gang: Gang, links: Iterable[Link]) -> float:
    """alpha with the whole gang on one imaginary server as good as the best of ``links`` in every respect."""
    links = list(links)
    intra = max(link.intra_bytes_s for link in links)
    best = Link(intra, intra, max(link.speed for link in links))
    return seconds(gang, [best], [gang.replicas])


def ceil_s(gang: Gang, links: Iterable[Link]) -> float:
    """alpha with every neighbour remote and one replica a server, each as bad as the worst of ``links`` in every respect."""
    links = list(links)
    share = min(link.share_bytes_s for link in links)
    worst = Link(share, min(link.intra_bytes_s for link in links), min(link.speed for link in links))
    stages = range(len(gang.replicas))
    alone = [tuple(int(q == s) for q in stages) for s in stages for _ in range(min(2, gang.replicas[s]))]
    return seconds(gang, [worst] * len(alone), alone, straddling=gang.tensor_across_servers and max(gang.tensor) > 1)


def placement_s(gang: Gang, cluster: Cluster, placement: Placement, share_of: ShareOf | None = None) -> float:
    """alpha(x) of a placement with replicas; ``share_of`` replaces the shares of the ``reserved`` network."""
    links = [link_of(cluster.servers[share.server]) for share in placement.shares]
    if share_of is not None:
        links = [
            link._replace(share_bytes_s=min(link.intra_bytes_s, share_of(share.server)))
            for link, share in zip(links, placement.shares, strict=True)
        ]
    counts = [share.replicas for share in placement.shares]
    return seconds(gang, links, counts, straddles(gang, (share.gpus for share in placement.shares), counts))


def placement_parts(gang: Gang, cluster: Cluster, placement: Placement) -> IterationParts:
    """The parts of :func:`placement_s` in the ``reserved`` network; ``link`` is a position in the placement's shares."""
    links = [link_of(cluster.servers[share.server]) for share in placement.shares]
    counts = [share.replicas for share in placement.shares]
    return parts(gang, links, counts, straddles(gang, (share.gpus for share in placement.shares), counts))
