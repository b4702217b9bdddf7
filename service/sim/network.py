"""The ``contended`` network: jobs whose traffic straddles servers share NICs and slow each other down.

The model (docs/explanation/network.md), our construction after SJF-BCO (arXiv 2207.07817):

- p_j, the crowd of a straddling job j: the most straddling jobs, j included, that one of its servers carries.
- k = max(1, xi1 p_j) contenders leave the job b / f(k) of a NIC of b bytes/s, f(k) = k + a (k - 1): the NIC is shared evenly,
  and sharing it wastes some. Alone (k = 1) a job has the whole NIC. It divides its part evenly among its GPUs on the server.
- Each iteration takes xi2 seconds more for every server that a straddling job uses.
- Where the cluster names tiers, jobs that straddle racks share rack uplinks and the core in the same way.

Only a job with a stage graph has traffic. Flows are indexed by link, so that a flow that joins or leaves affects only the flows
on its own links.
"""

from dataclasses import dataclass, field, fields
from functools import lru_cache
from math import inf, isfinite

from policies.model.cluster import Cluster
from policies.model.ids import AttemptId
from policies.model.job import IterationTimes, JobSpec
from policies.model.placement import Placement
from policies.placement.candidates import fastest
from policies.placement.fleet import Fleet, fleet_of
from policies.placement.iteration import Gang, ShareOf, placement_s
from policies.placement.iteration import gang as gang_of

Crowd = tuple[int, ...]
"""p_j at each tier: NICs, rack uplinks, the core. 0 where the job crosses nothing."""

_VALUE_MAX = 1e6


class NetworkError(ValueError):
    """An unknown network, or an invalid value of one; the message names both."""


@dataclass(frozen=True, slots=True)
class Contention:
    """``xi1``: the weight of each straddling job as a contender; ``a``: the share of a link that each further contender wastes,
    relative to a lone job; ``xi2``: additional seconds of an iteration for each server of a straddling job.

    ``a`` is 0.235 / 0.856, the ratio of the two coefficients that were fitted to contended all-reduces on 10 GbE (Wang et al.,
    arXiv 2002.10105, and its published code). With xi1 = 1 it predicts the measured slowdown of four 4-GPU jobs on four
    servers (tests/unit/service/sim/test_sim_network.py). ``xi2`` is a guess: a ring visits each server twice, at some 50 us
    of TCP latency.
    """

    xi1: float = 1.0
    a: float = 0.235 / 0.856
    xi2: float = 1e-4

    def split(self, jobs: int) -> float:
        """f(k): the divisor of a link's bandwidth for each of ``jobs`` straddling jobs on it."""
        contenders = max(1.0, self.xi1 * jobs)
        return contenders + self.a * (contenders - 1.0)


def parse_network(text: str) -> Contention | None:
    """``reserved`` (None) or ``contended``, with values if wanted: ``contended:xi1=0.5,a=0,xi2=0``. Raises NetworkError."""
    name, colon, rest = text.partition(":")
    if name not in ("reserved", "contended") or (name == "reserved" and colon):
        raise NetworkError(f"{text!r} is unknown; use reserved, contended or contended:NAME=VALUE,...")
    if name == "reserved":
        return None
    known = [each.name for each in fields(Contention)]
    values: dict[str, float] = {}
    for part in rest.split(",") if colon else ():
        key, _, value = part.partition("=")
        if key not in known or key in values:
            raise NetworkError(f"{text!r}: {part!r} is not NAME=VALUE with one of the names {', '.join(known)}")
        values[key] = _number(text, part, value)
    return Contention(**values)


def network_of(text: str, cluster: Cluster) -> "ContendedNetwork | None":
    """The idle network that ``text`` describes; None for the ``reserved`` one. Raises NetworkError."""
    contention = parse_network(text)
    return None if contention is None else ContendedNetwork(cluster, contention)


def _number(text: str, part: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = inf
    if not (isfinite(number) and 0.0 <= number <= _VALUE_MAX):
        raise NetworkError(f"{text!r}: {part!r} needs a number from 0 to {_VALUE_MAX:g}")
    return number


@dataclass(slots=True, eq=False)
class Flow:
    """The traffic of one attempt. ``links[tier]`` are the links that it loads once it has joined; empty: it straddles none.

    ``stretch``: its iteration time over the best on an idle network, until a flow joins or leaves.
    """

    attempt: AttemptId
    gang: Gang
    placement: Placement
    best_s: float
    links: tuple[tuple[int, ...], ...]
    crowd: Crowd
    stretch: float
    joined: bool = False
    known: dict[Crowd, float] = field(default_factory=dict)

    @property
    def straddles(self) -> bool:
        """Whether it has traffic that crosses servers."""
        return bool(self.links[0])


class ContendedNetwork:
    """The flows on each link. A join or leave costs O(flows on the flow's own links), and returns the flows whose crowd changed.

    Links are numbered: the NIC of each server, then the uplink of each rack, then the core.
    """

    def __init__(self, cluster: Cluster, contention: Contention | None = None) -> None:
        self.ratings = 0
        """Number of speeds computed so far, because a crowd had changed."""
        self._cluster = cluster
        self._fleet = fleet_of(cluster)
        self._contention = contention or Contention()
        self._racks: dict[str, int] = {}
        for server in cluster.servers:
            self._racks.setdefault(server.rack, len(cluster.servers) + len(self._racks))
        self._core = len(cluster.servers) + len(self._racks)
        self._flows: dict[int, dict[Flow, None]] = {}

    def flow(
        self, attempt: AttemptId, spec: JobSpec, times: IterationTimes | None, placement: Placement
    ) -> Flow | None:
        """The traffic of an attempt, not joined yet; None for a job without a stage graph."""
        if times is None or spec.stage_graph is None or spec.parallelism is None:
            return None
        gang = gang_of(spec.stage_graph, spec.parallelism)
        best_s = min(times.min_s, _alone_at_best_s(gang, self._fleet, spec.gpu_type, self._contention))
        links = self._links(gang, placement)
        crowd = tuple(min(1, len(tier)) for tier in links)
        flow = Flow(attempt, gang, placement, best_s, links, crowd, 1.0)
        self._rate(flow)
        return flow

    def join(self, flow: Flow) -> list[Flow]:
        """Load the flow's links, and return the other flows whose crowd grew."""
        grown: dict[Flow, None] = {}
        crowd = [0, 0, 0]
        for tier, links in enumerate(flow.links):
            for link in links:
                others = self._flows.setdefault(link, {})
                jobs = len(others) + 1
                crowd[tier] = max(crowd[tier], jobs)
                for other in others:
                    if other.crowd[tier] < jobs:
                        _recrowd(other, tier, jobs)
                        grown[other] = None
                others[flow] = None
        flow.joined = True
        if flow.crowd != tuple(crowd):
            flow.crowd = tuple(crowd)
            self._rate(flow)
        return self._rated(grown)

    def leave(self, flow: Flow) -> list[Flow]:
        """Free the flow's links, and return the other flows whose crowd shrank. A flow that has not joined is ignored."""
        if not flow.joined:
            return []
        flow.joined = False
        crowded: dict[tuple[Flow, int], None] = {}
        for tier, links in enumerate(flow.links):
            for link in links:
                others = self._flows[link]
                jobs = len(others)
                del others[flow]
                crowded.update(((other, tier), None) for other in others if other.crowd[tier] == jobs)
        shrunk: dict[Flow, None] = {}
        for other, tier in crowded:
            jobs = max(len(self._flows[link]) for link in other.links[tier])
            if jobs < other.crowd[tier]:
                _recrowd(other, tier, jobs)
                shrunk[other] = None
        return self._rated(shrunk)

    def _rated(self, flows: dict[Flow, None]) -> list[Flow]:
        for flow in flows:
            self._rate(flow)
        return list(flows)

    def _rate(self, flow: Flow) -> None:
        """Compute the flow's stretch in its present crowd. It is cached, because crowds recur."""
        self.ratings += 1
        stretch = flow.known.get(flow.crowd)
        if stretch is None:
            latency_s = self._contention.xi2 * len(flow.placement.shares) if flow.straddles else 0.0
            alpha_s = placement_s(flow.gang, self._cluster, flow.placement, self._share_of(flow)) + latency_s
            stretch = flow.known[flow.crowd] = alpha_s / flow.best_s
        flow.stretch = stretch

    def _share_of(self, flow: Flow) -> ShareOf:
        """Bytes/s of one GPU of the flow to other servers: its part of the NIC, or of a narrower tier above."""
        cluster = self._cluster
        nic, rack, core = (self._contention.split(jobs) for jobs in flow.crowd)
        _, uplinks, cores = flow.links
        rack_bytes_s = cluster.rack_bytes_s / rack if uplinks and cluster.rack_bytes_s else inf
        core_bytes_s = cluster.core_bytes_s / core if cores and cluster.core_bytes_s else inf
        above_bytes_s = min(rack_bytes_s, core_bytes_s)
        gpus = {share.server: share.gpus for share in flow.placement.shares}
        return lambda m: min(cluster.servers[m].nic_bytes_s / nic, above_bytes_s) / gpus[m]

    def _links(self, gang: Gang, placement: Placement) -> tuple[tuple[int, ...], ...]:
        if not _straddles(gang, self._cluster, placement):
            return (), (), ()
        racks = tuple(dict.fromkeys(self._racks[self._cluster.servers[m].rack] for m in placement.servers))
        if len(racks) == 1:
            return placement.servers, (), ()
        uplinks = racks if self._cluster.rack_bytes_s is not None else ()
        return placement.servers, uplinks, (self._core,) if self._cluster.core_bytes_s is not None else ()


def _recrowd(flow: Flow, tier: int, jobs: int) -> None:
    flow.crowd = (*flow.crowd[:tier], jobs, *flow.crowd[tier + 1 :])


def _straddles(gang: Gang, cluster: Cluster, placement: Placement) -> bool:
    """Whether any traffic of an iteration crosses servers: then the iteration time grows as the bandwidth falls to 0."""
    if len(placement.shares) == 1:
        return False
    return placement_s(gang, cluster, placement, lambda _: 1e-9) > placement_s(gang, cluster, placement, lambda _: inf)


@lru_cache(maxsize=4096)
def _alone_at_best_s(gang: Gang, fleet: Fleet, gpu_type: str | None, contention: Contention) -> float:
    """Seconds per iteration of a lone job at the placement that is best on the ``reserved`` network."""
    cluster, pool = fleet.empty(gang.gpus)
    types = pool.gpu_types if gpu_type is None else (gpu_type,)
    found = [timed for timed in (fastest(pool, cluster, gang, name) for name in types) if timed is not None]
    return min(_alone_s(gang, cluster, placement, contention) for _, placement in found)


def _alone_s(gang: Gang, cluster: Cluster, placement: Placement, contention: Contention) -> float:
    gpus = {share.server: share.gpus for share in placement.shares}
    latency_s = contention.xi2 * len(gpus) if _straddles(gang, cluster, placement) else 0.0
    return placement_s(gang, cluster, placement, lambda m: cluster.servers[m].nic_bytes_s / gpus[m]) + latency_s
