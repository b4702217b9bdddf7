"""The policy protocol: one code for the live service and the simulator."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from policies.decision.queue_order import QueueSlice, QueueWanted
from policies.model.decision import Change, Decision
from policies.model.ids import JobId
from policies.model.reasons import Explanation
from policies.model.shares import Shares
from policies.model.view import ClusterView


class PolicyState(Protocol):
    """A policy's own indexes. Only the policy reads and writes it."""

    def dump(self) -> dict[str, Any]:
        """What :meth:`Policy.rebuild` cannot recover from the jobs alone, as JSON (timers, virtual progress)."""


State = TypeVar("State", bound=PolicyState)


class Policy(Protocol[State]):
    """Orders and places jobs.

    Equal (view, changes, state) give an equal decision. A policy never assumes that its decision was applied: actions that
    were applied come back as changes of the next call, others as ``REFUSED``. It may update ``state`` in place and changes
    nothing else.
    """

    @property
    def name(self) -> str: ...

    def initial_state(self, view: ClusterView) -> State:
        """The state before any job: O(servers)."""

    def rebuild(self, view: ClusterView, dump: dict[str, Any] | None = None) -> State:
        """The state recovered from the jobs in ``view`` and an earlier dump: O(n log n)."""

    def decide(self, view: ClusterView, changes: Sequence[Change], state: State) -> Decision:
        """Index the changes and decide: O((changes + actions) log n)."""

    def explain(self, view: ClusterView, state: State, job: JobId) -> Explanation:
        """Why the job is where it is, with numbers. O(running + servers) and a few scans."""


class QueuePolicy(Policy[State], Protocol[State]):
    """A policy that has one order of its waiting jobs."""

    def queue(self, view: ClusterView, state: State, wanted: QueueWanted) -> QueueSlice:
        """A part of the queue in the order in which the next decision considers its jobs."""


def queue_of(policy: Policy[Any], view: ClusterView, state: Any, wanted: QueueWanted) -> QueueSlice:
    """The same of any policy: one that is no :class:`QueuePolicy` has no job in the order."""
    order = getattr(policy, "queue", None)
    if order is None:
        return QueueSlice(
            (), 0, tuple(wanted.among or ()), f"Policy {policy.name} does not state the order of its queue."
        )
    found: QueueSlice = order(view, state, wanted)
    return found


def promised_end_s(policy: Policy[Any], state: Any, job: JobId) -> float | None:
    """The end that an unfinished job was promised, if the policy has a method ``promised_end_s`` and has promised one."""
    promised = getattr(policy, "promised_end_s", None)
    found: float | None = None if promised is None else promised(state, job)
    return found


def shares_of(policy: Policy[Any], view: ClusterView, state: Any) -> Shares:
    """What the policy has counted, if it has a method ``shares``."""
    counted = getattr(policy, "shares", None)
    found: Shares = Shares() if counted is None else counted(view, state)
    return found
