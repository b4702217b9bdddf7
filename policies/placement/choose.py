"""The best placement that a gang can have now, and whether it can ever have one."""

from dataclasses import dataclass

from policies.model.cluster import Cluster
from policies.model.job import IterationTimes, JobSpec
from policies.model.placement import Placement, ServerShare, place
from policies.placement.pool import FreePool

CONSOLIDATED_RATIO = 1.02
"""A placement is consolidated if an iteration takes at most this many times alpha_min: a statement about time, not about
the number of servers, because the placement on the fewest servers is often not the fastest."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A placement on free GPUs. ``iteration_s`` is alpha(x); None for a job without a stage graph."""

    placement: Placement
    iteration_s: float | None


def find(pool: FreePool, cluster: Cluster, spec: JobSpec) -> Candidate | None:
    """The best available placement now, or None. Changes nothing; equal arguments give an equal answer.

    Without a stage graph: best fit on one server, else the fewest servers.
    """
    server = pool.best_fit(spec.gpus, spec.gpu_type)
    if server is not None:
        return Candidate(place([ServerShare(server, spec.gpus)]), None)
    grants = pool.fewest_servers(spec.gpus, spec.gpu_type)
    return None if grants is None else Candidate(place([ServerShare(*grant) for grant in grants]), None)


def servers_wanted(cluster: Cluster, spec: JobSpec) -> int:
    """The fewest servers that could hold the gang on the empty cluster; 0 if none ever can."""
    found = find(FreePool(cluster, [server.gpus for server in cluster.servers]), cluster, spec)
    return 0 if found is None else len(found.placement.shares)


def fits_empty(cluster: Cluster, spec: JobSpec) -> bool:
    """Whether the gang can ever run: its GPU type, its size and its tensor groups, on the empty cluster."""
    return servers_wanted(cluster, spec) > 0


def consolidated(candidate: Candidate, times: IterationTimes) -> bool:
    """Whether waiting could hardly make it faster: alpha(x) <= 1.02 alpha_min."""
    return candidate.iteration_s is None or candidate.iteration_s <= CONSOLIDATED_RATIO * times.min_s
