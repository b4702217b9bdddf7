"""The read-only views through which a policy sees the engine's live structures. Nothing is copied."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Protocol

from policies.lifecycle import JobState
from policies.model.cluster import Cluster
from policies.model.estimate import Estimate, Unit
from policies.model.ids import JobId, ServerIndex
from policies.model.job import IterationTimes, JobSpec
from policies.model.placement import Placement
from policies.model.reasons import Reason
from policies.model.resources import Amounts
from policies.model.server_reservation import ServerReservation


class JobView(Protocol):
    """One unfinished job. Times are seconds on the engine's clock."""

    @property
    def id(self) -> JobId: ...
    @property
    def spec(self) -> JobSpec: ...
    @property
    def state(self) -> JobState: ...
    @property
    def submitted_at_s(self) -> float: ...
    @property
    def priority(self) -> int:
        """Larger comes first; changeable after submission."""

    @property
    def waiting(self) -> bool:
        """QUEUED and allowed to start: not held, dependencies met, no back-off, within its owners' limits."""

    @property
    def reason(self) -> Reason:
        """Why it is in its state: of a waiting job the last published reason, NEW before the first."""

    @property
    def estimate(self) -> Estimate | None: ...
    @property
    def iteration_times(self) -> IterationTimes | None:
        """Constants on this cluster; None for a job whose placements are all equally fast, as far as is known."""

    @property
    def placement(self) -> Placement | None:
        """Held GPUs; None unless the state holds any."""

    @property
    def reservation(self) -> Placement | None:
        """GPUs set aside for this waiting job."""

    @property
    def attempts(self) -> int:
        """Attempts opened so far."""

    @property
    def attempt_started_at_s(self) -> float | None:
        """When a cycle decided to start the current attempt."""

    @property
    def attempt_began_at_s(self) -> float | None:
        """When the program of the current attempt began, as its executor has reported; before that, when it was decided."""

    @property
    def graceful(self) -> bool:
        """Whether a preemption loses no work: the program takes a warning signal or has reported a checkpoint."""

    def done(self, unit: Unit, now_s: float) -> float:
        """Progress that would count at ``now_s``: iterations, or seconds of productive service."""

    def speed(self, unit: Unit) -> float:
        """Units per second in the current attempt (0.0 where it does not run); 1.0 for ``Unit.SERVICE_S``."""

    def seconds_per_iteration(self) -> float | None:
        """Measured in the current or an earlier attempt; else alpha_min; else that of the estimate; else None."""

    def attained_service_s(self, now_s: float) -> float:
        """GPU-seconds held by attempts so far."""

    def lost_s(self, now_s: float) -> float:
        """Seconds of work that a preemption at ``now_s`` would lose (0 where it is graceful)."""


class PreemptionCosts(Protocol):
    """The costs of a preemption on this cluster, in seconds."""

    @property
    def checkpoint_s(self) -> float: ...
    @property
    def restart_s(self) -> float: ...


class ClusterView(ABC):
    """The cluster at one instant. No protocol but a base class: compiled code looks a protocol's attributes up by name.

    ``jobs`` has every unfinished job. ``server_reservations`` are those that are not over: another object whenever the list has
    changed. A policy changes none of it.
    """

    now_s: float
    cluster: Cluster
    costs: PreemptionCosts
    jobs: Mapping[JobId, JobView]
    server_reservations: tuple[ServerReservation, ...]

    @abstractmethod
    def usable_gpus(self, server: ServerIndex) -> int:
        """GPUs of the server that may take new work: 0 while it is down, drained or removed."""

    @abstractmethod
    def free_gpus(self, server: ServerIndex) -> int:
        """GPUs held by no job on a usable server (reserved ones are free in this sense)."""

    @abstractmethod
    def spare(self, server: ServerIndex) -> Amounts | None:
        """CPUs and memory that no job holds; None for a server that states neither. Below 0 where jobs hold too much."""

    @abstractmethod
    def holding(self) -> Iterable[JobId]:
        """The jobs that hold GPUs. O(running); for :meth:`policies.base.Policy.rebuild`, not for a cycle."""


class ViewAt(ClusterView):
    """Another view at ``now_s``, without the methods that change what it shows. Its jobs progress as they do there."""

    def __init__(self, view: ClusterView, now_s: float) -> None:
        self.now_s = now_s
        self.cluster = view.cluster
        self.costs = view.costs
        self.jobs = view.jobs
        self.server_reservations = view.server_reservations
        self._view = view

    def usable_gpus(self, server: ServerIndex) -> int:
        """As there."""
        return self._view.usable_gpus(server)

    def free_gpus(self, server: ServerIndex) -> int:
        """As there."""
        return self._view.free_gpus(server)

    def spare(self, server: ServerIndex) -> Amounts | None:
        """As there."""
        return self._view.spare(server)

    def holding(self) -> Iterable[JobId]:
        """As there."""
        return self._view.holding()
