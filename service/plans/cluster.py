"""The GPUs and links of a cluster as a plan needs them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from policies.model.cluster import Cluster, Server
from policies.placement.fleet import fleet_of
from policies.training.gpu_names import gpu_name, meant_by
from policies.training.hardware import GpuModel, Links
from policies.training.memory import MemoryBill
from policies.training.nearest import TOLERANCE
from service.plans.gpu_types import gpu_of
from service.plans.values import ReadError


def kinds(cluster: Cluster) -> Iterator[Server]:
    """A server of each kind: servers are many, and a request may have many jobs."""
    return (server for server, _ in fleet_of(cluster).classes)


class Servers(NamedTuple):
    """The GPUs that a plan may use and their links. ``gpus``: their number; None: any. ``problem``: what is not known of them."""

    gpu: GpuModel
    links: Links
    gpus: int | None = None
    problem: str = ""


def usual_servers(gpu_type: str) -> Servers:
    """Any number of usual servers with this GPU. Raises :class:`ReadError`."""
    gpu = gpu_of(gpu_type)
    return Servers(gpu, Links.of(gpu))


class AcceptedType(NamedTuple):
    """A GPU type of the cluster that a job takes. ``gpu`` None: not known. ``memory_bytes``: of a GPU; None: not known."""

    name: str
    gpu: GpuModel | None
    memory_bytes: int | None
    problem: str

    def holds(self, bill: MemoryBill) -> bool:
        """Whether the plan fits, as far as that is known."""
        return self.memory_bytes is None or bill.peak <= TOLERANCE * self.memory_bytes


def accepted_types(gpu_types: Sequence[str], cluster: Cluster) -> list[AcceptedType]:
    """The cluster's types that serve the names (none: all types), in their order."""
    known = cluster.gpus_by_type
    names = meant_by(gpu_types, cluster) if gpu_types else tuple(known)
    return [_accepted(name, cluster) for name in names if name in known]


def _accepted(name: str, cluster: Cluster) -> AcceptedType:
    stated = [server.gpu_memory_gib for server in kinds(cluster) if server.gpu_type == name]
    largest = max((size for size in stated if size is not None), default=None)
    meaning = gpu_name(name, largest)
    if not meaning.models:
        return AcceptedType(
            name, None, None, f"GPU type {name!r}: neither time nor memory is predicted: it is not known"
        )
    roomiest = max(meaning.models, key=lambda model: model.memory_bytes)
    if largest is None and meaning.model is None:
        variants = " or ".join(model.name for model in meaning.models)
        problem = (
            f"GPU type {name!r} may be {variants}: time and memory are those of {roomiest.name}; servers may state "
            "gpu_memory_gib"
        )
        return AcceptedType(name, roomiest, roomiest.memory_bytes, problem)
    if largest is None:
        return AcceptedType(name, roomiest, roomiest.memory_bytes, "")
    memory = round(largest * 2**30)
    gpu = meaning.models[0]
    return AcceptedType(name, replace(gpu, memory_bytes=memory), memory, "")


def links_on(cluster: Cluster, gpu_type: str) -> Links:
    """Of the largest servers with this type, the fastest ones."""
    best = max(
        (server for server in kinds(cluster) if server.gpu_type == gpu_type),
        key=lambda server: (server.gpus, server.intra_bytes_s, server.share_bytes_s),
    )
    return Links(best.intra_bytes_s, best.share_bytes_s, best.gpus)


def servers_on(cluster: Cluster, asked: str | None) -> Servers:
    """Those of the type that ``asked`` means there, else of its only type. Raises :class:`ReadError` unless one is meant."""
    names = ", ".join(cluster.gpus_by_type)
    found = accepted_types(() if asked is None else (asked,), cluster)
    if not found:
        raise ReadError("gpu-type", f"{asked!r:.60} is not in the cluster file; its types are {names}")
    if len(found) > 1:
        raise ReadError("gpu-type", f"is required: the cluster file has {names}")
    name, gpu, _, problem = found[0]
    if gpu is None:
        raise ReadError("gpu-type", problem)
    return Servers(gpu, links_on(cluster, name), cluster.gpus_by_type[name], problem)
