"""Who shares which link: the model of the ``contended`` network (docs/explanation/network.md), for the simulator and policies.

Our construction after SJF-BCO (arXiv 2207.07817):

- p_j, the crowd of a straddling job j: the most straddling jobs, j included, that one of its servers carries.
- k = max(1, xi1 p_j) contenders leave the job b / f(k) of a NIC of b bytes/s, f(k) = k + a (k - 1): the NIC is shared evenly,
  and sharing it wastes some. Alone (k = 1) a job has the whole NIC. It divides its part evenly among its GPUs on the server.
- Each iteration takes xi2 seconds more for every server that a straddling job uses.
- Where the cluster names tiers, jobs that straddle racks share rack uplinks and the core in the same way.

Only a job with a stage graph has traffic. Traffic is indexed by link, so that a job that joins or leaves affects only the jobs
on its own links.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf
from typing import Generic, TypeVar

from policies.model.cluster import Cluster
from policies.model.contention import Contention
from policies.model.ids import ServerIndex
from policies.model.placement import Placement
from policies.placement.iteration import Counts, Gang, Link, link_of, seconds, straddles

Crowd = tuple[int, ...]
"""p_j at each tier: NICs, rack uplinks, the core. 0 where the job crosses nothing."""

LinkIds = tuple[tuple[int, ...], ...]
"""The links that a job loads at each tier: the NICs of its servers, the uplinks of its racks, the core. Empty: none."""

Layout = tuple[tuple[tuple[ServerIndex, int], ...], tuple[Counts, ...]]
"""GPUs on each server, and the replicas of each stage there."""

CROWDED_LEVELS = 4
"""Numbers of jobs on a NIC that a search for servers distinguishes: 1, 2, 3, at least 4."""

_CORE = -1


@dataclass(slots=True, eq=False)
class Traffic:
    """The traffic of a job at one placement. ``links`` are those that it loads once it has joined; ``crowd`` counts it itself.

    ``best_s``: seconds of an iteration alone at its best placement.
    """

    cluster: Cluster
    contention: Contention
    gang: Gang
    layout: Layout
    best_s: float
    links: LinkIds = ()
    crowd: Crowd = (0, 0, 0)
    joined: bool = False
    known: dict[Crowd, float] = field(default_factory=dict)

    @property
    def straddles(self) -> bool:
        """Whether it has traffic that crosses servers."""
        return bool(self.links and self.links[0])

    def stretch_in(self, crowd: Crowd) -> float:
        """Its iteration time in this crowd over ``best_s``. It is cached, because crowds recur."""
        stretch = self.known.get(crowd)
        if stretch is None:
            alpha_s = contended_s(self.contention, self.cluster, self.gang, self.layout, crowd)
            stretch = self.known[crowd] = alpha_s / self.best_s
        return stretch


AnyTraffic = TypeVar("AnyTraffic", bound=Traffic)


class Crowds(Generic[AnyTraffic]):
    """The straddling traffic on each link. A join or leave costs O(jobs on its links), and returns the jobs whose crowd changed.

    ``crowded[n - 1]``: the servers, as the bits of one integer, whose NIC carries at least n straddling jobs.
    """

    __slots__ = ("_flows", "_racks", "crowded", "version")

    def __init__(self) -> None:
        self._flows: dict[int, dict[AnyTraffic, None]] = {}
        self._racks: dict[str, int] = {}
        self.crowded = [0] * CROWDED_LEVELS
        self.version = 0
        """Grows with every join and leave."""

    def links(self, gang: Gang, cluster: Cluster, layout: Layout) -> LinkIds:
        """The links that a job at this placement would load: a NIC by its server's index, the others by negative numbers."""
        grants, rows = layout
        if not crosses(gang, tuple([gpus for _, gpus in grants]), rows):
            return (), (), ()
        servers = tuple([server for server, _ in grants])
        if cluster.rack_bytes_s is None and cluster.core_bytes_s is None:
            return servers, (), ()
        names = dict.fromkeys(cluster.servers[server].rack for server in servers)
        if len(names) == 1:
            return servers, (), ()
        racks = tuple([self._racks.setdefault(name, _CORE - 1 - len(self._racks)) for name in names])
        uplinks = racks if cluster.rack_bytes_s is not None else ()
        return servers, uplinks, (_CORE,) if cluster.core_bytes_s is not None else ()

    def jobs_on(self, link: int) -> int:
        """Straddling jobs on the link."""
        return len(self._flows.get(link, ()))

    def crowd_of(self, links: LinkIds) -> Crowd:
        """The crowd of a job that would join these links."""
        return tuple([max((self.jobs_on(link) for link in tier), default=-1) + 1 for tier in links])

    def slowed(self, links: LinkIds) -> Iterator[tuple[AnyTraffic, Crowd]]:
        """The jobs whose crowd would grow if a job joined these links, each once with its new crowd."""
        grown: dict[AnyTraffic, Crowd] = {}
        for tier, ids in enumerate(links):
            for link in ids:
                others = self._flows.get(link, ())
                jobs = len(others) + 1
                for other in others:
                    crowd = grown.get(other, other.crowd)
                    if crowd[tier] < jobs:
                        grown[other] = _with(crowd, tier, jobs)
        yield from grown.items()

    def join(self, traffic: AnyTraffic) -> list[AnyTraffic]:
        """Load its links, and return the other jobs whose crowd grew."""
        slowed = list(self.slowed(traffic.links))
        for other, crowd in slowed:
            other.crowd = crowd
        traffic.crowd = self.crowd_of(traffic.links)
        for tier, ids in enumerate(traffic.links):
            for link in ids:
                self._flows.setdefault(link, {})[traffic] = None
                if tier == 0:
                    self._mark(link)
        traffic.joined = True
        self.version += 1
        return [other for other, _ in slowed]

    def leave(self, traffic: AnyTraffic) -> list[AnyTraffic]:
        """Free its links, and return the other jobs whose crowd shrank. Traffic that has not joined is ignored."""
        if not traffic.joined:
            return []
        traffic.joined = False
        self.version += 1
        crowded: dict[tuple[AnyTraffic, int], None] = {}
        for tier, ids in enumerate(traffic.links):
            for link in ids:
                others = self._flows[link]
                jobs = len(others)
                del others[traffic]
                if not others:
                    del self._flows[link]
                if tier == 0:
                    self._mark(link)
                crowded.update(((other, tier), None) for other in others if other.crowd[tier] == jobs)
        shrunk: dict[AnyTraffic, None] = {}
        for other, tier in crowded:
            jobs = max(len(self._flows[link]) for link in other.links[tier])
            if jobs < other.crowd[tier]:
                other.crowd = _with(other.crowd, tier, jobs)
                shrunk[other] = None
        return list(shrunk)

    def _mark(self, server: int) -> None:
        jobs, bit = self.jobs_on(server), 1 << server
        for level in range(CROWDED_LEVELS):
            self.crowded[level] = self.crowded[level] | bit if jobs > level else self.crowded[level] & ~bit

    def check(self, every: Sequence[AnyTraffic]) -> None:
        """Raise AssertionError unless the counts are those of exactly this traffic. O(jobs x links)."""
        on: dict[int, set[AnyTraffic]] = {}
        for traffic in every:
            assert traffic.joined
            for ids in traffic.links:
                for link in ids:
                    on.setdefault(link, set()).add(traffic)
        assert on == {link: set(others) for link, others in self._flows.items()}
        for traffic in every:
            assert traffic.crowd == tuple(max((len(on[link]) for link in ids), default=0) for ids in traffic.links)
        for level, servers in enumerate(self.crowded):
            assert servers == sum(1 << link for link, others in on.items() if link >= 0 and len(others) > level)


def layout_of(placement: Placement) -> Layout:
    """A placement with replicas as a layout."""
    shares = placement.shares
    return tuple([(share.server, share.gpus) for share in shares]), tuple([share.replicas for share in shares])


@dataclass(frozen=True, slots=True)
class SharedLinks:
    """What a search for a placement knows of shared links.

    ``fills_up``: a placement counts as no faster than where every GPU owns its share, since jobs that start later may join.
    """

    contention: Contention
    crowds: Crowds[Traffic]
    fills_up: bool


def _with(crowd: Crowd, tier: int, jobs: int) -> Crowd:
    return (*crowd[:tier], jobs, *crowd[tier + 1 :])


@lru_cache(maxsize=32_768)
def crosses(gang: Gang, gpus: tuple[int, ...], rows: tuple[Counts, ...]) -> bool:
    """Whether any traffic of an iteration crosses servers: then the iteration time grows as the bandwidth falls to 0."""
    if len(gpus) == 1:
        return False
    split = straddles(gang, gpus, rows)
    slow, fast = ([Link(share, inf, 1.0)] * len(gpus) for share in (1e-9, inf))
    return seconds(gang, slow, rows, split) > seconds(gang, fast, rows, split)


def contended_links(
    contention: Contention, cluster: Cluster, grants: Sequence[tuple[ServerIndex, int]], crowd: Crowd
) -> tuple[Link, ...]:
    """What the servers offer to a job with so many GPUs on each, in this crowd: the hook in place of the ``reserved`` shares.

    A GPU's share is its part of the NIC, or of a narrower tier above that the job crosses, and at most b_intra.
    """
    nic, rack, core = (contention.split(jobs) for jobs in crowd)
    above_bytes_s = inf
    if crowd[1] and cluster.rack_bytes_s is not None:
        above_bytes_s = cluster.rack_bytes_s / rack
    if crowd[2] and cluster.core_bytes_s is not None:
        above_bytes_s = min(above_bytes_s, cluster.core_bytes_s / core)
    links = []
    for server, gpus in grants:
        link = link_of(cluster.servers[server])
        share = min(cluster.servers[server].nic_bytes_s / nic, above_bytes_s) / gpus
        links.append(Link(min(link.intra_bytes_s, share), link.intra_bytes_s, link.speed))
    return tuple(links)


def contended_s(contention: Contention, cluster: Cluster, gang: Gang, layout: Layout, crowd: Crowd) -> float:
    """alpha(x) in a crowd, xi2 included for traffic that crosses servers (``crowd`` counts the job itself)."""
    grants, rows = layout
    links = contended_links(contention, cluster, grants, crowd)
    latency_s = contention.xi2 * len(grants) if crowd[0] else 0.0
    return _alpha_s(gang, links, tuple([gpus for _, gpus in grants]), rows) + latency_s


@lru_cache(maxsize=32_768)
def _alpha_s(gang: Gang, links: tuple[Link, ...], held: tuple[int, ...], rows: tuple[Counts, ...]) -> float:
    return seconds(gang, links, rows, straddles(gang, held, rows))
