"""Classes of jobs that need the same of the cluster: what one of them cannot get, none of them can."""

from typing import NamedTuple

from policies.model.job import JobSpec, Topology


class GangClass(NamedTuple):
    """GPUs, the types taken (none = any), the largest tensor degree that must stay on one server, where it wants to be."""

    gpus: int
    types: tuple[str, ...]
    tensor: int
    topology: Topology | None


def gang_class(spec: JobSpec) -> GangClass:
    """The class of a job."""
    tensor = 0
    if spec.parallelism is not None and not spec.parallelism.tensor_across_servers:
        tensor = max(spec.parallelism.tensor)
    return GangClass(spec.gpus, spec.gpu_types, tensor if tensor > 1 else 0, spec.topology)
