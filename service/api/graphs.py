"""A body's graph and parallelism as a stage graph with times on the reference GPU.

Every fault is collected with its JSON pointer; functions return None where the faults leave nothing to build.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from policies.catalogue import GPUS, MODELS, build, default_config
from policies.model.cluster import Cluster
from policies.model.graph import Layer, LayerGraph, Stage, StageGraph
from policies.model.parallelism import ParallelismConfig
from policies.model.plan import PipelineSchedule, TrainingPlan
from policies.model.shape import ModelShape
from policies.stages import GraphError, cut, layer_graph
from policies.suggestion import did_you_mean
from policies.training.gpu_names import gpu_name, types_meant
from service.api.plans import PlanFault, derive, read_plan
from service.api.problems import Fault, json_pointer
from service.api.stepwise import too_many_entries
from service.config.settings import Settings
from service.wire.bodies import CatalogueGraphBody, JobBody, LayersGraphBody, ParallelismBody, StageGraphBody
from service.wire.plans import PlanBody

_OLD_NAMES = {"sync": "1f1b"}
"""Schedules under the names of earlier releases."""


class Faults:
    """The faults of one job, which stands at ``base`` in the body."""

    def __init__(self, base: tuple[str | int, ...]) -> None:
        self._base = json_pointer(base)
        self.found: list[Fault] = []
        self.warnings: list[str] = []

    def add(self, detail: str, *path: str | int) -> None:
        """Note a fault of the value at ``path``."""
        self.found.append(Fault(detail, pointer=self._base + json_pointer(path)))

    def add_graph(self, error: GraphError, *path: str | int) -> None:
        """Note what the graph's builder found; its pointer goes on from ``path``."""
        self.found.append(Fault(str(error), pointer=self._base + json_pointer(path) + error.pointer_suffix))


@dataclass(frozen=True, slots=True)
class Shape:
    """The GPUs of a job, and its stages where it has a graph."""

    gpus: int
    stage_graph: StageGraph | None = None
    parallelism: ParallelismConfig | None = None
    plan: TrainingPlan | None = None
    model: ModelShape | None = None
    gpu_types: tuple[str, ...] = ()
    """Those that the job takes where a plan does not fit the others; empty: those of the body."""
    gpu_memory_gib: float | None = None
    """What each GPU must have for a plan, where not every server has it and the body says nothing."""


def shape_of(body: JobBody, settings: Settings, cluster: Cluster, faults: Faults) -> Shape | None:
    """The job's shape; None where its faults leave none."""
    if body.plan is not None:
        return _shape_of_plan(body, body.plan, cluster, faults)
    if body.graph is None:
        return _shape_without_graph(body, faults)
    config = _config(body, faults)
    if config is not None and body.gpus is not None and body.gpus != config.gpus:
        faults.add(f"must be {config.gpus}, the GPUs of parallelism (got {body.gpus})", "gpus")
    if isinstance(body.graph, StageGraphBody):
        stage_graph = _stage_graph(body.graph, body.parallelism, settings, faults)
        return None if stage_graph is None or config is None else Shape(config.gpus, stage_graph, config)
    if isinstance(body.graph, CatalogueGraphBody):
        graph = _catalogue_graph(body.graph, body.gpu_type, config, cluster, faults)
    else:
        graph = _layers_graph(body.graph, body.gpu_type, settings, cluster, faults)
    if graph is None or config is None:
        return None
    stages: int | Sequence[Sequence[str]] = len(config.replicas)
    if body.parallelism is not None and isinstance(body.parallelism.stages, list):
        stages = body.parallelism.stages
    try:
        return Shape(config.gpus, cut(graph, stages), config)
    except GraphError as error:
        faults.add_graph(error, "parallelism", "stages")
        return None


def _shape_of_plan(body: JobBody, plan: PlanBody, cluster: Cluster, faults: Faults) -> Shape | None:
    for key in ("graph", "parallelism"):
        if getattr(body, key) is not None:
            faults.add("must be left out with a plan", key)
    try:
        reading = read_plan(plan, body.gpus)
    except PlanFault as fault:
        faults.add(str(fault), *fault.path)
        return None
    faults.warnings += reading.warnings
    types = tuple(body.gpu_types) or ((body.gpu_type,) if body.gpu_type is not None else ())
    derived = derive(reading.plan, reading.shape, types, cluster)
    if derived.left_out:
        faults.warnings.append(
            f"The plan does not fit the memory of {', '.join(derived.left_out)}: not used for the job."
        )
    parallelism = derived.parallelism
    if parallelism is not None:
        parallelism = replace(parallelism, tensor_across_servers=body.tensor_across_servers)
    return Shape(
        reading.plan.gpus,
        derived.graph,
        parallelism,
        reading.plan,
        reading.shape,
        derived.types if derived.left_out else (),
        derived.gpu_memory_gib,
    )


def _shape_without_graph(body: JobBody, faults: Faults) -> Shape | None:
    if body.parallelism is not None:
        faults.add("must be left out without a graph", "parallelism")
    if body.tensor_across_servers:
        faults.add("must be false without a graph", "tensor_across_servers")
    if body.gpus is None:
        faults.add("is required for a job without a graph", "gpus")
        return None
    return Shape(body.gpus)


def _config(body: JobBody, faults: Faults) -> ParallelismConfig | None:
    """The parallelism as given, else the usual one for ``gpus``."""
    if body.parallelism is not None:
        config = _given_config(body.parallelism, faults)
    elif body.gpus is None:
        faults.add("is required unless parallelism is given", "gpus")
        return None
    elif isinstance(body.graph, CatalogueGraphBody):
        # An unknown model is another fault, reported with its own pointer.
        config = default_config(body.graph.model, body.gpus) if body.graph.model in MODELS else None
    else:
        config = ParallelismConfig(replicas=(body.gpus,), tensor=(1,))
    if config is None:
        return None
    return replace(config, tensor_across_servers=body.tensor_across_servers or config.tensor_across_servers)


def _given_config(body: ParallelismBody, faults: Faults) -> ParallelismConfig | None:
    stages = body.stages if isinstance(body.stages, int) else len(body.stages)
    tensor = body.tensor if body.tensor is not None else [1] * stages
    matches = True
    for key, values in (("replicas", body.replicas), ("tensor", tensor)):
        if len(values) != stages:
            faults.add(f"must have {stages} entries, one per stage (got {len(values)})", "parallelism", key)
            matches = False
    if not matches:
        return None
    schedule = PipelineSchedule(_OLD_NAMES.get(body.schedule, body.schedule))
    interleaved = schedule is PipelineSchedule.INTERLEAVED
    if interleaved != (body.virtual_stages > 1):
        limit = "at least 2" if interleaved else "1"
        faults.add(
            f"must be {limit} with schedule {schedule} (got {body.virtual_stages})", "parallelism", "virtual_stages"
        )
        return None
    if interleaved and stages == 1:
        faults.add("interleaved needs at least 2 stages (got 1)", "parallelism", "schedule")
        return None
    return ParallelismConfig(
        tuple(body.replicas), tuple(tensor), schedule, body.micro_batches, virtual_stages=body.virtual_stages
    )


def _catalogue_graph(
    body: CatalogueGraphBody,
    gpu_type: str | None,
    config: ParallelismConfig | None,
    cluster: Cluster,
    faults: Faults,
) -> LayerGraph | None:
    if body.model not in MODELS:
        faults.add(f"must be one of {', '.join(sorted(MODELS))}{did_you_mean(body.model, MODELS)}", "graph", "model")
        return None
    # The layers are shared out to stages later: what one replica sees of the mini-batch is taken from the stage with the
    # fewest.
    replicas = min(config.replicas) if config is not None else 1
    return catalogue_graph(body.model, body.batch_size, replicas, gpu_type, cluster)


def catalogue_graph(model: str, batch_size: int, replicas: int, gpu_type: str | None, cluster: Cluster) -> LayerGraph:
    """The layers of a network of the catalogue on the reference GPU."""
    if gpu_type is None:
        return build(model, batch_size, replicas=replicas)
    family = gpu_name(gpu_type).family.upper()
    if family not in GPUS:
        return build(model, batch_size, replicas=replicas)
    return _on_reference(build(model, batch_size, family, replicas), gpu_type, cluster)


def _on_reference(graph: LayerGraph, gpu_type: str, cluster: Cluster) -> LayerGraph:
    """The graph with its times on a GPU of speed 1.0.

    A job with a GPU type states its times on that type, and a server of it divides times by its ``gpu_speed`` again. Where
    servers of one type differ in speed, the slowest is taken as what the user measured on.
    """
    meant = types_meant(gpu_type, cluster)
    speed = min((server.gpu_speed for server in cluster.servers if server.gpu_type in meant), default=1.0)
    if speed == 1.0:
        return graph
    layers = (
        replace(layer, forward_s=layer.forward_s * speed, backward_s=layer.backward_s * speed) for layer in graph.layers
    )
    return replace(graph, layers=tuple(layers))


def _layers_graph(
    body: LayersGraphBody, gpu_type: str | None, settings: Settings, cluster: Cluster, faults: Faults
) -> LayerGraph | None:
    layers_fit = _check_number("layers", body.layers, settings.layers_max, faults)
    edges_fit = _check_number("edges", body.edges, settings.edges_max, faults)
    if not (layers_fit and edges_fit):
        return None
    # One by one, and not by model_dump: graphs have hundreds of layers.
    layers = [
        Layer(
            each.name,
            each.forward_s,
            each.backward_s,
            each.parameter_bytes,
            each.activation_bytes,
            each.tensor_bytes,
        )
        for each in body.layers
    ]
    graph, failure = None, None
    try:
        graph = layer_graph(layers, [(tail, head) for tail, head in body.edges])
    except GraphError as error:
        failure = error
    # All broken names are collected, because building the graph stops at the first.
    broken = [] if failure is None else list(_broken_names(body))
    for detail, path in broken:
        faults.add(detail, "graph", *path)
    if not any(layer.forward_s + layer.backward_s > 0 for layer in body.layers):
        faults.add("must have a layer that takes time", "graph", "layers")
    if failure is not None and not broken:
        faults.add_graph(failure, "graph")
    if graph is None:
        return None
    return graph if gpu_type is None else _on_reference(graph, gpu_type, cluster)


def _stage_graph(
    body: StageGraphBody, parallelism: ParallelismBody | None, settings: Settings, faults: Faults
) -> StageGraph | None:
    count, known = len(body.stages), len(faults.found)
    if parallelism is None and count > 1:
        faults.add(f"is required for a graph of {count} stages", "parallelism")
    if parallelism is not None and parallelism.stages != count:
        faults.add(f"must be {count}, the number of the graph's stages", "parallelism", "stages")
    _check_number("edges", body.edges, settings.edges_max, faults)
    for index, (tail, head, _) in enumerate(body.edges):
        if not tail < head < count:
            faults.add(f"must lead from a stage to a later one of the {count}", "graph", "edges", index)
    if not any(stage.forward_s + stage.backward_s > 0 for stage in body.stages):
        faults.add("must have a stage that takes time", "graph", "stages")
    if len(faults.found) > known:
        return None
    # The same rules as for layers: no edge twice, and all in one piece.
    layers = [Layer(str(index), 1.0, 1.0, 0, 0) for index in range(count)]
    try:
        cut(layer_graph(layers, [(str(tail), str(head)) for tail, head, _ in body.edges]), count)
    except GraphError as error:
        faults.add_graph(error, "graph")
        return None
    stages = tuple(Stage(**stage.model_dump()) for stage in body.stages)
    return StageGraph(stages, tuple(sorted((tail, head, size) for tail, head, size in body.edges)))


def _check_number(key: str, entries: Sequence[object], most: int, faults: Faults) -> bool:
    """Whether a list of the graph has at most ``most`` entries, which is a setting."""
    if len(entries) > most:
        faults.add(too_many_entries(key, most, len(entries)), "graph", key)
    return len(entries) <= most


def _broken_names(body: LayersGraphBody) -> Iterator[tuple[str, tuple[str | int, ...]]]:
    names: set[str] = set()
    for index, layer in enumerate(body.layers):
        if layer.name in names:
            yield f"must be unique; an earlier layer is also named {layer.name!r}", ("layers", index, "name")
        names.add(layer.name)
    for index, edge in enumerate(body.edges):
        for end, name in enumerate(edge):
            if name not in names:
                yield f"must be the name of a layer (got {name!r})", ("edges", index, end)
