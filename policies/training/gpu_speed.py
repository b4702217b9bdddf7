"""The speed of a GPU type relative to the reference V100, from published peaks, and warnings where none is stated."""

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import Final

from policies.catalogue.shapes import SHAPES
from policies.model.cluster import Server
from policies.model.plan import TrainingPlan
from policies.training.gpu_names import gpu_name
from policies.training.hardware import GPU_MODELS, GpuModel

REFERENCE: Final = "V100"
"""The family on which a job without a GPU type states its layer times: its speed is 1.0."""
_MODEL: Final = "gpt2-xl"
_PLAN: Final = TrainingPlan(global_batch=32, micro_batch=8, sequence=1024)
"""What the speeds are compared on: a transformer of middle size in 16 bits, on one GPU."""


@cache
def _iteration_s(gpu: GpuModel) -> float:
    from policies.training.iteration import iteration_time  # numpy takes long to import

    return iteration_time(SHAPES[_MODEL].shape, _PLAN, gpu).total_s


@cache
def published_speed(gpu_type: str) -> float | None:
    """Of a known type in any spelling, to two digits; of the slowest member of a family; None for an unknown type."""
    name = gpu_name(gpu_type)
    if not name.models:
        return None
    if is_reference(gpu_type):
        return 1.0
    slowest_s = max(_iteration_s(model) for model in name.models)
    return float(f"{_iteration_s(GPU_MODELS['V100-16']) / slowest_s:.2g}")


def is_reference(gpu_type: str) -> bool:
    """Whether a server of this type has speed 1.0 where none is stated, without a warning."""
    return gpu_name(gpu_type).serves(gpu_name(REFERENCE))


def with_published_speed(server: Server) -> Server:
    """A server that no person has described: of the published speed of its type, else of an assumed one."""
    speed = published_speed(server.gpu_type)
    return with_assumed_speed(server) if speed is None else replace(server, gpu_speed=speed)


def with_assumed_speed(server: Server) -> Server:
    """A server whose speed nothing states: it stays 1.0, and is marked unless that is right."""
    return replace(server, gpu_speed_assumed=not is_reference(server.gpu_type))


def speed_warnings(servers: Iterable[Server]) -> list[str]:
    """A sentence for each GPU type whose servers have an assumed speed, in the order of the servers."""
    types = dict.fromkeys(server.gpu_type for server in servers if server.gpu_speed_assumed)
    return [
        f"GPU type {name!r} has no gpu_speed: 1.0, that of a {REFERENCE}, is assumed; {_advice(name)}" for name in types
    ]


def _advice(gpu_type: str) -> str:
    speed = published_speed(gpu_type)
    if speed is None:
        return f"write how many times as fast as a {REFERENCE} it is"
    return f"write gpu_speed: {speed:g}, which its published peaks suggest, or 1.0 if layer times were measured on it"
