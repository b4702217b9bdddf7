"""CPUs and memory beside GPUs: what a job asks for, and what a server has.

A job asks for totals. Each of its servers gives the part that the job's GPUs there are of all its GPUs, rounded up to whole CPUs
and MiB. A job that asks for nothing takes nothing, and a server that does not state an amount does not limit it.
"""

import math
from functools import lru_cache
from typing import NamedTuple

from policies.model.cluster import Server
from policies.model.job import JobSpec
from policies.model.value import value

MIB_PER_GIB = 1024


class Amounts(NamedTuple):
    """CPUs and MiB of memory. Of a server: None where it is not known."""

    cpus: int | None
    memory_mib: int | None

    def plus(self, other: "Amounts", sign: int = 1) -> "Amounts":
        """The sums, or with ``sign`` -1 the differences; None stays None."""
        return Amounts(_plus(self.cpus, other.cpus, sign), _plus(self.memory_mib, other.memory_mib, sign))

    @property
    def lacking(self) -> bool:
        """Whether one of them is below 0."""
        return (self.cpus or 0) < 0 or (self.memory_mib or 0) < 0


NOTHING = Amounts(0, 0)


@value
class Demand:
    """What ``gpus`` GPUs of a job need beside them, in lowest terms: jobs with equal needs of each GPU have equal demands.

    Build with :func:`demand_of`. ``gpu_memory_gib`` is that of each GPU; 0: any.
    """

    gpus: int
    cpus: int
    memory_mib: int
    gpu_memory_gib: float

    def of(self, gpus: int) -> Amounts:
        """What this many GPUs of the job on one server take."""
        return Amounts(-(-self.cpus * gpus // self.gpus), -(-self.memory_mib * gpus // self.gpus))

    def gpus_within(self, amounts: Amounts) -> int | None:
        """The most GPUs on one server for which these amounts suffice; None: any number."""
        limits = [
            max(0, have) * self.gpus // need
            for have, need in ((amounts.cpus, self.cpus), (amounts.memory_mib, self.memory_mib))
            if need and have is not None
        ]
        return min(limits) if limits else None

    def gpus_freed(self, gpus: int, amounts: Amounts) -> int:
        """At most this many more GPUs become usable on a server that gets back ``gpus`` GPUs and these amounts."""
        freed = gpus
        for have, need in ((amounts.cpus, self.cpus), (amounts.memory_mib, self.memory_mib)):
            if need and have:
                freed = max(freed, -(-have * self.gpus // need))
        return freed

    def admits(self, server: Server) -> bool:
        """Whether the server's GPUs have enough memory, as far as it is known."""
        known_gib = server.gpu_memory_gib
        return known_gib is None or known_gib >= self.gpu_memory_gib


def demand_of(spec: JobSpec) -> Demand | None:
    """The job's demand; None for a job that needs nothing but GPUs. O(1)."""
    if spec.cpus is None and spec.memory_gib is None and spec.gpu_memory_gib is None:
        return None
    return _demand(spec.gpus, spec.cpus or 0, spec.memory_gib or 0.0, spec.gpu_memory_gib or 0.0)


def amounts_of(server: Server) -> Amounts | None:
    """What the server has in all; None where it states neither CPUs nor memory."""
    if server.cpus is None and server.memory_gib is None:
        return None
    return Amounts(server.cpus, None if server.memory_gib is None else int(server.memory_gib * MIB_PER_GIB))


def taken_by(spec: JobSpec, gpus: int) -> Amounts:
    """What a job holds on a server where it holds this many GPUs."""
    demand = demand_of(spec)
    return NOTHING if demand is None else demand.of(gpus)


def needs_in_words(spec: JobSpec) -> str:
    """``16 CPUs and 64 GiB of memory on GPUs of at least 40 GiB``, as far as the job asks for them."""
    parts = [f"{spec.cpus} CPUs"] if spec.cpus is not None else []
    parts += [f"{spec.memory_gib:g} GiB of memory"] if spec.memory_gib is not None else []
    words = " and ".join(parts)
    if spec.gpu_memory_gib is None:
        return words
    gpus = f"GPUs of at least {spec.gpu_memory_gib:g} GiB"
    return f"{words} on {gpus}" if parts else gpus


@lru_cache(maxsize=1024)
def _demand(gpus: int, cpus: int, memory_gib: float, gpu_memory_gib: float) -> Demand:
    memory_mib = math.ceil(memory_gib * MIB_PER_GIB)
    common = math.gcd(gpus, cpus, memory_mib)
    return Demand(gpus // common, cpus // common, memory_mib // common, gpu_memory_gib)


def _plus(one: int | None, other: int | None, sign: int) -> int | None:
    return None if one is None else one + sign * (other or 0)
