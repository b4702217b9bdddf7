"""The ``contended`` network of the simulator: the speed of each run follows from who shares its links.

The model is :mod:`policies.placement.contention`; policies that foresee contention use the same one.
"""

from policies.model.cluster import Cluster
from policies.model.contention import Contention, NetworkError, parse_network
from policies.model.ids import AttemptId
from policies.model.job import IterationTimes, JobSpec
from policies.model.placement import Placement
from policies.placement.contention import Crowds, Layout, LinkIds, Traffic, layout_of
from policies.placement.fleet import fleet_of
from policies.placement.iteration import Gang, gang_of
from policies.placement.shared_links import best_s

__all__ = ["ContendedNetwork", "Contention", "Flow", "NetworkError", "network_of", "parse_network"]


def network_of(text: str, cluster: Cluster) -> "ContendedNetwork | None":
    """The idle network that ``text`` describes; None for the ``reserved`` one. Raises NetworkError."""
    contention = parse_network(text)
    return None if contention is None else ContendedNetwork(cluster, contention)


class Flow(Traffic):
    """The traffic of one attempt. ``stretch``: its iteration time over the best on an idle network, until a crowd changes."""

    __slots__ = ("attempt", "placement", "stretch")

    def __init__(
        self,
        attempt: AttemptId,
        placement: Placement,
        cluster: Cluster,
        contention: Contention,
        gang: Gang,
        layout: Layout,
        best_s: float,
        links: LinkIds,
    ) -> None:
        super().__init__(cluster, contention, gang, layout, best_s, links, tuple([min(1, len(tier)) for tier in links]))
        self.attempt = attempt
        self.placement = placement
        self.stretch = 1.0


class ContendedNetwork(Crowds[Flow]):
    """The flows on each link. A join or leave rates the flows whose crowd changed, and returns the others of them."""

    def __init__(self, cluster: Cluster, contention: Contention | None = None) -> None:
        super().__init__()
        self.ratings = 0
        """Number of speeds computed so far, because a crowd had changed."""
        self._contention = contention or Contention()
        self.use_cluster(cluster)

    def use_cluster(self, cluster: Cluster) -> None:
        """Flows from now on refer to this cluster; the servers of earlier ones keep their indexes."""
        self._cluster = cluster
        self._fleet = fleet_of(cluster)

    def flow(
        self, attempt: AttemptId, spec: JobSpec, times: IterationTimes | None, placement: Placement
    ) -> Flow | None:
        """The traffic of an attempt, not joined yet; None for a job without a stage graph."""
        if times is None or (gang := gang_of(spec)) is None:
            return None
        layout = layout_of(placement)
        flow = Flow(
            attempt=attempt,
            placement=placement,
            cluster=self._cluster,
            contention=self._contention,
            gang=gang,
            layout=layout,
            best_s=min(times.min_s, best_s(gang, self._fleet, spec.gpu_types, self._contention)[1]),
            links=self.links(gang, self._cluster, layout),
        )
        self._rate(flow)
        return flow

    def join(self, flow: Flow) -> list[Flow]:
        """Load the flow's links, and return the other flows whose crowd grew."""
        alone = flow.crowd
        grown = super().join(flow)
        if flow.crowd != alone:
            self._rate(flow)
        return self._rated(grown)

    def leave(self, flow: Flow) -> list[Flow]:
        """Free the flow's links, and return the other flows whose crowd shrank. A flow that has not joined is ignored."""
        return self._rated(super().leave(flow))

    def _rated(self, flows: list[Flow]) -> list[Flow]:
        for flow in flows:
            self._rate(flow)
        return flows

    def _rate(self, flow: Flow) -> None:
        """Compute the flow's stretch in its present crowd."""
        self.ratings += 1
        flow.stretch = flow.stretch_in(flow.crowd)
