"""From a checked body to a :class:`JobSpec`: the rules about what values say of each other, of the catalogue and the cluster.

Every fault of a submission is collected with its JSON pointer before anything is refused, so a user repairs a job once.
Knows no database; which jobs exist (``after``) is checked where the jobs are inserted.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

from policies.catalogue import MODELS, build, default_config
from policies.stages import GraphError, cut, layer_graph

from policies.model.cluster import Cluster
from policies.model.graph import Layer, LayerGraph, StageGraph
from policies.model.ids import JobId
from policies.model.job import JobSpec, Launch, PreemptionSignal
from policies.model.parallelism import ParallelismConfig, Schedule
from policies.placement.choose import fits_empty
from service.api.problems import Fault, Problem, ProblemType, json_pointer
from service.api.schemas import CatalogueGraphBody, JobBody, JobsBody, LayersGraphBody, ParallelismBody
from service.settings import Settings

RESERVED_ENV_PREFIX = "SOONER_"

LAUNCHER_ENV = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",
        "LOCAL_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
        "NNODES",
        "NODE_RANK",
        "RANK",
        "WORLD_SIZE",
    }
)
"""Set for every process by the launcher: a job's own value would be overwritten without a word."""


_Placed = tuple[tuple[str | int, ...], JobBody]
"""A job's body and where it stands in the request."""


class _Faults:
    """The faults of one job, which stands at ``base`` in the body."""

    def __init__(self, base: tuple[str | int, ...]) -> None:
        self._base = json_pointer(base)
        self.found: list[Fault] = []

    def add(self, detail: str, *path: str | int) -> None:
        self.found.append(Fault(detail, pointer=self._base + json_pointer(path)))

    def add_graph(self, error: GraphError, *path: str | int) -> None:
        self.found.append(Fault(str(error), pointer=self._base + json_pointer(path) + error.pointer_suffix))


@dataclass(frozen=True, slots=True)
class _Shape:
    """What a job's graph, parallelism and ``gpus`` say together."""

    gpus: int
    stage_graph: StageGraph | None = None
    parallelism: ParallelismConfig | None = None


def parse_submission(body: JobBody | JobsBody, settings: Settings, cluster: Cluster) -> list[JobSpec]:
    """The jobs of a submission. Raises :class:`Problem` (422) with every fault of every job."""
    if isinstance(body, JobBody):
        placed: list[_Placed] = [((), body)]
    else:
        if len(body.jobs) > settings.jobs_per_request_max:
            detail = f"At most {settings.jobs_per_request_max} jobs (setting jobs_per_request_max)"
            raise Problem(ProblemType.INVALID_BODY, faults=[Fault(detail, pointer="/jobs")])
        placed = [(("jobs", index), job) for index, job in enumerate(body.jobs)]
    return _parse_all(placed, settings, cluster)


def _parse_all(placed: Sequence[_Placed], settings: Settings, cluster: Cluster) -> list[JobSpec]:
    fit = _Fit(cluster)
    specs: list[JobSpec] = []
    broken: list[Fault] = []
    too_large: list[Fault] = []
    for base, body in placed:
        faults = _Faults(base)
        spec = _parse_job(body, settings, faults)
        broken.extend(faults.found)
        if spec is None:
            continue
        specs.append(spec)
        refusal = fit.refusal(spec)
        if refusal is not None:
            detail, key = refusal
            too_large.append(Fault(detail, pointer=json_pointer((*base, key))))
    if broken:
        raise Problem(ProblemType.INVALID_BODY, faults=[*broken, *too_large])
    if too_large:
        raise Problem(ProblemType.NEVER_FITS, too_large[0].detail, too_large)
    return specs


def _parse_job(body: JobBody, settings: Settings, faults: _Faults) -> JobSpec | None:
    _check_command(body, faults)
    shape = _shape(body, settings, faults)
    if shape is not None:
        _check_range(body, shape.gpus, faults)
    if faults.found or shape is None:
        return None
    catalogue = body.graph if isinstance(body.graph, CatalogueGraphBody) else None
    wish = body.preemption
    return JobSpec(
        name=body.name,
        user=body.user or "",
        gpus=shape.gpus,
        project=body.project or "",
        command=tuple(body.command),
        env=dict(body.env),
        working_dir=body.working_dir,
        stage_graph=shape.stage_graph,
        parallelism=shape.parallelism,
        model=catalogue.model if catalogue is not None else None,
        batch_size=catalogue.batch_size if catalogue is not None else None,
        gpu_type=body.gpu_type,
        declared_iterations=body.declared_iterations,
        walltime_s=body.walltime_s,
        priority=body.priority,
        checkpoint_period_s=body.checkpoint_period_s,
        max_retries=body.max_retries,
        after=tuple(JobId(number) for number in dict.fromkeys(body.after)),
        hold=body.hold,
        labels=dict(body.labels),
        recurrence_key=body.recurrence_key,
        gpus_min=body.gpus_min,
        gpus_max=body.gpus_max,
        preemption=PreemptionSignal(wish.signal, wish.grace_s) if wish is not None else None,
        launch=Launch(body.launch),
    )


def _check_command(body: JobBody, faults: _Faults) -> None:
    if not body.command[0]:
        faults.add("The program's name is empty", "command", 0)
    for name in body.env:
        if name.startswith(RESERVED_ENV_PREFIX) or name in LAUNCHER_ENV:
            faults.add("Sooner itself sets this variable", "env", name)


def _check_range(body: JobBody, gpus: int, faults: _Faults) -> None:
    if body.gpus_min is not None and body.gpus_min > gpus:
        faults.add(f"Above the job's own size ({gpus} GPUs)", "gpus_min")
    if body.gpus_max is not None and body.gpus_max < gpus:
        faults.add(f"Below the job's own size ({gpus} GPUs)", "gpus_max")


def _shape(body: JobBody, settings: Settings, faults: _Faults) -> _Shape | None:
    if body.graph is None:
        return _shape_without_graph(body, faults)
    graph = (
        _catalogue_graph(body.graph, body.gpu_type, faults)
        if isinstance(body.graph, CatalogueGraphBody)
        else _layers_graph(body.graph, settings, faults)
    )
    config = _config(body, faults)
    if config is not None and body.gpus is not None and body.gpus != config.gpus:
        faults.add(f"'parallelism' takes {config.gpus} GPUs, not {body.gpus}", "gpus")
    if graph is None or config is None:
        return None
    stages: int | Sequence[Sequence[str]] = len(config.replicas)
    if body.parallelism is not None and isinstance(body.parallelism.stages, list):
        stages = body.parallelism.stages
    try:
        return _Shape(config.gpus, cut(graph, stages), config)
    except GraphError as error:
        faults.add_graph(error, "parallelism", "stages")
        return None


def _shape_without_graph(body: JobBody, faults: _Faults) -> _Shape | None:
    if body.parallelism is not None:
        faults.add("It spreads a graph, and the job has none", "parallelism")
    if body.tensor_across_servers:
        faults.add("It is about a graph's tensor groups, and the job has no graph", "tensor_across_servers")
    if body.gpus is None:
        faults.add("A job without a graph must say how many GPUs it needs", "gpus")
        return None
    return _Shape(body.gpus)


def _config(body: JobBody, faults: _Faults) -> ParallelismConfig | None:
    """The parallelism as given, else the usual one for ``gpus``."""
    if body.parallelism is not None:
        config = _given_config(body.parallelism, faults)
    elif body.gpus is None:
        faults.add("Give 'parallelism', or 'gpus' for the usual way to spread this graph", "gpus")
        return None
    elif isinstance(body.graph, CatalogueGraphBody):
        # An unknown model is another fault, reported with its own pointer.
        config = default_config(body.graph.model, body.gpus) if body.graph.model in MODELS else None
    else:
        config = ParallelismConfig(replicas=(body.gpus,), tensor=(1,))
    if config is None:
        return None
    return replace(config, tensor_across_servers=body.tensor_across_servers or config.tensor_across_servers)


def _given_config(body: ParallelismBody, faults: _Faults) -> ParallelismConfig | None:
    stages = body.stages if isinstance(body.stages, int) else len(body.stages)
    tensor = body.tensor if body.tensor is not None else [1] * stages
    matches = True
    for key, values in (("replicas", body.replicas), ("tensor", tensor)):
        if len(values) != stages:
            faults.add(f"{len(values)} numbers for {stages} stages", "parallelism", key)
            matches = False
    if not matches:
        return None
    return ParallelismConfig(tuple(body.replicas), tuple(tensor), Schedule(body.schedule), body.micro_batches)


def _catalogue_graph(body: CatalogueGraphBody, gpu_type: str | None, faults: _Faults) -> LayerGraph | None:
    if body.model not in MODELS:
        faults.add(f"Not in the catalogue; it has {', '.join(sorted(MODELS))}", "graph", "model")
        return None
    return build(body.model, body.batch_size)


def _layers_graph(body: LayersGraphBody, settings: Settings, faults: _Faults) -> LayerGraph | None:
    if len(body.layers) > settings.layers_max:
        faults.add(f"At most {settings.layers_max} layers (setting layers_max)", "graph", "layers")
        return None
    # All broken names are collected here, because building the graph stops at the first.
    broken = list(_broken_names(body))
    for detail, path in broken:
        faults.add(detail, "graph", *path)
    if not any(layer.forward_s + layer.backward_s > 0 for layer in body.layers):
        faults.add("No layer takes any time", "graph", "layers")
    if broken:
        return None
    layers = [
        Layer(
            layer.name,
            layer.forward_s,
            layer.backward_s,
            layer.parameter_bytes,
            layer.activation_bytes,
            layer.tensor_bytes,
        )
        for layer in body.layers
    ]
    try:
        return layer_graph(layers, [(tail, head) for tail, head in body.edges])
    except GraphError as error:
        faults.add_graph(error, "graph")
        return None


def _broken_names(body: LayersGraphBody) -> Iterator[tuple[str, tuple[str | int, ...]]]:
    names: set[str] = set()
    for index, layer in enumerate(body.layers):
        if layer.name in names:
            yield f"A layer {layer.name!r} came before", ("layers", index, "name")
        names.add(layer.name)
    seen: set[tuple[str, str]] = set()
    for index, (tail, head) in enumerate(body.edges):
        for end, name in enumerate((tail, head)):
            if name not in names:
                yield f"No layer is called {name!r}", ("edges", index, end)
        if (tail, head) in seen:
            yield "The edge came before", ("edges", index)
        seen.add((tail, head))


class _Fit:
    """Whether jobs could ever run on this cluster. Jobs of one submission are often alike, so answers are kept."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._known: dict[Hashable, bool] = {}

    def refusal(self, spec: JobSpec) -> tuple[str, str] | None:
        """Why it can never run, and the key of the body that is to blame; None if it can."""
        types = self._cluster.gpus_by_type
        if spec.gpu_type is not None and spec.gpu_type not in types:
            return f"No server has GPUs of type {spec.gpu_type!r}; there are {', '.join(sorted(types))}", "gpu_type"
        most = types.get(spec.gpu_type, 0) if spec.gpu_type is not None else max(types.values(), default=0)
        key = "parallelism" if spec.parallelism is not None else "gpus"
        if spec.gpus > most:
            kind = f" of type {spec.gpu_type}" if spec.gpu_type is not None else " of one type"
            return f"Needs {spec.gpus} GPUs; the cluster has {most}{kind}", key
        shape = (spec.gpus, spec.gpu_type, spec.stage_graph, spec.parallelism)
        if shape not in self._known:
            self._known[shape] = fits_empty(self._cluster, spec)
        if not self._known[shape]:
            return "No set of servers can hold it even when empty: a tensor group stays on one server", key
        return None
