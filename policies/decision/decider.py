"""What the parts of a decision need of the policy that decides."""

import math
from abc import ABC, abstractmethod
from typing import ClassVar

from policies.choose import Candidate
from policies.model.ids import JobId
from policies.model.reasons import Reason
from policies.model.view import ClusterView, JobView
from policies.options import Options
from policies.placement.pool import FreePool
from policies.rank import Rank
from policies.rules.protocols import PreemptionRule
from policies.state.scheduler_state import SchedulerState


class Decider(ABC):
    """A policy that ranks and places jobs, see :class:`policies.ranked.RankedPolicy`. No protocol but a base class: compiled code
    looks a protocol's methods up by name."""

    options: Options
    preemption_rules: tuple[PreemptionRule, ...]
    ranks_keep_to_lines: ClassVar[bool]

    @abstractmethod
    def find(self, pool: FreePool, view: ClusterView, job: JobView) -> Candidate | None:
        """The placement that the job would get of that pool now."""

    @abstractmethod
    def rank(self, view: ClusterView, job: JobView, state: SchedulerState) -> Rank:
        """The job's rank now; smaller comes first."""

    @abstractmethod
    def rank_per_s(self, job: JobView, state: SchedulerState) -> float:
        """What one second of the job's own time counts in the unit of ranks."""

    @abstractmethod
    def on_arrival(self, view: ClusterView, job: JobView, state: SchedulerState) -> None:
        """Index a job that may start now."""

    @abstractmethod
    def on_withdrawal(self, job: JobId, state: SchedulerState) -> None:
        """A waiting job may not start any more, or has ended."""

    @abstractmethod
    def on_resize(self, view: ClusterView, state: SchedulerState, gpus_before: int) -> bool:
        """Index all jobs again; return whether a running job is easier to displace than before."""

    @abstractmethod
    def index_running(
        self, view: ClusterView, job: JobView, state: SchedulerState, rank_waiting: float = -math.inf
    ) -> bool:
        """Index a running job; return whether it is easier to displace than before."""

    @abstractmethod
    def waiting_reason(self, state: SchedulerState, job: JobId) -> Reason:
        """Why a job waits that was not tried."""
