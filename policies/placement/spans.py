"""Placements of a gang without a stage graph: on one server, else on the fewest servers, or on the narrowest span."""

from functools import lru_cache

from policies.model.cluster import Cluster, Gangs
from policies.model.placement import Placement, ServerShare, Slowdown, Span, place, span_of
from policies.model.resources import Demand
from policies.placement import shapes
from policies.placement.fleet import SameCluster
from policies.placement.pool import FreePool, Grant, empty


def fewest(pool: FreePool, gangs: Gangs, gpus: int, gpu_type: str | None) -> list[Grant] | None:
    """The fewest servers, with shares that the engine of the cluster can start."""
    if gangs is Gangs.ANY:
        return pool.fewest_servers(gpus, gpu_type)
    types = pool.gpu_types if gpu_type is None else (gpu_type,)
    found = (next(shapes.grants(pool, gangs, gpus, name), None) for name in types)
    return min((grants for grants in found if grants is not None), key=len, default=None)


def anywhere(
    pool: FreePool, cluster: Cluster, gpus: int, gpu_type: str | None, slowdown: Slowdown | None
) -> Placement | None:
    """Best fit on one server, else the fewest servers; one rack is preferred to several if the slowdowns differ.

    O(levels + racks x levels + servers granted).
    """
    server = pool.best_fit(gpus, gpu_type)
    if server is not None:
        return place([ServerShare(server, gpus)])
    grants = fewest(pool, cluster.gangs, gpus, gpu_type)
    if grants is None:
        return None
    found = _placed(grants)
    if slowdown is None or slowdown.rack >= slowdown.cluster or span_of(cluster, found) is not Span.CLUSTER:
        return found
    return _one_rack(pool, cluster, gpus, gpu_type) or found


@lru_cache(maxsize=4096)
def narrowest(same: SameCluster, gpus: int, gpu_types: tuple[str, ...], demand: Demand | None = None) -> Span | None:
    """The narrowest span on the empty cluster of a gang that takes these GPU types (none: any); None if it never fits.

    ``demand``: what the job needs beside GPUs.
    """
    cluster = same.cluster
    pool = _empty(same) if demand is None else empty(cluster).usable_by(demand)
    found = [
        span_of(cluster, placement)
        for name in gpu_types or (None,)
        if (placement := anywhere(pool, cluster, gpus, name, _STEEP)) is not None
    ]
    return next((span for span in Span if span in found), None)


_STEEP = Slowdown(2.0, 3.0)
"""Any one that makes a rack better than the cluster."""


@lru_cache(maxsize=16)
def _empty(same: SameCluster) -> FreePool:
    return empty(same.cluster)


def _one_rack(pool: FreePool, cluster: Cluster, gpus: int, gpu_type: str | None) -> Placement | None:
    if cluster.gangs is Gangs.ANY:
        grants = pool.in_one_rack(gpus, gpu_type)
        return None if grants is None else _placed(grants)
    types = pool.gpu_types if gpu_type is None else (gpu_type,)
    for name in types:
        for grants in shapes.grants(pool, cluster.gangs, gpus, name):
            placement = _placed(grants)
            if span_of(cluster, placement) is Span.RACK:
                return placement
    return None


def _placed(grants: list[Grant]) -> Placement:
    return place([ServerShare(*grant) for grant in grants])
