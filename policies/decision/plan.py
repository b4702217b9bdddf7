"""The decision in progress. Each action is entered in the state as tentative at the same time, so that both agree."""

import math
from collections.abc import Sequence
from enum import Enum, auto

from policies.model.decision import Action, Decision, Preempt, Reserve, Start
from policies.model.ids import JobId
from policies.model.placement import Placement
from policies.model.reasons import Reason
from policies.model.resources import Demand, demand_of
from policies.model.view import ClusterView
from policies.state.scheduler_state import SchedulerState


class Outcome(Enum):
    """The outcome of trying one job."""

    PLACED = auto()
    """Started, or GPUs are being vacated for it."""
    DELAYED = auto()
    """It waits for a better placement, or for servers that are reserved for others; jobs of its class may be tried."""
    BLOCKED = auto()
    """It cannot start now, and no other job of its class can."""


def soonest_s(times_s: list[float]) -> float | None:
    """The first of the times; None without any. No ``min``: every cycle calls this, mostly with one or two."""
    soonest_s = math.inf
    for at_s in times_s:
        if at_s < soonest_s:
            soonest_s = at_s
    return soonest_s if times_s else None


class Plan:
    """Actions in order, changed reasons, and times at which to decide again."""

    __slots__ = ("_state", "_view", "actions", "reasons", "wakes_s")

    def __init__(self, view: ClusterView, state: SchedulerState) -> None:
        self._view = view
        self._state = state
        self.actions: list[Action] = []
        self.reasons: list[tuple[JobId, Reason]] = []
        self.wakes_s: list[float] = []

    @property
    def placed(self) -> set[JobId]:
        """The jobs that the actions are about. O(actions)."""
        return {action.job for action in self.actions}

    def start(self, job: JobId, placement: Placement) -> None:
        """Start a job on free GPUs."""
        self._state.ledger.start_tentatively(self._view, placement, self._demand(job))
        self._state.traffic.start_tentatively(self._view.jobs[job], self._view.cluster, placement)
        self.actions.append(Start(job, placement))

    def preempt(self, job: JobId, for_job: JobId | None = None) -> None:
        """Stop a running job."""
        held = self._view.jobs[job].placement
        assert held is not None
        self._state.ledger.leave_tentatively(self._view, job, held, self._demand(job))
        self._state.traffic.leave_tentatively(job)
        self.actions.append(Preempt(job, for_job))

    def reserve(self, job: JobId, placement: Placement, victims: Sequence[JobId] = ()) -> None:
        """Set GPUs aside for a job, and stop the jobs that hold them."""
        for victim in victims:
            self.preempt(victim, job)
        self._state.ledger.reserve_tentatively(self._view, job, placement, self._demand(job))
        self._state.traffic.start_tentatively(self._view.jobs[job], self._view.cluster, placement)
        self.actions.append(Reserve(job, placement))

    def explain(self, job: JobId, reason: Reason) -> None:
        """Publish why a job waits, if the reason has changed."""
        if self._state.reasons.set(job, reason):
            self.reasons.append((job, reason))

    def wake_at(self, at_s: float | None) -> None:
        """Decide again at this time at the latest; None: no limit."""
        if at_s is not None:
            self.wakes_s.append(at_s)

    def _demand(self, job: JobId) -> Demand | None:
        return demand_of(self._view.jobs[job].spec)

    def decision(self) -> Decision:
        """The decision."""
        return Decision(self.actions, self.reasons, soonest_s(self.wakes_s))
