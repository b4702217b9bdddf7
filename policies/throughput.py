"""How long an iteration takes: under a placement, and at best and worst on a cluster.

The formulas are our model (docs/explanation/a-srpt.md, "Model"), consistent with A-SRPT (arXiv 2501.05563) but not quoted from
it. A job without a stage graph has no such model: its speed, and its slowdown by span, are learnt from measurements.
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache

from policies.model.cluster import Cluster
from policies.model.graph import StageGraph
from policies.model.job import IterationTimes, JobSpec
from policies.model.parallelism import ParallelismConfig
from policies.model.placement import Placement, Slowdown, Span, span_of, type_of
from policies.model.resources import Demand, demand_of
from policies.model.view import JobView
from policies.placement.candidates import fastest
from policies.placement.fleet import Fleet, SameCluster, fleet_of
from policies.placement.iteration import Gang, ShareOf, ceil_s, floor_s, known_gang, placement_s
from policies.placement.spans import narrowest


class NeverFits(ValueError):
    """No placement on the empty cluster can hold the gang."""


def iteration_time_s(
    graph: StageGraph,
    config: ParallelismConfig,
    cluster: Cluster,
    placement: Placement,
    share_of: ShareOf | None = None,
) -> float:
    """alpha(x): seconds per iteration under a placement whose shares hold replicas.

    Compute at the speed of each server, activations to neighbour stages, the rings of data-parallel replicas, all-reduces
    inside tensor groups. ``share_of`` gives the bytes/s that one GPU of the job has towards other servers, where co-running
    jobs leave it less than its own share; None = the ``reserved`` network.
    """
    return placement_s(known_gang(graph, config), cluster, placement, share_of)


def iteration_times(
    graph: StageGraph,
    config: ParallelismConfig,
    cluster: Cluster,
    gpu_type: str | None,
    demand: Demand | None = None,
) -> IterationTimes:
    """alpha_floor, alpha_ceil and alpha_min on the empty cluster, over servers of ``gpu_type`` (None: of any one type).

    ``demand``: what the job needs beside GPUs. Memoised by the job's shape and the cluster's classes of equal servers. Raises
    :class:`NeverFits`.
    """
    return _iteration_times(known_gang(graph, config), fleet_of(cluster), gpu_type, demand)


def times_of(spec: JobSpec, cluster: Cluster, slowdown: Slowdown | None = None) -> IterationTimes | None:
    """The same for a job, over all types that it takes. Raises :class:`NeverFits`.

    Without a stage graph they follow from ``slowdown``; None without either. With one, ``slowdown`` corrects its model.
    """
    return _times_over(spec, spec.gpu_types, cluster, slowdown)


def times_in_reach(job: JobView, cluster: Cluster, placement: Placement) -> IterationTimes | None:
    """The job's iteration times without the types after that of the placement in its order of preference.

    A search takes the first type that holds the gang. So while this placement is free no wait brings a type that the job names
    later, however fast it is. O(types) beside memoised times.
    """
    spec, times = job.spec, job.iteration_times
    if times is None or not spec.gpu_type_fallbacks:
        return times
    gpu_type, types = type_of(cluster, placement), spec.gpu_types
    if gpu_type not in types[:-1]:
        return times
    try:
        return _times_over(spec, types[: types.index(gpu_type) + 1], cluster, times.slowdown)
    except NeverFits:
        # A running job may hold GPUs that the cluster of today would not give it.
        return times


def _times_over(
    spec: JobSpec, gpu_types: tuple[str, ...], cluster: Cluster, slowdown: Slowdown | None
) -> IterationTimes | None:
    if spec.stage_graph is None or spec.parallelism is None:
        return None if slowdown is None or spec.gpus == 1 else _slowed_times(spec, gpu_types, cluster, slowdown)
    if slowdown is not None:
        return _corrected_times(spec, gpu_types, spec.stage_graph, spec.parallelism, cluster, slowdown)
    return iteration_times_over(spec.stage_graph, spec.parallelism, cluster, gpu_types, demand_of(spec))


def iteration_times_over(
    graph: StageGraph,
    config: ParallelismConfig,
    cluster: Cluster,
    gpu_types: Sequence[str],
    demand: Demand | None = None,
) -> IterationTimes:
    """The same over servers of any one of ``gpu_types`` (none named: of any type). Raises :class:`NeverFits`."""
    gang, fleet = known_gang(graph, config), fleet_of(cluster)
    if len(gpu_types) < 2:
        return _iteration_times(gang, fleet, gpu_types[0] if gpu_types else None, demand)
    found = []
    for name in gpu_types:
        with suppress(NeverFits):
            found.append(_iteration_times(gang, fleet, name, demand))
    if not found:
        raise NeverFits(f"no servers of types {', '.join(gpu_types)} can hold {_gang_of(gang.gpus)}")
    return IterationTimes(
        min(times.floor_s for times in found), max(times.ceil_s for times in found), min(times.min_s for times in found)
    )


def alpha(spec: JobSpec, times: IterationTimes, cluster: Cluster, placement: Placement) -> float:
    """alpha(x) in the unit of the job's ``times``."""
    slowdown = times.slowdown
    factor = 1.0 if slowdown is None else slowdown.at(type_of(cluster, placement), span_of(cluster, placement))
    if spec.stage_graph is not None and spec.parallelism is not None:
        return factor * iteration_time_s(spec.stage_graph, spec.parallelism, cluster, placement)
    return factor


def stretch_of(cluster: Cluster, spec: JobSpec, times: IterationTimes | None, placement: Placement) -> float:
    """alpha(x) / alpha_min: how much slower than at its best a job runs at this placement; 1 where all are equally fast."""
    return 1.0 if times is None else alpha(spec, times, cluster, placement) / times.min_s


def _corrected_times(
    spec: JobSpec,
    gpu_types: tuple[str, ...],
    graph: StageGraph,
    config: ParallelismConfig,
    cluster: Cluster,
    slowdown: Slowdown,
) -> IterationTimes:
    """Those of the model, each type's corrected by the factor of the narrowest span that the gang can have there."""
    demand, found = demand_of(spec), []
    for name in gpu_types or cluster.gpus_by_type:
        span = narrowest(SameCluster(cluster), spec.gpus, (name,), demand)
        if span is None:
            continue
        with suppress(NeverFits):
            times = iteration_times(graph, config, cluster, name, demand)
            best, spans = slowdown.at(name, span), [slowdown.at(name, each) for each in Span]
            found.append((times.floor_s * min(spans), times.ceil_s * max(spans), times.min_s * best))
    if not found:
        raise NeverFits(f"no servers can hold {_gang_of(spec.gpus)}")
    floors, ceils, mins = zip(*found, strict=True)
    return IterationTimes(min(floors), max(ceils), min(mins), slowdown)


def _slowed_times(
    spec: JobSpec, gpu_types: tuple[str, ...], cluster: Cluster, slowdown: Slowdown
) -> IterationTimes | None:
    """None if no placement is slower than another."""
    span = narrowest(SameCluster(cluster), spec.gpus, gpu_types, demand_of(spec))
    if span is None:
        raise NeverFits(f"no servers can hold {_gang_of(spec.gpus)}")
    least = slowdown.factor(span)
    return None if slowdown.cluster <= least else IterationTimes(least, slowdown.cluster, least, slowdown)


@lru_cache(maxsize=4096)
def _iteration_times(gang: Gang, fleet: Fleet, gpu_type: str | None, demand: Demand | None) -> IterationTimes:
    links = fleet.links(gpu_type)
    cluster, pool = fleet.empty(gang.gpus)
    pool = pool.usable_by(demand)
    types = pool.gpu_types if gpu_type is None else (gpu_type,)
    found = [timed for timed in (fastest(pool, cluster, gang, name) for name in types) if timed is not None]
    if not found:
        raise NeverFits(f"no servers{f' of type {gpu_type}' if gpu_type else ''} can hold {_gang_of(gang.gpus)}")
    return IterationTimes(floor_s(gang, links), ceil_s(gang, links), min(alpha for alpha, _ in found))


def _gang_of(gpus: int) -> str:
    return f"a gang of {gpus} GPU{'' if gpus == 1 else 's'}"
