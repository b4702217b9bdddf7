"""Decisions: the actions of a policy, and the changes that it receives in each cycle."""

from collections.abc import Sequence
from enum import StrEnum

from policies.model.ids import JobId, ServerIndex
from policies.model.placement import Placement
from policies.model.reasons import Reason
from policies.model.value import value


@value
class Start:
    """Give a waiting job these GPUs, all of them free now."""

    job: JobId
    placement: Placement


@value
class Preempt:
    """Stop a running job; ``for_job`` is the job that gets its GPUs (None: no particular one)."""

    job: JobId
    for_job: JobId | None = None


@value
class Reserve:
    """Keep these GPUs (free ones and ones being vacated) for a waiting job; None releases its reservation."""

    job: JobId
    placement: Placement | None


Action = Start | Preempt | Reserve


@value
class Decision:
    """Actions in the order they take effect, the jobs whose *reason* changed, and when to decide again at the latest."""

    actions: Sequence[Action] = ()
    reasons_changed: Sequence[tuple[JobId, Reason]] = ()
    wake_at_s: float | None = None


@value
class Foreseen:
    """From ``at_s`` on the next cycle stops these jobs, each ``for_job``."""

    at_s: float
    stops: tuple[Preempt, ...]

    def victims(self, job: JobId) -> tuple[JobId, ...]:
        """The jobs that are stopped for this one."""
        return tuple(stop.job for stop in self.stops if stop.for_job == job)

    def successor(self, job: JobId) -> JobId | None:
        """The job for which this one is stopped."""
        return next((stop.for_job for stop in self.stops if stop.job == job), None)


class ChangeKind(StrEnum):
    """What has changed for a policy. Each change is reported exactly once."""

    ARRIVED = "arrived"
    """The job may start now: new, requeued, released from hold, or its dependencies or back-off are over."""
    WITHDRAWN = "withdrawn"
    """The waiting job may not start any more: held or cancelled."""
    ESTIMATED = "estimated"
    """Its estimate (or its seconds per unit) changed."""
    REPRIORITIZED = "reprioritized"
    PROGRESSED = "progressed"
    """Its measured progress or speed changed."""
    STARTED = "started"
    """A Start was applied: ``placement`` is held."""
    PREEMPTING = "preempting"
    """It is being stopped (preempted or cancelled): its GPUs will be vacated."""
    VACATED = "vacated"
    """Its attempt ended: ``placement`` is free again. An ARRIVED follows if it may start again."""
    FINISHED = "finished"
    """It reached a terminal state (after VACATED where it held GPUs)."""
    RESERVED = "reserved"
    """A Reserve was applied: ``placement`` is set aside for the job (None: released)."""
    REFUSED = "refused"
    """An action on the job was not applied, for ``reason``."""
    SERVER_CHANGED = "server_changed"
    """A server was added, failed, drained or came back."""


@value
class Change:
    """One change. ``job`` is None only for SERVER_CHANGED, which sets ``server``."""

    kind: ChangeKind
    job: JobId | None = None
    placement: Placement | None = None
    server: ServerIndex | None = None
    reason: Reason | None = None
