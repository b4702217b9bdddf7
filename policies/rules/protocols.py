"""What a rule is. A new rule is a module here, registered in :mod:`policies.rules.registered`."""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable
from typing import Protocol

from policies.model.cluster import Cluster
from policies.model.job import JobSpec
from policies.model.placement import Placement
from policies.model.view import JobView, PreemptionCosts
from policies.placement.pool import FreePool


class PlacementRule(Protocol):
    """Limits which GPUs some jobs may get. Pure: equal arguments give equal answers."""

    name: str
    """Names the rule; also the name of the invariant that a start against it breaks."""

    def demand(self, spec: JobSpec) -> Hashable | None:
        """What the job demands of its placement; None: the rule does not concern the job. O(1)."""

    def required(self, spec: JobSpec) -> bool:
        """Whether the job waits rather than start against the rule. Otherwise the rule is a preference."""

    def allows(self, cluster: Cluster, spec: JobSpec, placement: Placement) -> bool:
        """Whether the placement keeps the rule. O(servers of the placement)."""

    def pools(self, pool: FreePool, cluster: Cluster, spec: JobSpec) -> Iterable[FreePool]:
        """Parts of the pool in which to look for a placement that keeps the rule. O(servers) each.

        Called when the best placement on the whole pool breaks the rule.
        """

    def describe(self, spec: JobSpec) -> str:
        """The demand in words, to follow "must be": ``within one rack``."""


class PreemptionRule(ABC):
    """Keeps some running jobs from being stopped for others. No protocol but a base class: a decision asks every rule about many
    jobs, and compiled code looks a protocol's methods up by name."""

    __slots__ = ()

    @abstractmethod
    def protected_s(self, costs: PreemptionCosts, job: JobView) -> float:
        """Seconds from the begin of the job's present attempt during which it may not be stopped.

        0: no limit; infinite: not before a change of the job. O(1).
        """
