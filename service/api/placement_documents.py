"""A job's placement as a document. All seconds are those of alpha(x), which decides where jobs are placed."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Row

from policies.model.cluster import Cluster
from policies.model.job import IterationTimes, JobSpec
from policies.model.placement import Placement, ServerShare, Span, span_of
from policies.placement.iteration import Gang, IterationParts, StageSeconds, gang, placement_parts, straddles
from policies.placement.seats import seats
from policies.throughput import alpha
from service.wire.placement import (
    BottleneckDocument,
    EdgeDocument,
    IterationPartsDocument,
    PlacedGpuDocument,
    PlacedReplicaDocument,
    PlacedServerDocument,
    PlacedStageDocument,
    PlacementDocument,
)

NO_ATTEMPT = "The job has not started yet."
NO_STAGES = "The job has no stage graph, so it has no model of its traffic; its speed is measured."
NO_GRAPH = (
    "The stages follow from the training plan, but the plan has no stage graph: its model or its GPU type is not known."
)


class Placed(NamedTuple):
    """An attempt with what its document rests on. ``times`` correct the model."""

    row: Row[Any]
    placement: Placement
    spec: JobSpec
    times: IterationTimes | None
    cluster: Cluster

    @property
    def gpu_ids(self) -> Sequence[Sequence[int]]:
        """Those that the executor has reported, else those of the launch."""
        found: Sequence[Sequence[int]] = self.row.got_gpu_ids or self.row.gpu_ids
        return found


class _Model(NamedTuple):
    """The model of a placement. Its seconds are multiplied by ``correction``."""

    gang: Gang
    parts: IterationParts
    correction: float
    iteration_s: float


def nothing_placed(job_id: int) -> PlacementDocument:
    """Of a job without an attempt."""
    return PlacementDocument(
        job_id=job_id,
        attempt=None,
        state=None,
        span=None,
        servers=[],
        stages=[],
        edges=[],
        iteration_s=None,
        correction=None,
        parts=None,
        bottleneck=None,
        reason=NO_ATTEMPT,
    )


def placement_document(placed: Placed) -> PlacementDocument:
    """Of an attempt."""
    cluster, placement, spec = placed.cluster, placed.placement, placed.spec
    staged = spec.parallelism is not None or spec.plan is not None
    model = _model(placed)
    stages = _stages(placed, model) if staged else []
    return PlacementDocument(
        job_id=placed.row.job_id,
        attempt=placed.row.id,
        state=placed.row.state,
        span=span_of(cluster, placement),
        servers=[
            PlacedServerDocument(
                server=cluster.servers[share.server].name,
                rack=cluster.servers[share.server].rack,
                gpu_type=cluster.servers[share.server].gpu_type,
                gpus=share.gpus,
                gpu_ids=list(ids),
            )
            for share, ids in zip(placement.shares, placed.gpu_ids, strict=True)
        ],
        stages=stages,
        edges=[] if model is None else _edges(placed, model),
        iteration_s=None if model is None else model.iteration_s,
        correction=None if model is None else model.correction,
        parts=None if model is None else _parts(model),
        bottleneck=None if model is None else _bottleneck(placed, model),
        reason=None if model is not None else NO_GRAPH if staged else NO_STAGES,
    )


def _model(placed: Placed) -> _Model | None:
    spec, placement = placed.spec, placed.placement
    if spec.stage_graph is None or spec.parallelism is None or not placement.shares[0].replicas:
        return None
    found = gang(spec.stage_graph, spec.parallelism)
    parts = placement_parts(found, placed.cluster, placement)
    if placed.times is None:
        return _Model(found, parts, 1.0, parts.total_s)
    iteration_s = alpha(spec, placed.times, placed.cluster, placement)
    return _Model(found, parts, iteration_s / parts.total_s if parts.total_s > 0.0 else 1.0, iteration_s)


def _stages(placed: Placed, model: _Model | None) -> list[PlacedStageDocument]:
    spec = placed.spec
    groups: dict[int, dict[int, list[PlacedGpuDocument]]] = {}
    for seat in sorted(seats(spec, placed.placement), key=lambda seat: (seat.stage, seat.replica, seat.tensor)):
        gpu = PlacedGpuDocument(server=seat.share, gpu_id=placed.gpu_ids[seat.share][seat.gpu], rank=seat.rank)
        groups.setdefault(seat.stage, {}).setdefault(seat.replica, []).append(gpu)
    found = []
    for stage, replicas in groups.items():
        slowest = None if model is None else max(_of_stage(model.parts, stage), key=lambda each: each.busy_s)
        factor = 1.0 if model is None else model.correction
        found.append(
            PlacedStageDocument(
                stage=stage,
                name=spec.stage_graph.stages[stage].name if spec.stage_graph is not None else f"s{stage}",
                tensor=len(replicas[0]),
                replicas=[PlacedReplicaDocument(replica=replica, gpus=gpus) for replica, gpus in replicas.items()],
                compute_s=None if slowest is None else slowest.compute_s * factor,
                tensor_s=None if slowest is None else slowest.tensor_s * factor,
                activations_s=None if slowest is None else _activations_s(slowest) * factor,
                all_reduce_s=None if model is None else model.parts.rings_s[stage] * factor,
            )
        )
    return found


def _of_stage(parts: IterationParts, stage: int) -> list[StageSeconds]:
    return [each for each in parts.stages if each.stage == stage]


def _activations_s(each: StageSeconds) -> float:
    return sum(seconds for _, seconds in each.activations_s)


def _edges(placed: Placed, model: _Model) -> list[EdgeDocument]:
    graph, found = placed.spec.stage_graph, model.gang
    assert graph is not None
    edges: list[EdgeDocument] = []
    for source, target, _ in graph.edges:
        sent = sum(sent for q, sent in found.neighbours[source] if q == target) * found.replicas[source]
        both = [(each, {source: target, target: source}.get(each.stage)) for each in model.parts.stages]
        taken_s = [seconds for each, other in both for q, seconds in each.activations_s if q == other]
        edges.append(_edge(placed, model, "activations", (source, target), sent, max(taken_s)))
    for stage, (replicas, tensor) in enumerate(zip(found.replicas, found.tensor, strict=True)):
        ranks = replicas * tensor
        if replicas > 1:
            all_reduce_s = model.parts.rings_s[stage]
            edges.append(
                _edge(placed, model, "all_reduce", (stage, stage), found.ring_bytes[stage] * ranks, all_reduce_s)
            )
        if tensor > 1:
            tensor_s = max(each.tensor_s for each in _of_stage(model.parts, stage))
            edges.append(_edge(placed, model, "tensor", (stage, stage), found.tensor_bytes[stage] * ranks, tensor_s))
    return edges


def _edge(
    placed: Placed, model: _Model, kind: Any, stages: tuple[int, int], total_bytes: float, seconds: float
) -> EdgeDocument:
    return EdgeDocument(
        kind=kind,
        source=stages[0],
        target=stages[1],
        total_bytes=total_bytes,
        span=_span(placed, model, kind, set(stages)),
        seconds=seconds * model.correction,
    )


def _span(placed: Placed, model: _Model, kind: str, stages: Iterable[int]) -> Span:
    """How far apart the GPUs of these stages are. A tensor group is on one server unless the placement splits groups."""
    shares = placed.placement.shares
    if straddles(model.gang, (share.gpus for share in shares), (share.replicas for share in shares)):
        hosts: list[ServerShare] = list(shares)
    elif kind == "tensor":
        return Span.SERVER
    else:
        hosts = [share for share in shares if any(share.replicas[stage] for stage in stages)]
    return span_of(placed.cluster, Placement(tuple(hosts)))


def _parts(model: _Model) -> IterationPartsDocument:
    parts, factor = model.parts, model.correction
    return IterationPartsDocument(
        compute_s=parts.slowest.compute_s * factor,
        tensor_s=parts.slowest.tensor_s * factor,
        activations_s=_activations_s(parts.slowest) * factor,
        all_reduce_s=parts.all_reduce_s * factor,
        bubble_s=parts.bubble_s * factor,
    )


def _bottleneck(placed: Placed, model: _Model) -> BottleneckDocument:
    found: Any = _parts(model)
    largest: Any = max(found, key=lambda name: found[name])
    ring = largest == "all_reduce_s"
    server = placed.placement.shares[model.parts.slowest.link].server
    return BottleneckDocument(
        part=largest.removesuffix("_s"),
        seconds=found[largest],
        stage=model.parts.ring_stage if ring else model.parts.slowest.stage,
        server=None if ring else placed.cluster.servers[server].name,
    )
