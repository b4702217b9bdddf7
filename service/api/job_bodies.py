"""A job's body as a :class:`JobSpec`, and a spec as the body that makes an equal job.

Keys of the same name have the same meaning in both and are converted by pydantic; the few others are written out here.
"""

from typing import Any

from pydantic import BaseModel, TypeAdapter

from policies.catalogue import MODELS
from policies.model.cluster import Cluster
from policies.model.job import JobSpec
from policies.stages import GraphError, cut
from service.api.graphs import Shape, catalogue_graph
from service.api.plans import plan_body
from service.domain.access import Identity
from service.wire.bodies import CatalogueGraphBody, JobBody, StageGraphBody

_SPEC = TypeAdapter(JobSpec)

DERIVED = frozenset(
    {"gpus", "stage_graph", "parallelism", "model", "batch_size", "gpu_type_fallbacks", "after_any", "shape"}
)
"""Fields of a spec that follow from other keys of the body."""

OWN_FORM = frozenset({"after", "array", "plan"})
"""Keys that a body and a spec both have, in different forms."""

SHARED = frozenset(JobBody.model_fields) & frozenset(JobSpec.__dataclass_fields__) - DERIVED - OWN_FORM


def job_spec(body: JobBody, shape: Shape) -> JobSpec:
    """The job of a checked body; ``array`` is not looked at. ``gpu_type`` is the preferred one of ``gpu_types``."""
    shared = {key: _plain(getattr(body, key)) for key in SHARED}
    after = list(dict.fromkeys(entry.job for entry in body.needs if entry.when == "success"))
    after_any = dict.fromkeys(entry.job for entry in body.needs if entry.when == "any")
    named = body.graph if isinstance(body.graph, CatalogueGraphBody | StageGraphBody) else None
    return _SPEC.validate_python(
        {
            **shared,
            "user": body.user or "",
            "project": body.project or "",
            "secret_env": list(dict.fromkeys(body.secret_env)),
            "gpus": shape.gpus,
            "stage_graph": shape.stage_graph,
            "parallelism": shape.parallelism,
            "model": named.model if named is not None else shape.model.name if shape.model is not None else None,
            "batch_size": named.batch_size
            if named is not None
            else shape.plan.global_batch
            if shape.plan is not None
            else None,
            "gpu_memory_gib": body.gpu_memory_gib if body.gpu_memory_gib is not None else shape.gpu_memory_gib,
            "gpu_type": shape.gpu_types[0] if shape.gpu_types else body.gpu_type,
            "gpu_type_fallbacks": shape.gpu_types[1:] if shape.gpu_types else body.gpu_types[1:],
            "plan": shape.plan,
            "shape": shape.model,
            "after": after,
            "after_any": [job for job in after_any if job not in after],
        }
    )


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump()
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def job_body(spec: JobSpec, cluster: Cluster) -> dict[str, Any]:
    """The body, as JSON, that makes an equal job on this cluster. An element of an array becomes an array of that element."""
    whole = _SPEC.dump_python(spec, mode="json")
    array = None if spec.array is None else {"indices": [spec.array.index], "max_running": spec.array.max_running}
    given = {
        **{key: whole[key] for key in SHARED},
        "user": spec.user or None,
        "project": spec.project or None,
        "plan": plan_body(spec),
        "gpus": spec.gpus,
        "gpu_type": None if spec.gpu_type_fallbacks else spec.gpu_type,
        "gpu_types": list(spec.gpu_types) if spec.gpu_type_fallbacks else [],
        "graph": _graph(spec, whole, cluster) if spec.plan is None else None,
        "parallelism": None,
        "tensor_across_servers": False,
        "after": [*whole["after"], *({"job": job, "when": "any"} for job in whole["after_any"])],
        "array": array,
    }
    if spec.stage_graph is not None:
        spread = whole["parallelism"]
        given["tensor_across_servers"] = spread.pop("tensor_across_servers")
        if spec.plan is None:
            given["parallelism"] = {"stages": len(spec.stage_graph.stages), **spread}
    return {key: given[key] for key in JobBody.model_fields}


def _graph(spec: JobSpec, whole: dict[str, Any], cluster: Cluster) -> dict[str, Any] | None:
    """The catalogue's name where that makes the same stages, else the stages."""
    if spec.stage_graph is None:
        return None
    named = {"model": spec.model, "batch_size": spec.batch_size}
    return named if _follows_from_catalogue(spec, cluster) else {**whole["stage_graph"], **named}


def _follows_from_catalogue(spec: JobSpec, cluster: Cluster) -> bool:
    if spec.model is None or spec.batch_size is None or spec.parallelism is None or spec.stage_graph is None:
        return False
    if spec.model not in MODELS:
        return False
    graph = catalogue_graph(spec.model, spec.batch_size, min(spec.parallelism.replicas), spec.gpu_type, cluster)
    try:
        return cut(graph, len(spec.stage_graph.stages)) == spec.stage_graph
    except GraphError:
        return False


def shown_body(spec: JobSpec, cluster: Cluster, caller: Identity) -> dict[str, Any]:
    """The body with the values of the environment that the caller may read, and None for the others."""
    hidden = frozenset(spec.secret_env if caller.reads_environment(spec.user) else spec.env)
    shown = {name: None if name in hidden else value for name, value in spec.env.items()}
    return {**job_body(spec, cluster), "env": shown}
