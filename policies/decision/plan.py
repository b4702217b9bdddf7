"""A decision in the making: what goes into it is pencilled into the book at the same time, so that both agree."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from policies.model.decision import Action, Preempt, Reserve, Start
from policies.model.ids import JobId
from policies.model.placement import Placement
from policies.model.reasons import Reason
from policies.model.view import ClusterView
from policies.state.scheduler_state import SchedulerState


class Outcome(Enum):
    """What came of trying one job."""

    PLACED = auto()
    """Started, or GPUs are being vacated for it."""
    DELAYED = auto()
    """It could start but waits: for a better placement, or because the servers are set aside for others."""
    BLOCKED = auto()
    """Nothing can be done for it now, nor for anyone behind it in its class."""


@dataclass(slots=True)
class Plan:
    """Actions in their order, changed reasons, and instants at which to ask again."""

    actions: list[Action] = field(default_factory=list)
    reasons: list[tuple[JobId, Reason]] = field(default_factory=list)
    wakes_s: list[float] = field(default_factory=list)

    @property
    def placed(self) -> set[JobId]:
        """The jobs that the actions are about. O(actions)."""
        return {action.job for action in self.actions}

    def start(self, view: ClusterView, state: SchedulerState, job: JobId, placement: Placement) -> None:
        """Start a job on free GPUs."""
        state.pencil_start(view, placement)
        self.actions.append(Start(job, placement))

    def reserve(
        self, view: ClusterView, state: SchedulerState, job: JobId, placement: Placement, victims: Sequence[JobId] = ()
    ) -> None:
        """Set GPUs aside for a job, and stop the jobs that hold them."""
        for victim in victims:
            held = view.jobs[victim].placement
            assert held is not None
            state.pencil_leave(view, victim, held)
            self.actions.append(Preempt(victim, for_job=job))
        state.pencil_claim(view, job, placement)
        self.actions.append(Reserve(job, placement))

    def note(self, state: SchedulerState, job: JobId, reason: Reason) -> None:
        """Say why a job waits, unless that was said before."""
        if state.reasons.get(job) is not reason:
            state.reasons[job] = reason
            self.reasons.append((job, reason))
