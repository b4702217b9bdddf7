"""The best placement of a gang now, and whether it can ever fit."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from policies.model.cluster import Cluster, Gangs
from policies.model.ids import ServerIndex
from policies.model.job import IterationTimes, JobSpec
from policies.model.placement import Placement, Slowdown, place, span_of, type_of
from policies.model.resources import Demand, demand_of
from policies.model.value import value
from policies.model.view import ClusterView, JobView
from policies.placement import candidates, shapes
from policies.placement.candidates import fastest, servers_for
from policies.placement.fleet import Fleet, fleet_of
from policies.placement.iteration import Gang, gang_of
from policies.placement.pool import FreePool, empty, free_now
from policies.placement.scatter import scattered_gang, scattered_gpus
from policies.placement.shared_links import calmest
from policies.placement.spans import anywhere, fewest
from policies.rules import registered
from policies.rules.protocols import PlacementRule
from policies.rules.server_reservations import closed_servers

CONSOLIDATED_RATIO = 1.02
"""A placement is consolidated if an iteration takes at most this many times alpha_min. The
definition uses time instead of servers, because the placement on the fewest servers is often not the fastest."""


@value
class Candidate:
    """A placement on free GPUs. ``iteration_s`` is alpha(x), for a job without a stage graph relative to one server; None where
    all placements are equally fast. A search that foresees contention counts what the placement costs there, see
    :func:`policies.placement.shared_links.calmest`. ``crowded``: to start there would slow others.
    """

    placement: Placement
    iteration_s: float | None
    crowded: bool = False


def find(
    pool: FreePool, cluster: Cluster, spec: JobSpec, salt: int | None = None, slowdown: Slowdown | None = None
) -> Candidate | None:
    """The best available placement now, or None. Changes nothing; equal arguments give an equal answer.

    Without a stage graph: best fit on one server, else the fewest servers, in one rack where ``slowdown`` makes that faster.
    With one: the candidate of least alpha(x), see
    :func:`policies.placement.candidates.fastest`; where the job names no GPU type, over all types, and where it names several,
    on the first that holds it now. With a ``salt``, random free GPUs drawn from it instead: for ablations. Only GPUs count that
    the job can use with what it needs beside them.
    """
    if (demand := demand_of(spec)) is not None:
        pool = pool.usable_by(demand)
    if rules := registered.placement_rules(spec):
        found = _find_by_rules(pool, cluster, spec, rules, slowdown)
        required = [rule for rule in rules if rule.required(spec)]
        if found is None and 0 < len(required) < len(rules):
            found = _find_by_rules(pool, cluster, spec, required, slowdown)
        if found is not None or required:
            return found
    if not spec.gpu_type_fallbacks:
        return _find(pool, cluster, spec, spec.gpu_type, salt, slowdown)
    tried = (_find(pool, cluster, spec, name, salt, slowdown) for name in spec.gpu_types)
    return next((found for found in tried if found is not None), None)


def _find_by_rules(
    pool: FreePool, cluster: Cluster, spec: JobSpec, rules: Sequence[PlacementRule], slowdown: Slowdown | None = None
) -> Candidate | None:
    """The best placement that keeps these rules. Computed once while the pool does not change."""
    demands = tuple([(rule.name, rule.demand(spec)) for rule in rules])
    sought = (gang_of(spec), spec.gpus, spec.gpu_types, demands, slowdown, pool.traffic_version)
    if sought not in pool.found:
        tried = (
            _of_type_by_rules(pool, cluster, spec, name, rules, slowdown) for name in spec.gpu_types or pool.gpu_types
        )
        pool.found[sought] = next((found for found in tried if found is not None), None)
    found: Candidate | None = pool.found[sought]
    return found


def _of_type_by_rules(
    pool: FreePool,
    cluster: Cluster,
    spec: JobSpec,
    gpu_type: str,
    rules: Sequence[PlacementRule],
    slowdown: Slowdown | None,
) -> Candidate | None:
    """The best placement on the whole pool if it keeps the rules, else the best one on the parts that the rules name."""
    best = _find(pool, cluster, spec, gpu_type, None, slowdown)
    if best is None:
        return None
    broken = [rule for rule in rules if not rule.allows(cluster, spec, best.placement)]
    if not broken:
        return best
    tried = (_find(part, cluster, spec, gpu_type, None, slowdown) for part in _parts(pool, cluster, spec, broken))
    found = [
        each for each in tried if each is not None and all(rule.allows(cluster, spec, each.placement) for rule in rules)
    ]
    return min(found, key=lambda each: (each.iteration_s or 0.0, len(each.placement.shares)), default=None)


def _parts(pool: FreePool, cluster: Cluster, spec: JobSpec, rules: Sequence[PlacementRule]) -> Iterator[FreePool]:
    """Parts of the pool under all these rules: parts under the first, of these the parts under the second, and so on."""
    if not rules:
        yield pool
        return
    for part in rules[0].pools(pool, cluster, spec):
        part.shared_links = pool.shared_links
        yield from _parts(part, cluster, spec, rules[1:])


def _find(
    pool: FreePool,
    cluster: Cluster,
    spec: JobSpec,
    gpu_type: str | None,
    salt: int | None,
    slowdown: Slowdown | None,
) -> Candidate | None:
    gang = gang_of(spec)
    if salt is not None and (scattered := _scattered(pool, cluster, gang, spec.gpus, gpu_type, salt)) is not None:
        return _slowed(cluster, scattered, slowdown)
    if gang is None:
        placement = anywhere(pool, cluster, spec.gpus, gpu_type, slowdown)
        return None if placement is None else _slowed(cluster, Candidate(placement, None), slowdown)
    # Many waiting jobs have equal gangs, and the search repeats while nothing has changed.
    sought = (gang, gpu_type, slowdown, pool.traffic_version)
    if sought not in pool.found:
        pool.found[sought] = _fastest_of_types(pool, cluster, gang, gpu_type, slowdown)
    found: Candidate | None = pool.found[sought]
    return found


def known_iteration_s(pool: FreePool, cluster: Cluster, spec: JobSpec, free: Mapping[ServerIndex, int]) -> float | None:
    """``iteration_s`` of what :func:`find` would find if these servers, of the job's GPU type, had so many GPUs free.

    Infinite if the gang would not fit; None if that is not known without a search.
    """
    gang = gang_of(spec)
    types = spec.gpu_types or pool.gpu_types
    if gang is None or len(types) > 1 or pool.shared_links is not None:
        return None
    if demand_of(spec) is not None or registered.placement_rules(spec):
        return None
    return candidates.known_alpha_s(pool, cluster, gang, types[0], free)


def free_for(pool: FreePool, spec: JobSpec) -> int:
    """Free GPUs that the job could use, of the type that it takes, or the most of any one of those that it takes."""
    if (demand := demand_of(spec)) is not None:
        pool = pool.usable_by(demand)
    if not spec.gpu_type_fallbacks:
        return pool.free_of_type(spec.gpu_type)
    return max(pool.free_of_type(name) for name in spec.gpu_types)


def _fastest_of_types(
    pool: FreePool, cluster: Cluster, gang: Gang, gpu_type: str | None, slowdown: Slowdown | None
) -> Candidate | None:
    """The best of each type by the model, and of these the best as it is corrected by what was measured."""
    types = pool.gpu_types if gpu_type is None else (gpu_type,)
    if (links := pool.shared_links) is not None:
        calm = [each for name in types if (each := calmest(pool, links, cluster, gang, name)) is not None]
        timed = [Candidate(each.placement, each.alpha_s, each.crowded) for each in calm]
    else:
        fast = [one for name in types if (one := fastest(pool, cluster, gang, name)) is not None]
        timed = [Candidate(placement, iteration_s) for iteration_s, placement in fast]
    found = [_slowed(cluster, each, slowdown) for each in timed]
    return min(found, key=lambda each: each.iteration_s or 0.0, default=None)


def servers_wanted(cluster: Cluster, spec: JobSpec) -> int:
    """The fewest servers that could hold the gang on the empty cluster; 0 if none ever can."""
    fleet, gang, demand = fleet_of(cluster), gang_of(spec), demand_of(spec)
    wanted = (_servers_wanted(fleet, gang, spec.gpus, name, demand) for name in spec.gpu_types or (None,))
    return min((servers for servers in wanted if servers), default=0)


def fits_empty(cluster: Cluster, spec: JobSpec) -> bool:
    """Whether the gang can ever run: its GPU types, size, tensor groups, needs beside GPUs and required placement rules, on the
    empty cluster."""
    if servers_wanted(cluster, spec) == 0:
        return False
    required = [rule for rule in registered.placement_rules(spec) if rule.required(spec)]
    if not required:
        return True
    pool = empty(cluster).usable_by(demand_of(spec))
    return _find_by_rules(pool, cluster, spec, required) is not None


def kept_out(view: ClusterView, spec: JobSpec) -> bool:
    """Whether the gang would fit now if the engine of the cluster could start any placement, but does not. O(servers)."""
    if view.cluster.gangs is Gangs.ANY or spec.gpus == 1:
        return False
    if find(free_now(view), view.cluster, spec) is not None:
        return False
    # A pool of its own: a pool keeps what was found in it.
    return find(free_now(view), replace(view.cluster, gangs=Gangs.ANY), spec) is not None


def fits_usable(view: ClusterView, spec: JobSpec) -> bool:
    """Whether the usable servers could hold the gang if nothing else ran. O(servers)."""
    return find(_usable(view), view.cluster, spec) is not None


class UsableFit:
    """Which gangs the usable servers could hold if nothing else ran, remembered until servers change."""

    __slots__ = ("_all_usable", "_known")

    def __init__(self) -> None:
        self._known: dict[Hashable, bool] = {}
        self._all_usable: bool | None = None

    def servers_changed(self) -> None:
        """Servers were added, or take work again or no more."""
        self._known, self._all_usable = {}, None

    def fits(self, view: ClusterView, gang: Hashable, spec: JobSpec) -> bool:
        """Whether a job of this gang class fits; true where all servers are usable. O(servers) once for each class, else O(1)."""
        if self._all_usable is None:
            servers = enumerate(view.cluster.servers)
            self._all_usable = all(view.usable_gpus(ServerIndex(index)) == server.gpus for index, server in servers)
        if self._all_usable:
            return True
        known = self._known.get(gang)
        if known is None:
            known = self._known[gang] = fits_usable(view, spec)
        return known


def fits_open(view: ClusterView, job: JobView) -> bool:
    """Whether those of the usable servers that are open to the job could hold it if nothing else ran. O(servers)."""
    return find_open(_usable(view), view, job, None) is not None


def _usable(view: ClusterView) -> FreePool:
    servers = range(len(view.cluster.servers))
    return FreePool(view.cluster, [view.usable_gpus(ServerIndex(server)) for server in servers])


def find_open(pool: FreePool, view: ClusterView, job: JobView, salt: int | None) -> Candidate | None:
    """The best placement in the pool on servers that no reservation closes to the job."""
    times = job.iteration_times
    slowdown = None if times is None else times.slowdown
    if not view.server_reservations:
        return find(pool, view.cluster, job.spec, salt, slowdown)
    closed = closed_servers(view, job)
    taken = {server: pool.free(server) for server in sorted(closed) if server < len(pool) and pool.free(server)}
    if not taken:
        return find(pool, view.cluster, job.spec, salt, slowdown)
    try:
        for server in taken:
            pool.set_free(server, 0)
        return find(pool, view.cluster, job.spec, salt, slowdown)
    finally:
        for server, gpus in taken.items():
            pool.set_free(server, gpus)


def consolidated(candidate: Candidate, times: IterationTimes | None) -> bool:
    """Whether alpha(x) <= 1.02 alpha_min, so that no placement is much faster; ``times``: those in reach of the candidate."""
    if times is None or candidate.iteration_s is None:
        return True
    return candidate.iteration_s <= CONSOLIDATED_RATIO * times.min_s


def _slowed(cluster: Cluster, found: Candidate, slowdown: Slowdown | None) -> Candidate:
    if slowdown is None:
        return found
    factor = slowdown.at(type_of(cluster, found.placement), span_of(cluster, found.placement))
    return replace(found, iteration_s=factor * (1.0 if found.iteration_s is None else found.iteration_s))


def _scattered(
    pool: FreePool, cluster: Cluster, gang: Gang | None, gpus: int, gpu_type: str | None, salt: int
) -> Candidate | None:
    """A random placement; None if the draw finds none that may be started, although the gang may fit."""
    if gang is None:
        shares = scattered_gpus(pool, gpus, gpu_type, salt)
        drawn = None if shares is None else Candidate(place(shares), None)
    else:
        timed = scattered_gang(pool, cluster, gang, gpu_type, salt)
        drawn = None if timed is None else Candidate(timed[1], timed[0])
    return drawn if drawn is not None and shapes.allowed(cluster.gangs, drawn.placement) else None


@lru_cache(maxsize=4096)
def _servers_wanted(fleet: Fleet, gang: Gang | None, gpus: int, gpu_type: str | None, demand: Demand | None) -> int:
    cluster, pool = fleet.empty(gpus)
    pool = pool.usable_by(demand)
    if gang is None:
        return len(fewest(pool, cluster.gangs, gpus, gpu_type) or ())
    types = pool.gpu_types if gpu_type is None else (gpu_type,)
    return min((servers for name in types if (servers := servers_for(pool, cluster, gang, name))), default=0)
