"""The policy protocol: one code for the live service and the simulator."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from policies.model.decision import Change, Decision
from policies.model.ids import JobId
from policies.model.reasons import Explanation
from policies.model.view import ClusterView


class PolicyState(Protocol):
    """A policy's own indexes. The policy alone reads and writes it; everyone else carries it."""

    def dump(self) -> dict[str, Any]:
        """What :meth:`Policy.rebuild` cannot recover from the jobs alone, as JSON (timers, virtual progress)."""


State = TypeVar("State", bound=PolicyState)


class Policy(Protocol[State]):
    """Orders and places jobs.

    Equal (view, changes, state) give an equal decision. A policy never assumes that its decision was applied: what was
    applied comes back as changes of the next call, what was not as ``REFUSED``. It may update ``state`` in place and must
    not change anything else that it is lent.
    """

    name: str

    def initial_state(self, view: ClusterView) -> State:
        """The state before any job: O(servers)."""

    def rebuild(self, view: ClusterView, dump: dict[str, Any] | None = None) -> State:
        """The state recovered from the jobs in ``view`` (and an earlier dump's residue): O(n log n)."""

    def decide(self, view: ClusterView, changes: Sequence[Change], state: State) -> Decision:
        """Consume the changes and decide: O((changes + actions) log n)."""

    def explain(self, view: ClusterView, state: State, job: JobId) -> Explanation:
        """Why the job is where it is, with numbers: O(log n + servers)."""
