"""The keys of the indexes of waiting and running jobs: gang classes, sort keys and the lines that ranks follow."""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from policies.model.ids import JobId
from policies.model.job import JobSpec
from policies.model.parallelism import ParallelismConfig
from policies.model.resources import Demand, demand_of
from policies.model.server_reservation import ServerReservation
from policies.rules import registered


class GangClass(NamedTuple):
    """The requirements of the jobs of a class. If one of them cannot start, none of the class can.

    ``types``: the GPU types that they take (empty: any). ``tensor``: the sizes of the tensor groups that must each stay on one
    server, and how many there are of each size. ``demands``: what they demand of placement rules. ``server_reservations``: the
    ids of those that admit them. ``demand``: what they need beside GPUs.
    """

    gpus: int
    types: tuple[str, ...]
    tensor: tuple[tuple[int, int], ...] = ()
    demands: tuple[tuple[str, Hashable], ...] = ()
    server_reservations: tuple[int, ...] = ()
    demand: Demand | None = None

    def takes(self, gpu_type: str) -> bool:
        """Whether the jobs run on GPUs of this type."""
        return not self.types or gpu_type in self.types


def gang_class(spec: JobSpec, server_reservations: Sequence[ServerReservation]) -> GangClass:
    """The class of a job."""
    tensor = () if spec.parallelism is None else _tensor_groups(spec.parallelism)
    admitting = tuple(each.id for each in server_reservations if each.admits(spec)) if server_reservations else ()
    # Inlined ``spec.gpu_types``: most jobs name no type.
    types = () if spec.gpu_type is None else (spec.gpu_type, *spec.gpu_type_fallbacks)
    return GangClass(spec.gpus, types, tensor, registered.demands(spec), admitting, demand_of(spec))


def _tensor_groups(parallelism: ParallelismConfig) -> tuple[tuple[int, int], ...]:
    if parallelism.tensor_across_servers or max(parallelism.tensor) == 1:
        return ()
    counts: dict[int, int] = {}
    for size, groups in zip(parallelism.tensor, parallelism.replicas, strict=True):
        if size > 1:
            counts[size] = counts.get(size, 0) + groups
    return tuple(sorted(counts.items()))


class JobKey(NamedTuple):
    """The order of jobs; smaller is better.

    Guarded jobs come first (``tier`` 0, else 1), then larger priorities, lower levels of the project (0 unless use is shared
    fairly), smaller ranks, earlier submissions and smaller job ids. In the index of running jobs ``rank`` is the value at time
    0 of the line that the rank follows.
    """

    tier: int
    minus_priority: int
    project_level: int
    rank: float
    submitted_at_s: float
    job: JobId


class Owner(NamedTuple):
    """Whose a job is: what decides who may see it."""

    project: str
    user: str


class RankLine(NamedTuple):
    """Running jobs of equal gang size and equal slope of the rank keep their order over time."""

    gpus: int
    slope: float
