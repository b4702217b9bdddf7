"""Classes of jobs that need the same of the cluster: what one of them cannot get, none of them can."""

from collections.abc import Sequence
from typing import NamedTuple

from policies.model.job import JobSpec, Topology
from policies.model.server_reservation import ServerReservation


class GangClass(NamedTuple):
    """GPUs, the types taken (none = any), the largest tensor degree that must stay on one server, where it wants to be, and
    which windows are for it."""

    gpus: int
    types: tuple[str, ...]
    tensor: int
    topology: Topology | None
    windows: tuple[int, ...] = ()


def gang_class(spec: JobSpec, windows: Sequence[ServerReservation]) -> GangClass:
    """The class of a job."""
    tensor = 0
    if spec.parallelism is not None and not spec.parallelism.tensor_across_servers:
        tensor = max(spec.parallelism.tensor)
    mine = tuple(window.id for window in windows if window.admits(spec)) if windows else ()
    # Spelt out, not by way of ``gpu_types``: most jobs name no type.
    types = () if spec.gpu_type is None else (spec.gpu_type, *spec.gpu_type_fallbacks)
    return GangClass(spec.gpus, types, tensor if tensor > 1 else 0, spec.topology, mine)
